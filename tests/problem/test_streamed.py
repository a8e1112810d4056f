"""Rows larger than memory: a streamed node computes what a node with its rows in memory computes,
in little memory.
"""

import json
import os
import subprocess
import sys
import traceback
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dynadp.consensus.acceleration import Acceleration
from dynadp.consensus.newton import Newton
from dynadp.consensus.topology import Topology
from dynadp.data import encoding
from dynadp.data.columns import (
    Bins,
    Categorical,
    Cross,
    Date,
    Fourier,
    Hashed,
    Numeric,
    Vector,
)
from dynadp.data.datasets.synthetic import census
from dynadp.data.encoding import Blocks
from dynadp.data.loading import load_shard
from dynadp.data.node_rows import StreamedShard, bytes_in_memory, local_shard
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.row_blocks import CodedBlock, StoredBlock
from dynadp.data.schema import Label, Schema
from dynadp.data.shard import Shard
from dynadp.data.streaming import rows_at_once
from dynadp.data.survey import count, feature_sums, survey
from dynadp.engines.inbox import Inbox
from dynadp.engines.journal import FolderJournal
from dynadp.engines.letters import run_id
from dynadp.engines.node import NodeRun, node_rounds
from dynadp.engines.simulation import simulate
from dynadp.errors import CellError, ConfigError, DataError, DeclarationError, NotCertified
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.planning.parts import Consortium
from dynadp.planning.plans import Plan
from dynadp.problem.certificate import rounding_error
from dynadp.problem.losses import HuberHinge, Logistic
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SmoothElasticNet, SquaredL2
from dynadp.problem.solver import solve
from dynadp.problem.streamed import StreamedProblem, local_problem
from dynadp.runs.local import LocalRun
from dynadp.runs.node_file import load_node_file
from dynadp.runs.run_file import load_run_file
from dynadp.runs.training import train
from support import flat_simulate

SECRET = "SECRET-CELL"
LEAST = LEAST_MEMORY


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that small files have some."""
    monkeypatch.setattr(encoding, "_WORKED", 200)


def raw(rows=500, seed=0):
    """A column for every way in which cells are stored and declared."""
    rng = np.random.default_rng(seed)

    def holes(cells, share=0.1):
        return [
            None if gone else cell
            for cell, gone in zip(cells, rng.random(rows) < share, strict=True)
        ]

    words = ["red", " green ", "blue", "", "unheard of"]
    grades = rng.integers(0, 5, rows)
    return pa.table(
        {
            "line": pa.array(rng.normal(3, 2, rows)),
            "squared": pa.array(rng.integers(-5, 90, rows)),
            "tail": pa.array(holes(np.exp(rng.normal(5, 3, rows)).tolist()), pa.float64()),
            "hats": pa.array(holes(rng.integers(0, 120, rows).tolist()), pa.int32()),
            "single": pa.array(rng.random(rows), pa.float32()),
            "exact": pa.array(
                [Decimal(int(n)) / 4 for n in rng.integers(0, 50, rows)], pa.decimal128(8, 2)
            ),
            "flag": pa.array(rng.random(rows) < 0.5),
            "written": pa.array(holes([f" {n}.5" for n in rng.integers(0, 9, rows)])),
            "word": pa.array(holes(rng.choice(words, rows).tolist())),
            "code": pa.array(holes(rng.integers(0, 6, rows).tolist()), pa.int64()),
            "share": pa.array([0.0, 0.5, 1.0, np.nan] * (rows // 4), pa.float64()),
            "yes": pa.array(rng.random(rows) < 0.3),
            "grade": pa.DictionaryArray.from_arrays(
                pa.array(grades, pa.int8()), pa.array(list("abcde"))
            ),
            "y": pa.array(rng.choice(["no", "yes"], rows)),
            "y01": pa.array(rng.integers(0, 2, rows)),
            "day": pa.array(
                holes([18_000 + int(n) for n in rng.integers(0, 900, rows)]), pa.date32()
            ),
            "at": pa.array(1_600_000_000 + rng.integers(0, 10**8, rows), pa.timestamp("s")),
            "said": pa.array(
                [f"{n % 28 + 1}.{n % 12 + 1}.2024" for n in rng.integers(0, 99, rows)]
            ),
            "town": pa.array(holes([f"t{n}" for n in rng.integers(0, 200, rows)])),
            "balance": pa.array(rng.normal(0, 1e4, rows)),
        }
    )


def schema(**more):
    columns = (
        Numeric(name="line", low=0, high=6),
        Numeric(
            name="squared", low=0, high=80, encode=("square", "linear"), signed=False, weight=0.5
        ),
        Numeric(
            name="tail",
            low=1,
            high=1e5,
            transform="log1p",
            encode=("linear", "hats"),
            knots=(1, 10, 1e3, 1e5),
            missing=7.0,
        ),
        Numeric(
            name="hats",
            low=0,
            high=100,
            encode=("hats",),
            knots=(0, 10, 50, 100),
            weight=2,
            missing="drop",
        ),
        Numeric(name="single", low=0, high=1),
        Numeric(name="exact", low=0, high=10),
        Numeric(name="flag", low=0, high=1),
        Numeric(name="written", low=0, high=9, missing="drop"),
        Categorical(name="word", values=("red", "green", "blue"), other="column", missing="other"),
        Categorical(name="code", values=(0, 1, 2, 3), missing={"value": 2}),
        Categorical(name="share", values=(0, 0.5, 1), missing="other", weight=3),
        Categorical(name="yes", values=(0, 1), other="refuse"),
        Categorical(name="grade", values=("a", "b", "c", "d", "e"), other="refuse"),
    )
    told = {
        "columns": columns,
        "label": Label(name="y", negative="no", positive="yes"),
        "norm": 2.0,
        **more,
    }
    return Schema(**told)


def kinds(**more):
    """Every kind of column that reads days, hashes, or several columns."""
    columns = (
        Date(name="day", first=date(2019, 1, 1), last=date(2021, 1, 1), missing="drop"),
        Date(
            name="at", first="2020-01-01", last="2024-01-01", encode=("month", "linear"), weight=2
        ),
        Date(
            name="said",
            first="2024-01-01",
            last="2024-12-31",
            encode=("weekday", "linear"),
            format="%d.%m.%Y",
            signed=False,
        ),
        Hashed(name="town", buckets=11, salt="s", missing="other"),
        Numeric(name="balance", low=-5e4, high=1e5, transform="signed_log", encode=("square",)),
        Categorical(name="grade", values=("a", "b", "c", "d"), other="column"),
        Bins(name="line", edges=(1, 4), weight=0.5),
        Cross(
            name="word in hats",
            parts=(
                {
                    "kind": "categorical",
                    "name": "word",
                    "values": ["red", "blue"],
                    "missing": "other",
                },
                {"kind": "bins", "name": "hats", "edges": [10, 50], "missing": "other"},
            ),
        ),
        {"kind": "cross", "name": "town of grade", "parts": ["town", "grade"], "weight": 0.5},
        {
            "kind": "cross",
            "name": "written code",
            "parts": [
                {"kind": "bins", "name": "written", "edges": [4], "missing": 5},
                {"kind": "categorical", "name": "code", "values": [0, 1, 2], "missing": "drop"},
            ],
        },
        Vector(name="ready", columns=("single", "exact"), norm=9.0, weight=1.5),
        Fourier(
            name="waves",
            parts=(
                Numeric(name="line", low=0, high=6),
                Numeric(name="tail", low=1, high=1e5, transform="log1p", missing=7.0),
                Numeric(name="written", low=0, high=9, missing=3),
            ),
            pairs=3,
            width=0.7,
            seed="s",
        ),
    )
    return schema(columns=columns, **more)


WIDE = kinds().feature_count
BARE = len(schema(intercept=0).features)
CENTRE = tuple(np.random.default_rng(9).normal(scale=0.2, size=BARE).tolist())
SCHEMAS = {
    "clip": schema(),
    "unit": schema(scaling="unit", intercept=0.5),
    "none": schema(scaling="none", norm=20.0),
    "no intercept": schema(intercept=0),
    "centred": schema(centre=CENTRE, scaling="unit"),
    "centred, clipped": schema(centre=CENTRE),
    "centred, no intercept": schema(centre=CENTRE, intercept=0, scaling="none", norm=30.0),
    "kinds": kinds(),
    "kinds, centred": kinds(centre=(0.1,) * WIDE, scaling="unit"),
    "label of numbers": schema(label=Label(name="y01", negative=0, positive=1)),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("streamed") / "rows.parquet"
    pq.write_table(raw(), path, row_group_size=123)
    return path


def streamed(schema, path, name="node", **more):
    return StreamedShard.of(schema, source(path, memory=LEAST), name, **more)


def dense(rows):
    return rows if isinstance(rows, np.ndarray) else rows.toarray()


def written_down(shard):
    return np.concatenate([block.dense().T for block in shard])


def pair(schema, path, loss=None, R=None, C=3.0, rho=0.1):
    """The same problem in memory and streamed."""
    constants = loss or Logistic(), R or SquaredL2(), C, rho
    held = load_shard(schema, path)
    return StackedProblem([held.signed], *constants), StreamedProblem(
        [streamed(schema, path)], *constants
    )


# --------------------------------------------------------------------------------------------------
# rows


@pytest.mark.parametrize("which", SCHEMAS)
def test_streamed_rows_are_the_rows(which, path):
    schema = SCHEMAS[which]
    held, there = load_shard(schema, path), streamed(schema, path)
    assert there.rows == held.rows < 500
    assert there.dimension == held.dimension
    assert all(isinstance(block, CodedBlock) for block in there)
    found = written_down(there)
    np.testing.assert_allclose(found, dense(held.signed), rtol=1e-13, atol=1e-16)
    assert np.linalg.norm(found, axis=1).max() <= 1


@pytest.mark.parametrize("which", SCHEMAS)
@pytest.mark.parametrize("size", [1, 7])
def test_the_size_of_blocks_does_not_matter(which, size, path, monkeypatch):
    monkeypatch.setattr(Blocks, "__init__", _sized(Blocks.__init__, size))
    np.testing.assert_allclose(
        written_down(streamed(SCHEMAS[which], path)),
        dense(load_shard(SCHEMAS[which], path).signed),
        rtol=1e-13,
    )


def _sized(init, size):
    def made(self, *args):
        init(self, *args)
        self.size, self.chunk, self._worked = 13 * size, 2 * size, 5 * size

    return made


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    st.permutations(["linear", "square"]),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(["none", "log1p", "signed_log"]),
    st.sampled_from([1.0, 0.3]),
)
def test_numbers_are_filled_in_to_the_last_bit(cells, encode, count, signed, transform, weight):
    column = Numeric(
        name="v",
        low=-3,
        high=11,
        encode=encode[:count],
        signed=signed,
        transform=transform,
        weight=weight,
    )
    out, v = np.full((count, len(cells)), np.nan), np.array(cells)
    column.fill(v, out)
    np.testing.assert_array_equal(out.T, column.block(v, np.zeros(len(v), dtype=bool))[1])


@pytest.mark.parametrize("which", ["centred", "kinds, centred"])
def test_rows_that_are_written_down_are_the_rows(which, path, monkeypatch):
    schema = SCHEMAS[which]
    coded = written_down(streamed(schema, path))
    monkeypatch.setattr(encoding, "_LARGEST_TABLE", 5)
    there = streamed(schema, path)
    assert all(isinstance(block, StoredBlock) for block in there)
    np.testing.assert_array_equal(written_down(there), coded)
    np.testing.assert_allclose(coded, load_shard(schema, path).signed, rtol=1e-13)
    assert count(schema, source(path, memory=LEAST)) == there.rows


@pytest.mark.parametrize("which", ["clip", "kinds"])
def test_the_careful_way_takes_all_rows(which, path, monkeypatch):
    schema = SCHEMAS[which]
    coded = written_down(streamed(schema, path))
    fast = feature_sums(schema, source(path, memory=LEAST))
    monkeypatch.setattr(Blocks, "_encoded", lambda self, part: None)
    there = streamed(schema, path)
    np.testing.assert_array_equal(written_down(there), coded)
    np.testing.assert_allclose(coded, dense(load_shard(schema, path).signed), rtol=1e-13)
    rows, sums = feature_sums(schema, source(path, memory=LEAST))
    assert rows == there.rows
    np.testing.assert_array_equal(sums, feature_sums(schema, path)[1])
    np.testing.assert_array_equal(sums, fast[1])


@pytest.mark.parametrize("sparse", [False, True])
def test_products_of_blocks(path, sparse, monkeypatch):
    monkeypatch.setattr(encoding, "_SMALL_TABLE", 0 if sparse else 1 << 16)
    rng = np.random.default_rng(1)
    schema = SCHEMAS["clip"]
    stored = [
        StoredBlock(load_shard(schema, path).signed),
        StoredBlock(dense(load_shard(schema, path).signed)),
    ]
    for block in (*streamed(schema, path), *stored):
        A, F, S = (
            block.dense().T,
            rng.normal(size=(3, schema.dimension)),
            rng.normal(size=(3, block.rows)),
        )
        np.testing.assert_allclose(block.margins(F), F @ A.T, atol=1e-14)
        np.testing.assert_allclose(block.adjoint(S), S @ A, atol=1e-13)
        np.testing.assert_allclose(block.squared_adjoint(S[0]), S[0] @ (A * A), atol=1e-13)
        np.testing.assert_array_equal(block.some(slice(1, 30, 4)).dense().T, A[1:30:4])


def test_only_texts_or_only_numbers(tmp_path):
    table = raw().select(["line", "squared", "yes", "y"])
    pq.write_table(table, tmp_path / "rows.parquet")
    for columns in (schema().columns[:2], schema().columns[11:12]):
        some = schema(columns=columns, intercept=0)
        there = streamed(some, tmp_path / "rows.parquet")
        np.testing.assert_allclose(
            written_down(there),
            dense(load_shard(some, tmp_path / "rows.parquet").signed),
            rtol=1e-13,
        )


@pytest.mark.parametrize("make", ["pandas", "polars", "large", "categories"])
def test_files_of_other_writers(tmp_path, make):
    data = census(400, nodes=1, test_rows=0)
    path = tmp_path / "rows.parquet"
    columns = {name: cells.tolist() for name, cells in data.train.items()}
    if make == "pandas":
        pd.DataFrame(columns).to_parquet(path)
    elif make == "categories":
        pd.DataFrame(columns).astype(
            {"trade": "category", "income": "category", "age": "category"}
        ).to_parquet(path)
    elif make == "polars":
        pl = pytest.importorskip("polars")
        pl.DataFrame(columns).write_parquet(path)
    else:
        table = pa.table(columns)
        kinds = [
            pa.large_string() if pa.types.is_string(field.type) else field.type
            for field in table.schema
        ]
        pq.write_table(
            table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True)))), path
        )
    np.testing.assert_allclose(
        written_down(streamed(data.schema, path)),
        dense(load_shard(data.schema, path).signed),
        rtol=1e-13,
        atol=1e-16,
    )


def test_sums_counts_and_validation(path):
    there, schema = source(path, memory=LEAST), SCHEMAS["clip"]
    assert count(schema, there) == count(schema, path) == load_shard(schema, path).rows
    whole = schema.model_copy(update={"columns": schema.columns[:1]})
    assert count(whole, there) == count(whole, path) == 500
    (rows, sums), (rows_there, sums_there) = feature_sums(schema, path), feature_sums(schema, there)
    assert rows == rows_there
    np.testing.assert_allclose(sums_there, sums, rtol=1e-13)
    survey(schema, there, "a").require_sound()


# --------------------------------------------------------------------------------------------------
# errors


def spoiled(path, column, cells, kind=None):
    """The same rows with other cells in a column, from row 300 on."""
    table = raw()
    old = table.column(column).to_pylist()
    new = pa.array([*old[:300], *cells, *old[300 + len(cells) :]], kind)
    pq.write_table(
        table.set_column(table.column_names.index(column), column, new), path, row_group_size=123
    )
    return path


@pytest.mark.parametrize(
    ("column", "cells", "kind"),
    [
        ("line", [np.inf], pa.float64()),
        ("line", [None], pa.float64()),
        ("single", [None], pa.float32()),
        ("y", [SECRET], None),
        ("y", [None], None),
        ("grade", [SECRET], None),
        ("grade", [None], None),
        ("written", [SECRET], None),
    ],
    ids=str,
)
def test_refusals_name_the_same_row_and_no_cell(tmp_path, column, cells, kind):
    path = spoiled(tmp_path / "rows.parquet", column, cells, kind)
    with pytest.raises(CellError) as expected:
        load_shard(schema(), path)
    with pytest.raises(CellError) as found:
        streamed(schema(), path)
    assert str(found.value) == str(expected.value)
    assert found.value.row == 300
    assert SECRET not in "".join(traceback.format_exception(found.value))
    with pytest.raises(CellError, match=r"node 'a', .*row 300"):
        survey(schema(), source(path, memory=LEAST), "a").require_sound()
    if column != "y":
        with pytest.raises(CellError, match="row 300"):
            feature_sums(schema(), source(path, memory=LEAST))


def test_texts_of_labels_and_codes_match_declared_numbers_by_value(tmp_path):
    made = pa.table({"code": ["7.0", "8", "07", "x"], "y": ["1.0", "0", "+1", "0.0"]})
    pq.write_table(made, tmp_path / "rows.parquet")
    plan = Schema(
        columns=(Categorical(name="code", values=(8, 7)),),
        label=Label(name="y", negative=0, positive=1),
        norm=2.0,
    )
    held, there = (
        load_shard(plan, tmp_path / "rows.parquet"),
        streamed(plan, tmp_path / "rows.parquet"),
    )
    assert held.y.tolist() == [1, -1, 1, -1]
    np.testing.assert_array_equal(
        (dense(held.signed) != 0)[:, :2], [[0, 1], [1, 0], [0, 1], [0, 0]]
    )
    np.testing.assert_allclose(written_down(there), dense(held.signed), rtol=1e-13, atol=1e-16)


def test_a_cell_that_is_refused_does_no_harm_in_a_row_that_is_dropped(tmp_path):
    path = spoiled(tmp_path / "rows.parquet", "grade", [SECRET])
    table = pq.read_table(path)
    gone = [None if row == 300 else 5 for row in range(500)]
    pq.write_table(table.set_column(table.column_names.index("hats"), "hats", pa.array(gone)), path)
    held = load_shard(schema(), path)
    np.testing.assert_allclose(
        written_down(streamed(schema(), path)), dense(held.signed), rtol=1e-13, atol=1e-16
    )
    assert feature_sums(schema(), source(path, memory=LEAST))[0] == held.rows


def test_rows_that_are_too_long_are_refused_where_they_may_not_be_scaled(path):
    long = schema(scaling="none", norm=1.0)
    with pytest.raises(CellError, match="its norm with the intercept is above 1") as expected:
        load_shard(long, path)
    with pytest.raises(CellError) as found:
        streamed(long, path)
    assert "above 1" in str(expected.value)
    assert "above 1" in str(found.value)


def test_types_that_are_no_cells_are_refused(tmp_path):
    table = raw().append_column("when", pa.array(np.arange(500), pa.timestamp("s")))
    pq.write_table(table, tmp_path / "rows.parquet")
    odd = schema(columns=(*schema().columns, Numeric(name="when", low=0, high=1)))
    with pytest.raises(DataError, match=r"column 'when' is of type timestamp.*convert it first"):
        streamed(odd, tmp_path / "rows.parquet")


def test_counts_and_empty_files(tmp_path, path):
    rows = streamed(schema(), path).rows
    assert streamed(schema(), path, rows=rows).rows == rows
    with pytest.raises(DataError, match=f"holds {rows} rows but declared B_p = 10"):
        streamed(schema(), path, rows=10)
    pq.write_table(raw().slice(0, 0), tmp_path / "none.parquet")
    with pytest.raises(DataError, match="is empty"):
        streamed(schema(), tmp_path / "none.parquet")


def test_a_file_that_changes_between_passes_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(raw(), path)
    _, problem = pair(schema(), path)
    F = np.zeros((1, 1, problem.dimension))
    problem.local_gradient(F)
    pq.write_table(raw(seed=1), path)
    with pytest.raises(DataError, match=r"is not the file any more .*begin anew"):
        problem.local_gradient(F + 1)
    path.unlink()
    with pytest.raises(DataError, match="is not the file any more"):
        problem.local_value(F)


def test_a_file_that_changes_during_a_pass_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(raw(), path, row_group_size=50)
    there = streamed(schema(), path)
    taken = iter(there)
    next(taken)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="is not the file any more"):
        list(taken)


def test_other_rows_under_the_same_stamp_are_refused(path):
    there = streamed(schema(), path)
    with pytest.raises(DataError, match="has not the rows any more that it had"):
        list(StreamedShard(there.blocks, there.rows + 1, "a"))


def test_a_file_that_is_cut_or_damaged_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(raw(), path, compression="none", use_dictionary=False)
    content = path.read_bytes()
    given = source(path, memory=LEAST)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for damaged in (
        content[:3000],
        content[:-9] + content[-8:],
        content[:4] + b"\xff" * (footer - 4) + content[footer:],
    ):
        path.write_bytes(damaged)
        again = type(given)(**{**given.__dict__, "stamp": type(given.stamp).of(path)})
        with pytest.raises(DataError, match="cannot be read; it may be cut, damaged"):
            StreamedShard.of(schema(), again)


def test_without_arrow_streaming_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        DeclarationError, match=r"streamed Parquet files need pyarrow.*dynadp\[stream\]"
    ):
        streamed(schema(), path)


# --------------------------------------------------------------------------------------------------
# problems


@pytest.mark.parametrize("which", ["clip", "centred"])
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize(
    ("loss", "R"), [(Logistic(), SquaredL2()), (HuberHinge(0.7), SmoothElasticNet())], ids=str
)
def test_a_streamed_problem_is_the_problem(which, K, loss, R, path):
    held, there = pair(SCHEMAS[which], path, loss, R)
    rng = np.random.default_rng(2)
    d = held.dimension
    F, D = rng.normal(size=(2, 1, K, d)) * 3
    q, b, t = rng.random((1, K)), rng.normal(size=(1, K, d)), rng.random((1, K))
    Z, none = held.margins(F), there.margins(F)
    assert none.shape == (0, K)
    assert (len(there), there.dimension, *there.counts) == (1, d, *held.counts)
    close = {"rtol": 1e-11, "atol": 1e-13}
    np.testing.assert_allclose(there.local_gradient(F), held.local_gradient(F), **close)
    np.testing.assert_allclose(there.gradient(F, q, b), held.gradient(F, q, b), **close)
    np.testing.assert_allclose(there.local_value(F), held.local_value(F), **close)
    slopes = [p.along(F, D, z, p.margins(D), q, b)(t) for p, z in ((held, Z), (there, none))]
    np.testing.assert_allclose(slopes[1], slopes[0], **close)
    for majorant in (False, True):
        for step in (1, 3):
            np.testing.assert_allclose(
                there.hessians(F, none, step, majorant),
                held.hessians(F, Z, step, majorant),
                **close,
            )
        np.testing.assert_allclose(
            there.hessian_diagonals(F, none, majorant),
            held.hessian_diagonals(F, Z, majorant),
            **close,
        )


def test_the_gradient_at_the_last_point_costs_no_pass(path):
    _, there = pair(schema(), path)
    rows, F = there.shards[0], np.ones((1, 1, there.dimension))
    assert rows.passes == 1  # which looked at every cell
    first = there.local_gradient(F)
    q, b = np.ones((1, 1)), np.ones_like(F)
    there.gradient(F, q, b)
    assert rows.passes == 2
    slope = there.along(F, F, there.margins(F), there.margins(F), q, b)
    slope(np.full((1, 1), 0.5))
    there.gradient(F + 0.5 * F, q, b)
    assert rows.passes == 3
    np.testing.assert_array_equal(there.local_gradient(F), first)
    assert rows.passes == 4


@pytest.mark.parametrize("which", ["clip", "centred"])
def test_the_solver_certifies_the_same_point(which, path):
    held, there = pair(SCHEMAS[which], path, rho=1e-3)
    q, b = np.full((1, 1), 0.01), np.random.default_rng(3).normal(size=(1, 1, held.dimension))
    start, gamma = np.full(b.shape, 30.0), np.full((1, 1), 1e-9)
    found = [solve(problem, q, b, gamma, start) for problem in (held, there)]
    for solution in found:
        assert (solution.bound <= gamma).all()
    np.testing.assert_allclose(found[1].point, found[0].point, rtol=1e-9, atol=2 * 1e-9 / 0.011)
    with pytest.raises(NotCertified, match="did not reach the public gradient bound"):
        solve(there, q, b, np.full((1, 1), 1e-17), start, max_iterations=20)


@pytest.mark.parametrize("which", SCHEMAS)
def test_the_certificate_allows_for_the_rounding_of_a_streamed_gradient(which, path):
    _, there = pair(SCHEMAS[which], path, C=5.0)
    rng = np.random.default_rng(6)
    A = written_down(there.shards[0]).astype(np.longdouble)
    for size in (0.1, 10.0, 1e3):
        F = rng.normal(size=(1, 1, there.dimension)) * size
        z = A @ F[0, 0].astype(np.longdouble)
        exact = (
            -5 / np.longdouble(there.counts[0]) * ((1 / (1 + np.exp(z))) @ A)
            + np.longdouble(0.1) * F[0, 0]
        )
        off = np.linalg.norm((there.local_gradient(F)[0, 0] - exact).astype(float))
        assert off <= 0.5 * float(
            rounding_error(there, F, np.zeros((1, 1)), np.zeros((1, 1)))[0, 0]
        )


def test_distinct_cells_that_are_too_many_to_keep_are_made_anew(path):
    there = streamed(schema(), path)
    there.blocks._kept.most = 2000
    before = written_down(there)
    there.blocks._kept.most = 0
    np.testing.assert_array_equal(written_down(there), before)


def test_without_threadpoolctl_passes_are_the_same(path, monkeypatch):
    F = np.ones((1, 1, SCHEMAS["clip"].dimension))
    expected = pair(SCHEMAS["clip"], path)[1].local_gradient(F)
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    np.testing.assert_array_equal(pair(SCHEMAS["clip"], path)[1].local_gradient(F), expected)


def test_wide_rows_are_solved_with_diagonals(path, monkeypatch):
    monkeypatch.setattr("dynadp.problem.descent.LARGEST_INVERSE", 4)
    held, there = pair(schema(), path, rho=0.05)
    q, b = np.full((1, 1), 0.1), np.zeros((1, 1, held.dimension))
    found = [solve(problem, q, b, np.full((1, 1), 1e-9), b) for problem in (held, there)]
    np.testing.assert_allclose(found[1].point, found[0].point, rtol=1e-7, atol=1e-8)


def test_nodes_that_stream_and_nodes_that_do_not(path, tmp_path):
    pq.write_table(raw(300, seed=5), tmp_path / "small.parquet")
    small, constants = (
        load_shard(schema(), tmp_path / "small.parquet"),
        (Logistic(), SmoothElasticNet(), 2.0, 0.01),
    )
    big, there = load_shard(schema(), path), streamed(schema(), path)
    held = local_problem([small, big, small], *constants)
    mixed = local_problem([small, there, small], *constants)
    assert isinstance(mixed, StreamedProblem)
    assert isinstance(held, StackedProblem)
    rng = np.random.default_rng(4)
    F, D = rng.normal(size=(2, 3, 2, held.dimension))
    q, b, t = rng.random((3, 2)), rng.normal(size=F.shape), rng.random((3, 2))
    Z, z = held.margins(F), mixed.margins(F)
    assert len(z) == 0
    close = {"rtol": 1e-11, "atol": 1e-13}
    np.testing.assert_allclose(mixed.gradient(F, q, b), held.gradient(F, q, b), **close)
    np.testing.assert_allclose(mixed.local_gradient(F), held.local_gradient(F), **close)
    np.testing.assert_allclose(mixed.local_value(F), held.local_value(F), **close)
    np.testing.assert_allclose(mixed.hessians(F, z, 2), held.hessians(F, Z, 2), **close)
    np.testing.assert_allclose(mixed.hessian_diagonals(F, z), held.hessian_diagonals(F, Z), **close)
    slopes = [p.along(F, D, m, p.margins(D), q, b)(t) for p, m in ((held, Z), (mixed, z))]
    np.testing.assert_allclose(slopes[1], slopes[0], **close)
    gamma = np.full((3, 2), 1e-9)
    found = [solve(problem, q, b, gamma, 20 * F) for problem in (held, mixed)]
    np.testing.assert_allclose(found[1].point, found[0].point, rtol=1e-9, atol=1e-6)
    assert isinstance(local_problem([there], *constants), StreamedProblem)


# --------------------------------------------------------------------------------------------------
# runs

NODES = ("a", "b", "c")
RING = Topology.from_edges([("a", "b"), ("b", "c"), ("c", "a")], NODES)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three nodes' files of 1,500 rows: too many for a limit of 16 MiB only because the estimate is
    told so.
    """
    folder, data = (
        tmp_path_factory.mktemp("nodes"),
        census(4500, seed=2, nodes=3, heterogeneity=0.5),
    )
    for p, table in data.tables(NODES).items():
        mine = {name: cells.tolist() for name, cells in table.items()}
        mine["age"][0] = mine["trade"][1] = None
        pq.write_table(pa.table(mine), folder / f"{p}.parquet", row_group_size=400)
    rules = {"age": "drop", "trade": "other"}
    columns = tuple(
        c.model_copy(update={"missing": rules.get(c.name, "refuse")}) for c in data.schema.columns
    )
    return data.schema.model_copy(update={"columns": columns}), {
        p: folder / f"{p}.parquet" for p in NODES
    }


@pytest.fixture
def never_fits(monkeypatch):
    monkeypatch.setattr("dynadp.data.node_rows.bytes_in_memory", lambda schema, rows: 1 << 40)


def limited(files):
    return {p: source(path, memory=LEAST) for p, path in files.items()}


@pytest.mark.parametrize("mechanism", [pytest.param("primal", marks=pytest.mark.slow), "dual"])
def test_a_streamed_run_is_the_run(files, mechanism, never_fits):
    schema, paths = files
    told = {"epsilon": 4.0, "delta": 1e-5, "mechanism": mechanism, "draws": SeededEntropy(3)}
    held, there = (train(schema, tables, RING, **told) for tables in (paths, limited(paths)))
    assert held.events == there.events
    assert held.schema == there.schema
    assert there.schema.centre is not None
    for release in there.run.noises:
        assert (
            np.abs(there.run.V - held.run.V)
            <= np.maximum(2 * release.step[..., None], 1e-9 * np.abs(held.run.V))
        ).all()
    np.testing.assert_allclose(
        there.run.models(), held.run.models(), rtol=1e-9, atol=2 * float(np.max(release.step))
    )


@pytest.mark.parametrize(
    "mechanism", [Dual(), Primal(), Primal(augment="iterate"), Primal(final_release=0.5)], ids=repr
)
def test_mechanisms_without_a_centre(files, mechanism):
    schema, paths = files
    told = {
        "C": 1.0,
        "rho": 0.01,
        "eta": 0.02,
        "rounds": 4,
        "mechanism": mechanism,
        "schedule": 0.8,
        "draws": SeededEntropy(5),
    }
    held = flat_simulate([load_shard(schema, paths[p], p) for p in NODES], RING, **told)
    there = flat_simulate([streamed(schema, paths[p], p) for p in NODES], RING, **told)
    np.testing.assert_allclose(
        there.V, held.V, rtol=1e-9, atol=2 * max(c.step.max() for c in held.noises)
    )


@pytest.mark.parametrize("how", [Acceleration, Newton])
def test_algorithm_1_with_acceleration_and_sums_in_its_place(files, how):
    schema, paths = files
    told = {"rho": 1e-3, "rounds": 200, "acceleration": how(gap=1e-8)}
    held = flat_simulate([load_shard(schema, paths[p], p) for p in NODES], RING, **told)
    there = flat_simulate([streamed(schema, paths[p], p) for p in NODES], RING, **told)
    assert there.stopped
    assert there.certificate.gap.max() <= 1e-8
    np.testing.assert_allclose(there.V, held.V, rtol=1e-3, atol=1e-3)


def test_a_node_of_a_network_streams(files, never_fits, tmp_path):
    schema, paths = files
    alone = Topology.from_edges([], ["a"])
    rows = count(schema, paths["a"])
    features = len(schema.features) - bool(schema.intercept)
    plan = Plan.of(
        rho=0.01, eta=0.02, rounds=3, mechanism=Dual(), schedule=0.8, centring=(0.5,)
    ).on(Consortium(alone, (rows,), schema.dimension, features))
    part = NodeRun("a", schema, plan)
    found = []
    for mine in (paths["a"], limited(paths)["a"]):
        key, folder = Ed25519PrivateKey.generate(), tmp_path / str(len(found))
        folder.mkdir()
        rules = part.rules(run_id("run"), run_id("config"), {"a": key.public_key()})
        outbox = FolderJournal(folder / "messages", ["a"])
        post = Inbox(folder / "letters.sqlite", rules, key)
        with pytest.raises(StopIteration) as end:
            next(node_rounds(part, mine, post, lambda *_: None, outbox, SeededEntropy(1)))
        post.close()
        found.append(end.value.value)
    assert found[0].schema == found[1].schema
    step = max(float(c.step.max()) for c in plan.release_plan.noises)
    np.testing.assert_allclose(found[1].vector, found[0].vector, rtol=1e-9, atol=2 * step)


def test_a_streamed_node_takes_no_gpu(files):
    schema, paths = files
    with pytest.raises(DeclarationError, match="its rows are streamed"):
        simulate([streamed(schema, paths["a"], "a")], Topology.family("ring", 1), device="cuda")


# --------------------------------------------------------------------------------------------------
# the limit


def test_what_fits_is_held_and_what_does_not_is_streamed(path, tmp_path, monkeypatch):
    given = source(path, memory=LEAST)
    assert isinstance(local_shard(schema(), given), Shard)
    assert isinstance(local_shard(schema(), path), Shard)
    rows = count(schema(), path)
    exact = bytes_in_memory(schema(), rows)
    monkeypatch.setattr("dynadp.data.readers.LEAST_MEMORY", 1)
    assert isinstance(local_shard(schema(), source(path, memory=exact)), Shard)
    assert isinstance(
        local_shard(schema(), source(path, memory=exact - 1), rows=rows), StreamedShard
    )
    pq.read_table(path).to_pandas().to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(
        DataError, match=r"node 'a': its rows need about .* MiB .*: convert the file to Parquet"
    ):
        local_shard(schema(), source(tmp_path / "rows.csv", memory=exact - 1), "a")


@pytest.mark.parametrize("which", ["clip", "centred"])
def test_the_estimate_is_not_below_what_rows_take(which, path):
    held = load_shard(SCHEMAS[which], path).signed
    taken = (
        held.nbytes
        if isinstance(held, np.ndarray)
        else held.data.nbytes + held.indices.nbytes + held.indptr.nbytes
    )
    assert taken < bytes_in_memory(SCHEMAS[which], held.shape[0])


def test_blocks_follow_the_limit():
    assert rows_at_once(1 << 30, 21) == 65536
    assert rows_at_once(LEAST, 21) == LEAST // (192 * 21) < 65536
    assert rows_at_once(LEAST, 100_000) == 1024


def test_a_limit_that_is_too_small(path):
    with pytest.raises(DeclarationError, match="memory is 1000 bytes; expected at least"):
        source(path, memory=1000)


RUN = """
[data]
schema = "schema.json"
{data}
[[nodes]]
name = "a"
file = "a.parquet"
[[nodes]]
name = "b"
file = "b.parquet"
[[nodes]]
name = "c"
file = "c.parquet"
[privacy]
{privacy}
[run]
seed = 3
"""
PRIVATE = "epsilon = 4.0\ndelta = 1e-5"


def run_file(folder, data="", privacy=PRIVATE):
    path = folder / "run.toml"
    path.write_text(RUN.format(data=data, privacy=privacy))
    return path


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("512", 512),
        ('"512 MiB"', 512),
        ('"2 GiB"', 2048),
        ('"1.5GiB"', 1536),
        ('"20 MB"', 19),
        ('"1 GB"', 953),
    ],
)
def test_memory_in_the_run_file(tmp_path, text, mebibytes):
    assert load_run_file(run_file(tmp_path, f"memory = {text}")).data.memory == mebibytes


@pytest.mark.parametrize(
    "text", ["15", '"15 MiB"', "0", "-1", "1.5", '"much"', '"512"', '"512 KiB"', "true", "[1]"]
)
def test_memory_that_is_none(tmp_path, text):
    with pytest.raises(
        ConfigError,
        match=r'data\.memory: must be a whole number of MiB from 16, or a text such as "512 MiB"',
    ):
        load_run_file(run_file(tmp_path, f"memory = {text}"))


def test_a_node_has_a_limit_of_its_own(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(
        'run = "run.toml"\nnode = "a"\nidentity = "id"\nfile = "a.parquet"\nout = "out"\nmemory = '
        '"1 GiB"'
    )
    assert load_node_file(file).memory == 1024
    file.write_text(file.read_text().replace("1 GiB", "1 KiB"))
    with pytest.raises(ConfigError, match="memory: must be a whole number of MiB"):
        load_node_file(file)


def test_memory_is_for_files_of_nodes(tmp_path):
    text = run_file(tmp_path, 'memory = 64\nfile = "all.parquet"\nnode_column = "silo"').read_text()
    (tmp_path / "run.toml").write_text(
        "\n".join(
            line for line in text.split("\n") if not line.endswith('parquet"') or "all" in line
        )
    )
    with pytest.raises(ConfigError, match="give each node a Parquet file of its own"):
        load_run_file(tmp_path / "run.toml")


@pytest.mark.parametrize("privacy", [PRIVATE, 'mechanism = "none"'])
def test_jobs_stream_when_the_run_file_says_so(files, tmp_path, never_fits, privacy):
    schema, paths = files
    for p in NODES:
        (tmp_path / f"{p}.parquet").write_bytes(paths[p].read_bytes())
    (tmp_path / "schema.json").write_text(schema.model_dump_json())
    models = []
    for data in ("", "memory = 16"):
        job = LocalRun.load(run_file(tmp_path, data, privacy))
        assert set(job.counts.values()) == {1499}
        out = tmp_path / f"out {len(models)}"
        job.run(out, who="test", created="2026-03-01T12:00:00+00:00")
        models.append(np.array(json.loads((out / "model.json").read_text())["coef"]))
    np.testing.assert_allclose(models[1], models[0], rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------------------------------
# memory

WORKER = Path(__file__).parents[2] / "benchmarks" / "streamed_worker.py"
CEILING = 700 << 20


@pytest.mark.slow
def test_a_million_rows_are_trained_on_in_little_memory(tmp_path):
    sys.path.insert(0, str(WORKER.parents[1]))
    try:
        from benchmarks.streamed import write
    finally:
        sys.path.pop(0)
    path = tmp_path / "rows.parquet"
    write(path, 1_000_000)
    command = [sys.executable, str(WORKER), "train", str(path), str(128 << 20), "2"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["streamed"]
    assert found["rows"] == 1_000_000
    assert found["matrix"] > 600 << 20  # which streaming must not need
    assert found["peak"] < CEILING
