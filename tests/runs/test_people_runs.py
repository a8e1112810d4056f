"""People with several rows, from a run file, a table and an array to a ledger and a report."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, GroupKFold

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.people import first_rows_at_nodes
from dynadp.data.schema import Schema
from dynadp.errors import DataError, DeclarationError
from dynadp.estimators.classifier import NetworkClassifier
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.units import Unit
from dynadp.runs.training import train
from support.typed import dynadp

DELTA, AT = 1e-5, "2026-03-01T12:00:00+00:00"
NODES = ("a", "b", "c")
RING = Topology.family("ring", 3).named(NODES)
USED = "anybody with any number of rows at one node, of which up to 2 are used"


@pytest.fixture(scope="module")
def people():
    """Rows of a census whose people have one to some rows; one person has a hundred."""
    data = census(600, seed=5, nodes=3, test_rows=0)
    rng = np.random.default_rng(0)
    tables = {}
    for node, table in data.tables(NODES).items():
        count = len(table["age"])
        who = np.array([f"p{k}" for k in rng.integers(0, count // 2, count)], dtype=object)
        who[:100] = "ann"
        tables[node] = {**table, "who": who}
    return data.schema, tables


def declared(schema, **more):
    return Schema.model_validate(schema.model_dump() | more)


def kept(table, m):
    """Which rows stay, in plain Python."""
    seen, out = {}, []
    for who in table["who"]:
        seen[who] = seen.get(who, 0) + 1
        out.append(seen[who] <= m)
    return np.array(out)


@pytest.mark.parametrize("mechanism", ["primal", "dual"])
def test_ledgers_take_runs_of_people_by_admm(home, mechanism):
    text = Path("run.toml").read_text()
    Path("run.toml").write_text(text + f'mechanism = "{mechanism}"\n')
    done = dynadp("train", "run.toml", "--out", "run")
    assert done.exit_code == 0, done.output
    with Ledger.open("a.sqlite", read_only=True) as ledger:
        assert {event.rows for event in ledger.spent()} == {2}


@pytest.mark.parametrize("mechanism", ["sum", "primal", "dual", Sealed(honest=2)], ids=str)
def test_training_is_that_on_the_first_rows_of_everybody(people, mechanism):
    """With the same noise, the same model as on tables without the other rows."""
    schema, tables = people
    limited_schema = declared(schema, person="who", rows_per_person=2)
    found = train(
        limited_schema,
        tables,
        RING,
        epsilon=2.0,
        delta=DELTA,
        mechanism=mechanism,
        draws=SeededEntropy(1),
    )
    small = {node: {n: c[kept(t, 2)] for n, c in t.items()} for node, t in tables.items()}
    counts = [len(small[node]["age"]) for node in NODES]
    assert list(found.plan.bound.counts) == counts
    made = plan(
        counts,
        RING,
        schema.dimension,
        epsilon=2.0,
        delta=DELTA,
        mechanism=mechanism,
        features=schema.feature_count,
        unit=Unit(2),
    )
    again = train(schema, small, RING, made, draws=SeededEntropy(1))
    assert (again.run.V == found.run.V).all()
    assert USED in found.total.guarantee
    assert found.total.epsilon <= 2.0


def test_what_a_person_has_beyond_her_rows_changes_nothing(people):
    schema, tables = people
    limited_schema = declared(schema, person="who", rows_per_person=3)
    changed = {node: dict(table) for node, table in tables.items()}
    age = np.array(changed["a"]["age"])
    age[50:100] = 90.0  # of ann, whose first three rows stay
    changed["a"]["age"] = age
    runs = [
        train(limited_schema, each, RING, epsilon=1.0, delta=DELTA, draws=SeededEntropy(2))
        for each in (tables, changed)
    ]
    assert (runs[0].run.V == runs[1].run.V).all()


def test_a_plan_for_fewer_rows_is_refused(people):
    schema, tables = people
    counts = [int(kept(tables[node], 2).sum()) for node in NODES]
    made = plan(counts, RING, schema.dimension, epsilon=1.0, delta=DELTA, mechanism="sum")
    with pytest.raises(DeclarationError, match="of which up to 2 are used: plan again"):
        train(declared(schema, person="who", rows_per_person=2), tables, RING, made)


@pytest.fixture
def home(people, tmp_path, monkeypatch):
    """A run file with ledgers, as a user has it."""
    monkeypatch.chdir(tmp_path)
    schema, tables = people
    Path("schema.json").write_text(schema.model_dump_json())
    text = '[data]\nschema = "schema.json"\n'
    for node, table in tables.items():
        with open(f"{node}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*(cells.tolist() for cells in table.values()), strict=True))
        with Ledger.create(f"{node}.sqlite", node, who="me", at=AT) as ledger:
            ledger.set_cap(Cap.of(8.0, DELTA), who="me", at=AT)
        text += f'[[nodes]]\nname = "{node}"\nfile = "{node}.csv"\nledger = "{node}.sqlite"\n'
    text += '[privacy]\nepsilon = 1.0\ndelta = 1e-5\nperson = "who"\nrows_per_person = 2\n'
    Path("run.toml").write_text(text)
    return tmp_path


def test_a_run_file_declares_people(home, people):
    checked = dynadp("check", "run.toml")
    assert checked.exit_code == 0, checked.output
    assert USED in checked.output
    trained = dynadp("train", "run.toml", "--out", "run", "--json")
    assert trained.exit_code == 0, trained.output
    record = json.loads(Path("run/run.json").read_text())
    assert record["plan"]["unit"] == asdict(Unit(2, limited=True))
    rows = {node: int(kept(people[1][node], 2).sum()) for node in NODES}
    assert record["rows"] == rows
    for node in NODES:
        with Ledger.open(f"{node}.sqlite", read_only=True) as ledger:
            spent = ledger.spent()
            assert {event.rows for event in spent} == {2}
            assert 0.99 < total(spent, DELTA).epsilon <= 1.0
            assert total(spent, DELTA, rows=1).epsilon < 0.6
    shown = dynadp("ledger", "show", "a.sqlite").output
    assert USED in " ".join(shown.split())
    assert dynadp("report", "run").exit_code == 0
    report = " ".join(Path("run/report.html").read_text().split())
    assert USED in report
    assert "about replacing one person with any number of rows at one node, of which" in report
    assert "The software leaves out further rows of a person, by her id." in report


def test_an_accuracy_counts_no_more_rows_of_a_person_than_declared(home, people):
    assert dynadp("train", "run.toml", "--out", "run").exit_code == 0
    done = dynadp("evaluate", "run", "a.csv", "--ledger", "a.sqlite", "--alpha", "0.5", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == int(kept(people[1]["a"], 2).sum())
    with Ledger.open("a.sqlite", read_only=True) as ledger:
        (event,) = [e for e in ledger.spent() if e.purpose == "evaluation"]
        assert (event.rows, event.alpha) == (2, 0.5)
    # predictions and public rows need name nobody
    rows = Path("a.csv").read_text().splitlines()
    column = rows[0].split(",").index("who")
    without = [",".join(c for i, c in enumerate(r.split(",")) if i != column) for r in rows]
    Path("public.csv").write_text("\n".join(without) + "\n")
    assert dynadp("predict", "run", "public.csv").exit_code == 0
    assert dynadp("evaluate", "run", "public.csv", "--public").exit_code == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rows_per_person = 2", "rows_per_person = 0"), "privacy.rows_per_person"),
        (("rows_per_person = 2", "silos_per_person = 4"), "silos_per_person is 4 and the network"),
        (('person = "who"', 'person = "age"'), "the person 'age' is declared as a column"),
        (('person = "who"', 'person = "nobody"'), "no column 'nobody'"),
    ],
)
def test_people_that_cannot_be(home, change, words):
    Path("run.toml").write_text(Path("run.toml").read_text().replace(*change))
    result = dynadp("check", "run.toml")
    assert result.exit_code == 2
    assert words in result.output


def test_the_schema_and_the_run_file_must_agree(home, people):
    Path("schema.json").write_text(declared(people[0], rows_per_person=5).model_dump_json())
    result = dynadp("check", "run.toml")
    assert result.exit_code == 2
    assert "rows_per_person differs from that of the schema" in result.output


# --------------------------------------------------------------------------------------------------
# the estimator

RNG = np.random.default_rng(1)
X = RNG.normal(size=(600, 2))
Y = (X[:, 0] > 0).astype(int)
WHO = RNG.integers(0, 150, 600)
HOW = {"delta": DELTA, "data_norm": 4.0, "classes": [0, 1], "random_state": 0}


def test_the_estimator_keeps_the_first_rows_of_a_person_at_one_node():
    model = NetworkClassifier(epsilon=2.0, rows_per_person=2, nodes=3, **HOW)
    model.fit(X, Y, people=WHO)
    seen, stay = {}, 0
    for who in WHO:
        seen[who] = seen.get(who, 0) + 1
        stay += seen[who] <= 2
    assert sum(model.plan_.bound.counts) == stay
    assert (model.privacy_["rows"], model.privacy_["silos"]) == (2, 1)
    assert USED in model.privacy_["statement"]
    same = NetworkClassifier(epsilon=2.0, rows_per_person=2, nodes=3, **HOW)
    same.fit(X, Y, people=[f" {who} " for who in WHO])  # blanks around an id say nothing
    assert (same.coef_ == model.coef_).all()


@pytest.mark.parametrize(("m", "s"), [(1, 1), (2, 1), (2, 2), (3, 3)])
def test_no_person_has_more_rows_or_nodes_than_declared(m, s):
    owner = RNG.integers(0, 4, 600)
    keep = first_rows_at_nodes(WHO, owner, m, s)
    for who in np.unique(WHO):
        hers = keep & (who == WHO)
        nodes, counts = np.unique(owner[hers], return_counts=True)
        assert 1 <= len(nodes) <= s
        assert counts.max() <= m
        first = owner[who == WHO][0]
        assert first in nodes
    # a person's rows alone decide
    others = WHO[0] == WHO
    again = first_rows_at_nodes(np.where(others, WHO, WHO + 1000), owner, m, s)
    assert (again[others] == keep[others]).all()


def test_rows_of_one_person_are_not_split_unsaid():
    model = NetworkClassifier(epsilon=1.0, rows_per_person=2, **HOW)
    with pytest.raises(DeclarationError, match=r"say whose they are \(people=\), or where they"):
        model.fit(X, Y)
    assert model.fit(X, Y, nodes=np.arange(600) // 120).privacy_["rows"] == 2
    with pytest.raises(DataError, match="cannot tell such ids apart"):
        model.fit(X, Y, people=np.arange(600) + 2.0**53)


def test_nobodys_node_depends_on_the_cells_of_others(people):
    """A row that is dropped for a missing cell still numbers its person."""
    schema = people[0]
    column = schema.columns[0].model_copy(update={"missing": "drop"})
    schema = declared(schema, columns=[column, *schema.columns[1:]], person="who")
    table = {name: cells[100:160].astype(object) for name, cells in people[1]["a"].items()}
    table["who"] = np.array(["x", "a", "b", *(f"p{i}" for i in range(56)), "x"], dtype=object)
    counts = []
    for gone in (0, 59):  # one of x's two rows
        holed = {name: cells.copy() for name, cells in table.items()}
        holed[column.name][gone] = None
        model = NetworkClassifier(
            epsilon=1.0, delta=DELTA, schema=schema, nodes=3, topology="complete", random_state=0
        )
        model.fit(holed, holed["income"])
        counts.append(model.plan_.bound.counts)
    assert counts[0] == counts[1]


def test_the_estimator_refuses_people_that_do_not_fit(people):
    model = NetworkClassifier(epsilon=1.0, rows_per_person=2, **HOW)
    with pytest.raises(DataError, match="people has length 599, X has 600 rows"):
        model.fit(X, Y, people=WHO[1:])
    schema = declared(people[0], person="who", rows_per_person=2)
    table = people[1]["a"]
    model = NetworkClassifier(epsilon=1.0, delta=DELTA, schema=schema, random_state=0)
    model.fit(table, table["income"])
    assert model.privacy_["rows"] == 2
    with pytest.raises(DeclarationError, match="the schema names a column of X for them"):
        model.fit(table, table["income"], people=table["who"])
    model = NetworkClassifier(epsilon=1.0, delta=DELTA, schema=schema, rows_per_person=3)
    with pytest.raises(DeclarationError, match="are those of the schema"):
        model.fit(table, table["income"])


@pytest.mark.parametrize("routed", [False, True])
def test_a_search_hands_each_fit_the_people_of_its_rows(routed):
    """Folds by people; what fit gets is cut as the rows are, with metadata routing or without."""
    seen = []

    class Watched(NetworkClassifier):
        def fit(self, X, y=None, nodes=None, people=None):
            seen.append((len(X), None if people is None else np.asarray(people)))
            return super().fit(X, y, nodes, people)

    with sklearn.config_context(enable_metadata_routing=routed):
        model = Watched(epsilon=2.0, rows_per_person=2, nodes=3, **HOW)
        if routed:
            model.set_fit_request(people=True)
        search = GridSearchCV(model, {"margin": [2.0, 3.0]}, cv=GroupKFold(2), error_score="raise")
        search.fit(X, Y, groups=WHO, people=WHO)
    assert len(seen) == 5
    for first, second in ((0, 1), (2, 3)):  # the folds of one margin
        assert not {*seen[first][1].tolist()} & {*seen[second][1].tolist()}
    for count, people in seen:
        assert len(people) == count
    stay = sum(min(2, int(np.sum(who == WHO))) for who in np.unique(WHO))
    best = search.best_estimator_
    assert sum(best.plan_.bound.counts) == stay
    assert best.privacy_["rows"] == 2
