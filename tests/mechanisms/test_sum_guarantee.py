"""The guarantee of sums, attacked: events never promise less than noise covers, and what a row adds
is a function of that row alone.
"""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dynadp.consensus.topology import Topology
from dynadp.data import FEATURE_STEP, Shard
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.datasets.synthetic import census
from dynadp.data.encoding import Blocks
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.row_blocks import CodedBlock, StoredBlock
from dynadp.data.schema import Label, Schema
from dynadp.data.survey import FeatureSums
from dynadp.errors import DeclarationError
from dynadp.mechanisms import centring
from dynadp.mechanisms.base import PublicNumbers
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sums import Sum
from dynadp.problem.integer_rows import (
    FURTHEST,
    IntegerRows,
    Resolution,
    StreamedIntegerRows,
    on_point_grid,
)
from dynadp.problem.losses import HuberHinge, Logistic
from dynadp.runs.training import train

DATA, RING = census(300, seed=3, nodes=3), Topology.family("ring", 3)
MUS = st.floats(1e-6, 10.0)
ROWS, COLUMNS = st.integers(1, 10**7), st.integers(1, 500)


def public_numbers(rows, columns, gamma=0.0):
    one = np.ones(1)
    return PublicNumbers(
        np.array([float(rows)]),
        2 * one,
        columns,
        one,
        0.01,
        one,
        np.full((1, 1), gamma),
        Logistic(),
    )


def above(value, square):
    """Whether value >= sqrt(square), in rational numbers."""
    return value >= 0 and value**2 >= square


# --------------------------------------------------------------------------------------------------
# mu >= Delta/s, in rational numbers


@given(ROWS, COLUMNS, MUS)
def test_the_events_of_sums_cover_their_sensitivity(rows, columns, mu):
    """Delta is what two rows add at most, and s what the sampler is given."""
    both = Sum(second_moment=True).plan(public_numbers(rows, columns), np.full((1, 1, 2), mu))
    for noise, moment in zip(both, (True, False), strict=True):
        (event,) = noise.events(["node"], 1, columns)
        resolution, claimed = noise.resolution, Fraction(event.mu)
        steps = Fraction(resolution.step) ** 2 / Fraction(float(noise.step[0, 0]))
        assert steps.denominator == 1  # a sum is a whole number of steps
        s = Fraction(float(noise.parameter[0, 0]))
        if not moment:
            assert claimed * s >= 2 * resolution.gradient * steps
            continue
        assert above(claimed * s, 2 * (resolution.moment * steps) ** 2)
        upper = Fraction(float(noise.parameter[0, 0] / np.sqrt(2.0)))
        # above the diagonal each entry stands for two; the 1e-12 covers the root's rounding
        assert above(claimed * upper, (resolution.moment * steps) ** 2)


@given(COLUMNS, MUS, st.floats(0, 1e-3))
def test_the_event_of_a_gaussian_primal_release_covers_the_rounding_to_steps(columns, mu, gamma):
    public = public_numbers(100, columns, gamma)
    noise = Primal(noise="gaussian").noise_for(public, np.full((1, 1), mu))
    (event,) = noise.events(["node"], 1, columns)
    step, s = Fraction(float(noise.step[0, 0])), Fraction(float(noise.parameter[0, 0]))
    Lam = Fraction(public.rho) + 2 * 2
    delta = (2 * Fraction(float(public.weight[0, 0])) + 2 * Fraction(gamma)) / Lam
    assert above(Fraction(event.mu) * s - delta / step, columns)


SCHEMA = Schema(
    columns=(
        Numeric(name="age", low=0, high=100, weight=3.0),
        Categorical(name="word", values=("a", "b", "c")),
    ),
    label=Label(name="y", negative=0, positive=1),
)


@given(MUS, st.integers(1, 10**8))
def test_the_event_of_centring_covers_rounded_features(mu, rows):
    noise = centring._gaussian(SCHEMA, np.array([float(rows)]), np.array([mu]))
    (event,) = centring.centring_events(["node"], [mu], SCHEMA.feature_count, "gaussian", seeded=0)
    step, s = Fraction(float(noise.step[0, 0])), Fraction(float(noise.parameter[0, 0]))
    assert (Fraction(FEATURE_STEP) / step).denominator == 1
    diameter = Fraction(sum(column.diameter2 for column in SCHEMA.columns))
    rounding = Fraction(FEATURE_STEP) ** 2 * SCHEMA.feature_count
    # mu s h >= D + r, squared twice
    least = (Fraction(event.mu) * s * step) ** 2 - diameter - rounding
    assert least >= 0
    assert least**2 >= 4 * diameter * rounding


def test_sums_of_very_many_rows_are_not_cut():
    """10^8 rows, each with the largest feature, and little noise: the centre is still right."""
    rows = 10**8
    total = np.array([3.0, 1.0, 0.0, 0.0]) * rows
    released = centring.private_centre(
        SCHEMA, [FeatureSums(rows, total)], ["node"], 1.0, SeededEntropy(1), "gaussian"
    )
    np.testing.assert_allclose(released.messages[0], total, atol=100)


# --------------------------------------------------------------------------------------------------
# what a row adds is a function of that row, of z and of public numbers


def some_rows(rng, count, columns):
    rows = rng.normal(size=(count, columns)) * (rng.random((count, columns)) < 0.4)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0) * (1 - 1e-12)


@pytest.mark.parametrize("loss", [Logistic(3.0), HuberHinge(0.5, 1.0)], ids=repr)
@pytest.mark.parametrize("far", [1.0, 1e3, 1e6])
def test_all_ways_to_hold_rows_give_the_same_sums_to_the_last_bit(loss, far):
    """How rows are stored depends on how many cells are 0, which depends on other rows."""
    rng = np.random.default_rng(5)
    block, z = some_rows(rng, 3000, 60), far * rng.normal(size=(3, 60))
    resolution = Resolution.of(len(block), 60)
    sums = [
        IntegerRows([made(block)], resolution, loss, replicas=3, storage=storage).gradient(z)[0]
        for made in (np.asarray, csr_array)
        for storage in ("dense", "csr")
    ]
    shard = Shard.frozen(block, np.ones(len(block)), "node")
    sums.append(StreamedIntegerRows([shard], resolution, loss).gradient(z)[0])
    order = rng.permutation(60)  # of columns: margins are added in another order
    moved = IntegerRows([block[:, order]], resolution, loss, storage="dense").gradient(z[:, order])
    back = np.empty_like(moved[0])
    back[:, order] = moved[0]
    for other in (*sums[1:], back):
        np.testing.assert_array_equal(sums[0], other)


def test_margins_of_points_that_are_no_grid_points_would_depend_on_the_order():
    """The test above can fail: without the grid the last bits differ."""
    rng = np.random.default_rng(5)
    k, z = np.rint(some_rows(rng, 3000, 60) * 2**16), 1e3 * rng.normal(size=60)
    order = rng.permutation(60)
    assert ((k @ z) != (k[:, order] @ z[order])).any()
    near = on_point_grid(z[None])[0]
    assert ((k @ near) == (k[:, order] @ near[order])).all()


@given(st.floats(0, 1e150), st.integers(1, 200))
def test_points_stay_where_margins_are_exact(far, columns):
    z = on_point_grid(np.full((1, columns), far))
    assert np.isfinite(z).all()
    longest = Resolution.of(1, columns).longest * np.linalg.norm(z) * 2.0**24
    assert longest < 2.0**53
    assert np.linalg.norm(z) <= FURTHEST * (1 + 1e-9)


class Broken(Logistic):
    """A loss that is no number where it is far below 0."""

    def slope(self, z):
        return np.where(z < -1.0, np.nan, super().slope(z))


class Steep(Logistic):
    """A loss that declares |L'| <= 1 and does not keep it."""

    def slope(self, z):
        return 1e300 * super().slope(z)


@pytest.mark.parametrize("loss", [Broken(), Steep()], ids=["NaN", "steep"])
def test_a_loss_that_breaks_its_promise_cannot_raise_what_a_row_adds(loss):
    block, z = -np.eye(3), np.full((1, 3), 2.0)
    resolution = Resolution.of(3, 3)
    for storage in ("dense", "csr"):
        held = IntegerRows([block], resolution, loss, storage=storage)
        assert (np.abs(held.gradient(z)) <= resolution.gradient).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308])
def test_a_row_that_is_no_number_counts_as_none(bad):
    """Rows are validated before; a sum would still not become NaN, which no noise covers."""
    block = np.eye(3)
    block[1, 0] = bad
    resolution = Resolution.of(3, 3)
    with np.errstate(invalid="ignore", over="ignore"):
        kept = resolution.whole(block), resolution.whole(csr_array(block)).toarray()
    for rows in kept:
        np.testing.assert_array_equal(rows, np.diag([1.0, 0.0, 1.0]) * 2**16)


@given(st.integers(1, 2**48), st.integers(1, 10**6), st.floats(1e-9, 10.0))
def test_sums_of_all_that_is_accepted_are_exact(rows, columns, mu):
    """Also of the second moment, where K_x is half as long again as 1/h."""
    try:
        resolution = Resolution.of(rows, columns, mu)
    except DeclarationError:
        return
    assert rows * resolution.moment < 2**53
    assert rows * resolution.gradient < 2**53


def test_a_length_that_squares_past_2_to_the_53_is_refused():
    with pytest.raises(DeclarationError, match="cannot be added exactly"):
        Resolution.of(2**40, 4096)


@pytest.mark.parametrize("centre", [None, "some"])
def test_streamed_rows_are_the_same_by_either_path_to_the_last_bit(tmp_path, centre, monkeypatch):
    """A column with very many distinct cells is written down, and which have so many depends on all
    rows.
    """
    rng, schema = np.random.default_rng(1), DATA.schema
    if centre:
        features = tuple((rng.random(schema.feature_count) / 10).tolist())
        schema = schema.model_copy(update={"centre": features, "scaling": "unit"})
    pd.DataFrame(DATA.train).to_parquet(tmp_path / "rows.parquet")
    there = source(tmp_path / "rows.parquet", memory=LEAST_MEMORY)
    fast = [*Blocks(schema, there, "node")]
    monkeypatch.setattr(Blocks, "_signed", lambda self, part: None)
    slow = [*Blocks(schema, there, "node")]
    assert {type(block) for block in fast} == {CodedBlock}
    assert {type(block) for block in slow} == {StoredBlock}
    rows = [np.hstack([block.dense() for block in some]) for some in (fast, slow)]
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("scaling", ["unit", "clip"])
def test_a_streamed_row_does_not_depend_on_the_cells_of_other_rows(tmp_path, scaling):
    """One more distinct cell changes which columns are looked up together; in what order norms are
    added may not show in the last bits of all other rows.
    """
    rng, texts = np.random.default_rng(1), np.array([f"v{i}" for i in range(60)], object)
    columns = tuple(Categorical(name=name, values=tuple(texts)) for name in "abcd")
    columns += (Numeric(name="e", low=0, high=1, encode=("linear", "square")),)
    schema = Schema(
        columns=columns,
        label=Label(name="y", negative="no", positive="yes"),
        centre=tuple((rng.random(242) / 60).tolist()),
        scaling=scaling,
        norm=1.0,
    )
    table = {name: texts[rng.integers(0, 19, 4000)] for name in "abcd"}
    table |= {"e": rng.random(4000), "y": np.array(["no", "yes"], object)[rng.integers(0, 2, 4000)]}
    rows = []
    for name, first in (("one.parquet", "v0"), ("other.parquet", "v59")):
        table["a"][0] = first
        pd.DataFrame(table).to_parquet(tmp_path / name)
        blocks = Blocks(schema, source(tmp_path / name, memory=LEAST_MEMORY), "node")
        rows.append(np.hstack([block.dense() for block in blocks]).T)
    assert (rows[0][0] != rows[1][0]).any()
    np.testing.assert_array_equal(rows[0][1:], rows[1][1:])


# --------------------------------------------------------------------------------------------------
# whole runs


class Watched(SeededEntropy):
    """Seeded draws that keep what they were asked for."""

    def __init__(self, seed):
        super().__init__(seed)
        self.asked = []

    def generator(self, purpose, node, round_, replica=0):
        self.asked.append((purpose, node, round_))
        return super().generator(purpose, node, round_, replica)


@pytest.mark.parametrize("second_moment", [False, True])
def test_every_draw_of_a_run_has_its_event_and_every_event_its_draw(second_moment):
    """A release that is not charged, and noise that is drawn twice or never, would show."""
    draws = Watched(1)
    trained = train(
        DATA.schema,
        DATA.tables(RING.nodes),
        RING,
        epsilon=2.0,
        delta=1e-5,
        mechanism=Sum(second_moment=second_moment),
        draws=draws,
    )
    charged = [(event.purpose, event.node, event.round) for event in trained.events]
    assert sorted(draws.asked) == sorted(charged)
    purposes = {"centring", "gradient", *(["moment"] if second_moment else [])}
    assert {purpose for purpose, _, _ in charged} == purposes
    assert trained.total.epsilon <= 2.0


def outlier(tables, node):
    """The tables with one row of a node replaced by the most different one that fits the schema."""
    changed = {
        name: {column: cells.copy() for column, cells in t.items()} for name, t in tables.items()
    }
    for column in DATA.schema.columns:
        cells = changed[node][column.name]
        if isinstance(column, Numeric):
            cells[7] = column.low if cells[7] > (column.low + column.high) / 2 else column.high
        else:
            cells[7] = next(value for value in column.values if value != cells[7])
    label = DATA.schema.label
    cells = changed[node][label.name]
    cells[7] = label.negative if cells[7] == label.positive else label.positive
    return changed


@pytest.mark.parametrize("streamed", [False, True], ids=["in memory", "streamed"])
def test_with_the_same_noise_one_replaced_row_moves_messages_by_what_is_covered(streamed, tmp_path):
    """From raw cells to messages: seeded noise is the same for both data sets, so messages differ
    by what rows make, exactly: of its own node alone, and by no more than Delta.
    """
    tables, node = DATA.tables(RING.nodes), RING.nodes[1]
    centred, first, noises = [], [], None
    for k, held in enumerate((tables, outlier(tables, node))):
        given = held
        if streamed:
            given = {}
            for name, table in held.items():
                pd.DataFrame(table).to_parquet(tmp_path / f"{k}-{name}.parquet")
                given[name] = source(tmp_path / f"{k}-{name}.parquet", memory=LEAST_MEMORY)
        how = {"epsilon": 2.0, "delta": 1e-5, "mechanism": Sum(second_moment=True)}
        centred.append(train(DATA.schema, given, RING, draws=SeededEntropy(1), **how).centring)
        sent = []
        fixed = centred[0].applied(DATA.schema)  # the same centre: rows differ in one alone
        trained = train(
            fixed,
            given,
            RING,
            draws=SeededEntropy(1),
            on_round=lambda progress, sent=sent: sent.append(progress.messages[:, 0]),
            **how,
        )
        first.append(sent[:2])  # all nodes still stand at 0
        noises = trained.run.noises
    D = centring._moved(DATA.schema)
    for before, after, most in (
        (centred[0].messages, centred[1].messages, D),
        (first[0][0], first[1][0], np.sqrt(2.0) * noises[0].resolution.moment * 2.0**-32),
        (first[0][1], first[1][1], 2.0 * noises[1].resolution.gradient * 2.0**-32),
    ):
        apart = np.linalg.norm(after - before, axis=1)
        assert (apart[[0, 2]] == 0).all()
        assert 0.1 * most < apart[1] <= most
