"""Cells that repeat are looked at once, and give what each gives by itself."""

from datetime import date

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp.data import values
from dynadp.data.coded import DictionaryColumn, coded
from dynadp.data.datasets.synthetic import census
from dynadp.data.loading import load_shard
from dynadp.data.readers import source
from dynadp.data.survey import survey
from dynadp.errors import CellError

DATA = census(2_000, seed=5, nodes=1, test_rows=0)


def cells(*given):
    return np.fromiter(given, dtype=object, count=len(given))


@given(st.lists(st.sampled_from(["", " a", "a", "b", "1", "1.0", None]), max_size=40))
def test_codes_stand_for_the_same_cells(listed):
    plain = cells(*listed)
    column = coded(plain)
    if isinstance(column, DictionaryColumn):
        assert column.plain.tolist() == listed
        assert column[plain != "a"].plain.tolist() == [cell for cell in listed if cell != "a"]
        assert column.nulls == (None in listed)
        assert column.cells[-1] is None
    else:
        assert 2 * len({cell for cell in listed if cell is not None}) > len(listed)


@pytest.mark.parametrize(
    "listed",
    [[1, 1.0, True, "1"] * 4, [1, 1, 1], [date(2026, 1, 1)] * 3, [float("nan")] * 3, ["a", 1] * 9],
)
def test_cells_that_are_equal_and_not_alike_stay_as_they_are(listed):
    plain = cells(*listed)
    assert coded(plain) is plain


def test_only_cells_that_rows_have_are_looked_at():
    column = coded(cells("a", "b", None, "c", "a", "b", None, "c"))
    seen = []
    column[:2].found(lambda some: seen.extend(some.tolist()) or np.zeros(len(some)))
    assert seen == ["a", "b"]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("form", ["csv", "parquet", "memory"])
def test_each_distinct_cell_of_a_batch_is_looked_at_once(form, tmp_path, monkeypatch):
    frame, spell, seen = pl.DataFrame(DATA.train), values.normalise, []
    path = tmp_path / f"rows.{form}"
    if form != "memory":
        (frame.write_csv if form == "csv" else frame.write_parquet)(path)
    held = source(path if form != "memory" else frame)
    monkeypatch.setattr(values, "normalise", lambda cell: seen.append(cell) or spell(cell))
    load_shard(DATA.schema, held)
    texts = [column for column in frame.columns if frame[column].dtype == pl.String]
    distinct = sum(frame[column].n_unique() for column in texts)
    declared = sum(len(getattr(column, "values", ())) for column in DATA.schema.columns)
    # cells, declared values, and y = -1 or +1 once more as a label
    assert len(seen) <= distinct + declared + 10


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_bad_cell_is_named_by_its_row(form, tmp_path):
    table = {name: column.tolist() for name, column in DATA.train.items()}
    table["trade"][1_234] = table["trade"][1_500] = None
    table["income"][1_111] = "middling"
    path = tmp_path / f"rows.{form}"
    frame = pl.DataFrame(table)
    (frame.write_csv if form == "csv" else frame.write_parquet)(path)
    found = {(m.column, m.row) for m in survey(DATA.schema, path, "north", size=500).mistakes}
    assert found == {("node 'north', column 'trade'", 1_234), ("node 'north', income", 1_111)}
    with pytest.raises(CellError) as refusal:
        load_shard(DATA.schema, path, "north")
    assert (refusal.value.column, refusal.value.row) == ("column 'trade'", 1_234)
