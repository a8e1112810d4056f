"""Run files: what they mean, and every mistake in one go."""

import pytest

from dynadp.errors import ConfigError, DeclarationError, TopologyError
from dynadp.mechanisms.base import NoProtection
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.problem.losses import HuberHinge, Logistic, SmoothedHinge
from dynadp.problem.regularizers import SmoothElasticNet, SquaredL2
from dynadp.runs.node_file import load_node_file
from dynadp.runs.run_file import load_run_file, load_schema

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
    assert run.mechanism is None  # the planner's choice
    ring = run.graph(tmp_path)
    assert (ring.nodes, ring.edges) == (("north", "south"), ((0, 1),))
    assert run == load(GOOD.replace("1e-5", "0.00001")) != load(GOOD.replace("1e-5", "1e-6"))


def test_flags_beat_the_file(load):
    run = load(
        GOOD,
        overrides={
            "privacy.epsilon": 2.0,
            "run.seed": 9,
            "privacy.delta": None,
            "topology.family": "path",
        },
    )
    assert (run.totals["north"], run.run.seed, run.privacy.delta, run.topology.family) == (
        2.0,
        9,
        1e-5,
        "path",
    )


def test_five_mistakes_are_all_reported_and_nothing_is_echoed(load):
    text = GOOD.replace("seed = 3", 'seed = -1\npasword = "hunter2"').replace(
        "epsilon = 0.5", "epsilon = -7.125"
    )
    text = text.replace('schema = "schema.toml"', "").replace(
        "delta = 1e-5", "delta = 1.5\nmechanism = 'magic'"
    )
    found = mistakes(load, text)
    places = [line.partition(":")[0] for line in found]
    assert places == [
        "run.seed",
        "run.pasword",
        "data.schema",
        "nodes.1.epsilon",
        "privacy.mechanism",
        "privacy.delta",
    ]
    assert "data.schema: is missing" in found
    for secret in ("hunter2", "-7.125", "magic", "1.5"):
        assert secret not in "\n".join(found)


def test_mistakes_between_parts_are_all_reported(load):
    text = GOOD.replace('file = "north.csv"', 'ledger = "n.sqlite"').replace(
        'name = "south"', 'name = "north"'
    )
    text += "own = 'paper'\n[training]\nrounds = 5\nC = 2.0\n"
    found = mistakes(load, text)
    assert [line.partition(":")[0] for line in found] == [
        "nodes",
        "nodes",
        "nodes",
        "training",
        "privacy",
    ]
    for part in (
        "same name",
        "no file for north",
        "planner chooses rounds, C",
        "own and split",
        "enters no ledger",
    ):
        assert any(part in line for line in found)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (("epsilon = 1.0\n", ""), "privacy: epsilon is missing"),
        (("delta = 1e-5", ""), "delta is missing"),
        (("epsilon = 1.0", "epsilon = 1.0\nalpha = 0.1"), "one of them, not epsilon and alpha"),
        (("epsilon = 1.0", "mu = 1.0\nalpha = 0.1"), "one of them, not alpha and mu"),
        (("epsilon = 1.0", "mechanism = 'none'\nepsilon = 1.0"), "leave out epsilon, alpha and mu"),
        (("epsilon = 1.0", "mechanism = 'primal'\nmu = 1.0"), "each round's loss is alpha"),
        (("epsilon = 1.0", "mechanism = 'sum'\nalpha = 1.0"), "each round's loss is mu"),
        (("epsilon = 1.0", "mu = 1.0"), "training: with privacy.mu, rounds must be given"),
        (
            ("[privacy]", "[training]\nalgorithm = 'sum'\n[privacy]\nmechanism = 'dual'"),
            "algorithm is sum, but the mechanism of privacy is for algorithm admm",
        ),
        (
            ("[privacy]", "[training]\nalgorithm = 'sgd'\n[privacy]"),
            "training.algorithm",
        ),
        (("epsilon = 1.0", "mechanism = 'none'"), "an epsilon without a mechanism"),
        (("epsilon = 1.0", "alpha = 0.1"), "rounds, rho, eta must be given"),
        (("seed = 3", ""), "no ledger for north, south"),
        (("[privacy]", "[topology]\nfamily = 'web'\n[privacy]"), "family must be one of ring"),
        (
            ("[privacy]", "[topology]\nedges = [['north', 'south']]\ngraphml = 'x'\n[privacy]"),
            "not both",
        ),
        (
            ("[privacy]", "[topology]\nedges = [['north', 'south', 2]]\n[privacy]"),
            "edges have no weights here",
        ),
        (
            ("[privacy]", "[topology]\nedges = [['north', 'south', 'x']]\n[privacy]"),
            "edges have no weights here",
        ),
        (
            ("[privacy]", "[training.loss]\nname = 'huber_hinge'\nmargin = -0.5\n[privacy]"),
            "training.loss: huber_hinge: margin is -0.5 and width 0.5, so L(0) = 0",
        ),
        (('schema = "schema.toml"', 'schema = "s"\nfile = "all.csv"'), "name its node_column"),
        (
            ("[privacy]", "[privacy]\nmechanism = 'sealed'"),
            "privacy: mechanism 'sealed' rests on honest nodes: declare how many of the 2",
        ),
        (
            ("[privacy]", "[privacy]\nmechanism = 'sealed'\nhonest = 2"),
            "privacy: honest is 2 of 2 nodes; expected a number from 1 to 1",
        ),
        (
            ("[privacy]", "[privacy]\nmechanism = 'sum'\nspares = 2"),
            "privacy: spares: for sealed sums alone; name mechanism sealed, or leave out",
        ),
        (("[privacy]", "[privacy]\nhonest = 1"), "privacy: honest: for sealed sums alone"),
        (("[privacy]", "[privacy]\nmechanism = 'sealed'\nhonest = 0"), "privacy.honest"),
        (("[privacy]", "[evaluation]\nfile = 'x'\npublic = false\n[privacy]"), "evaluation.public"),
        (('name = "north"', 'name = "no\\u0007rth"'), "nodes.0.name"),
    ],
)
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


@pytest.mark.parametrize(
    ("privacy", "training", "mechanism"),
    [
        ("epsilon = 1.0", "algorithm = 'sum'", Sum()),
        ("epsilon = 1.0", "algorithm = 'admm'", Primal()),
        ("alpha = 1.0", "rounds = 3\nrho = 0.1\neta = 1.0", Primal()),
        ("mu = 0.1", "rounds = 3\npull = 0.1\nmomentum = 0.2", Sum()),
        ("mu = 0.1\nmechanism = {name = 'sum', second_moment = true}", "rounds = 3", Sum(True)),
        ("epsilon = 1.0\nmechanism = 'sealed'\nhonest = 1", "", Sealed(honest=1)),
        (
            "mu = 0.1\nmechanism = 'sealed'\ncolluding = 1\nspares = 2\npartners = 1",
            "rounds = 3",
            Sealed(colluding=1, spares=2, partners=1),
        ),
        ("mu = 0.1\nmechanism = {name = 'sealed', honest = 1}", "rounds = 3", Sealed(honest=1)),
        (
            "mu = 0.1\nmechanism = {name = 'primal', noise = 'gaussian'}",
            "rounds = 3\nrho = 0.1\neta = 1.0",
            Primal(noise="gaussian"),
        ),
    ],
)
def test_algorithms(load, privacy, training, mechanism):
    text = GOOD.replace("epsilon = 1.0", privacy)
    if "epsilon" not in privacy:
        text = text.replace("epsilon = 0.5", "")
    assert load(f"{text}[training]\n{training}\n").mechanism == mechanism


def test_alpha_gives_the_papers_constants(load):
    text = GOOD.replace("epsilon = 0.5", "").replace(
        "epsilon = 1.0", "alpha = 0.2\nmechanism = 'dual'\nsplit = 'paper'"
    )
    run = load(text + "[training]\nrounds = 5\nrho = 1e-3\neta = 0.1\n")
    assert run.totals is None
    assert run.privacy.made() == Dual(split="paper")


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
    run = load(
        GOOD.replace("epsilon = 0.5", "").replace("epsilon = 1.0", "mechanism = 'none'")
        + f"[training]\n{text}\n"
    )
    assert run.training.loss == loss
    assert run.privacy.made() == NoProtection()


def test_regularizers(load):
    text = (
        GOOD.replace("epsilon = 0.5", "").replace("epsilon = 1.0", "mechanism = 'none'")
        + "[training.regularizer]\n"
    )
    assert load(text).training.regularizer == SquaredL2()
    elastic = load(text + "name = 'smooth_elastic_net'\nl1 = 2\n").training.regularizer
    assert elastic == SmoothElasticNet(2.0, 0.1)


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ("name = 'square'", ["training.loss.name: Input should be 'smoothed_hinge', 'logistic'"]),
        ("name = ['logistic']", ["training.loss.name: Input should be 'smoothed_hinge'"]),
        ("height = 0.3", ["training.loss.height: there is no such key"]),
        ("name = 'huber_hinge'\nwidth = 'wide'", ["training.loss.width: Input should be a valid"]),
        ("name = 'huber_hinge'\nwidth = 0", ["training.loss: huber_hinge: width is 0"]),
        ("name = 'logistic'\nmargin = inf", ["training.loss: logistic: margin is inf"]),
        (
            "name = 'huber_hinge'\nwidth = 'wide'\nsecret = 1\n[training.regularizer]\nl2 = 2",
            [
                "training.loss.width: Input should be a valid number",
                "training.loss.secret: there is no such key",
                "training.regularizer.l2: there is no such key",
            ],
        ),
    ],
)
def test_mistakes_in_a_loss(load, table, wrong):
    text = GOOD + f"[training.loss]\n{table}\n"
    lines = mistakes(load, text)
    assert len(lines) == len(wrong)
    for line, start in zip(sorted(lines), sorted(wrong), strict=True):
        assert line.startswith(start)


def test_a_loss_is_a_table(load):
    assert mistakes(load, GOOD + "[training]\nloss = 'logistic'\n") == [
        "training.loss: Input should be a valid dictionary or instance of Loss"
    ]


def test_a_loss_and_a_regularizer_of_ones_own(load):
    class Steep(HuberHinge):
        name = "test_config_steep"

        def __init__(self, *, sharpness: int):
            super().__init__(width=1 / sharpness)
            object.__setattr__(self, "sharpness", sharpness)

    class Plain(SquaredL2):
        name = "test_config_plain"

    text = GOOD.replace("epsilon = 0.5", "").replace("epsilon = 1.0", "mechanism = 'none'") + (
        "[training]\nregularizer = {name = 'test_config_plain'}\n"
        "loss = {name = 'test_config_steep', sharpness = 4}\n"
    )
    training = load(text).training
    assert isinstance(training.loss, Steep)
    assert isinstance(training.regularizer, Plain)
    assert training.loss.c1 == 2.0
    assert training.model_dump(include={"loss", "regularizer"}) == {
        "loss": {"name": "test_config_steep", "sharpness": 4},
        "regularizer": {"name": "test_config_plain"},
    }
    assert mistakes(load, text.replace("sharpness = 4", "sharpness = 'x'")) == [
        "training.loss.sharpness: Input should be a valid integer, unable to parse string as an "
        "integer"
    ]
    assert mistakes(load, text.replace(", sharpness = 4", "")) == [
        "training.loss.sharpness: is missing"
    ]


def test_graphs_of_edges_and_files(load, tmp_path):
    import networkx as nx

    run = load(
        GOOD.replace("[privacy]", "[topology]\nedges = [['south', 'north', 1.0]]\n[privacy]")
    )
    assert run.graph(tmp_path).edges == ((0, 1),)
    run = load(GOOD.replace("[privacy]", "[topology]\nedges = [['south', 'north']]\n[privacy]"))
    assert run.graph(tmp_path).nodes == ("north", "south")
    nx.write_graphml(nx.Graph([("south", "north")]), tmp_path / "g.graphml")
    run = load(GOOD.replace("[privacy]", "[topology]\ngraphml = 'g.graphml'\n[privacy]"))
    assert run.graph(tmp_path).nodes == ("north", "south")
    run = load(
        GOOD.replace(
            "[privacy]", "[topology]\nedges = [['south', 'north'], ['south', 'west']]\n[privacy]"
        )
    )
    with pytest.raises(ConfigError, match="an edge names west"):
        run.graph(tmp_path)
    with pytest.raises(TopologyError):
        load(GOOD.replace("[privacy]", "[topology]\nedges = []\n[privacy]")).graph(tmp_path)


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
    (tmp_path / "bad.toml").write_text(
        SCHEMA.replace("high = 99", 'hihg = "abc"').replace("positive = 1", "posit = 1")
    )
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


# --------------------------------------------------------------------------------------------------
# networks


def key(i):
    return f"ed25519:{'ABCDEFGH'[i] * 43}="


NETWORK = f"""
[data]
schema = "schema.toml"
[[nodes]]
name = "north"
rows = 100
endpoint = "north.example.org:7447"
key = "{key(0)}"
[[nodes]]
name = "south"
rows = 200
endpoint = "[2001:db8::7]:7447"
key = "{key(1)}"
epsilon = 0.5
[privacy]
epsilon = 1.0
delta = 1e-5
"""


def test_a_good_network_file(load):
    run = load(NETWORK)
    assert run.networked
    assert not load(GOOD).networked
    assert run.totals == {"north": 1.0, "south": 0.5}
    assert [node.key for node in run.nodes] == [key(0), key(1)]
    assert (
        load(NETWORK.replace("[data]", "[run]\nseed = 3\n[data]")).run.seed == 3
    )  # a SIMULATION; no ledger is asked for


def test_any_of_three_makes_a_network(load):
    for more in ("[network]\nrelay = 'relay.example.org:7447'\n", ""):
        text = GOOD.replace('file = "north.csv"\n', "").replace('file = "south.csv"\n', "") + more
        assert any(
            ("no key for north, south" in line) == bool(more) for line in mistakes(load, text)
        )
    for one in ('endpoint = "a:1"', f'key = "{key(0)}"'):
        found = mistakes(load, GOOD.replace('file = "north.csv"', one))
        assert any("no rows for north, south" in line for line in found)


def test_behind_a_relay_nodes_need_no_endpoint(load):
    text = "\n".join(line for line in NETWORK.splitlines() if not line.startswith("endpoint"))
    assert (
        load(text + "\n[network]\nrelay = 'relay.example.org:7447'\n").network.relay
        == "relay.example.org:7447"
    )


def test_all_mistakes_of_a_network_file_are_reported_at_once(load):
    text = NETWORK.replace('name = "south"', 'name = "relay"').replace(
        "rows = 100\n", 'file = "north.csv"\n'
    )
    text = text.replace(f'key = "{key(1)}"\n', "").replace(
        "epsilon = 1.0\n", "alpha = 0.1\nown = 'paper'\n"
    )
    found = mistakes(load, text)
    parts = (
        "no key for relay: every node of a network needs a public signing key",
        "no rows for north: every node of a network needs a public number of rows",
        "files and ledgers belong into each NODE.toml",
        "and is not 'relay'",
        "rounds, rho, eta must be given",
        "a total epsilon does not go with privacy.alpha",
    )
    for part in parts:
        assert sum(part in line for line in found) == 1, part
    assert len(found) == len(parts)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (("rows = 100\n", ""), "nodes: no rows for north"),
        (("rows = 100", "rows = 0"), "nodes.0.rows"),
        ((f'key = "{key(1)}"\n', ""), "nodes: no key for south"),
        ((key(1), key(0)), "two have the same key"),
        (('north"\nrows', 'south"\nrows'), "two have the same name"),
        (("rows = 100", "rows = 100\nfile = 'n.csv'"), "belong into each NODE.toml"),
        (("rows = 100", "rows = 100\nledger = 'n.sqlite'"), "belong into each NODE.toml"),
        (
            ('schema = "schema.toml"', 'schema = "s"\nfile = "all.csv"\nnode_column = "site"'),
            "belong into each NODE.toml",
        ),
        (('"north"', '"relay"'), "is not 'relay'"),
        (('"north"', f'"{"n" * 65}"'), "at most 64 letters"),
        (('"north"', f'"{"é" * 33}"'), "at most 64 letters"),
        (("epsilon = 1.0\n", "mechanism = 'none'\n"), "a network run needs a mechanism"),
        (("epsilon = 1.0\n", ""), "epsilon is missing"),
        (
            ("rows = 100", "rows = 100\nprivate_key = 'x'"),
            "nodes.0.private_key: there is no such key",
        ),
    ],
)
def test_single_mistakes_of_a_network_file(load, change, wrong):
    assert NETWORK.count(change[0]) == 1
    assert any(wrong in line for line in mistakes(load, NETWORK.replace(*change)))


def test_long_names_are_for_simulations_alone(load):
    assert load(GOOD.replace('"north"', f'"{"n" * 65}"')).nodes[0].name == "n" * 65
    assert load(NETWORK.replace('"north"', f'"{"é" * 32}"')).nodes[0].name == "é" * 32


@pytest.mark.parametrize("base", [GOOD, NETWORK], ids=["one process", "network"])
def test_more_nodes_than_there_are_cannot_remain(load, base):
    going_on = f"{base}\n[network]\non_absence = 'go on'\nleast = "
    count = len(load(base).nodes)
    assert load(f"{going_on}{count}").network.least == count
    assert mistakes(load, f"{going_on}{count + 1}") == [
        f"network: least is {count + 1}, and there are {count} nodes: not so many can remain"
    ]


SEALED = 'mechanism = "sealed"\nhonest = 1\n'


@pytest.mark.parametrize(
    ("privacy", "network", "wrong"),
    [
        ("", "least = 2", "network: least is for on_absence = 'go on'"),
        (f"{SEALED}away = 1", "", "privacy: away costs accuracy, and a run that waits"),
        (SEALED, "on_absence = 'go on'", "privacy: away is missing: how many nodes a sealed sum"),
        (f"{SEALED}away = 1\nspares = 0", "on_absence = 'go on'", "privacy: spares is 0"),
    ],
)
def test_what_is_said_of_absence_has_an_effect(load, privacy, network, wrong):
    text = f"{NETWORK.replace('[privacy]', '[privacy]' + chr(10) + privacy)}\n[network]\n{network}"
    assert any(line.startswith(wrong) for line in mistakes(load, text))


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "north",
        "north:",
        ":7447",
        "north:0",
        "north:65536",
        "north:-1",
        "north:x",
        "north:7447/x",
        "a b:1",
        "tls/north:7447",
    ],
)
def test_endpoints_that_nobody_can_dial(load, endpoint):
    found = mistakes(load, NETWORK.replace("north.example.org:7447", endpoint))
    assert found == ["nodes.0.endpoint: must be HOST:PORT, such as silo.example.org:7447"]
    assert any(
        "network.relay: must be HOST:PORT" in line
        for line in mistakes(load, NETWORK + f"[network]\nrelay = '{endpoint}'")
    )


@pytest.mark.parametrize(
    "wrong",
    ["", "abc", key(0)[8:], key(0)[:-1], key(0) + "A", "rsa" + key(0), key(0).replace("A", "!", 1)],
)
def test_keys_that_are_none(load, wrong):
    (line,) = mistakes(load, NETWORK.replace(key(0), wrong))
    assert line.startswith("nodes.0.key")
    assert wrong == "" or wrong not in line


NODE = """
run = "../run.toml"
node = "north"
identity = "identity"
file = "/data/north.csv"
ledger = "north.ledger"
out = "runs/north"
"""


@pytest.fixture
def load_node(tmp_path):
    def load(text):
        (tmp_path / "NODE.toml").write_text(text)
        return load_node_file(tmp_path / "NODE.toml")

    return load


def test_a_good_node_file(load_node):
    node = load_node(NODE)
    assert (node.node, node.ledger, node.listen, node.patience) == (
        "north",
        "north.ledger",
        None,
        None,
    )
    node = load_node(NODE + "listen = '0.0.0.0:7447'\npatience = 5\n")
    assert (node.listen, node.patience) == ("0.0.0.0:7447", 5.0)
    assert load_node(NODE.replace('ledger = "north.ledger"', "")).ledger is None


def test_all_mistakes_of_a_node_file_are_reported_at_once_and_nothing_is_echoed(load_node):
    text = (
        NODE.replace('node = "north"', "").replace('"identity"', "7").replace('"runs/north"', '""')
    )
    found = mistakes(
        load_node, text + "listen = 'hunter2'\npatience = -7.125\npasword = 'secret'\n"
    )
    places = [line.partition(":")[0] for line in found]
    assert sorted(places) == ["identity", "listen", "node", "out", "pasword", "patience"]
    assert "node: is missing" in found
    for given in ("hunter2", "7.125", "secret"):
        assert given not in "\n".join(found)


@pytest.mark.parametrize("patience", ["0", "nan", "inf", "'x'", "-1"])
def test_patience_is_a_number_of_seconds(load_node, patience):
    assert [
        line.partition(":")[0] for line in mistakes(load_node, NODE + f"patience = {patience}\n")
    ] == ["patience"]


@pytest.mark.parametrize("place", ["run", "identity", "file", "ledger", "out"])
def test_paths_are_lines_of_text(load_node, place):
    lines = [
        f'{place} = "a\\u0000b"' if line.startswith(f"{place} =") else line
        for line in NODE.splitlines()
    ]
    assert mistakes(load_node, "\n".join(lines)) == [f"{place}: must be a line of printable text"]


def test_a_node_file_that_is_not_there_or_not_toml(load_node, tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load_node_file(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"is not TOML \(at line 1"):
        load_node("run = = 1")
    with pytest.raises(ConfigError, match="is a run file, which all silos share"):
        load_node(GOOD)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("seed = 3", "sede = 3"), "run.sede: there is no such key; did you mean seed? run knows "),
        (
            ('schema = "schema.toml"', 'schema = "schema.toml"\nzzz = 1'),
            "data.zzz: there is no such key; data knows schema, file,",
        ),
        (
            ('file = "north.csv"', 'flie = "north.csv"'),
            "nodes.0.flie: there is no such key; did you mean file? nodes knows name, file,",
        ),
        (
            ("[privacy]", "[trainign]\n[privacy]"),
            "trainign: there is no such key; did you mean training? the file knows run, data,",
        ),
    ],
)
def test_a_misspelt_key_gets_those_that_its_table_knows(load, change, line):
    found = mistakes(load, GOOD.replace(*change))
    assert any(mistake.startswith(line) for mistake in found)
    assert not any("Tuple should" in mistake for mistake in found)


def test_a_misspelt_key_of_a_column_gets_those_of_its_kind(tmp_path):
    column = '{ kind = "categorical", name = "c", values = ["u", "v"], mising = "drop" }'
    label = '{ name = "y", negative = 0, positive = 1, postive = 1 }'
    (tmp_path / "schema.toml").write_text(f"columns = [{column}]\nlabel = {label}\n")
    with pytest.raises(ConfigError) as caught:
        load_schema(tmp_path / "schema.toml")
    first, second = str(caught.value).splitlines()[1:]
    assert first.strip().startswith(
        "columns.0.categorical.mising: there is no such key; did you mean missing? categorical "
        "knows name, weight, kind, values,"
    )
    assert second.strip().endswith("did you mean positive? label knows name, negative, positive")
