"""Large files: read by Arrow where every reader would find the same cells, once, into codes."""

from collections import Counter

import numpy as np
import polars as pl
import pytest

from dynadp.consensus.topology import Topology
from dynadp.data import coded as coded_module
from dynadp.data import files, plain_files
from dynadp.data import held as held_module
from dynadp.data.coded import DictionaryColumn, KnownCells
from dynadp.data.datasets.synthetic import census
from dynadp.data.held import held
from dynadp.data.loading import load_shard
from dynadp.data.node_rows import NodeRows
from dynadp.data.readers import source
from dynadp.data.survey import survey
from dynadp.errors import DataError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.runs.training import train

DATA = census(2_000, seed=5, nodes=1, test_rows=0)
NAMES = DATA.schema.raw_columns
CENTRED = DATA.schema.model_copy(
    update={"centre": (0.1,) * DATA.schema.feature_count, "scaling": "unit"}
)


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """All files count as large, and Arrow reads them in small pieces."""
    monkeypatch.setattr(files, "_LARGE", 0)
    monkeypatch.setattr(files, "_SMALL", 0)
    monkeypatch.setattr(plain_files, "_BLOCK", 1 << 15)


@pytest.fixture
def readings(monkeypatch):
    """How often each file was read by Arrow, and by DuckDB."""
    seen = Counter()
    for reader in ("plain_csv", "plain_parquet", "_arrow_query"):
        read = getattr(files, reader)

        def counted(path, *given, read=read, by=reader):
            seen[path.name, by] += 1
            return read(path, *given)

        monkeypatch.setattr(files, reader, counted)
    return seen


def written(folder, form, table=None, name="rows"):
    frame, path = pl.DataFrame(DATA.train if table is None else table), folder / f"{name}.{form}"
    (frame.write_csv if form == "csv" else frame.write_parquet)(path)
    return path


def whole(batches):
    """All cells of all batches, plain."""
    listed = [
        {
            name: (cells.plain if isinstance(cells, DictionaryColumn) else cells).tolist()
            for name, cells in batch.items()
        }
        for batch in batches
    ]
    return {name: [cell for part in listed for cell in part[name]] for name in listed[0]}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_cells_in_memory_are_those_of_the_file(form, tmp_path, readings):
    table = {name: column.tolist() for name, column in DATA.train.items()}
    table["trade"][7] = table["region"][1_999] = None
    table["gain"] = [v / 3 for v in table["gain"]]  # more than single precision holds
    given = source(written(tmp_path, form, table))
    near = held(given, NAMES, DATA.schema.dimension, size=300)
    readings.clear()
    for size in (1, 999, 5_000):
        assert repr(whole(near.coded_batches(NAMES, size))) == repr(whole([table_of(given)]))
    assert not readings
    assert near is not given


def table_of(given):
    parts = list(given.batches(NAMES))
    return {name: np.concatenate([part[name] for part in parts]) for name in NAMES}


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("schema", [DATA.schema, CENTRED], ids=["csr", "dense"])
def test_rows_are_the_same_to_the_last_bit(form, schema, tmp_path, monkeypatch):
    path = written(tmp_path, form)
    near = held(source(path), NAMES, schema.dimension)
    found, sums = load_shard(schema, near, size=300), survey(schema, near, seal=True, size=300)
    monkeypatch.setattr(files, "_LARGE", 1 << 60)
    expected, other = load_shard(schema, path), survey(schema, path, seal=True)
    assert (found.signed != expected.signed).sum() == 0
    np.testing.assert_array_equal(found.y, expected.y)
    assert sums.digest == other.digest
    if schema.centre is None:
        np.testing.assert_array_equal(sums.sums.total, other.sums.total)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_large_file_is_read_once(form, tmp_path, readings):
    ring = Topology.family("ring", 2)
    paths = {node: written(tmp_path, form, name=node) for node in ring.nodes}
    train(DATA.schema, paths, ring, epsilon=2.0, delta=1e-5, draws=SeededEntropy(1))
    reader = f"plain_{form}"
    assert readings == {(path.name, reader): 1 for path in paths.values()}


def test_cells_that_would_fill_the_memory_are_read_again(tmp_path, readings, monkeypatch):
    monkeypatch.setattr(held_module, "_ROOM", 100)
    given = source(written(tmp_path, "csv"))
    assert held(given, NAMES, 1) is given
    assert held(given, NAMES, 10_000) is not given
    limited = source(written(tmp_path, "parquet"), memory=16 << 20)
    assert held(limited, NAMES, 10_000) is limited
    assert held(source(DATA.train), NAMES, 10_000).name == "data"


def test_rows_are_given_back_once_they_are_bounded(tmp_path, readings):
    path = written(tmp_path, "csv")
    rows = NodeRows(DATA.schema, path, "north")
    rows.check()
    first = rows.shard(CENTRED)
    assert list(readings.values()) == [1]
    second = rows.shard(CENTRED)  # by another reading
    assert list(readings.values()) == [2]
    np.testing.assert_array_equal(first.signed, second.signed)


def test_a_file_that_changed_after_it_was_read_is_refused(tmp_path):
    path = written(tmp_path, "csv")
    rows = NodeRows(DATA.schema, path, "north")
    rows.check()
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match="is not the file any more"):
        rows.shard(CENTRED)


# --------------------------------------------------------------------------------------------------
# where readers might differ


def lines(path):
    return path.read_bytes().split(b"\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b"clerical", b'"clerical"').replace(b"craft", b'"cr,aft"'),
        lambda line: line.replace(b"craft", "Künstler".encode()),
        lambda line: line.replace(b"craft", b"cr\0aft"),
        lambda line: b" " + line,
    ],
    ids=["quotes", "umlauts", "zero", "blanks"],
)
def test_odd_rows_in_the_middle_are_read_as_before(change, tmp_path, monkeypatch):
    path = written(tmp_path, "csv")
    rows = lines(path)
    path.write_bytes(b"\n".join([*rows[:900], *map(change, rows[900:-1]), b""]))
    given = source(path)
    found = whole(given.coded_batches(NAMES, 300))
    monkeypatch.setattr(files, "_LARGE", 1 << 60)
    assert found == whole(source(path).batches(NAMES))
    assert len(found["age"]) == 2_000


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1_500, lambda line: line + b",more", r"rows.csv, row 1499: it has more or fewer cells"),
        (1_500, lambda line: b"\xff" + line, r"rows.csv.*: it is not UTF-8 text"),
        (1_500, lambda line: b'"' + line, r"rows.csv.*quote"),
        (1_500, lambda line: line + b"\r", r"rows.csv"),
    ],
)
def test_what_is_wrong_is_said_as_before(place, change, message, tmp_path, monkeypatch):
    path = written(tmp_path, "csv")
    rows = lines(path)
    rows[place] = change(rows[place])
    path.write_bytes(b"\n".join(rows))
    for large in (0, 1 << 60):
        monkeypatch.setattr(files, "_LARGE", large)
        with pytest.raises(DataError, match=message) as refusal:
            survey(DATA.schema, path).require_sound()
        assert "high" not in str(refusal.value)


@pytest.mark.parametrize("end", [b"\n\n", b"\n \n", b""])
def test_the_end_of_a_file_is_read_as_before(end, tmp_path, monkeypatch):
    path = written(tmp_path, "csv")
    path.write_bytes(path.read_bytes().rstrip(b"\n") + end)
    found = []
    for large in (0, 1 << 60):
        monkeypatch.setattr(files, "_LARGE", large)
        try:
            given = source(path)
            found.append(whole(given.coded_batches(NAMES, 300)))
        except DataError as refusal:
            found.append(str(refusal))
    assert found[0] == found[1]


# --------------------------------------------------------------------------------------------------
# codes that stay


def batch(*cells):
    import pyarrow as pa

    return pa.array(cells, pa.string())


def test_codes_stay_from_one_batch_to_the_next():
    known = KnownCells()
    first = known(batch("a", "b", "a", "b"))
    second = known(batch("c", "a", None, "a", "c", "a"))
    third = known(batch("a", "c", "b", "a"))
    assert first.notes is second.notes is third.notes
    assert second.cells is third.cells
    assert [column.plain.tolist() for column in (first, second, third)] == [
        ["a", "b", "a", "b"],
        ["c", "a", None, "a", "c", "a"],
        ["a", "c", "b", "a"],
    ]
    seen = []

    def look(cells):
        seen.append(cells.tolist())
        return np.array([None if cell is None else cell.upper() for cell in cells], dtype=object)

    found = [column.found(look, "upper", known).tolist() for column in (first, second, third)]
    assert found == [["A", "B", "A", "B"], ["C", "A", None, "A", "C", "A"], ["A", "C", "B", "A"]]
    assert seen == [["a", "b"], ["c", None]]
    assert second.found(lambda cells: (cells == "c", cells == "a"), "which", 1)[0].sum() == 2
    assert second[:0].found(look, "upper", known).tolist() == []


def test_cells_that_hardly_repeat_or_are_too_many_are_forgotten(monkeypatch):
    known = KnownCells()
    assert known(batch("a", "b", "c")).notes is None
    monkeypatch.setattr(coded_module, "_MOST", 2)
    first = known(batch(*"abcabc"))
    second = known(batch(*"dddd"))
    assert second.notes is not first.notes
    assert second.plain.tolist() == list("dddd")
    assert first.plain.tolist() == list("abcabc")


def test_what_was_looked_at_for_another_schema_is_not_taken():
    known = KnownCells()
    table = {name: DATA.train[name] for name in NAMES}
    table["trade"] = known(batch(*DATA.train["trade"].tolist()))
    other = CENTRED.model_copy(update={"centre": (0.2,) * len(CENTRED.centre)})
    for schema in (CENTRED, other, DATA.schema):
        expected = schema.shard(DATA.train).signed
        assert (schema.shard(table).signed != expected).sum() == 0
