"""Bytes and tables from anywhere: readers answer with an error of their own, never with another
one, and never with a value.

The first tier tries a few hundred of each; ``make fuzz`` tries very many.
"""

import contextlib
import json
import shutil
import sqlite3
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynadp.data.readers import source
from dynadp.data.seals import Seal
from dynadp.engines.peers import PeerMemory
from dynadp.errors import (
    ConfigError,
    DataError,
    DeclarationError,
    LedgerDamaged,
    LedgerError,
    RecordError,
)
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace, read_events
from dynadp.privacy.ledger.anchor import Anchor
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.store import insert
from dynadp.runs.folder import load_run, read_rounds
from dynadp.runs.model import load_model
from dynadp.runs.node_file import load_node_file
from dynadp.runs.run_file import load_run_file, load_schema
from dynadp.runs.status import read_status
from support.typed import dynadp

AT = "2026-03-01T12:00:00+00:00"
SECRET = "Zebra77Cell"
MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
RUN = {
    "run": {"name": "x", "seed": 1},
    "data": {"schema": "schema.toml", "memory": "64 MiB"},
    "nodes": [{"name": "a", "file": "a.csv", "rows": 5}, {"name": "b", "file": "b.csv"}],
    "topology": {"family": "ring", "edges": [["a", "b"]]},
    "privacy": {"epsilon": 1.0, "delta": 1e-5, "mechanism": "primal"},
    "training": {"rounds": 3, "rho": 0.1, "eta": 0.1},
    "network": {"relay": "host:1"},
}
SCHEMA = {
    "columns": [
        {"kind": "numeric", "name": "age", "low": 0, "high": 9},
        {"kind": "categorical", "name": "sex", "values": ["f", "m"]},
    ],
    "label": {"name": "y", "negative": 0, "positive": 1},
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.just(SECRET),
    st.just(""),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def changed(draw, whole):
    """The table with some values replaced, removed or added, anywhere in it."""
    made = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        place = made
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            if not keys:
                break
            key = draw(st.sampled_from(list(keys)))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and draw(st.booleans()):
                place = inner
                continue
            if draw(st.booleans()):
                place[key] = draw(VALUES)
            elif isinstance(place, dict):
                del place[key]
                place[draw(st.text(max_size=8))] = draw(VALUES)
            break
    return made


def refused_without_values(reader, path, errors):
    told = ""
    try:
        reader(path)
    except errors as error:
        told = str(error)
    assert SECRET not in told


@MANY
@given(given_=changed(RUN))
def test_run_files(tmp_path, given_):
    toml = pytest.importorskip("tomli_w")
    path = tmp_path / "run.toml"
    try:
        path.write_text(toml.dumps(given_), encoding="utf-8")
    except (TypeError, ValueError, UnicodeEncodeError):  # no TOML can say this
        return
    refused_without_values(load_run_file, path, ConfigError)


@MANY
@given(given_=changed(SCHEMA))
def test_schemas(tmp_path, given_):
    path = tmp_path / "schema.json"
    try:
        path.write_text(json.dumps(given_), encoding="utf-8")
    except UnicodeEncodeError:
        return
    refused_without_values(load_schema, path, ConfigError)


@MANY
@given(
    content=st.binary(max_size=300)
    | st.text(max_size=300).map(lambda text: text.encode(errors="replace"))
)
def test_bytes_that_are_no_file_of_ours(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    for reader in (load_run_file, load_node_file, load_schema):
        with pytest.raises(ConfigError):
            reader(path)
    with pytest.raises(RecordError):
        load_model(path)
    with pytest.raises(LedgerError):
        Ledger.open(path).close()
    (tmp_path / "run.json").write_bytes(content)
    (tmp_path / "rounds.jsonl").write_bytes(content)
    with pytest.raises(RecordError):
        load_run(tmp_path)
    refused_without_values(lambda folder: list(read_rounds(folder)), tmp_path, RecordError)


def reading_folder(file):
    return lambda path: file(path.parent)


def as_points(path):
    done = dynadp("design", "--points", path, "--minimum-epsilon", 1)
    if isinstance(done.exception, SystemExit):
        raise DeclarationError(done.output)
    raise done.exception


NESTED = {
    "run.toml": (load_run_file, ConfigError),
    "run-file.json": (load_run_file, ConfigError),
    "north.toml": (load_node_file, ConfigError),
    "north.json": (load_node_file, ConfigError),
    "schema.toml": (load_schema, ConfigError),
    "schema.json": (load_schema, ConfigError),
    "model.json": (load_model, RecordError),
    "run.json": (reading_folder(load_run), RecordError),
    "rounds.jsonl": (reading_folder(lambda folder: list(read_rounds(folder))), RecordError),
    "status.json": (reading_folder(read_status), RecordError),
    "north.peers.json": (lambda path: PeerMemory(path, {}), RecordError),
    "events.jsonl": (read_events, DeclarationError),
    "north.anchor": (lambda path: Anchor(path, path).read(), LedgerDamaged),
    "north-rows": (lambda path: Seal(path, True).compare(b"", "north"), RecordError),
    "tradeoff.json": (as_points, DeclarationError),
}


@pytest.mark.parametrize("depth", [100, 900, 100_000])
@pytest.mark.parametrize("name", NESTED)
def test_a_deeply_nested_file_gets_a_sentence(tmp_path, name, depth):
    """Also where it is sound as JSON or TOML, and only what comes after reading would break."""
    reader, refusal = NESTED[name]
    start = "a = " if name.endswith(".toml") else '{"format": "x", "a": '
    file = tmp_path / name
    end = "" if name.endswith(".toml") else "}"
    file.write_text(start + "[" * depth + "]" * depth + end + "\n")
    with pytest.raises(refusal) as refused:
        reader(file)
    assert len(str(refused.value)) < 500
    if name.endswith(".toml"):  # tables in tables, without a bracket
        file.write_text(".".join(["a"] * depth) + " = 1\n")
        with pytest.raises(refusal, match="nested deeper than 64"):
            reader(file)


def test_a_ledger_with_a_deeply_nested_entry_is_refused(tmp_path, ledger):
    path = tmp_path / "deep.sqlite"
    shutil.copy(ledger, path)
    with Ledger.open(path, anchored=False) as opened:
        last = list(opened.entries())[-1]
    deep = replace(last, id=last.id + 1, round=9, previous=last.hash, content="[" * 900 + "]" * 900)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        insert(connection, replace(deep, hash=deep.digest()))
    with pytest.raises(LedgerError, match="nested deeper than 64"):
        Ledger.open(path, anchored=False)


@MANY
@given(
    content=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode(errors="replace"))
)
def test_tables_that_are_none(tmp_path, content):
    for name in ("rows.csv", "rows.parquet"):
        path = tmp_path / name
        path.write_bytes(content + SECRET.encode())

        def read(path):
            given_ = source(path)
            for _ in given_.batches(tuple(given_.columns)[:3]):
                pass

        refused_without_values(read, path, (DataError, DeclarationError))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "a.sqlite"
    with Ledger.create(path, "a", who="w", at=AT) as made:
        made.set_cap(Cap.of(5.0, 1e-5), who="w", at=AT)
        events = [L2Laplace("a", n, "primal", 0.1, 3) for n in range(1, 4)]
        made.reserve("r", events, dataset="d", who="w", at=AT)
        for n, event in enumerate(events, 1):
            made.spend("r", n, [event], b"message", who="w", at=AT)
    return path


@MANY
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 10**9),
)
def test_ledgers_with_changed_bytes(tmp_path, ledger, flips, cut):
    """Never more budget than before: what is read either is what was written, or is refused."""
    path = tmp_path / "l.sqlite"
    for leftover in tmp_path.iterdir():
        leftover.unlink()
    shutil.copyfile(ledger, path)
    content = bytearray(path.read_bytes())
    for place, change in flips:
        content[place % len(content)] ^= change
    path.write_bytes(content if cut % 2 else content[: cut % len(content)])
    try:
        with Ledger.open(path) as opened:
            if not opened.verify():
                assert len(opened.spent()) == 3
                assert opened.cap.epsilon == 5.0
    except LedgerError:
        pass
