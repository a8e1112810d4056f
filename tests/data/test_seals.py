"""A run goes on with the rows that it began with, or not at all; what tells them apart stays at the
node.
"""

import csv
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from dynadp.data.columns import Categorical, Numeric
from dynadp.data.readers import source
from dynadp.data.schema import Label, Schema
from dynadp.data.seals import Seal
from dynadp.data.survey import survey
from dynadp.errors import DataError, RecordError
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.local import LocalRun
from support.clusters import Stop, make

AT = "2026-03-01T12:00:00+00:00"
SCHEMA = Schema(
    columns=(
        Numeric(name="age", low=0, high=99, missing=50.0),
        Categorical(name="job", values=("a", "b"), missing="other"),
    ),
    label=Label(name="y", negative=0, positive=1),
    missing_values=("", "?"),
)
ROWS = {"age": [1.0, 2.5, None, 4.0], "job": ["a", "ab", "b", None], "y": [0, 1, 1, 0]}


def digest(rows, size=8192):
    return survey(SCHEMA, rows, seal=True, size=size).digest


def write(path, rows, quoting=csv.QUOTE_MINIMAL):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, quoting=quoting)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))
    return path


@pytest.mark.usefixtures("either_way")
def test_the_same_cells_have_the_same_seal_in_every_form(tmp_path):
    import polars

    frame = polars.DataFrame(ROWS)
    frame.write_parquet(tmp_path / "rows.parquet")
    frame.reverse().reverse().select("y", "job", "age").write_parquet(tmp_path / "other.parquet")
    texts = {
        "age": ["1", "2.50", "?", " 4"],
        "job": ["a", "ab ", "b", ""],
        "y": ["0", "1", "1", "0"],
        "more": list("wxyz"),
    }
    forms = [
        ROWS,
        {**ROWS, "age": np.array([1.0, 2.5, np.nan, 4.0]), "job": np.array(["a", "ab", "b", "?"])},
        frame,
        write(tmp_path / "rows.csv", texts),
        write(tmp_path / "quoted.csv", texts, csv.QUOTE_ALL),
        tmp_path / "rows.parquet",
        tmp_path / "other.parquet",
        source(tmp_path / "rows.parquet", memory=16 << 20),
    ]
    assert len({digest(form) for form in forms}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"age": [1.0, 2.5, None, 4.000001]},
        {"age": [1.0, None, 2.5, 4.0]},
        {"job": ["aa", "b", "b", None]},
        {"job": ["a", "ab", "b", "None"]},
        {"y": [1, 0, 1, 0]},
        {"age": [1.0, 2.5, None], "job": ["a", "ab", "b"], "y": [0, 1, 1]},
    ],
)
def test_other_cells_have_another_seal(change):
    assert digest({**ROWS, **change}) != digest(ROWS)


def test_another_key_gives_another_seal(tmp_path):
    contents = set()
    for run in ("one", "two"):
        seal = Seal.beside(tmp_path / "north.sqlite", run, entered=False)
        seal.require(digest(ROWS), "north")
        contents.add(json.loads(seal.path.read_bytes())["seal"])
    assert len(contents) == 2
    assert digest(ROWS).hex() not in contents


def test_batches_do_not_show_in_the_seal(monkeypatch):
    whole = digest(ROWS)
    monkeypatch.setattr("dynadp.data.seals._MOST", 1)
    assert digest(ROWS, size=3) == whole


def test_a_seal_is_its_owners_alone(tmp_path):
    seal = Seal.beside(tmp_path / "north.sqlite", "run", entered=False)
    seal.require(digest(ROWS), "north")
    assert stat.S_IMODE(seal.path.stat().st_mode) == 0o600
    seal.require(digest(ROWS), "north")
    other = {**ROWS, "y": [1, 0, 1, 0]}
    with pytest.raises(DataError, match="node 'north': its rows changed since the run began"):
        seal.require(digest(other), "north")
    Seal.beside(tmp_path / "north.sqlite", "another run", entered=False).require(
        digest(other), "north"
    )
    seal.path.write_bytes(b"{}")
    with pytest.raises(RecordError, match="is damaged"):
        seal.require(digest(ROWS), "north")


def test_a_run_of_a_version_without_seals_goes_on(tmp_path):
    seal = Seal.beside(tmp_path / "north.sqlite", "run", entered=True)
    seal.require(digest(ROWS), "north")
    assert not seal.path.exists()


# --------------------------------------------------------------------------------------------------
# runs


def stop(progress):
    if progress.number == 3:
        raise Stop


def began(job, out):
    with pytest.raises(Stop):
        job.run(out, who="test", created=AT, on_round=stop)


def swapped(path):
    """The same cells and the same number of rows, two of them in each other's places."""
    head, first, second, *rest = path.read_text().splitlines()
    assert first != second
    path.write_text("\n".join([head, second, first, *rest]) + "\n")


def seals(home):
    return sorted(path.name.partition("-rows-")[0] for path in home.rglob("*-rows-*"))


@pytest.mark.parametrize("seed", [None, 7])
def test_a_run_does_not_go_on_with_other_rows(tmp_path, seed):
    file = make(tmp_path, seed=seed)
    began(LocalRun.load(file), tmp_path / "out")
    assert len(seals(tmp_path)) == 3
    if seed is None:
        assert seals(tmp_path / "out") == []  # the run folder is shown to others
    before = (tmp_path / "south.csv").read_text()
    swapped(tmp_path / "south.csv")
    with pytest.raises(DataError, match="node 'south': its rows changed since the run began"):
        LocalRun.load(file).run(tmp_path / "out", resume=True, who="test", created=AT)
    if seed is None:
        with Ledger.open(tmp_path / "south.sqlite", read_only=True) as ledger:
            (run,) = {entry.run for entry in ledger.entries() if entry.run}
            assert len(ledger.rounds(run)) == 3
    with open(tmp_path / "south.csv", "w", newline="") as there:  # the same cells, in other clothes
        csv.writer(there, quoting=csv.QUOTE_ALL).writerows(csv.reader(before.splitlines()))
    LocalRun.load(file).run(tmp_path / "out", resume=True, who="test", created=AT)
    assert (tmp_path / "out/model.json").exists()
    assert seals(tmp_path) == []  # over


def test_a_private_run_without_a_seal_goes_on_as_before(tmp_path):
    file = make(tmp_path)
    began(LocalRun.load(file), tmp_path / "out")
    for path in tmp_path.glob("*-rows-*"):
        path.unlink()
    swapped(tmp_path / "south.csv")
    LocalRun.load(file).run(tmp_path / "out", resume=True, who="test", created=AT)


def test_closing_a_run_removes_its_seal(tmp_path):
    from dynadp.runs.ledgers import close_run

    file = make(tmp_path)
    began(LocalRun.load(file), tmp_path / "out")
    with Ledger.open(tmp_path / "north.sqlite", read_only=True) as ledger:
        (run,) = {entry.run for entry in ledger.entries() if entry.run}
    close_run(tmp_path / "north.sqlite", run, who="ada")
    assert seals(tmp_path) == ["south.sqlite", "west.sqlite"]
    assert not list(Path(tmp_path / "out").glob("*-rows-*"))
