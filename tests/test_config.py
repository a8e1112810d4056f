"""Run files: what they mean, and every mistake in one go."""

import pytest

from dynadp.config import load_run_file, load_schema
from dynadp.errors import ConfigError, DeclarationError, TopologyError
from dynadp.losses import HuberHinge, Logistic, SmoothedHinge
from dynadp.perturbation import Dual, NoPerturbation, Primal
from dynadp.regularizers import SmoothElasticNet, SquaredL2

GOOD = """
[run]
seed = 3
[data]
schema = "schema.toml"
[[nodes]]
name = "north"
file = "north.csv"
[[nodes]]
name = "south"
file = "south.csv"
epsilon = 0.5
[privacy]
epsilon = 1.0
delta = 1e-5
"""


@pytest.fixture
def load(tmp_path):
    def load(text, **overrides):
        (tmp_path / "run.toml").write_text(text)
        return load_run_file(tmp_path / "run.toml", overrides.get("overrides"))

    return load


def mistakes(load, text, **more):
    with pytest.raises(ConfigError) as caught:
        load(text, **more)
    first, *lines = str(caught.value).splitlines()
    assert first.endswith(f"{len(lines)} mistake{'s' if len(lines) > 1 else ''}")
    return [line.strip() for line in lines]


def test_a_good_file(load, tmp_path):
    run = load(GOOD)
    assert run.totals == {"north": 1.0, "south": 0.5}
    assert run.mechanism == Primal()
    ring = run.graph(tmp_path)
    assert (ring.nodes, ring.edges) == (("north", "south"), ((0, 1),))
    assert run.digest() == load(GOOD.replace("1e-5", "0.00001")).digest() != load(GOOD.replace("1e-5", "1e-6")).digest()


def test_flags_beat_the_file(load):
    run = load(GOOD, overrides={"privacy.epsilon": 2.0, "run.seed": 9, "privacy.delta": None, "topology.family": "path"})
    assert (run.totals["north"], run.run.seed, run.privacy.delta, run.topology.family) == (2.0, 9, 1e-5, "path")


def test_five_mistakes_are_all_reported_and_nothing_is_echoed(load):
    text = GOOD.replace("seed = 3", 'seed = -1\npasword = "hunter2"').replace("epsilon = 0.5", "epsilon = -7.125")
    text = text.replace('schema = "schema.toml"', "").replace("delta = 1e-5", "delta = 1.5\nmechanism = 'magic'")
    found = mistakes(load, text)
    places = [line.partition(":")[0] for line in found]
    assert places == ["run.seed", "run.pasword", "data.schema", "nodes.1.epsilon", "privacy.mechanism", "privacy.delta"]
    assert "data.schema: is missing" in found
    for secret in ("hunter2", "-7.125", "magic", "1.5"):
        assert secret not in "\n".join(found)


def test_mistakes_between_parts_are_all_reported(load):
    text = GOOD.replace('file = "north.csv"', 'ledger = "n.sqlite"').replace('name = "south"', 'name = "north"')
    text += "own = 'paper'\n[training]\nrounds = 5\nC = 2.0\n"
    found = mistakes(load, text)
    assert [line.partition(":")[0] for line in found] == ["nodes", "nodes", "training", "privacy", "nodes"]
    for part in ("same name", "no file for north", "planner chooses rounds, C", "own and split", "enters no ledger"):
        assert any(part in line for line in found)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (("epsilon = 1.0\n", ""), "privacy: epsilon is missing"),
        (("delta = 1e-5", ""), "delta is missing"),
        (("epsilon = 1.0", "epsilon = 1.0\nalpha = 0.1"), "not both"),
        (("epsilon = 1.0", "mechanism = 'none'\nepsilon = 1.0"), "leave out epsilon and alpha"),
        (("epsilon = 1.0", "mechanism = 'none'"), "an epsilon without a mechanism"),
        (("epsilon = 1.0", "alpha = 0.1"), "rounds, rho, eta must be given"),
        (("seed = 3", ""), "no ledger for north, south"),
        (("[privacy]", "[topology]\nfamily = 'web'\n[privacy]"), "family must be one of ring"),
        (("[privacy]", "[topology]\nedges = [['north', 'south']]\ngraphml = 'x'\n[privacy]"), "not both"),
        (('schema = "schema.toml"', 'schema = "s"\nfile = "all.csv"'), "name its node_column"),
        (("[privacy]", "[evaluation]\nfile = 'x'\npublic = false\n[privacy]"), "evaluation.public"),
        (("name = \"north\"", 'name = "no\\u0007rth"'), "nodes.0.name"),
    ],
)  # fmt: skip
def test_single_mistakes(load, change, wrong):
    assert any(wrong in line for line in mistakes(load, GOOD.replace(*change)))


def test_not_toml_and_not_there(load, tmp_path):
    with pytest.raises(ConfigError, match=r"is not TOML \(at line 1"):
        load("secret = = 1")
    with pytest.raises(ConfigError, match="cannot read"):
        load_run_file(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_run_file(tmp_path / "x.toml")
    with pytest.raises(ConfigError, match="run must be a table"):
        load("run = 3", overrides={"run.seed": 3})


def test_alpha_gives_the_papers_constants(load):
    text = GOOD.replace("epsilon = 0.5", "").replace("epsilon = 1.0", "alpha = 0.2\nmechanism = 'dual'\nsplit = 'paper'")
    run = load(text + "[training]\nrounds = 5\nrho = 1e-3\neta = 0.1\n")
    assert run.totals is None
    assert run.mechanism == Dual(split="paper")


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("", None),
        ("loss = {name = 'logistic', margin = 2}", Logistic(2.0)),
        ("loss = {name = 'huber_hinge', width = 0.3}", HuberHinge(0.3, 1.0)),
        ("loss = {name = 'smoothed_hinge', margin = 2}", SmoothedHinge(0.5, 2.0)),
    ],
)
def test_losses(load, text, loss):
    run = load(GOOD.replace("epsilon = 0.5", "").replace("epsilon = 1.0", "mechanism = 'none'") + f"[training]\n{text}\n")
    assert (run.training.loss.made() if run.training.loss else None) == loss
    assert run.mechanism == NoPerturbation()


def test_regularizers(load):
    text = GOOD.replace("epsilon = 0.5", "").replace("epsilon = 1.0", "mechanism = 'none'") + "[training.regularizer]\n"
    assert load(text).training.regularizer.made() == SquaredL2()
    elastic = load(text + "name = 'smooth_elastic_net'\nl1 = 2\n").training.regularizer.made()
    assert elastic == SmoothElasticNet(2.0, 0.1)


def test_graphs_of_edges_and_files(load, tmp_path):
    import networkx as nx

    run = load(GOOD.replace("[privacy]", "[topology]\nedges = [['south', 'north']]\n[privacy]"))
    assert run.graph(tmp_path).nodes == ("north", "south")
    nx.write_graphml(nx.Graph([("south", "north")]), tmp_path / "g.graphml")
    run = load(GOOD.replace("[privacy]", "[topology]\ngraphml = 'g.graphml'\n[privacy]"))
    assert run.graph(tmp_path).nodes == ("north", "south")
    run = load(GOOD.replace("[privacy]", "[topology]\nedges = [['south', 'north'], ['south', 'west']]\n[privacy]"))
    with pytest.raises(ConfigError, match="an edge names west"):
        run.graph(tmp_path)
    with pytest.raises(TopologyError):
        load(GOOD.replace("[privacy]", "[topology]\nedges = []\n[privacy]")).network(tmp_path)


SCHEMA = """
[[columns]]
kind = "numeric"
name = "age"
low = 0
high = 99
[label]
name = "y"
negative = 0
positive = 1
"""


def test_schema_files(tmp_path):
    (tmp_path / "s.toml").write_text(SCHEMA)
    schema = load_schema(tmp_path / "s.toml")
    (tmp_path / "s.json").write_text(schema.model_dump_json())
    assert load_schema(tmp_path / "s.json") == schema
    (tmp_path / "bad.toml").write_text(SCHEMA.replace("high = 99", 'hihg = "abc"').replace("positive = 1", "posit = 1"))
    with pytest.raises(DeclarationError) as caught:
        load_schema(tmp_path / "bad.toml")
    assert "no public bounds" in str(caught.value)
    assert "label" in str(caught.value)
    assert "abc" not in str(caught.value)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        load_schema(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="cannot read"):
        load_schema(tmp_path / "none.json")
