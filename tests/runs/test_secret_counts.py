"""How many rows a node has stays secret: two files, one with a row more, and every command."""

import csv
import json
import re

import numpy as np
import pytest

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.schema import Schema
from dynadp.errors import DataError, DeclarationError
from dynadp.estimators.classifier import NetworkClassifier
from dynadp.mechanisms.accuracy import private_accuracy, private_answers, private_count
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.units import Unit
from dynadp.runs.training import train
from support.typed import dynadp

NODES, DECLARED = ("a", "b", "c"), 260
RING = Topology.family("ring", 3).named(NODES)
DELTA, AT = 1e-5, "2026-03-01T12:00:00+00:00"
ADDED = Unit(adjacency="add-remove")

# What may differ, since it was released under noise, or says when and how long: numbers with a
# fraction, hashes and ids, times, durations, and the pictures that are drawn from such numbers.
# How many rows there are would be a whole number.
LISTED = (
    (r"[Aa]bout [\d,]+ rows", "NOISY ROWS"),  # released, and charged
    (r"<svg.*?</svg>", "SVG"),
    (r'<script[^>]*type="application/json".*?</script>', "DATA"),
    (r"data:[a-z]+/[a-z+]+;base64,[A-Za-z0-9+/=]+", "BASE64"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d[:.]\d\d[:.]\d\d[^\s\"<,]*", "TIME"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "TIME"),
    # how far released points lie apart: rounded, it may be a whole number
    (r"(the last round is|step of round \d+ was|alone would make it) [\d.e+-]*\d", "LENGTH"),
    (r"-?\b\d+\.\d+(e[-+]?\d+)?", "NUMBER"),
    (r"-?\d+e[-+]\d+", "NUMBER"),
    (r"\b[0-9a-f]{8,}\b", "HASH"),  # milliseconds too
    # Coefficients stand in the order of the released model: which one, and how many are clear of
    # noise, are read from it. A whole number in a cell still shows.
    (
        r'<tr><th scope="row">[^<]*</th>(<td class="number">(NUMBER|\d{4,})?</td>){4}'
        "<td>[^<]*</td></tr>",
        "ROW",
    ),
    (r"\b\d+ of \d+ coefficients are larger", "COEFFICIENTS ARE LARGER"),
)


def public(text):
    for pattern, name in LISTED:
        text = re.sub(pattern, name, text, flags=re.S)
    return text


def census_tables(rows=600, seed=5):
    data = census(rows, seed=seed, nodes=3, test_rows=0)
    schema = Schema.model_validate(data.schema.model_dump() | {"adjacency": "add-remove"})
    return schema, data.tables(NODES)


@pytest.fixture(scope="module")
def data():
    return census_tables()


def first(table, count):
    return {name: cells[:count] for name, cells in table.items()}


def write(table, path):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*(np.asarray(c).tolist() for c in table.values()), strict=True))


def make_home(place, data, count, more=""):
    """A consortium whose node a has so many rows; the others are the same."""
    schema, tables = data
    place.mkdir()
    plain = schema.model_dump(mode="json")
    plain.pop("adjacency")
    (place / "schema.json").write_text(json.dumps(plain))
    text = f'[run]\nname = "visits"\n{more}[data]\nschema = "schema.json"\n'
    for node, table in tables.items():
        write(first(table, count if node == "a" else 150), place / f"{node}.csv")
        with Ledger.create(place / f"{node}.sqlite", node, who="me", at=AT) as ledger:
            ledger.set_cap(Cap.of(8.0, DELTA), who="me", at=AT)
        text += f'[[nodes]]\nname = "{node}"\nfile = "{node}.csv"\nrows = {DECLARED}\n'
        text += "" if "seed" in more else f'ledger = "{node}.sqlite"\n'
    text += '[privacy]\nepsilon = 1.0\ndelta = 1e-5\nadjacency = "add-remove"\n'
    (place / "run.toml").write_text(text)
    return place


COMMANDS = [
    "check run.toml",
    "check run.toml --json",
    "check run.toml --max-epsilon",
    "train run.toml --out run",
    "train run.toml --out run",  # refused, as the folder is there
    "train run.toml --out run --resume",
    "report run --out report.html",
    "evaluate run/model.json a.csv --ledger a.sqlite --alpha 0.5",
    "count a.csv --schema schema.json --ledger a.sqlite --alpha 0.5",
    "evaluate run/model.json a.csv --ledger a.sqlite --alpha 0.5 --rows 99",  # refused
    "evaluate run/model.json a.csv",  # refused
    "ledger show a.sqlite",
    "ledger show a.sqlite --json",
    "ledger left a.sqlite --json",
    "ledger verify a.sqlite",
    "track run",
]


def everything(place, commands, monkeypatch):
    """What every command says, how it ends, and what it writes."""
    monkeypatch.chdir(place)
    said = {}
    for i, line in enumerate(commands):
        done = dynadp(line)
        said[f"{i} {line}"] = done.exit_code, public(done.output)
    files = sorted(
        path
        for path in place.rglob("*")
        if path.is_file() and path.suffix in (".json", ".jsonl", ".html", ".log", ".txt", ".toml")
    )
    said["files"] = sorted(public(str(path.relative_to(place))) for path in place.rglob("*"))
    for path in files:
        said[public(str(path.relative_to(place)))] = public(path.read_text())
    return said


SEEDED = "seed = 3\n"


@pytest.mark.parametrize(
    ("counts", "more"),
    [((199, 200), ""), ((0, 1), SEEDED), ((DECLARED, DECLARED + 1), SEEDED)],
    ids=["ledgers", "none", "too many"],
)
def test_no_command_tells_how_many_rows_there_are(data, tmp_path, monkeypatch, counts, more):
    said = [
        everything(make_home(tmp_path / str(i), data, count, more), COMMANDS, monkeypatch)
        for i, count in enumerate(counts)
    ]
    assert said[0].keys() == said[1].keys()
    for what, before in said[0].items():
        assert before == said[1][what], what
    assert said[0]["0 check run.toml"][0] == 0, said[0]["0 check run.toml"][1]
    assert said[0]["3 train run.toml --out run"][0] == 0, said[0]["3 train run.toml --out run"][1]
    assert "up to 260 rows" in said[0]["0 check run.toml"][1]
    assert f"up to {3 * DECLARED} rows at 3 nodes" in said[0]["run/run.json"]


def test_a_word_about_the_rows_would_be_found(data, tmp_path, monkeypatch):
    """The comparison can fail: a count in a log, and one in the record."""
    said = [
        everything(make_home(tmp_path / str(i), data, count, SEEDED), COMMANDS[:1], monkeypatch)
        for i, count in enumerate((199, 200))
    ]
    assert said[0] == said[1]
    assert public("node a: 199 rows") != public("node a: 200 rows")
    assert public('{"rows": {"a": 1199}}') != public('{"rows": {"a": 1200}}')


@pytest.mark.slow
def test_nodes_of_a_network_tell_no_number_either(data, tmp_path, monkeypatch):
    """Processes of their own: what they print, log and write down."""
    place = make_home(tmp_path / "home", data, 197, SEEDED)
    said = everything(place, ["launch run.toml --out net --patience 120"], monkeypatch)
    assert said["0 launch run.toml --out net --patience 120"][0] == 0
    assert any(name.endswith("rounds.jsonl") for name in said["files"])
    text = re.sub(r"[A-Za-z0-9+/=]{32,}", "KEY", json.dumps(said))
    assert not re.search(r"\b(197|347|497)\b", text)
    assert re.search(r"\b260\b", text)


# --------------------------------------------------------------------------------------------------
# what is trained


@pytest.mark.parametrize("mechanism", ["sum", Sealed(honest=2), "primal", "dual"], ids=str)
def test_training_with_null_rows_is_that_on_filled_tables(data, mechanism):
    """A node with no rows at all, one with fewer than declared, one with more."""
    schema, tables = data
    given = {"a": first(tables["a"], 0), "b": first(tables["b"], 150), "c": tables["c"]}
    declared = {"a": 150, "b": 190, "c": 180}
    found = train(
        schema,
        given,
        RING,
        epsilon=2.0,
        delta=DELTA,
        mechanism=mechanism,
        rows=declared,
        draws=SeededEntropy(1),
    )
    assert found.plan.bound.counts == (150, 190, 180)
    assert found.total.epsilon <= 2.0
    assert "whether your row was in the data or not" in found.total.guarantee
    cut = {**given, "c": first(tables["c"], 180)}
    again = train(schema, cut, RING, found.plan, rows=declared, draws=SeededEntropy(1))
    assert (again.run.V == found.run.V).all()


def test_a_plan_for_the_other_kind_is_refused(data):
    schema, tables = data
    made = plan([DECLARED] * 3, RING, schema.dimension, epsilon=1.0, delta=DELTA)
    with pytest.raises(DeclarationError, match=r"for adjacency 'replace', and the schema declares"):
        train(schema, tables, RING, made, rows=DECLARED)
    with pytest.raises(DataError, match="declare one, rows = N"):
        train(schema, tables, RING, epsilon=1.0, delta=DELTA)
    with pytest.raises(DeclarationError, match="rows are declared for nodes"):
        train(schema, tables, RING, epsilon=1.0, delta=DELTA, rows={"a": 1})


def test_a_run_file_needs_declared_numbers(data, tmp_path, monkeypatch):
    place = make_home(tmp_path / "home", data, 50)
    text = (place / "run.toml").read_text().replace(f"rows = {DECLARED}\n", "")
    (place / "run.toml").write_text(text)
    monkeypatch.chdir(place)
    done = dynadp("check run.toml")
    assert done.exit_code == 2
    assert done.output.count("declare one, rows = N, at least as many as it may have") == 3


# --------------------------------------------------------------------------------------------------
# the estimator


def test_the_estimator_fills_up_with_null_rows():
    rng = np.random.default_rng(0)
    X, nodes = rng.normal(size=(300, 4)), np.repeat(["a", "b"], 150)
    y = (X[:, 0] > 0).astype(int)
    settings = {
        "epsilon": 2.0,
        "delta": DELTA,
        "data_norm": 3.0,
        "classes": [0, 1],
        "topology": RING,
        "adjacency": "add-remove",
        "random_state": 1,
    }
    made = NetworkClassifier(**settings, rows=200).fit(X, y, nodes=nodes)  # none at c
    assert made.plan_.bound.counts == (200, 200, 200)
    assert made.plan_.unit == ADDED
    assert made.score(X, y) > 0.8
    more = NetworkClassifier(**settings, rows={"a": 200, "b": 120, "c": 80}).fit(X, y, nodes=nodes)
    cut = np.r_[0:150, 150:270]
    same = NetworkClassifier(**settings, rows={"a": 200, "b": 120, "c": 80}).fit(
        X[cut], y[cut], nodes=nodes[cut]
    )
    assert (more.coef_ == same.coef_).all()
    three = NetworkClassifier(**settings | {"classes": [0, 1, 2]}, rows=200)
    assert three.fit(X, np.arange(300) % 3, nodes=nodes).coef_.shape == (3, 4)
    alone = NetworkClassifier(**settings | {"topology": "ring"}, nodes=1, rows=400).fit(X, y)
    assert alone.plan_.bound.counts == (400,)


def test_the_estimator_centres_from_a_schema_without_counting(data):
    schema, tables = data
    table = {n: np.concatenate([tables[p][n] for p in NODES]) for n in tables["a"]}
    nodes = np.repeat(NODES, [len(tables[p]["age"]) for p in NODES])
    y = table[schema.label.name]
    made = NetworkClassifier(
        epsilon=2.0, delta=DELTA, schema=schema, topology=RING, rows=DECLARED, random_state=1
    ).fit(table, y, nodes=nodes)
    by_hand = train(
        schema, tables, RING, epsilon=2.0, delta=DELTA, rows=DECLARED, draws=SeededEntropy(1)
    )
    assert made.plan_.total == by_hand.plan.total
    np.testing.assert_allclose(made.schema_.centre, by_hand.schema.centre, atol=0.3)


def test_what_the_estimator_refuses():
    X, y = np.eye(4), np.array([0, 1, 0, 1])
    settings = {"epsilon": 1.0, "delta": DELTA, "data_norm": 1.0, "classes": [0, 1]}
    for more, words in (
        ({"adjacency": "add-remove"}, "give both, or neither"),
        ({"rows": 5}, "give both, or neither"),
        ({"adjacency": "add-remove", "rows": 5}, "would depend on other rows"),
        ({"adjacency": "add-remove", "rows": {"a": 5}, "nodes": 1}, "expected one number for each"),
        ({"adjacency": "add", "rows": 5}, "adjacency is 'add'"),
    ):
        with pytest.raises(DeclarationError, match=words):
            NetworkClassifier(**settings, **more).fit(X, y)
    with pytest.raises(DeclarationError, match="without a mechanism nothing stays secret"):
        NetworkClassifier(mechanism=None, adjacency="add-remove", rows=5).fit(X, y)


# --------------------------------------------------------------------------------------------------
# single releases


def test_noisy_counts_are_about_right_and_charged_once():
    draws, unit = SeededEntropy(3), Unit(2, adjacency="add-remove")
    found = private_answers(400, 100, 1.0, node="a", draws=draws, unit=unit)
    assert abs(found.accuracy - 0.8) < found.margin
    assert abs(found.rows - 500) < 20
    assert (found.event.dimension, found.event.alpha, found.event.rows) == (2, 1.0, 2)
    assert found.event.adjacency == "add-remove"
    counted = private_count(500, 0.5, node="a", draws=draws, unit=unit)
    assert abs(counted.rows - 500) < 30
    assert counted.event.purpose == "count"
    with pytest.raises(DeclarationError, match="release both numbers with private_answers"):
        private_accuracy(400, 500, 1.0, node="a", draws=draws, unit=unit)


def test_noise_of_counts_has_the_law_that_is_claimed():
    """|n + e - n| of 4,000 draws against Laplace(1/alpha); halves of the noise would be seen."""
    off = np.array(
        [
            private_count(1000, 0.2, node="a", draws=SeededEntropy(k), unit=ADDED).rows - 1000
            for k in range(4000)
        ]
    )
    assert np.abs(off).mean() == pytest.approx(5.0, rel=0.08)
