"""The noisy accuracy on private rows: what it releases, what it costs, and versions that break."""

import json

import numpy as np
import pytest
from scipy.stats import beta

from dynadp.data import Label, Numeric, Schema
from dynadp.errors import BudgetRefused, DeclarationError, SeededRefused
from dynadp.mechanisms import OrderedDraws, private_accuracy, released_accuracies
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sampling import grid_step
from dynadp.planning import Plan
from dynadp.privacy import Cap, L2Laplace, Ledger
from dynadp.runs import Model, evaluate_privately

ALPHA, ROWS, DRAWS = 1.0, 40, 20_000
STAMP = {"who": "tests", "at": "2026-03-01T12:00:00+00:00"}


def correct(right, stay, draws):
    return private_accuracy(right, ROWS, ALPHA, node="north", draws=draws).accuracy


def half_the_noise(right, stay, draws):
    return private_accuracy(right, ROWS, 2 * ALPHA, node="north", draws=draws).accuracy


def undeclared_count(right, stay, draws):
    """Divides by the number of rows that stay, which depends on cells."""
    return private_accuracy(right, stay, ALPHA, node="north", draws=draws).accuracy


def on_the_grid(x):
    """Whether a number is one that N = ROWS can give."""
    step = grid_step(np.array(1 / ALPHA)) / ROWS
    return np.abs(x - np.round(np.rint(x / step) * step, 6)) < 1e-9


EVENTS = {
    "above": lambda x: x > 21 / ROWS,
    "below": lambda x: x < 20 / ROWS,
    "far above": lambda x: x > 23 / ROWS,
    "on the grid": on_the_grid,
}


def drawn(release, facts, seed):
    draws = OrderedDraws(np.random.default_rng(seed), seeded=True)
    return np.array([release(*facts, draws) for _ in range(DRAWS)])


def least_loss(release):
    """The largest ln(P(S)/Q(S)) that draws show, but for one chance in 10^4, over sets S and two
    neighbouring data sets: a row that was answered right is replaced by one that is dropped.
    """
    worlds = drawn(release, (21, ROWS), 1), drawn(release, (20, ROWS - 1), 2)
    found = []
    for inside in EVENTS.values():
        counts = [int(inside(world).sum()) for world in worlds]
        for first, second in (counts, counts[::-1]):
            low = beta.ppf(1e-5, first, DRAWS - first + 1) if first else 0.0
            high = beta.ppf(1 - 1e-5, second + 1, DRAWS - second) if second < DRAWS else 1.0
            found.append(np.log(low / high) if low else -np.inf)
    return max(found)


def test_its_density_ratio_stays_within_alpha():
    assert 0.8 * ALPHA < least_loss(correct) <= ALPHA


@pytest.mark.parametrize("naive", [half_the_noise, undeclared_count])
def test_naive_versions_lose_more(naive):
    assert least_loss(naive) > 1.5 * ALPHA


def test_the_event_says_what_it_costs():
    found = private_accuracy(30, ROWS, 0.5, node="north", draws=SeededEntropy(1))
    assert found.event == L2Laplace("north", 0, "evaluation", 0.5, 1, seeded=True)
    assert (found.rows, found.noise) == (ROWS, 1 / (0.5 * ROWS))
    assert json.loads(found.message) == found.accuracy


def test_noise_has_the_declared_scale():
    right = np.array([correct(20, ROWS, SeededEntropy(i)) for i in range(4000)])
    inside = (right > 0) & (right < 1)
    assert np.mean(np.abs(right[inside] - 0.5)) == pytest.approx(1 / (ALPHA * ROWS), rel=0.06)


@pytest.mark.parametrize("alpha", [1e-6, 1.0, 1e6])
def test_it_stays_between_0_and_1(alpha):
    for right in (0, ROWS, 10 * ROWS):
        for seed in range(20):
            draws = SeededEntropy(seed)
            found = private_accuracy(right, ROWS, alpha, node="north", draws=draws)
            assert 0 <= found.accuracy <= 1
    assert private_accuracy(ROWS, ROWS, 1e6, node="n", draws=SeededEntropy(0)).accuracy > 0.99


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"alpha": 0.0}, "alpha is 0.0; expected a finite number above 0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"rows": 0}, "rows is 0; expected a whole number from 1"),
        ({"rows": 2.5}, "rows is 2.5"),
        ({"rows": None}, "rows is None"),
    ],
)
def test_declarations_that_are_refused(change, match):
    given = {"right": 1, "rows": ROWS, "alpha": 1.0} | change
    with pytest.raises(DeclarationError, match=match):
        private_accuracy(**given, node="north", draws=SeededEntropy(0))


# ---- with its ledger


def model(missing=0.0):
    columns = (Numeric(name="x", low=-1, high=1, missing=missing),)
    schema = Schema(columns=columns, label=Label(name="y", negative="no", positive="yes"))
    vector = np.eye(schema.dimension)[0]
    return Model.of(vector, schema, Plan())


def table(cells):
    return {"x": np.array(cells, dtype=object), "y": np.array(["yes"] * len(cells), dtype=object)}


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "north.sqlite", "north", **STAMP) as ledger:
        ledger.set_cap(Cap.of(1000.0, 1e-5), **STAMP)
        yield ledger


def test_it_is_charged_to_the_ledger(ledger):
    how = {"dataset": "rows", "who": "tests"}
    found = evaluate_privately(model(), table([0.5] * 30 + [-0.5] * 10), ledger, alpha=400.0, **how)
    assert found.accuracy == pytest.approx(0.75, abs=0.005)
    assert ledger.spent() == [L2Laplace("north", 0, "evaluation", 400.0, 1)]
    (kept,) = released_accuracies(ledger)
    assert (kept["alpha"], kept["accuracy"]) == (400.0, found.accuracy)
    with pytest.raises(BudgetRefused, match="a smaller epsilon or alpha"):
        evaluate_privately(model(), table([0.5]), ledger, alpha=700.0, **how)
    with pytest.raises(SeededRefused):
        evaluate_privately(model(), table([0.5]), ledger, alpha=1.0, draws=SeededEntropy(1), **how)
    assert len(ledger.spent()) == 1


def test_a_public_number_of_rows_is_declared_where_rows_may_be_dropped(ledger):
    how = {"alpha": 1.0, "dataset": "rows", "who": "tests"}
    with pytest.raises(DeclarationError, match="declare a public number"):
        evaluate_privately(model("drop"), table([0.5, None]), ledger, **how)
    shown = [
        evaluate_privately(model("drop"), table(cells), ledger, rows=2, **how)
        for cells in ([0.5, 0.5], [0.5, None])
    ]
    assert {(found.rows, found.noise) for found in shown} == {(2, 0.5)}
    with pytest.raises(DeclarationError, match="rows is 0"):
        evaluate_privately(model("drop"), table([0.5]), ledger, rows=0, **how)
    with pytest.raises(DeclarationError, match="rows has 1 rows and none are dropped"):
        evaluate_privately(model(), table([0.5]), ledger, rows=2, **how)
