"""Null rows stand for rows that are not there, so that a node shows its declared number alone."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.data.columns import Categorical, Numeric
from dynadp.data.loading import load_shard, split_tables
from dynadp.data.node_rows import NodeRows, StreamedShard, local_shard
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.schema import Label, Schema
from dynadp.data.shard import Shard
from dynadp.data.survey import survey
from dynadp.errors import DataError
from dynadp.problem.integer_rows import Resolution, integer_rows_of
from dynadp.problem.losses import Logistic
from dynadp.problem.regularizers import SquaredL2
from dynadp.problem.streamed import local_problem

COLUMNS = (
    Numeric(name="age", low=0, high=100, missing="drop"),
    Categorical(name="kind", values=("x", "y")),
)
LABEL = Label(name="t", negative=0, positive=1)
OPEN = Schema(columns=COLUMNS, label=LABEL)
SECRET = Schema(columns=COLUMNS, label=LABEL, adjacency="add-remove")
PEOPLE = SECRET.model_copy(update={"person": "who", "rows_per_person": 2})


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "age": np.where(rng.random(count) < 0.1, np.nan, rng.uniform(0, 100, count)),
        "kind": rng.choice(["x", "y", "z"], count).astype(object),
        "t": rng.integers(0, 2, count),
        "who": rng.integers(0, max(count // 2, 1), count),
    }


def parquet(table, path):
    types = [("age", pa.float64()), ("kind", pa.string()), ("t", pa.int64()), ("who", pa.int64())]
    pq.write_table(pa.table(table, pa.schema(types)), path, row_group_size=7)
    return source(path, memory=LEAST_MEMORY)


def matrix(shard):
    if isinstance(shard, StreamedShard):
        return np.hstack([block.dense() for block in shard]).T
    return shard.signed.toarray() if hasattr(shard.signed, "toarray") else shard.signed


@pytest.mark.parametrize("centre", [None, (0.1, 0.2, 0.3)])
@pytest.mark.parametrize("count", [0, 1, 30, 40, 70])
def test_a_shard_has_as_many_rows_as_declared(tmp_path, count, centre):
    """In memory, from files and streamed; the first rows, then null rows."""
    table, declared = rows(count), 40
    secret, plain = (s.model_copy(update={"centre": centre}) for s in (SECRET, OPEN))
    shard = secret.shard(table, rows=declared)
    assert shard.rows == declared
    stay = np.flatnonzero(OPEN.kept(table))[:declared]
    expected = np.zeros((declared, plain.dimension))
    if len(stay):
        first = {name: cells[stay] for name, cells in table.items()}
        expected[: len(stay)] = matrix(plain.shard(first))
    assert (matrix(shard) == expected).all()
    file = parquet(table, tmp_path / "rows.parquet")
    for form in (table, tmp_path / "rows.parquet"):
        assert (matrix(load_shard(secret, form, rows=declared)) == expected).all()
    streamed = StreamedShard.of(secret, file, rows=declared)
    assert streamed.rows == declared
    np.testing.assert_allclose(matrix(streamed), expected, rtol=0, atol=1e-14)
    assert np.array_equal(matrix(streamed).any(axis=1), expected.any(axis=1))


@pytest.mark.parametrize("count", [0, 25, 90])
def test_people_are_limited_before_rows_are_counted(tmp_path, count):
    table, declared = rows(count, 3), 20
    stay = np.flatnonzero(PEOPLE.used(table))
    shard = PEOPLE.shard(table, rows=declared)
    assert np.count_nonzero(matrix(shard).any(axis=1)) == min(len(stay), declared)
    file = parquet(table, tmp_path / "rows.parquet")
    for each in (load_shard(PEOPLE, table, rows=declared), StreamedShard.of(PEOPLE, file, rows=20)):
        np.testing.assert_allclose(matrix(each), matrix(shard), rtol=0, atol=1e-14)


@pytest.mark.parametrize("count", [0, 12, 45])
def test_sums_count_from_the_offset_and_over_the_declared_number(tmp_path, count):
    table, declared = rows(count, 1), 30
    held = NodeRows(SECRET, table, "n", declared=declared)
    stay = np.flatnonzero(OPEN.kept(table))[:declared]
    first = {name: cells[stay] for name, cells in table.items()}
    features = OPEN.only_features().rows(first).toarray() if len(stay) else np.zeros((0, 3))
    expected = (np.round(features * 2**20) / 2**20 - SECRET.offset).sum(axis=0)
    assert held.sums.rows == held.count == declared
    assert (held.sums.total == expected).all()
    streamed = NodeRows(SECRET, parquet(table, tmp_path / "r.parquet"), "n", declared=declared)
    assert (streamed.sums.total == expected).all()
    held.check()


@given(st.integers(0, 30), st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_null_rows_add_nothing(count, declared, seed):
    """Gradients, curvature and exact sums of a filled shard are those of its rows alone."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 3))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1) * 1.001
    shard = Shard.of(X, rng.choice([-1, 1], count)) if count else Shard.null(declared, 3)
    full = shard.filled(max(declared, count))
    F = rng.normal(size=(1, 1, 3))
    given = Logistic(), SquaredL2(), 1.0, 0.1
    gradient = local_problem([full], *given).gradient(F, np.zeros((1, 1)), np.zeros((1, 1, 3)))
    slopes = Logistic().slope(matrix(shard) @ F[0, 0])
    expected = matrix(shard).T @ slopes / full.rows + 0.1 * F[0, 0]
    np.testing.assert_allclose(gradient[0, 0], expected, rtol=1e-12, atol=1e-15)
    resolution = Resolution.of(full.rows, 3)
    both = [
        integer_rows_of([each], resolution, Logistic(), replicas=1).gradient(F[0])
        for each in (shard, full)
    ]
    assert (both[0] == both[1]).all()


def test_a_streamed_problem_is_that_in_memory(tmp_path):
    table, declared = rows(60, 2), 90
    streamed = StreamedShard.of(SECRET, parquet(table, tmp_path / "r.parquet"), rows=declared)
    held = SECRET.shard(table, rows=declared)
    F = np.random.default_rng(0).normal(size=(1, 1, held.dimension))
    zero = np.zeros((1, 1)), np.zeros_like(F)
    found = [
        local_problem([each], Logistic(), SquaredL2(), 1.0, 0.1).gradient(F, *zero)
        for each in (streamed, held)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


def test_a_number_has_to_be_declared():
    for read in (
        lambda: SECRET.shard(rows(3)),
        lambda: load_shard(SECRET, rows(3)),
        lambda: local_shard(SECRET, rows(3)),
        lambda: NodeRows(SECRET, rows(3), "node").count,
        lambda: NodeRows(SECRET, rows(3), "node").survey,
    ):
        with pytest.raises(DataError, match="declare one, rows = N, at least as many"):
            read()


def test_nothing_tells_how_many_rows_there_are():
    held = NodeRows(SECRET, rows(17), "n", declared=20)
    shard = held.shard(SECRET)
    said = re.sub("at 0x[0-9a-f]+", "", f"{held!r} {shard!r} {shard.rows}")  # where it lies
    assert "17" not in said
    with pytest.raises(DataError, match="more rows than the 5 that it declared") as caught:
        Shard.of(np.zeros((7, 2)), np.ones(7)).filled(5)
    assert "7" not in str(caught.value)


def test_one_file_may_have_no_row_of_a_node():
    table = {**rows(6), "silo": ["a"] * 6}
    found = split_tables(table, SECRET, "silo", ["a", "b"])
    assert len(found["b"]["age"]) == 0
    assert matrix(load_shard(SECRET, found["b"], rows=4)).shape == (4, 4)
    assert not matrix(load_shard(SECRET, found["b"], rows=4)).any()
    with pytest.raises(DataError, match="which nodes occur in column 'silo' depends on rows"):
        split_tables(table, SECRET, "silo")
    with pytest.raises(DataError, match="node 'b' is empty"):
        split_tables(table, OPEN, "silo", ["a", "b"])


def test_a_survey_looks_at_the_rows_that_stay():
    table = rows(30)
    found = survey(SECRET, table, most=5)
    assert found.rows == 5
    table["kind"][-1] = "x"
    table["t"] = table["t"].astype(object)
    table["t"][-1] = "?"
    assert not survey(SECRET, table, most=5).mistakes
    assert survey(SECRET, table, most=30).mistakes
