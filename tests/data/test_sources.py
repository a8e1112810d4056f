"""Sources: the same cells give the same shard to the last bit wherever they come from, in little
memory, and stay secret.
"""

import gzip
import logging
import os
import subprocess
import sys
import traceback
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import issparse

from dynadp.data import files
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.datasets.synthetic import census
from dynadp.data.loading import load_shard, split_tables, table
from dynadp.data.node_rows import StreamedShard
from dynadp.data.readers import source
from dynadp.data.schema import Label, Schema
from dynadp.data.survey import count, survey
from dynadp.errors import CellError, DataError, DatasetError, DeclarationError

SECRET = "SECRET-CELL"
NUMBERS = ("age", "schooling", "hours", "gain")


def with_rules(schema, **more):
    """Rules for missing cells: a row dropped, a number put there, another category."""
    rules = {
        "age": "drop",
        "gain": 0.0,
        "trade": "other",
        "region": "drop",
        "sector": {"value": "private"},
    }
    columns = [
        column.model_copy(update={"missing": rules.get(column.name, "refuse")})
        for column in schema.columns
    ]
    return schema.model_copy(update={"columns": tuple(columns), **more})


def spoiled(table):
    """None in some cells, and categories that nobody declared."""
    rng = np.random.default_rng(7)
    cells = {name: np.array(column.tolist(), dtype=object) for name, column in table.items()}
    for name in ("age", "gain", "trade", "region", "sector"):
        cells[name][rng.random(len(cells[name])) < 0.1] = None
    for name in ("trade", "region"):
        cells[name][rng.random(len(cells[name])) < 0.1] = 'made "up";\nby, me\tä'
    return cells


DATA = census(300, seed=3, nodes=3)
RAW = spoiled(DATA.train)
RAW["silo"] = np.array([f"silo {p}" for p in DATA.node], dtype=object)
SCHEMA = with_rules(DATA.schema)
PLANS = {
    "csr": SCHEMA,
    "dense": with_rules(DATA.schema, centre=(0.1,) * (SCHEMA.dimension - 1), scaling="unit"),
}


def frame():
    lists = {name: cells.tolist() for name, cells in RAW.items()}
    return pd.DataFrame(
        {
            name: pd.Series(cells, dtype=float if name in NUMBERS else object)
            for name, cells in lists.items()
        }
    )


def arrow():
    return pa.table({name: pa.array(cells.tolist()) for name, cells in RAW.items()})


def written(folder, ending, separator=",", **more):
    path = folder / f"rows{ending}"
    frame().to_csv(path, index=False, sep=separator, **more)
    return path


def parquet(folder, made=None, name="rows.parquet", **more):
    pq.write_table(arrow() if made is None else made, folder / name, **more)
    return folder / name


def nullable():
    kinds = {name: "Float64" if name in NUMBERS else "string" for name in RAW}
    return frame().astype(kinds)


ORIGINS = {
    "dict": lambda folder: RAW,
    "lists": lambda folder: {name: cells.tolist() for name, cells in RAW.items()},
    "pandas": lambda folder: frame(),
    "pandas nullable": lambda folder: nullable(),
    "pandas categories": lambda folder: frame().astype({"trade": "category", "income": "category"}),
    "polars": lambda folder: pl.from_arrow(arrow()),
    "polars categories": lambda folder: pl.from_arrow(arrow()).with_columns(
        pl.col("trade", "silo").cast(pl.Categorical)
    ),
    "arrow": lambda folder: arrow(),
    "arrow dictionary": lambda folder: arrow().set_column(
        5, "trade", arrow()["trade"].dictionary_encode()
    ),
    "arrow chunks": lambda folder: pa.concat_tables([arrow()[:100], arrow()[100:]]),
    "matrix": lambda folder: source(np.stack(list(RAW.values()), axis=1), names=list(RAW)),
    "csv": lambda folder: written(folder, ".csv"),
    "semicolons": lambda folder: str(written(folder, ".csv", ";")),
    "tabs": lambda folder: written(folder, ".csv", "\t"),
    "tsv": lambda folder: written(folder, ".tsv", "\t"),
    "declared": lambda folder: source(written(folder, ".csv", ";"), separator=";"),
    "all quoted": lambda folder: written(folder, ".csv", quoting=1),
    "crlf": lambda folder: written(folder, ".csv", lineterminator="\r\n"),
    "bom": lambda folder: written(folder, ".csv", encoding="utf-8-sig", quoting=1),
    "gzip": lambda folder: written(folder, ".csv.gz"),
    "parquet": lambda folder: parquet(folder),
    "parquet groups": lambda folder: parquet(folder, row_group_size=64),
    "parquet float32": lambda folder: parquet(folder, arrow().cast(narrow())),
    "parquet of polars": lambda folder: saved(pl.from_arrow(arrow()).write_parquet, folder),
    "parquet of pandas": lambda folder: saved(
        frame().astype({"trade": "category"}).to_parquet, folder
    ),
}


def saved(write, folder):
    write(folder / "rows.parquet")
    return folder / "rows.parquet"


def narrow():
    return pa.schema(
        [pa.field(f.name, pa.float32() if f.name in NUMBERS else f.type) for f in arrow().schema]
    )


def content(made):
    parts = (
        [made.signed.data, made.signed.indices, made.signed.indptr]
        if issparse(made.signed)
        else [made.signed]
    )
    return [(part.dtype, part.shape, part.tobytes()) for part in (*parts, made.y)]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("origin", ORIGINS)
def test_every_origin_gives_the_same_shard_to_the_last_bit(origin, plan, tmp_path):
    schema = PLANS[plan]
    whole = schema.shard(RAW, "north")
    made = load_shard(schema, ORIGINS[origin](tmp_path), "north", size=97)
    assert content(made) == content(whole)
    assert (made.name, issparse(made.signed)) == ("north", plan == "csr")
    assert 0 < made.rows < len(RAW["age"])
    for part in (
        [made.signed.data, made.signed.indices, made.signed.indptr]
        if plan == "csr"
        else [made.signed]
    ):
        assert not part.flags.writeable
    assert not made.y.flags.writeable


@pytest.mark.parametrize("origin", ["dict", "polars", "csv", "gzip", "parquet"])
def test_rows_keep_their_order_and_come_again(origin, tmp_path):
    given = source(ORIGINS[origin](tmp_path))
    assert given.columns == tuple(RAW)
    for _ in range(2):
        batches = list(given.batches(["hours", "income"], size=128))
        assert [len(batch["hours"]) for batch in batches] == [128, 128, 44]
        assert all(list(batch) == ["hours", "income"] for batch in batches)
        assert [float(cell) for batch in batches for cell in batch["hours"]] == RAW[
            "hours"
        ].tolist()
    whole = table(SCHEMA, given, also=["silo"])
    assert list(whole) == [*(column.name for column in SCHEMA.columns), "income", "silo"]
    assert whole["silo"].tolist() == RAW["silo"].tolist()
    assert content(SCHEMA.shard(whole)) == content(SCHEMA.shard(RAW))


WEIGHTS = {"b": 1, "c": 0.3, "d": 7}
FOUR = (
    Numeric(
        name="a",
        low=0,
        high=9,
        encode=("linear", "square", "hats"),
        knots=(0, 3, 9),
        missing="drop",
    ),
    *(
        Categorical(name=name, values=(1, 2, 3), other="column", missing="other", weight=w)
        for name, w in WEIGHTS.items()
    ),
)


@given(
    rows=st.lists(
        st.tuples(*[st.sampled_from([0.7, 1, 2, 3, 8.1, None])] * 4, st.booleans()),
        min_size=1,
        max_size=30,
    ),
    size=st.integers(1, 40),
    more=st.sampled_from([{}, {"scaling": "unit"}, {"norm": 3}, {"centre": (0.1,) * 17}]),
)
def test_the_size_of_batches_does_not_matter(rows, size, more):
    schema = Schema(columns=FOUR, label=Label(name="y", negative=False, positive=True), **more)
    raw = {name: list(cells) for name, cells in zip("abcdy", zip(*rows, strict=True), strict=True)}
    stay = int(schema.kept(raw).sum())
    assert count(schema, raw, size) == stay == survey(schema, raw, size=size).rows
    if stay:
        assert content(load_shard(schema, raw, size=size, rows=stay)) == content(schema.shard(raw))
        with pytest.raises(DataError, match=rf"holds {stay} rows but declared B_p = 99"):
            load_shard(schema, raw, size=size, rows=99)
    else:
        with pytest.raises(DataError, match=r"node 'n' is empty \(0 rows\)"):
            load_shard(schema, raw, "n", size=size)


@pytest.mark.usefixtures("either_way")
def test_numbers_booleans_and_decimals_of_a_typed_file_match_what_is_declared(tmp_path):
    made = pa.table(
        {
            "code": pa.array([1, None, 9007199254740993, 2], type=pa.int64()),
            "huge": pa.array([2**64 - 1, 1, 2, 3], type=pa.uint64()),
            "share": pa.array([Decimal("1.00"), Decimal("2.00"), None, Decimal("3.50")]),
            "flag": pa.array([True, False, None, True]),
            "kind": pa.array(["x", "y", None, "x"]).dictionary_encode(),
            "ill": pa.array([False, True, True, False]),
        }
    )
    schema = Schema(
        columns=(
            Categorical(name="code", values=(9007199254740993, 1), missing="other"),
            Categorical(name="huge", values=(2**64 - 1, 1)),
            Categorical(name="share", values=(1, 2), missing="other"),
            Categorical(name="flag", values=(0, 1), missing="other"),
            Categorical(name="kind", values=("x", "y"), missing="other"),
        ),
        label=Label(name="ill", negative=False, positive=True),
        norm=3.0,
    )
    expected = np.array(
        [
            [0, 1, 1, 0, 1, 0, 0, 1, 1, 0],
            [0, 0, 0, 1, 0, 1, 1, 0, 0, 1],
            [1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 1, 1, 0],
        ]
    )
    for data in (
        parquet(tmp_path, made),
        made,
        pl.from_arrow(made),
        made.to_pandas(types_mapper=pd.ArrowDtype),
    ):
        found = load_shard(schema, data, size=2)
        np.testing.assert_array_equal(
            (found.y[:, None] * found.signed.toarray() > 0)[:, :-1], expected
        )
        assert found.y.tolist() == [-1, 1, 1, -1]


SPELLED = {
    "whole": ["1.0", "0", "1", "0.0"],
    "csv": "x,y\n1,1.0\n2,0\n3,1\n4,0.0\n",
    "int": pa.array([1, 0, 1, 0], type=pa.int8()),
    "float": pa.array([1.0, 0.0, 1.0, 0.0]),
    "single": pa.array([1.0, 0.0, 1.0, 0.0], type=pa.float32()),
    "decimal": pa.array([Decimal("1.0"), Decimal("0.0"), Decimal("1.0"), Decimal("0.0")]),
    "text": pa.array(["1.0", "0", "1", "0.0"]),
    "dictionary": pa.array(["1.0", "0", "1", "0.0"]).dictionary_encode(),
}


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("declared", [(0, 1), (0.0, 1.0)])
@pytest.mark.parametrize("origin", SPELLED)
def test_labels_that_are_numbers_match_by_value_however_they_are_written(
    origin, declared, tmp_path
):
    schema = Schema(
        columns=(Numeric(name="x", low=0, high=4),),
        label=Label(name="y", negative=declared[0], positive=declared[1]),
    )
    cells, x = SPELLED[origin], [1.0, 2.0, 3.0, 4.0]
    if isinstance(cells, str):
        (tmp_path / "rows.csv").write_text(cells)
        origins = [tmp_path / "rows.csv"]
    elif isinstance(cells, list):
        origins = [{"x": x, "y": cells}]
    else:
        made = pa.table({"x": x, "y": cells})
        origins = [made, parquet(tmp_path, made), pl.from_arrow(made), made.to_pandas()]
    for data in origins:
        assert load_shard(schema, data, size=2).y.tolist() == [1, -1, 1, -1]


def test_labels_that_are_texts_match_by_text(tmp_path):
    (tmp_path / "rows.csv").write_text("x,y\n1,1\n2,1.0\n")
    schema = Schema(
        columns=(Numeric(name="x", low=0, high=4),),
        label=Label(name="y", negative="1", positive="1.0"),
    )
    assert load_shard(schema, tmp_path / "rows.csv").y.tolist() == [-1, 1]
    (tmp_path / "rows.csv").write_text("x,y\n1,1\n2,01\n")
    refused("row 1: the label is neither '1' nor '1.0'", tmp_path / "rows.csv", schema)


def test_masked_cells_are_missing():
    data = {"a": np.ma.array([1.0, 5.0, 2.0], mask=[False, True, False]), "y": ["0", "1", "1"]}
    schema = Schema(columns=(FOUR[0],), label=Label(name="y", negative=0, positive=1))
    assert load_shard(schema, data).y.tolist() == [-1, 1]


# --------------------------------------------------------------------------------------------------
# nodes


@pytest.mark.parametrize("origin", ["dict", "csv", "parquet", "pandas"])
@pytest.mark.parametrize("nodes", [None, ["silo 2", "silo 0", "silo 1"]])
@pytest.mark.parametrize("plan", PLANS)
def test_one_file_is_split_by_its_node_column(origin, nodes, plan, tmp_path):
    data, schema = ORIGINS[origin](tmp_path), PLANS[plan]
    tables = split_tables(data, schema, "silo", nodes)
    assert list(tables) == (nodes or ["silo 0", "silo 1", "silo 2"])
    for node, own in tables.items():
        mine = {name: cells[RAW["silo"] == node] for name, cells in RAW.items()}
        assert content(schema.shard(mine)) == content(schema.shard(own))
        assert "silo" not in own


SMALL = Schema(
    columns=(Numeric(name="a", low=0, high=9),), label=Label(name="y", negative=0, positive=1)
)


@pytest.mark.parametrize(
    ("nodes", "cells", "message"),
    [
        (
            ["1", "2"],
            [1, 2, SECRET],
            r"column 'p', row 2: the node is none of the declared ones, 1, 2$",
        ),
        (None, [1, "", 2], "column 'p', row 1: the row names no node"),
        (None, [1, 2, None], "column 'p', row 2: the row names no node"),
        (None, [1.0, 2.0, float("nan")], "column 'p', row 2: the row names no node"),
        (["1", "2", "3"], [1, 2.0, " 2 "], "node '3' is empty"),
    ],
)
def test_rows_of_no_declared_node_are_refused(nodes, cells, message):
    with pytest.raises(DataError, match=message) as refusal:
        split_tables({"a": [1, 2, 3], "y": [0, 1, 1], "p": cells}, SMALL, "p", nodes)
    assert SECRET not in str(refusal.value)


def test_nodes_are_named_by_text():
    rows = {"a": [1, 2, 3], "y": [0, 1, 1], "p": [10.0, 2.0, 10.0]}
    assert list(split_tables(rows, SMALL, "p")) == ["10", "2"]


# --------------------------------------------------------------------------------------------------
# errors

GOOD = "a,b,y\n" + "1,x,0\n" * 3000
CASES = {  # a file's name and content, and what is said of it
    "too many.csv": (
        GOOD + f"1,{SECRET},0,{SECRET}\n",
        "row 3000: it has more or fewer cells than the header",
    ),
    "too few.csv": (GOOD + f"{SECRET}\n1,x,0\n", "row 3000: it has more or fewer cells"),
    "after quote.csv": (GOOD + f'1,"{SECRET}"x,0\n', "row 3000: the quotes do not match"),
    "open quote.csv": (GOOD + f'1,"{SECRET},0\n1,x,0\n', "row 3000: the quotes do not match"),
    "line ends.csv": (GOOD.replace("\n", "\r\n") + f"1,{SECRET},0\n", "do not all end alike"),
    "bytes.csv": (
        GOOD.encode() + f"1,{SECRET}".encode() + b"\xff,0\n",
        "row 3000: it is not UTF-8 text",
    ),
    "early bytes.csv": (f"a,b,y\n1,{SECRET}".encode() + b"\xff,0\n", "it is not UTF-8 text"),
    "latin header.csv": (
        f"a,b,y,M\xe4dchen\n1,{SECRET},0,1\n".encode("latin-1"),
        "it is not UTF-8 text",
    ),
    "utf-16.csv": (GOOD.replace("x", SECRET).encode("utf-16"), "it is not UTF-8 text"),
    "number.csv": (GOOD + f"{SECRET},x,0\n", "column 'a', row 3000: the value is not a number"),
    "inner ends.csv": (
        f'a,b,y\n1,"x\n\nx",0\n{SECRET},x,0\n',
        "column 'a', row 1: the value is not a number",
    ),
    "missing.csv": (GOOD + f",{SECRET},0\n", "column 'a', row 3000: the value is missing"),
    "label.csv": (GOOD + f"1,x,{SECRET}\n", "y, row 3000: the label is neither 0 nor 1"),
    "listed.csv": (
        GOOD + f"1,{SECRET},0\n",
        "column 'b', row 3000: the value is not in the declared vocabulary",
    ),
    "none.csv": ("", "the first line is empty"),
    "blank.csv": ("\n" + GOOD, "the first line is empty"),
    "header only.csv": ("a,b,y\n", "node 'north' is empty"),
    "no header.csv": (
        f"1,{SECRET},0\n1,x,0\n",
        "there is no column 'a'; nor is any other that was asked for",
    ),
    "other header.csv": ("a,z,y\n1,x,0\n", "there is no column 'b'; its columns are 'a', 'z', 'y'"),
    "twice.csv": ("a,b,b,y\n1,x,x,0\n", "column 'b' is there more than once"),
    "header quote.csv": (f'a,"b"{SECRET},y\n1,x,0\n', "the quotes of its first line do not match"),
    "header open.csv": (f'a,"b,y\n{SECRET},x,0\n', "the quotes of its first line do not match"),
    "cut.csv.gz": (
        gzip.compress(os.urandom(20000) + SECRET.encode())[:-200],
        "not UTF-8|cannot be read",
    ),
    "cut rows.csv.gz": (
        gzip.compress((GOOD + f"1,{SECRET},0\n").encode())[:-12],
        "cannot be read; it may be cut",
    ),
    "checksum.csv.gz": (
        gzip.compress((GOOD + f"1,{SECRET},0\n").encode())[:-8] + b"12345678",
        "cannot be read; it may be cut",
    ),
    "no gzip.csv.gz": (GOOD + SECRET, "cannot be read; it may be cut or damaged"),
    "empty.csv.gz": (b"", "the first line is empty"),
    "corrupt.parquet": (
        b"PAR1" + SECRET.encode() * 50 + b"PAR1",
        "cannot be read; it may be cut, damaged",
    ),
    "text.parquet": (GOOD + SECRET, "cannot be read; it may be cut, damaged"),
}
ABY = Schema(
    columns=(
        Numeric(name="a", low=0, high=9),
        Categorical(name="b", values=("x",), other="refuse"),
    ),
    label=Label(name="y", negative=0, positive=1),
)


def refused(message, data, schema=ABY, kind=DataError):
    with pytest.raises(kind, match=message) as refusal:
        load_shard(schema, data, "north", size=512)
    error = refusal.value
    while error is not None:  # not only what is printed: what hangs on it
        assert SECRET not in "".join(traceback.format_exception(error, chain=False))
        error = error.__cause__ or error.__context__
    return str(refusal.value)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", CASES)
def test_a_broken_file_is_refused_without_showing_a_cell(name, tmp_path, caplog, capfd):
    content, message = CASES[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        text = refused(message, tmp_path / name)
    assert name in text or "row 3000" in text or name in ("inner ends.csv", "header only.csv")
    out, err = capfd.readouterr()
    assert SECRET not in caplog.text + out + err + "".join(str(warning.message) for warning in told)


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.parquet"])
def test_a_file_that_this_user_may_not_read_is_not_called_damaged(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_text(GOOD)
    monkeypatch.setattr("dynadp.data.files.os.access", lambda path, mode: False)
    refused(f"cannot read {path}: Permission denied", path, kind=DatasetError)

    def no_entry(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(type(path), "is_file", no_entry)
    refused(f"cannot read {path}: Permission denied", path, kind=DatasetError)


@pytest.mark.usefixtures("either_way")
def test_a_damaged_parquet_file_is_refused_without_showing_a_cell(tmp_path):
    cells = [f"{SECRET} {i}" for i in range(2000)]
    made = pa.table({"a": np.arange(2000.0), "b": cells, "y": [0] * 2000})
    path = parquet(tmp_path, made, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    assert SECRET.encode() in whole
    path.write_bytes(whole[:-100])
    refused("cannot be read", path)
    path.write_bytes(
        whole.replace(SECRET.encode(), b"SECRET-CELL"[:-1] + b"\xff")
    )  # not UTF-8 any more
    assert "SECRET" not in refused("cannot be read", path)
    place = whole.index(SECRET.encode())
    path.write_bytes(whole[: place - 400] + b"\xff" * 2000 + whole[place + 1600 :])
    refused("cannot be read|not in the declared vocabulary|not a number", path)


def test_a_frame_with_a_wrong_cell_is_refused_without_showing_it():
    for make in (pd.DataFrame, pl.DataFrame, pa.table):
        refused(
            "column 'a', row 1: the value is not a number",
            make({"a": ["1", SECRET], "b": ["x", "x"], "y": [0, 1]}),
        )


def test_too_long_a_row_is_told_by_its_place_in_the_data():
    schema = SMALL.model_copy(update={"scaling": "none", "norm": 1.4})
    with pytest.raises(CellError, match="node 'n', row 3: its norm with the intercept is above 1"):
        load_shard(schema, {"a": [4, 4, 4, 9.0], "y": [0] * 4}, "n", size=2)


@pytest.mark.parametrize("made", [[[1], [2]], [{"k": 1}, {"k": 2}]])
def test_nested_cells_are_refused_by_column(made, tmp_path):
    nested = pa.table({"a": made, "b": ["x", "x"], "y": [0, 1]})
    for data in (nested, pl.from_arrow(nested), parquet(tmp_path, nested)):
        refused(r"column 'a' is of type [\w\[\]]+; expected text, numbers or booleans", data)
    times = pa.table({"a": pa.array([0, 1], type=pa.time32("s")), "b": ["x", "x"], "y": [0, 1]})
    refused("column 'a' is of type TIME", parquet(tmp_path, times))
    assert (
        load_shard(SMALL.model_copy(update={"columns": ABY.columns[1:]}), nested).rows == 2
    )  # one that nobody asked for may be


@pytest.mark.parametrize(
    ("data", "more", "message"),
    [
        (
            np.zeros((2, 2)),
            {},
            "names are for a NumPy matrix of rows, and it needs one name for each",
        ),
        (np.zeros((2, 2)), {"names": ["a"]}, "one name for each"),
        (np.zeros((2, 2)), {"names": ["a", "a"]}, "one is given twice"),
        (np.zeros(2), {"names": ["a", "b"]}, "names are for a NumPy matrix"),
        ({"a": [1]}, {"names": ["a"]}, "names are for a NumPy matrix"),
        ({"a": [1]}, {"separator": ","}, "only CSV files have one"),
        (3.5, {}, "data is of type float; expected a path"),
        (pl.LazyFrame({"a": [1]}), {"name": "mine"}, r"mine is a LazyFrame, .* call \.collect\(\)"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "whose columns have different names"),
        ("rows.xlsx", {}, r"expected a file that ends with \.csv"),
        ("rows.gz", {}, r"expected a file that ends with \.csv"),
        (
            "https://example.org/rows.csv",
            {},
            "there is no file https.*; expected a file on this machine",
        ),
        (".csv", {}, r"expected a file that ends with"),
    ],
)
def test_what_is_no_source_is_refused_with_what_to_give(data, more, message):
    with pytest.raises((DeclarationError, DatasetError), match=message):
        source(data, **more)


def test_separators_are_declared_where_the_header_leaves_a_doubt(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('a;"b;,\n\tc";y\n1;x;0\n')
    assert source(path).columns == ("a", "b;,\n\tc", "y")
    assert [batch["y"].tolist() for batch in source(path).batches(["y"])] == [["0"]]
    path.write_text("a;b,y\n1;x,0\n")
    with pytest.raises(
        DeclarationError, match="more than one of comma, semicolon and tab; declare the separator"
    ):
        source(path)
    assert source(path, separator=",").columns == ("a;b", "y")
    with pytest.raises(DeclarationError, match="expected a comma, a semicolon or a tab"):
        source(path, separator="|")
    with pytest.raises(DeclarationError, match="only CSV files have one"):
        source(parquet(tmp_path), separator=",")
    path.write_text("a\n1\n2\n")
    assert [batch["a"].tolist() for batch in source(path).batches(["a"])] == [["1", "2"]]


def test_texts_of_a_csv_file_stay_as_they_are(tmp_path):
    (tmp_path / "rows.csv").write_text('a,b\n,""\nNULL, NA \n007,1e3\n')
    (batch,) = source(tmp_path / "rows.csv").batches(["b", "a"])
    assert {name: cells.tolist() for name, cells in batch.items()} == {
        "b": ["", " NA ", "1e3"],
        "a": ["", "NULL", "007"],
    }


@pytest.mark.parametrize("columns", [{"a": [1, 2], "y": [0]}, {"a": np.zeros((2, 1)), "y": [0, 1]}])
def test_columns_that_are_no_table_are_refused(columns):
    with pytest.raises(
        DataError, match=r"column 'y' has 1 rows, 'a' has 2|column 'a' has 2 dimensions"
    ):
        load_shard(SMALL, columns)


def test_batches_and_tables_need_something():
    for names, size in ((["a"], 0), ([], 3)):
        with pytest.raises(DeclarationError, match="expected at least 1 of each"):
            source({"a": [1]}).batches(names, size)
    with pytest.raises(DataError, match="data has no rows"):
        table(SMALL, {"a": [], "y": []})
    with pytest.raises(DataError, match="there is no column 'a'"):
        count(SMALL, {"b": [1], "y": [0]})


@pytest.mark.parametrize(
    ("package", "name"), [("duckdb", "rows.csv"), ("duckdb", "rows.parquet"), ("narwhals", None)]
)
def test_a_missing_package_is_named_with_what_to_install(package, name, tmp_path, monkeypatch):
    data = pl.DataFrame({"a": [1], "y": [0]}) if name is None else tmp_path / name
    if name:
        data.write_text('a,y\n"1",0\n')
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        DeclarationError,
        match=rf"need {package}, which is not installed: pip install 'dynadp\[data\]'",
    ):
        load_shard(SMALL, data)


# --------------------------------------------------------------------------------------------------
# what it may touch


@pytest.mark.parametrize("memory", [None, 16 << 20])
def test_reading_by_way_of_arrow_imports_no_pandas(memory, tmp_path):
    text = (
        "import sys\n"
        "from dynadp.data import files\n"
        "from dynadp.data.datasets.synthetic import census_schema\n"
        "from dynadp.data.readers import source\n"
        "from dynadp.data.survey import survey\n"
        f"files._LARGE = 0; given = source(sys.argv[1], memory={memory})\n"
        "print(survey(census_schema(), given).rows, *{'pandas', 'pyarrow'} & set(sys.modules))"
    )
    path = parquet(tmp_path, pa.table(dict(DATA.train)))
    assert script(text, path) == ["300", "pyarrow"]


@pytest.mark.parametrize("query", [files._query, files._arrow_query])
def test_duckdb_may_read_the_given_file_and_nothing_else(query, tmp_path):
    path, other = parquet(tmp_path), parquet(tmp_path, name="other.parquet")
    settings = {name: name for name in files._ALONE} | {
        "enable_external_access": "enable_external_access"
    }
    asked = "SELECT " + ", ".join(f"current_setting('{name}')" for name in settings)
    ((row,),) = files._query(path, "x", asked, 10)
    found = dict(zip(settings, row, strict=True))
    assert (found.pop("threads"), found.pop("temp_directory")) == (1, "")
    assert not any(found.values())
    for forbidden in (
        f"SELECT * FROM read_parquet('{other}')",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT * FROM read_csv('https://example.org/rows.csv')",
    ):
        with pytest.raises(DataError, match="cannot be read"):
            list(query(path, "x", forbidden, 10))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.parquet", "rows.parquet"]


def test_a_path_that_stands_for_several_files_is_refused(tmp_path):
    with pytest.raises(DeclarationError, match="which would stand for several files; rename it"):
        source(parquet(tmp_path, name="rows*.parquet"))


def test_folders_and_odd_names_add_no_columns(tmp_path):
    folder = tmp_path / "year=2020" / "it's"
    folder.mkdir(parents=True)
    made = pa.table({'sa"y': [1.0], "select": ["x"], "year": [3]})
    given = source(parquet(folder, made))
    assert given.columns == ('sa"y', "select", "year")
    assert list(given.batches(given.columns)) == [{'sa"y': [1.0], "select": ["x"], "year": [3]}]


def script(text, *args, home=None):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **({"HOME": str(home)} if home else {})},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_sources_imports_no_reader():
    heavy = "{'duckdb', 'narwhals', 'pandas', 'polars', 'pyarrow', 'sklearn'}"
    assert script(
        f"import sys, dynadp.data.loading; print({heavy} & set(sys.modules) or 'none')"
    ) == ["none"]


def test_reading_files_needs_neither_pandas_nor_arrow_and_leaves_nothing_at_home(tmp_path):
    path, home = written(tmp_path, ".csv.gz"), tmp_path / "home"
    home.mkdir()
    text = (
        "import sys; sys.modules.update(pandas=None, pyarrow=None, polars=None)\n"
        "from dynadp.data.readers import source\n"
        "for path in sys.argv[1:]: print(sum(len(batch['age']) for batch in "
        "source(path).batches(['age', 'trade'], 64)))"
    )
    assert script(text, path, parquet(tmp_path), home=home) == ["300", "300"]
    assert list(home.iterdir()) == []


PEAK = """
import sys
from dynadp.data import files
from dynadp.data.datasets.synthetic import census_schema
from dynadp.data.loading import load_shard, table
schema = census_schema()
path, small, how = sys.argv[1:]
def peak():
    lines = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) * 1024
files._LARGE = 0
load_shard(schema, small)  # imports
before = peak()
made = load_shard(schema, path) if how == "streamed" else schema.shard(table(schema, path))
held = made.signed.data, made.signed.indices, made.signed.indptr, made.y
print(peak() - before, sum(array.nbytes for array in held))
"""


def test_a_streamed_file_needs_little_more_memory_than_its_rows(tmp_path):
    rows = census(200_000, nodes=1, test_rows=0).train
    big = parquet(tmp_path, pa.table(rows), name="big.parquet")
    small = parquet(
        tmp_path,
        pa.table({name: cells[:9000] for name, cells in rows.items()}),
        name="small.parquet",
    )
    peak, size = map(int, script(PEAK, big, small, "streamed"))
    assert size > 20e6
    assert peak < 1.5 * size + 10e6
    peak, size = map(int, script(PEAK, big, small, "whole"))  # what the bound is there to notice
    assert peak > 2 * (1.5 * size + 10e6)


def test_mixed_line_ends_are_said(tmp_path):
    (tmp_path / "mixed.csv").write_bytes(b"a,b\r\n1,2\r\n3,4\n5,6\r\n")
    with pytest.raises(DataError, match="lines do not all end alike"):
        list(source(tmp_path / "mixed.csv").batches(["a", "b"]))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("declared", [(0, 1), (0.0, 1.0), ("0", "1")])
@pytest.mark.parametrize("spelled", ["1", "1.0", "1.", "1.00"])
def test_a_whole_number_may_be_written_with_a_point_in_every_form(tmp_path, declared, spelled):
    schema = Schema(
        columns=(Categorical(name="code", values=declared, other="refuse"),),
        label=Label(name="y", negative=declared[0], positive=declared[1]),
    )
    cells = {"code": [spelled, "0"], "y": [spelled, "0.0"]}
    (tmp_path / "rows.csv").write_text(f"code,y\n{spelled},{spelled}\n0,0.0\n")
    pl.DataFrame(cells).write_parquet(tmp_path / "rows.parquet")
    for data in (cells, pl.DataFrame(cells), tmp_path / "rows.csv", tmp_path / "rows.parquet"):
        held = load_shard(schema, data)
        np.testing.assert_array_equal(held.y, [1, -1])
        assert (held.signed.toarray()[:, :2] != 0).tolist() == [[False, True], [True, False]]
    streamed = StreamedShard.of(schema, source(tmp_path / "rows.parquet", memory=16 << 20))
    (block,) = streamed
    np.testing.assert_allclose(
        block.adjoint(np.ones((1, 2)))[0], held.signed.toarray().sum(axis=0), rtol=1e-9
    )


def test_a_code_with_zeros_in_front_is_another_text():
    column, label = (
        Categorical(name="zip", values=("1", "01"), other="column"),
        Label(name="y", negative=0, positive=1),
    )
    schema = Schema(columns=(column,), label=label)
    found = (
        load_shard(
            schema, {"zip": ["1", "01", "1.0", "01.0", "+1", "001"], "y": [1] * 6}
        ).signed.toarray()[:, :3]
        != 0
    )
    assert np.argmax(found, axis=1).tolist() == [0, 1, 0, 1, 2, 2]


def test_a_header_that_was_split_at_another_separator_is_told(tmp_path):
    (tmp_path / "rows.csv").write_text("age;trade;ill\n39;smith;yes\n")
    with pytest.raises(
        DataError,
        match=r"the header was read as one column 'age;trade;ill'; set separator = \";\"$",
    ):
        source(tmp_path / "rows.csv", separator=",").require(["age", "ill"])
    (tmp_path / "bare.csv").write_text(
        "39;smith;yes\n40;baker;no\n"
    )  # no header: a row, which is not shown
    with pytest.raises(DataError, match="the first line must be a header") as refusal:
        source(tmp_path / "bare.csv", separator=",").require(["age", "ill"])
    assert "smith" not in str(refusal.value)
