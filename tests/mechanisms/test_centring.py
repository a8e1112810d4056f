import numpy as np
import pytest
from scipy import stats

from dynadp.data.columns import Categorical, Numeric, onto_simplex
from dynadp.data.datasets.synthetic import census
from dynadp.data.labels import Target
from dynadp.data.schema import Label, Schema
from dynadp.data.survey import FeatureSums, feature_sums
from dynadp.errors import DeclarationError
from dynadp.mechanisms.centring import centred, private_centre
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy

HATS = Numeric(name="gain", low=0, high=100, encode=("hats",), knots=(0, 10, 100), weight=2.0)
COLUMNS = (
    Numeric(name="age", low=0, high=100, encode=("linear", "square"), weight=1.5),
    Numeric(name="hours", low=0, high=99, signed=False),
    HATS,
    Categorical(name="trade", values=("a", "b", "c")),
    Categorical(name="sex", values=("f", "m"), other="column", weight=0.5),
)
SCHEMA = Schema(columns=COLUMNS, label=Label(name="y", negative=0, positive=1))


def random_cell(column, rng):
    if column.kind == "numeric":
        return rng.choice([column.low, column.high, rng.uniform(column.low, column.high)])
    return rng.choice([*column.values, "unlisted"])


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: c.name)
def test_no_cell_moves_its_features_further_than_the_diameter(column):
    plan = Schema(columns=(column,), label=SCHEMA.label, scaling="none", intercept=0.0)
    rng = np.random.default_rng(0)
    cells = np.array([random_cell(column, rng) for _ in range(300)], dtype=object)
    rows = plan.rows({column.name: cells}).toarray()
    apart = np.sum((rows[:, None] - rows[None]) ** 2, axis=-1)
    assert apart.max() <= column.diameter2 * (1 + 1e-12)
    if column.kind == "categorical" or column.encode != ("linear", "square"):
        assert apart.max() >= 0.99 * column.diameter2  # and some pair does move that far


def test_means_project_to_themselves_and_others_to_the_nearest_point():
    assert onto_simplex(np.array([0.2, 0.3, 0.5]), full=True) == pytest.approx([0.2, 0.3, 0.5])
    assert onto_simplex(np.array([2.0, 0.0]), full=True) == pytest.approx([1.0, 0.0])
    assert onto_simplex(np.array([0.1, -0.3]), full=False) == pytest.approx([0.1, 0.0])
    assert onto_simplex(np.array([0.9, 0.9]), full=False) == pytest.approx([0.5, 0.5])
    for column in COLUMNS:
        far = column.project(np.random.default_rng(1).normal(size=len(column.features)) * 50)
        np.testing.assert_allclose(column.project(far), far, atol=1e-12)


def table(rows, seed):
    rng = np.random.default_rng(seed)
    cells = {
        c.name: np.array([random_cell(c, rng) for _ in range(rows)], dtype=object) for c in COLUMNS
    }
    return {**cells, "y": rng.integers(0, 2, rows)}


def test_a_replaced_row_moves_the_message_by_no_more_than_what_the_noise_covers():
    """Same draws, one row replaced: alpha times the shift over Delta is at most alpha, and the
    noise is l2-Laplace in it.
    """
    B, alpha = 20, 0.7
    first = table(B, 0)
    worst = 0.0
    for seed in range(30):
        other = {
            name: np.concatenate([table(1, 100 + seed)[name], cells[1:]])
            for name, cells in first.items()
        }
        a, b = (
            private_centre(
                SCHEMA, [feature_sums(SCHEMA, rows)], ["n"], alpha, SeededEntropy(5)
            ).messages[0]
            for rows in (first, other)
        )
        worst = max(worst, np.linalg.norm(a - b))
    D = np.sqrt(sum(c.diameter2 for c in COLUMNS))
    assert 0.5 * D / B < worst <= D / B * 1.01  # the grid rounds by a thousandth of the noise


def test_noise_covers_the_whole_diameter():
    """(alpha B/D) ||message - mean|| ~ Gamma(d - 1)."""
    rows, alpha = table(20, 0), 0.7
    raw = SCHEMA.model_copy(update={"scaling": "none", "intercept": 0.0}).rows(rows)
    mean, D = np.asarray(raw.mean(axis=0)).ravel(), np.sqrt(sum(c.diameter2 for c in COLUMNS))
    found = [
        private_centre(
            SCHEMA, [feature_sums(SCHEMA, rows)], ["n"], alpha, SeededEntropy(seed)
        ).messages[0]
        - mean
        for seed in range(400)
    ]
    assert (
        stats.kstest(
            np.linalg.norm(found, axis=1) * alpha * 20 / D, stats.gamma(len(mean)).cdf
        ).pvalue
        > 1e-6
    )


def test_many_rows_and_a_large_alpha_give_the_mean():
    data = census(20_000, nodes=4, heterogeneity=0.5)
    tables = list(data.tables("abcd").values())
    sums = [feature_sums(data.schema, table) for table in tables]
    found = private_centre(data.schema, sums, list("abcd"), 50.0, SystemEntropy())
    raw = data.schema.model_copy(update={"norm": 1.0, "scaling": "none", "intercept": 0.0}).rows(
        data.train
    )
    np.testing.assert_allclose(found.centre, np.asarray(raw.mean(axis=0)).ravel(), atol=0.01)
    assert [(e.node, e.round, e.purpose, e.alpha) for e in found.events] == [
        (n, 0, "centring", 50.0) for n in "abcd"
    ]
    assert not found.seeded
    centred = found.applied(data.schema)
    rows = centred.rows(tables[0])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0)
    assert centred.shard(tables[0]).dimension == data.schema.dimension


def test_a_centre_without_noise_would_be_the_mean_and_is_never_sent():
    data = census(500, nodes=1)
    found = private_centre(
        data.schema, [feature_sums(data.schema, data.train)], ["n"], 1.0, SeededEntropy(0)
    )
    raw = data.schema.model_copy(update={"norm": 1.0, "scaling": "none", "intercept": 0.0}).rows(
        data.train
    )
    assert not np.isclose(
        found.messages[0], np.asarray(raw.mean(axis=0)).ravel(), rtol=0, atol=1e-12
    ).any()
    assert found.seeded


def test_rows_that_are_dropped_do_not_count():
    plan = Schema(
        columns=(Numeric(name="x", low=0, high=1, missing="drop"),),
        label=Label(name="y", negative=0, positive=1),
    )
    whole, gaps = {"x": [1.0] * 4, "y": [0] * 4}, {"x": [1.0, np.nan, 1.0, 1.0, 1.0], "y": [0] * 5}
    a, b = (
        private_centre(plan, [feature_sums(plan, rows)], ["n"], 1.0, SeededEntropy(0)).messages
        for rows in (whole, gaps)
    )
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("noise", ["l2-laplace", "gaussian"])
def test_features_that_cannot_be_added_exactly_are_refused(noise):
    """A sum that is rounded on its way moves, where a row is replaced, by what all others are
    rounded by too.
    """
    heavy = Schema(
        columns=(Numeric(name="x", low=0, high=1, weight=1e6),),
        label=Label(name="y", negative=0, positive=1),
    )
    sums = [FeatureSums(10_000, np.array([3e9]))]
    with pytest.raises(DeclarationError, match="cannot be added exactly"):
        private_centre(heavy, sums, ["n"], 1.0, SeededEntropy(0), noise)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf])
def test_alpha_is_checked(alpha):
    with pytest.raises(DeclarationError, match="alpha"):
        private_centre(SCHEMA, [feature_sums(SCHEMA, table(3, 0))], ["n"], alpha, SeededEntropy(0))


def test_a_schema_with_a_centre_is_refused():
    plan = SCHEMA.model_copy(update={"centre": (0.0,) * (SCHEMA.dimension - 1)})
    with pytest.raises(DeclarationError, match="has a centre already"):
        private_centre(plan, [feature_sums(SCHEMA, table(3, 0))], ["n"], 1.0, SeededEntropy(0))


def test_rows_about_a_centre_keep_their_length_where_a_number_is_answered():
    """Rows with a label are scaled to norm 1; those with a target shortened, if they are long."""
    centre, target = np.zeros(SCHEMA.feature_count), Target(name="y", low=0, high=9)
    assert centred(SCHEMA, centre).scaling == "unit"
    number = SCHEMA.model_copy(update={"label": target})
    usual = np.sqrt(1 + sum(column.diameter2 for column in COLUMNS) / 32)
    found = centred(number, centre)
    assert (found.scaling, found.norm) == ("clip", pytest.approx(usual))
    longer = centred(number.model_copy(update={"norm": 2.0}), centre)
    assert (longer.scaling, longer.norm) == ("clip", 2.0)
    lengths = np.linalg.norm(longer.rows(table(300, 0)), axis=1)
    assert lengths.max() == pytest.approx(1.0)
    assert lengths.min() < 0.95
    unit = number.model_copy(update={"scaling": "unit"})
    assert centred(unit, centre).scaling == "unit"
