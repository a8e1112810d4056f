"""What a neighbour sees of each kind of run: everything without noise, and no more than is stated
with it.
"""

import numpy as np
import pytest

from dynadp.data.datasets.synthetic import census
from dynadp.errors import DeclarationError
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import CellNoise, Sum
from dynadp.privacy.accountant import total
from dynadp.privacy.units import Unit
from dynadp.problem.labels import cells
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SquaredL2
from dynadp.problem.residual_losses import Huber, PseudoHuber
from dynadp.problem.softmax import Softmax
from dynadp.problem.solver import solve
from dynadp.research.attacks import Setting, membership
from dynadp.research.attacks.neighbours import look
from dynadp.research.attacks.rows import dense, parted, shard_of, with_other_answer
from dynadp.research.attacks.sums import without_noise
from dynadp.research.attacks.transcript import listen, log_density, planned

ADDED = Unit(adjacency="add-remove")
KINDS = {
    "dual": {},
    "primal, rows added": {"adjacency": "add-remove"},
    "dual, a number, rows added": {"answer": "a number", "adjacency": "add-remove"},
    "primal, a number": {"answer": "a number"},
    "sum": {},
    "sum, histogram": {"histogram": True},
    "sum, rows added, histogram": {"adjacency": "add-remove", "histogram": True},
    "sum, several values": {"answer": "several values"},
    "sum, a number": {"answer": "a number"},
    "sealed, histogram": {"histogram": True},
    "sealed, several values, rows added": {"answer": "several values", "adjacency": "add-remove"},
    "sealed, a number": {"answer": "a number"},
}
FIRST = ("dual, a number, rows added", "sum, several values")
EACH = [pytest.param(name, marks=() if name in FIRST else pytest.mark.slow) for name in KINDS]


@pytest.mark.parametrize("name", EACH)
def test_all_is_read_without_noise_and_no_more_than_is_stated_with_a_budget(name):
    mechanism, kind = name.partition(",")[0], KINDS[name]
    found = look(1.0, mechanism, rows=12, runs=100, **kind)
    shares = [share for share, _ in found.plain.shares.values()]  # the answer's is the last
    clipped = found.answer == "a number" and mechanism in ("sum", "sealed")
    assert shares[:-1] == [1.0] * 10
    # clipped squares say of a number far from all points on which side it lies, and no more
    assert (shares[-1] > 0.4) if clipped else (shares[-1] == 1)
    assert found.certain.right == 1.0
    assert found.plain.epsilon == found.certain.epsilon == np.inf
    assert found.noisy.epsilon == pytest.approx(1.0, rel=3e-3)
    assert found.noisy.epsilon <= 1.0
    assert found.noisy.interval.lower < found.noisy.guessing < found.noisy.interval.upper
    assert found.asked.interval.lower <= found.asked.right_bound < 0.6
    assert found.asked.adjacency == found.adjacency == kind.get("adjacency", "replace")
    shown = found.to_json()
    assert (shown["mechanism"], shown["answer"]) == (mechanism, kind.get("answer", "two values"))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_same_neighbour_wins_where_a_budget_hides_little(name):
    loud = look(3000.0, name.partition(",")[0], rows=6, runs=50, **KINDS[name])
    assert loud.asked.right > 0.9
    assert loud.noisy.recovered > loud.noisy.guessing


def data_of(loss):
    kinds = {"classes": {"classes": 5}, "numbers": {"target": True}}
    return census(300, seed=3, nodes=3, **kinds.get(loss.kind, {}))


def pair_of(shard, unit=None):
    rows = dense(shard)
    other = np.zeros_like(rows[0]) if unit else with_other_answer(rows[0], shard)
    return rows[1:], np.stack([rows[0], other])


LAWS = [
    (Sum(), 0.2, Softmax(), None),
    (Sum(), 0.2, Huber(), None),
    (Sum(histogram=8), 0.2, Setting().loss, None),
    (Sum(histogram=8), 0.2, Setting().loss, ADDED),
    (Dual(), 1.0, PseudoHuber(), None),
    (Primal(), 1.0, PseudoHuber(), ADDED),
    (Dual(), 0.5, Setting().loss, ADDED),
    (Sealed(honest=2, spares=0, histogram=8), 0.2, Setting().loss, None),
]


@pytest.mark.parametrize(("mechanism", "alpha", "loss", "unit"), LAWS)
def test_a_likelihood_ratio_averages_to_one(mechanism, alpha, loss, unit):
    """E[q/p] = 1 under p: a wrong law of the noise, or a wrong sum, would not keep it."""
    shards = data_of(loss).shards()
    rest, pair = pair_of(shards[1], unit)
    setting = Setting(rounds=4, loss=loss, unit=unit or Unit())
    told = listen(shards, mechanism, alpha, setting, 500, seed=1)
    density = log_density(told, rest, pair)
    ratio = np.exp((density[:, 1] - density[:, 0]).sum(axis=-1))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))
    assert ratio.std() > 0.03


@pytest.mark.parametrize("mechanism", [Dual(), Primal()])
def test_the_likelihood_with_numbers_is_that_of_the_whole_problem(mechanism):
    """Against argmins and determinants of the problem with all rows, solved and taken anew."""
    loss = PseudoHuber()
    shards, s = data_of(loss).shards(), Setting(rounds=3, loss=loss)
    rest, pair = pair_of(shards[1])
    told = listen(shards, mechanism, 0.5, s, 2, seed=7)
    found = log_density(told, rest, pair)
    exact = np.empty_like(found)
    for j, row in enumerate(pair):
        x, t = parted(np.vstack([rest, row]), loss)
        given = [x], loss, SquaredL2(), s.C, s.rho
        problem = StackedProblem(*given, storage="dense", targets=[t])
        for n, heard in enumerate(told.heard()):
            for k in range(2):
                V, b = heard.V[:, k : k + 1], heard.b[:, k : k + 1]
                if not heard.noise.inside:
                    g = solve(problem, heard.q, b, np.full((1, 1), 1e-9), V).point
                    exact[k, j, n] = -heard.noise.outer[0, 0] * np.linalg.norm(V - g)
                else:
                    H = problem.hessians(V, problem.margins(V))[0, 0]
                    e = np.linalg.norm(problem.gradient(V, heard.q, b)) * 100
                    H = H + heard.q[0, 0] * np.eye(51)
                    exact[k, j, n] = -heard.noise.inner[0, 0] * e + np.linalg.slogdet(H)[1]
    differences = (found - found[:, :1]) - (exact - exact[:, :1])
    np.testing.assert_allclose(differences, 0, atol=1e-3)
    assert np.abs(exact - exact[:, :1]).max() > 0.05


def test_the_likelihood_of_a_histogram_is_that_of_its_counts():
    shards, mu = data_of(Setting().loss).shards(), 0.5
    rest, pair = pair_of(shards[1])
    told = listen(shards, Sum(histogram=8), mu, Setting(rounds=4), 3, seed=7)
    found = log_density(told, rest, pair)[..., -1]
    *_, (point, V, noise) = told.heard()
    assert isinstance(noise, CellNoise)
    for k in range(3):
        exact = []
        for row in pair:
            rows = np.vstack([rest, row])
            y = np.sign(rows[:, -1])
            counts = cells(y * (rows @ point.model[k]), y, point.edges[k])
            exact.append(-np.sum((V[k] - counts) ** 2) / (2 * (np.sqrt(2) / mu) ** 2))
        assert found[k, 1] - found[k, 0] == pytest.approx(exact[1] - exact[0], abs=1e-6)
    assert np.ptp(found) > 0.01


def test_noise_for_rows_that_are_there_or_not_is_not_asked_about_replacements():
    """It hides a replacement half as well: with such noise the older question passes the bound."""
    shards = data_of(Setting().loss).shards()
    added, replaced = Setting(rounds=20, unit=ADDED), Setting(rounds=20)
    plans = [planned(shards, Sum(), 0.1, one) for one in (added, replaced)]
    own = [[e for e in plan.events if e.node == plan.bound.nodes[1]] for plan in plans]
    stated, twice = total(own[0], 1e-5).epsilon, total(own[1], 1e-5).epsilon
    assert stated == pytest.approx(twice)  # the same mu is of another question
    noises = [plan.release_plan.noises[0] for plan in plans]
    deviations = [float((one.parameter * one.step)[0, 0]) for one in noises]
    assert deviations[1] == pytest.approx(2 * deviations[0], rel=1e-3)
    found = membership(shards, Sum(), 1.0, setting=added, runs=200)["transcript"]
    assert found.interval.lower <= found.right_bound


def test_sums_without_noise_are_those_of_a_run_whose_noise_is_left_out(monkeypatch):
    from dynadp.mechanisms import gaussian

    monkeypatch.setattr(
        gaussian, "discrete_gaussian", lambda rng, sigma, size: np.zeros(size, np.int64)
    )
    shards, s = data_of(Softmax()).shards(), Setting(rounds=5, loss=Softmax())
    told = listen(shards, Sum(), 0.5, s, 1, seed=1)
    silent = without_noise(shards, planned(shards, Sum(), 0.5, s), s)
    for heard, made in zip(told.messages, silent.messages, strict=True):
        np.testing.assert_allclose(heard, made, atol=1e-9)
    assert np.abs(silent.messages[-1]).max() > 0.1


def test_rows_and_their_answers():
    for loss in (Setting().loss, Softmax(), Huber()):
        (shard, *_) = data_of(loss).shards()
        rows = dense(shard)
        made = shard_of(rows, shard)
        assert (made.kind, made.classes, made.rows) == (shard.kind, shard.classes, shard.rows)
        x, y = parted(rows, loss)
        signed = shard.signed if isinstance(shard.signed, np.ndarray) else shard.signed.toarray()
        np.testing.assert_array_equal(x, signed)
        other = with_other_answer(rows[0], shard)
        assert (other != rows[0]).any()
        if y is not None:
            np.testing.assert_array_equal(other[:-1], rows[0, :-1])
            assert other[-1] in (range(5) if loss.kind == "classes" else (-1.0, 1.0))


def test_what_is_no_answer_is_refused():
    with pytest.raises(DeclarationError, match="expected one of two values"):
        look(1.0, answer="words")
