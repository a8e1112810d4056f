"""Rows are read twice before round 1, to survey and to bound them, in every engine."""

import shutil
from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import tomli_w

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.node_rows import NodeRows
from dynadp.data.readers import source
from dynadp.data.schema import Schema
from dynadp.data.sources import Source
from dynadp.data.survey import count, feature_sums, survey
from dynadp.engines.journal import FolderJournal
from dynadp.errors import CellError, DataError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.runs.cluster import ClusterRun
from dynadp.runs.local import LocalRun
from dynadp.runs.run_file import load_run_file
from dynadp.runs.training import train
from support.clusters import PLANNED, Stop, make
from support.pair import go

AT = "2026-03-01T12:00:00+00:00"
DATA = census(600, nodes=2)


@pytest.fixture
def before(passes, monkeypatch):
    """The passes when round 1 begins."""
    from dynadp.runs import training

    found, simulate = {}, training.simulate

    def begin(*given, **more):
        found.update(passes)
        return simulate(*given, **more)

    monkeypatch.setattr(training, "simulate", begin)
    return found


def parquet(file):
    """The same run with Parquet files instead of CSV files."""
    said = load_run_file(file).model_dump(mode="json", by_alias=True, exclude_none=True)
    for node in said["nodes"]:
        path = file.parent / node["file"]
        pl.read_csv(path).write_parquet(path.with_suffix(".parquet"))
        node["file"] = path.with_suffix(".parquet").name
    return said


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("form", ["csv", "parquet", "memory", "streamed"])
def test_one_process_reads_each_file_twice(tmp_path, before, form, seed, monkeypatch):
    file = make(tmp_path, privacy=PLANNED, seed=seed)
    if form != "csv":
        said = parquet(file)
        if form != "parquet":
            said["data"]["memory"] = 16
        file.write_text(tomli_w.dumps(said))
    if form == "streamed":
        monkeypatch.setattr("dynadp.data.node_rows.bytes_in_memory", lambda *_: 1 << 40)

    def stop(progress):
        raise Stop

    with pytest.raises(Stop):
        LocalRun.load(file).run(tmp_path / "out", who="test", created=AT, on_round=stop)
    assert set(before.values()) == {2}
    assert len(before) == 3


def test_a_run_that_goes_on_reads_each_file_twice(tmp_path, before, passes):
    file = make(tmp_path, privacy=PLANNED)

    def stop(progress):
        raise Stop

    with pytest.raises(Stop):
        LocalRun.load(file).run(tmp_path / "out", who="test", created=AT, on_round=stop)
    passes.clear()
    LocalRun.load(file).run(tmp_path / "out", resume=True, who="test", created=AT)
    assert set(before.values()) == set(passes.values()) == {2}


def test_a_check_reads_each_file_once(tmp_path, passes):
    LocalRun.load(make(tmp_path)).check()
    assert set(passes.values()) == {1}


def test_a_silo_reads_its_file_twice(pair, passes):
    with open(pair / "run.toml", "a") as file:
        file.write("seed = 3\n")
    assert go(pair) == {"a": "finished", "b": "finished"}
    assert passes == {"a.csv": 2, "b.csv": 2}


@pytest.mark.parametrize("declared", [True, False])
def test_a_driver_reads_no_rows(tmp_path, passes, declared, pretended):
    file = make(tmp_path, privacy=PLANNED)
    if declared:
        said = load_run_file(file).model_dump(mode="json", by_alias=True, exclude_none=True)
        for node in said["nodes"]:
            node["rows"] = count(
                Schema.model_validate_json((tmp_path / "schema.json").read_bytes()),
                tmp_path / node["file"],
            )
        file.write_text(tomli_w.dumps(said))
    passes.clear()
    job = ClusterRun.load(file)
    assert not passes
    job.run(tmp_path / "out", who="test", created=AT)
    # numbers of rows that nobody declared are counted on the cluster, from one column
    assert set(passes.values()) == {2 if declared else 3}


def test_a_limit_on_memory_holds_on_a_cluster(tmp_path, passes, pretended):
    file = make(tmp_path, privacy=PLANNED, seed=7)
    said = parquet(file)
    said["data"]["memory"] = 16  # MiB
    file.write_text(tomli_w.dumps(said))
    ClusterRun.load(file).run(tmp_path / "out", who="test", created=AT)
    assert set(passes.values()) == {2}  # their number is in the footer


def test_a_declared_number_of_rows_holds_on_a_cluster(tmp_path, pretended):
    file = make(tmp_path, privacy=PLANNED)
    said = load_run_file(file).model_dump(mode="json", by_alias=True, exclude_none=True)
    for node in said["nodes"]:
        node["rows"] = 1 + count(LocalRun.load(file).schema, tmp_path / node["file"])
    file.write_text(tomli_w.dumps(said))
    with pytest.raises(DataError, match=r"holds \d+ rows but declared B_p"):
        ClusterRun.load(file).run(tmp_path / "out", who="test", created=AT)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("journal", [False, True])
def test_rows_in_memory_are_read_twice(tmp_path, monkeypatch, journal):
    calls, batches = Counter(), Source.batches

    def counted(self, names, size=65536):
        calls[self.name] += 1
        return batches(self, names, size)

    monkeypatch.setattr(Source, "batches", counted)
    ring = Topology.family("ring", 2)
    tables = {p: source(rows, name=p) for p, rows in DATA.tables(ring.nodes).items()}
    kept = FolderJournal(tmp_path / "messages", ring.nodes) if journal else None
    train(DATA.schema, tables, ring, epsilon=2.0, delta=1e-5, draws=SeededEntropy(1), journal=kept)
    assert calls == dict.fromkeys(ring.nodes, 2)


# --------------------------------------------------------------------------------------------------
# the survey


def test_sums_are_those_of_the_whole_table_to_the_last_bit():
    data = census(70_000, nodes=1, test_rows=0)
    whole = data.schema.only_features().rows(data.train).tocsc()
    found = feature_sums(data.schema, data.train)
    steps = np.rint(whole.data * 2**20).astype(int)  # whole numbers add up exactly in any order
    expected = [sum(steps[low:high].tolist()) for low, high in pairwise(whole.indptr)]
    assert found.rows == 70_000
    assert found.total.tolist() == [total / 2**20 for total in expected]


def test_a_survey_names_the_first_bad_cell_of_each_column():
    table = {name: cells.astype(object) for name, cells in DATA.train.items()}
    table["age"][[300, 40]] = "old"
    table["hours"][250] = None
    table["income"][[7, 9]] = "middling"
    found = survey(DATA.schema, table, "north", size=100)
    assert {(m.column, m.row) for m in found.mistakes} == {
        ("node 'north', income", 7),
        ("node 'north', column 'age'", 40),
        ("node 'north', column 'hours'", 250),
    }
    assert found.rows == 600
    with pytest.raises(CellError, match="node 'north', income, row 7"):
        found.require_sound()


def test_a_survey_shows_nothing_but_the_number_of_rows():
    found = survey(DATA.schema, DATA.train, seal=True)
    assert repr(found) == "Survey(rows=600, mistakes=())"


def test_a_file_that_changes_after_the_survey_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    pl.DataFrame(DATA.train).write_csv(path)
    rows = NodeRows(DATA.schema, path, "north")
    rows.check()
    shutil.copy(path, tmp_path / "copy.csv")
    path.write_bytes((tmp_path / "copy.csv").read_bytes() + b"\n")
    with pytest.raises(DataError, match="is not the file any more"):
        rows.shard(DATA.schema)


def test_another_number_of_rows_than_declared_is_refused():
    rows = NodeRows(DATA.schema, DATA.train, "north", declared=601)
    assert rows.count == 601
    for use in (rows.check, lambda: rows.sums, lambda: rows.shard(DATA.schema)):
        with pytest.raises(DataError, match="holds 600 rows but declared B_p = 601"):
            use()
