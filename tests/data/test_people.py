"""At most m rows of each person are used, and which ones depends on her own rows alone."""

import os
import shutil
import tempfile
import tracemalloc
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.data import contributions, encoding
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.contributions import RowBits, row_bits
from dynadp.data.loading import load_shard, split_tables
from dynadp.data.node_rows import NodeRows, StreamedShard, local_shard
from dynadp.data.people import Contributions, first_rows, person_codes
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.schema import Label, Schema
from dynadp.data.survey import count, feature_sums, survey
from dynadp.errors import CellError, DataError, DeclarationError

COLUMNS = (
    Numeric(name="age", low=0, high=99, missing="drop"),
    Categorical(name="job", values=("a", "b", "c"), missing="drop"),
    Numeric(name="hours", low=0, high=60, missing=40.0),
)
BARE = Schema(
    columns=COLUMNS, label=Label(name="y", negative=0, positive=1), missing_values=("", "?")
)


def limited(m, **more):
    return Schema(**{**dict(BARE), "person": "id", "rows_per_person": m, **more})


def rows(count=400, seed=0, people=40):
    """Rows of people with few rows and many, with gaps, ids missing among them."""
    rng = np.random.default_rng(seed)
    ids = [f"p{i}" for i in (people * rng.random(count) ** 2).astype(int)]

    def holes(cells, share):
        gone = rng.random(count) < share
        return [None if hole else cell for cell, hole in zip(cells, gone, strict=True)]

    return {
        "id": holes(ids, 0.1),
        "age": holes(rng.integers(0, 99, count).tolist(), 0.2),
        "job": holes(rng.choice(list("abc"), count).tolist(), 0.1),
        "hours": rng.integers(0, 60, count).astype(float).tolist(),
        "y": rng.integers(0, 2, count).tolist(),
    }


def used_by_hand(table, m):
    """Which rows stay, row after row, in plain Python."""
    seen, keep = Counter(), []
    for who, age, job in zip(table["id"], table["age"], table["job"], strict=True):
        stays = None not in (who, age, job)
        seen[who] += stays
        keep.append(stays and seen[who] <= m)
    return np.array(keep)


def only(table, keep):
    pairs = {name: zip(cells, keep, strict=True) for name, cells in table.items()}
    return {name: [cell for cell, stays in pair if stays] for name, pair in pairs.items()}


def write(table, path):
    if path.suffix == ".csv":
        pd.DataFrame(table, dtype=object).to_csv(path, index=False)
    else:
        pq.write_table(pa.table(table), path, row_group_size=90)
    return path


def same(one, other):
    for left, right in ((one.signed.toarray(), other.signed.toarray()), (one.y, other.y)):
        np.testing.assert_array_equal(left, right)


def written_down(shard):
    return np.concatenate([block.dense().T for block in shard])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(encoding, "_WORKED", 64)
    monkeypatch.setattr(contributions, "_IDS", 40)


# --------------------------------------------------------------------------------------------------
# schemas


def test_a_schema_without_people_is_what_it_was():
    assert "person" not in BARE.model_dump_json()
    assert {"person", "rows_per_person", "silos_per_person"}.isdisjoint(BARE.model_dump())
    assert BARE.digest() == "8727afef460b8c608a713782ea57d9bb8f4f8454cdcdd78bf2b74a8897d530c3"
    assert Schema(**{**dict(BARE), "rows_per_person": 1, "silos_per_person": 1}) == BARE
    many = Schema(**{**dict(BARE), "rows_per_person": 3})  # declared; nothing can enforce it
    assert many.digest() != BARE.digest()
    assert load_shard(many, rows()).rows == load_shard(BARE, rows()).rows


def test_a_person_is_no_feature():
    schema = limited(2, silos_per_person=3)
    assert schema.features == BARE.features
    assert schema.raw_columns == BARE.raw_columns
    assert schema.read_columns == (*BARE.raw_columns, "id")
    assert schema.drops_rows
    assert Schema.model_validate_json(schema.model_dump_json()) == schema
    assert schema.limited() == Schema(**{**dict(BARE), "rows_per_person": 2, "silos_per_person": 3})
    for name in ("age", "y"):
        with pytest.raises(ValueError, match="give the ids a column of their own"):
            limited(1, person=name)
    for wrong in ({"rows_per_person": 0}, {"silos_per_person": 0}, {"rows_per_person": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Schema(**{**dict(BARE), **wrong})


def test_a_column_of_ids_that_is_not_there_is_refused(tmp_path):
    table = rows()
    del table["id"]
    for data in (table, write(table, tmp_path / "rows.csv")):
        with pytest.raises(DataError, match="there is no column 'id'"):
            load_shard(limited(1), data)
    path = write(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="there is no column 'id'"):
        count(limited(1), source(path, memory=LEAST_MEMORY))


# --------------------------------------------------------------------------------------------------
# the mask

IDS = st.sampled_from(["ann", " ann", "bob", "1", 1, 1.0, "1.0", True, None, "", float("nan"), "?"])


def spelled_by_hand(cell):
    if cell is None or cell != cell or str(cell).strip() in ("", "?"):
        return None
    if not isinstance(cell, str):
        return str(int(cell))
    return {"1.0": "1"}.get(cell.strip(), cell.strip())


@given(st.lists(IDS), st.integers(1, 4))
def test_first_rows(ids, m):
    seen, expected = Counter(), []
    for one in map(spelled_by_hand, ids):
        seen[one] += 1
        expected.append(one is not None and seen[one] <= m)
    assert first_rows(ids, m, ("", "?")).tolist() == expected
    batches, found = Contributions(m, ("", "?")), []
    for low in range(0, len(ids), 3):
        found += batches.first(np.array(ids[low : low + 3], dtype=object)).tolist()
    assert found == expected


@given(st.lists(st.integers(-3, 3)), st.integers(1, 3))
def test_ids_of_every_type(ids, m):
    expected = first_rows([str(one) for one in ids], m).tolist()
    for kind in (int, float, np.int8, np.float32, str, object, "S3"):
        cells = np.array(ids, dtype=kind)
        assert first_rows(cells, m).tolist() == expected
        assert Contributions(m, ("",)).first(cells).tolist() == expected
        assert person_codes(cells).tolist() == person_codes(ids).tolist()


def test_what_an_id_may_be():
    assert first_rows(["01", "1", "+1", "1e0", "A", "a"], 1).all()
    assert first_rows(np.array([np.nan, 1.0, np.nan]), 1).tolist() == [False, True, False]
    assert first_rows([pd.NA, None, "x"], 1).tolist() == [False, False, True]
    assert person_codes(np.array([2.0, np.nan, 1.0, 2.0])).tolist() == [0, -1, 1, 0]
    assert first_rows([2**80, 2**80 + 1, 2**80], 1).tolist() == [True, True, False]
    assert first_rows([], 1).tolist() == []
    assert first_rows(["a", "a"], 10**30).all()
    for odd in ([["a"], ["b"]], np.array([1j]), "ann"):
        with pytest.raises(DataError, match="expected one text or number a row"):
            first_rows(odd, 1)
    with pytest.raises(DeclarationError, match="expected at least 1"):
        first_rows(["a"], 0)


ROWS = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "cy", "", "?"]), st.integers(0, 2), st.booleans()),
    max_size=25,
)


def table_of(some):
    """A table of (id, number of the row, whether a cell is missing)."""
    return {
        "id": np.array([who for who, _, _ in some], dtype=object),
        "age": np.array([None if gone else 30 + n for _, n, gone in some], dtype=object),
        "job": np.array(["a" for _ in some], dtype=object),
        "hours": np.array([20.0 + 5 * n for _, n, _ in some]),
        "y": np.array([n % 2 for _, n, _ in some], dtype=object),
    }


def in_batches(some, m, size=4):
    """The mask of a table that is read in batches."""
    table = table_of(some)
    given = source(table)
    staying, keep, start = contributions.staying_rows(limited(m), given), [], 0
    for batch in given.batches(limited(m).read_columns, size):
        keep += staying(batch, start).tolist()
        start += len(batch["id"])
    return keep


def at_once(some, m):
    return limited(m).used(table_of(some)).tolist() if some else []


def mixed(others, mine, seed=0):
    """Her rows among the others', all in their own order; and which of them are hers."""
    hers = np.random.default_rng(seed).permutation(len(others) + len(mine)) < len(mine)
    ours, theirs = iter(mine), iter(others)
    return [next(ours if is_hers else theirs) for is_hers in hers], hers


def check_mask(mask, mine, before, after, m):
    """Whatever the others' rows, the same of her rows stay: the first m that can."""
    left, expected = m, []
    for _, _, gone in mine:
        expected.append(not gone and left > 0)
        left -= expected[-1]
    for seed, others in enumerate((before, after)):
        table, hers = mixed(others, mine, seed)
        assert np.array(mask(table, m), dtype=bool)[hers].tolist() == expected


def of(who, some):
    return [(who, n, gone) for _, n, gone in some]


@pytest.mark.parametrize("mask", [in_batches, at_once])
def test_a_mask_depends_on_her_own_rows_alone(mask):
    @given(ROWS, ROWS, ROWS, st.integers(1, 3))
    @settings(max_examples=60)
    def check(mine, before, after, m):
        check_mask(mask, of("me", mine), before, after, m)

    check()


def per_batch(some, m):
    """A mistake: each batch begins to count anew."""
    return [stays for low in range(0, len(some), 4) for stays in at_once(some[low : low + 4], m)]


def before_dropping(some, m):
    """A mistake: rows count that are dropped afterwards."""
    keep = first_rows([who for who, _, _ in some], m, ("", "?")).tolist()
    return [stays and not gone for stays, (_, _, gone) in zip(keep, some, strict=True)]


def the_last(some, m):
    """A mistake: the last rows of a person stay."""
    return at_once(some[::-1], m)[::-1]


def after_the_fact(some, m):
    """A mistake: the first m rows of each person are looked for among all rows that were taken."""
    most = m * len({who for who, _, _ in some})
    taken = np.flatnonzero([not gone for _, _, gone in some])[:most]
    keep = np.zeros(len(some), dtype=bool)
    keep[taken] = first_rows([some[i][0] for i in taken], m, ("", "?"))
    return keep.tolist()


@pytest.mark.parametrize("mistake", [per_batch, before_dropping, the_last, after_the_fact])
def test_mistakes_are_caught(mistake):
    rng = np.random.default_rng(0)

    def some(*who):
        return [(str(rng.choice(who)), 0, bool(rng.random() < 0.3)) for _ in range(12)]

    def check():
        for _ in range(20):
            check_mask(mistake, some("me"), some("ann", "bob"), some("cy", "dan"), 2)

    with pytest.raises(AssertionError):
        check()


@given(ROWS, ROWS, ROWS, st.integers(1, 3), st.integers(0, 9))
@settings(max_examples=60)
def test_tables_that_differ_in_one_person_differ_in_m_rows(others, mine, instead, m, seed):
    theirs = []
    for some in (mine, instead):
        table, _ = mixed(others, of("me", some), seed + len(some))
        kept = [row for row, stays in zip(table, in_batches(table, m), strict=True) if stays]
        hers = np.array([who == "me" for who, _, _ in kept], dtype=bool)
        assert hers.sum() <= m
        if kept:
            shard = load_shard(limited(m), table_of(table), size=4)
            same(shard, BARE.shard(table_of(kept)))
            theirs.append((shard.signed.toarray()[~hers].tobytes(), shard.y[~hers].tobytes()))
        else:
            theirs.append((b"", b""))
    assert theirs[0] == theirs[1]


# --------------------------------------------------------------------------------------------------
# every way to read rows


@pytest.mark.parametrize("m", [1, 3])
def test_every_form_gives_the_same_shard(tmp_path, m, small_blocks):
    table, schema = rows(), limited(m)
    keep = used_by_hand(table, m)
    assert 0 < keep.sum() < BARE.kept(table).sum()
    assert (schema.used(table) == keep).all()
    expected = BARE.shard(only(table, keep))
    paths = [write(table, tmp_path / f"rows.{kind}") for kind in ("csv", "parquet")]
    fits = source(paths[1], memory=LEAST_MEMORY)
    forms = [table, pd.DataFrame(table), pa.table(table), *paths, fits]
    same(schema.shard(table), expected)
    before = survey(BARE, only(table, keep), seal=True)
    for form in forms:
        for size in (7, 8192):
            same(load_shard(schema, form, size=size), expected)
            found = survey(schema, form, seal=True, size=size)
            assert (found.rows, found.digest) == (keep.sum(), before.digest)
            assert found.sums.total.tobytes() == before.sums.total.tobytes()
        assert count(schema, form) == keep.sum()
        assert feature_sums(schema, form).rows == keep.sum()
        same(NodeRows(schema, form, "north").shard(schema), expected)
    assert isinstance(local_shard(schema, fits), type(expected))


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("m", [1, 3])
def test_streamed_rows_are_those_of_a_file_without_the_others(
    tmp_path, m, slow, small_blocks, monkeypatch
):
    table, schema = rows(), limited(m)
    keep = used_by_hand(table, m)
    path = write(table, tmp_path / "all.parquet")
    alone = write(only(table, keep), tmp_path / "used.parquet")
    if slow:
        monkeypatch.setattr(encoding.Blocks, "_encoded", lambda self, part: None)
    for centre in (None, (0.1,) * BARE.feature_count):
        found, expected = (
            StreamedShard.of(
                Schema(**{**dict(kind), "centre": centre}), source(file, memory=LEAST_MEMORY)
            )
            for kind, file in ((schema, path), (BARE, alone))
        )
        assert found.rows == expected.rows == keep.sum()
        assert written_down(found).tobytes() == written_down(expected).tobytes()
    held = load_shard(schema, table).signed.toarray()
    found = StreamedShard.of(schema, source(path, memory=LEAST_MEMORY))
    np.testing.assert_allclose(written_down(found), held, rtol=1e-13)
    surveys = [
        survey(kind, source(file, memory=LEAST_MEMORY), seal=True)
        for kind, file in ((schema, path), (BARE, alone))
    ]
    assert surveys[0].digest == surveys[1].digest
    assert surveys[0].sums.total.tobytes() == surveys[1].sums.total.tobytes()


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.float64(), pa.string(), "coded"])
def test_ids_of_every_type_in_a_streamed_file(tmp_path, kind):
    table = rows()
    ids = np.random.default_rng(1).integers(0, 50, 400)
    gone = np.random.default_rng(2).random(400) < 0.2
    cells = [None if hole else int(one) for one, hole in zip(ids, gone, strict=True)]
    if kind == "coded":
        column = pa.array([None if one is None else f" {one}.0" for one in cells])
        column = column.dictionary_encode()
    else:
        column = pa.array(cells).cast(kind)
    whole = pa.table({**table, "id": column})
    pq.write_table(whole, tmp_path / "rows.parquet", row_group_size=150)
    bits = row_bits(limited(2), source(tmp_path / "rows.parquet", memory=LEAST_MEMORY))
    assert bits.part(0, 400).tolist() == used_by_hand({**table, "id": cells}, 2).tolist()
    assert bits.part(13, 50).tolist() == bits.part(0, 400)[13:63].tolist()


def test_a_person_with_a_thousand_rows_has_m(tmp_path):
    table = rows(2000)
    table["id"][300:1300] = ["p0"] * 1000
    path = write(table, tmp_path / "rows.parquet")
    schema = limited(5)
    keep = used_by_hand(table, 5)
    assert sum(who == "p0" for who in only(table, keep)["id"]) == 5
    for data in (table, path, source(path, memory=LEAST_MEMORY)):
        assert count(schema, data) == survey(schema, data).rows == keep.sum()


def test_rows_without_an_id_are_left_out(tmp_path):
    """They may be of several people, whose rows would push out each other's, or change how much
    others weigh.
    """
    some, ids = rows(100), [None, "", " ? ", "?", float("nan")] * 19
    table = {**some, "id": [*ids, "ann", *ids[:4]], "age": [30] * 100, "job": ["a"] * 100}
    schema, ours = limited(3), only(table, np.arange(100) == 95)
    written = {**table, "id": [str(one or "") for one in table["id"]]}
    written["id"] = ["" if one == "nan" else one for one in written["id"]]
    path = write(written, tmp_path / "rows.parquet")
    for data in (table, path, source(path, memory=LEAST_MEMORY)):
        assert count(schema, data) == 1
        same(load_shard(schema, data), BARE.shard(ours))
    assert row_bits(schema, source(path, memory=LEAST_MEMORY)).count() == 1
    with pytest.raises(DataError, match="is empty"):
        schema.shard({**table, "id": [None] * 100})


def test_her_second_row_takes_the_place_of_a_dropped_one():
    table = only(rows(), np.arange(400) < 4)
    table |= {"id": ["ann"] * 4, "age": [None, 20, 30, 40], "job": list("abca")}
    assert limited(2).used(table).tolist() == [False, True, True, False]


@pytest.mark.parametrize("s", [1, 2, 3])
def test_tables_of_nodes_have_the_rows_that_are_used(s):
    """One file for all nodes: her first m rows at each of her first s nodes."""
    table, schema = rows(), limited(2, silos_per_person=s)
    silo = np.array(["north", "south", "west"])[np.arange(400) * 7 % 11 % 3]
    expected, seen = {node: [] for node in ("north", "south", "west")}, {}
    for row, (who, node) in enumerate(zip(table["id"], silo.tolist(), strict=True)):
        hers = seen.setdefault(who, {})
        if used_by_hand(only(table, np.arange(400) == row), 1)[0] and (
            node in hers or len(hers) < s
        ):
            hers[node] = hers.get(node, 0) + 1
            if hers[node] <= 2:
                expected[node].append(row)
    found = split_tables({**table, "silo": silo}, schema, "silo")
    assert any(len(hers) == s for hers in seen.values())
    for node, own in found.items():
        there = only(table, np.isin(np.arange(400), expected[node]))
        assert {name: cells.tolist() for name, cells in own.items()} == {
            name: there[name] for name in own
        }
        assert own.keys() == set(schema.read_columns)
        same(load_shard(schema, own), load_shard(schema, there))


def test_her_nodes_do_not_depend_on_the_rows_of_others():
    table, schema = rows(), limited(2, silos_per_person=2)
    silo = np.array(["north", "south", "west"])[np.arange(400) * 7 % 11 % 3]
    hers = np.array([who == "p0" for who in table["id"]])
    assert len(set(silo[hers].tolist())) == 3
    both = []
    for others in (table["id"], ["x" if her else f"new {i % 9}" for i, her in enumerate(hers)]):
        ids = [old if her else new for old, new, her in zip(table["id"], others, hers, strict=True)]
        number = {**table, "hours": list(range(400)), "id": ids, "silo": silo}
        found = split_tables(number, schema, "silo", ["north", "south", "west"])
        both.append(
            {node: [h for h in own["hours"] if hers[int(h)]] for node, own in found.items()}
        )
    assert both[0] == both[1]
    assert sorted(map(bool, both[0].values())) == [False, True, True]


def streams(path):
    return source(path, memory=LEAST_MEMORY)


@pytest.mark.parametrize("make", [source, streams])
def test_errors_name_the_row_in_the_file_and_no_row_that_is_left_out(tmp_path, make, small_blocks):
    table, schema = rows(), limited(1)
    keep = used_by_hand(table, 1)
    left_out, used = np.flatnonzero(~keep & BARE.kept(table)), np.flatnonzero(keep)
    for place in left_out:
        table["y"][place], table["job"][place] = 7, "unheard of"
    path = write(table, tmp_path / "rows.parquet")
    survey(schema, make(path)).require_sound()
    local_shard(schema, make(path), rows=len(used))
    table["y"][used[-1]] = 7
    (tmp_path / "bad").mkdir()
    path = write(table, tmp_path / "bad/rows.parquet")
    for work in (
        lambda: survey(schema, make(path)).require_sound(),
        lambda: load_shard(schema, make(path)),
        lambda: schema.shard(table),
    ):
        with pytest.raises(CellError) as caught:
            work()
        assert caught.value.row == used[-1]
    if make is streams:
        with pytest.raises(CellError, match=f"row {used[-1]}:"):
            StreamedShard.of(schema, make(path))


def test_rows_that_are_left_out_show_nowhere(tmp_path, capsys, small_blocks):
    table, schema = rows(), limited(2)
    keep = used_by_hand(table, 2)
    told = []
    for name, some in (("all", table), ("used", only(table, keep))):
        (tmp_path / name).mkdir()
        path = write(some, tmp_path / name / "rows.parquet")
        for given_rows in (some, path, streams(path)):
            node = NodeRows(schema, given_rows, "north", declared=7)
            with pytest.raises(DataError) as caught:
                node.check()
            told.append((repr(node.survey), str(caught.value), count(schema, given_rows)))
    assert set(told) == {told[0]}
    assert "".join(capsys.readouterr()) == ""


def test_a_seal_is_of_the_rows_that_are_used(tmp_path):
    table, schema = rows(), limited(2)
    keep = used_by_hand(table, 2)

    def digests(**change):
        changed = {name: list(cells) for name, cells in table.items()}
        for name, (place, cell) in change.items():
            changed[name][place] = cell
        path = write(changed, tmp_path / "rows.parquet")
        found = {survey(schema, form, seal=True).digest for form in (changed, path, streams(path))}
        assert len(found) == 1
        return found

    used, left_out = np.flatnonzero(keep), np.flatnonzero(~keep & BARE.kept(table))
    before = digests()
    assert digests(hours=(used[3], 59.5)) != before
    assert digests(y=(used[3], 1 - table["y"][used[3]])) != before
    assert digests(hours=(left_out[3], 59.5)) == before
    assert digests(id=(left_out[3], "somebody new")) != before  # another row is used


# --------------------------------------------------------------------------------------------------
# streamed files


def test_one_more_pass_finds_people_in_a_streamed_file(tmp_path, passes, monkeypatch):
    table, centre = rows(), (0.0,) * BARE.feature_count
    csv, parquet = (write(table, tmp_path / f"rows.{kind}") for kind in ("csv", "parquet"))
    for _ in ("in memory", "streamed"):
        for schema, extra in ((BARE, 0), (limited(2), 1)):
            for data, number in (
                (source(csv), 2),
                (source(parquet), 2),
                (streams(parquet), 2 + extra),
            ):
                passes.clear()
                node = NodeRows(schema, data, "north")
                node.check()
                node.shard(Schema(**{**dict(schema), "centre": centre}))
                assert list(passes.values()) == [number]
        monkeypatch.setattr("dynadp.data.node_rows.bytes_in_memory", lambda *_: 1 << 40)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 9))
def test_partitions_are_decided_piece_by_piece(ids, m, least):
    hashed = np.array(ids, dtype=np.uint64)
    records = np.column_stack([hashed, hashed * 3, np.arange(len(ids), dtype=np.uint64)])
    bits = RowBits(len(ids))
    for places in contributions._first(iter(np.array_split(records, 7)), m, least):
        bits.add(places)
    assert bits.part(0, len(ids)).tolist() == first_rows(ids, m).tolist()
    assert bits.count() == first_rows(ids, m).sum()


@pytest.mark.parametrize("kind", [pytest.param(str, marks=pytest.mark.slow), int])
def test_memory_does_not_grow_with_people(tmp_path, kind, monkeypatch):
    count_, schema = 300_000, limited(1, columns=COLUMNS[2:])
    ids = np.random.default_rng(0).permutation(count_)
    ids[::3] = -1  # somebody with very many rows
    cells = pa.array([f"somebody-{one}" for one in ids] if kind is str else ids)
    table = {"id": cells, "hours": np.zeros(count_), "y": np.zeros(count_, dtype=int)}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    given = source(tmp_path / "rows.parquet", memory=LEAST_MEMORY)
    row_bits(schema, source(tmp_path / "rows.parquet", memory=LEAST_MEMORY))  # imports
    tracemalloc.start()
    bits = row_bits(schema, given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bits.count() == len(set(ids.tolist()))
    assert peak < 10 << 20  # a dictionary of all ids takes 40 MB


def test_temporary_files_are_removed_on_every_path(tmp_path, monkeypatch):
    path, home = write(rows(), tmp_path / "rows.parquet"), tmp_path / "temporary"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    opened, made = [], contributions.SpooledTemporaryFile

    def spooled(size):
        opened.append(made(1))
        return opened[-1]

    monkeypatch.setattr(contributions, "SpooledTemporaryFile", spooled)
    row_bits(limited(2), streams(path))

    def fails(*_):
        assert os.path.exists(home)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RowBits, "add", fails)
    with pytest.raises(DataError, match="No space left on device; limiting each person's rows"):
        row_bits(limited(2), streams(path))

    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(contributions, "_first", stops)
    with pytest.raises(KeyboardInterrupt):
        row_bits(limited(2), streams(path))
    assert len(opened) == 3
    assert all(file.closed for file in opened)
    assert list(home.iterdir()) == []


def test_hashes_have_another_key_in_every_pass():
    cells = np.array(["ann", "bob", None], dtype=object)
    one, other = (contributions._Hashes(("",))(cells) for _ in range(2))
    assert (one[:2] != other[:2]).all()
    assert not one[2].any()


def test_a_file_that_changes_after_its_people_were_found_is_refused(tmp_path):
    path = write(rows(), tmp_path / "rows.parquet")
    given = streams(path)
    count(limited(2), given)
    shutil.copy(write(rows(seed=1), tmp_path / "other.parquet"), path)
    with pytest.raises(DataError, match="is not the file any more"):
        StreamedShard.of(limited(2), given)


def test_people_are_numbered_as_they_occur():
    assert person_codes(["b", "a", "b", None, "c", "", float("nan")]).tolist() == [
        *(0, 1, 0, -1, 2, -1, -1),
    ]
