"""Should a node join? Real comparisons with small numbers, as typed and from Python."""

import json
from pathlib import Path

import numpy as np
import pytest

from dynadp._intervals import paired_band
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.node_rows import NodeRows
from dynadp.engines.simulation import run_masks
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.report.explore.setting import PublicSetting
from dynadp.research import joining
from dynadp.research.experiments import centre_seeded
from dynadp.research.joining import ALONE, JOIN, UNCLEAR, NodeAnswer, should_join
from dynadp.research.public_rows import draw_public_rows
from dynadp.runs.training import centring_round
from support.run_files import ALPHA, NODES, settle, write_csv
from support.typed import answer, dynadp

PUBLIC = '\n[evaluation]\nfile = "public.csv"\npublic = true\n'
NAMES = tuple("abcde")
BAND = {"median": 0.2, "low": 0.1, "high": 0.3}


def compared(sizes, epsilon, samples=2, draws=8, **more):
    """Nodes of these sizes, on narrow census rows."""
    names = tuple(f"n{i}" for i in range(len(sizes)))
    topology = Topology.family("ring", len(sizes)).named(names)
    rows = [draw_public_rows(names, sizes, 12, True, None, seed) for seed in range(samples)]
    return should_join(rows, topology, epsilon, 1e-5, draws=draws, **more)


# --------------------------------------------------------------------------------------------------
# differences of two models on the same rows


def test_the_interval_of_a_difference_is_that_of_matched_pairs():
    """Agresti and Min (2005) add half a row to each of the four cells of a matched table."""
    b, c, n = 30.5, 10.5, 102
    spread = 1.959964 * np.sqrt((b + c) / n - ((b - c) / n) ** 2) / np.sqrt(n)
    band = paired_band([30], [10], 100)
    assert band["median"] == 0.2
    assert band["low"] == pytest.approx((b - c) / n - spread)
    assert band["high"] == pytest.approx((b - c) / n + spread)


def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(5)
    for first, second, n in ((0.06, 0.02, 400), (0.01, 0.01, 60), (0.2, 0.1, 1000)):
        cells = rng.multinomial(n, [first, second, 1 - first - second], size=1500)
        bands = [paired_band([b], [c], n) for b, c, _ in cells]
        held = np.mean([band["low"] <= first - second <= band["high"] for band in bands])
        assert held >= 0.93, (first, second, n)


def test_the_interval_of_a_difference_spans_the_draws_and_is_narrower_than_two_alone():
    draws = paired_band([100, 140, 180, 300], [50] * 4, 1000)
    assert draws["high"] > paired_band([180], [50], 1000)["high"]
    assert draws["low"] < 0.07 < draws["median"] == pytest.approx(0.11)
    paired = paired_band([20], [10], 1000)  # 20 and 10 of 1,000 rows, 200 wrong for both
    assert paired["high"] - paired["low"] < 2 * 1.96 * np.sqrt(2 * 0.21 * 0.79 / 1000) / 2


@pytest.mark.parametrize(("b", "c", "n"), [([3], [2], 4), ([-1], [2], 9), ([1, 2], [1], 9)])
def test_what_is_no_matched_table_is_refused(b, c, n):
    with pytest.raises(DeclarationError, match="not more that differ"):
        paired_band(b, c, n)


def test_a_verdict_needs_an_interval_without_0():
    def verdict(low, high):
        found = {"sum": {"median": 0.0, "low": low, "high": high}}
        return NodeAnswer("a", 9, 1.0, True, 9, BAND, {"sum": BAND}, found).verdict()

    assert verdict(-0.2, -0.1) == JOIN
    assert verdict(0.1, 0.2) == ALONE
    assert verdict(-0.1, 0.1) == UNCLEAR


# --------------------------------------------------------------------------------------------------
# comparisons


def test_many_tiny_nodes_join_at_a_large_epsilon():
    found = compared([60] * 40, 20.0)
    assert {node.verdict("sum") for node in found.nodes} == {JOIN}
    assert found.wrong["sum"]["median"] < found.nodes[0].alone["median"] - 0.01
    assert found.wrong["sum"]["median"] < found.most_common
    for better, worse in (("pooled", "trusted"), ("trusted", "sum")):
        assert found.wrong[better]["median"] <= found.wrong[worse]["median"] + 0.005


def test_few_large_nodes_stay_alone_at_a_tiny_epsilon():
    found = compared([3000, 3000], 0.01)
    for node in found.nodes:
        assert node.verdict("sum") == node.verdict("admm") == ALONE
        for way in ("sum", "admm"):
            assert node.differences[way]["median"] > 0.01


def test_the_small_node_gains_what_the_large_ones_do_not():
    found = compared([4000, 4000, 50], 1.0)
    large, _, small = found.nodes
    assert small.verdict() == JOIN
    assert large.verdict() != JOIN
    assert (large.sends, small.sends) == (True, False)
    assert small.alone["median"] > large.alone["median"]
    assert (small.rows, small.compared) == (50, 50)


def test_two_rows_and_one_class_are_no_obstacle():
    found = compared([2, 2, 300], 1.0, samples=1, draws=2)
    for node in found.nodes:
        for band in (node.alone, *node.differences.values()):
            assert np.isfinite(list(band.values())).all()
            assert band["low"] <= band["median"] <= band["high"]
    alone = compared([1, 1], 1.0, samples=1, draws=2)
    most_common = alone.most_common  # a node of one row gives its only answer whatever is asked
    assert any(
        abs(alone.nodes[0].alone["median"] - e) < 0.05 for e in (most_common, 1 - most_common)
    )


def test_many_sizes_are_measured_at_some_of_them(monkeypatch):
    monkeypatch.setattr(joining, "SIZES", 3)
    found = compared([10, 20, 30, 40, 200], 2.0, samples=1, draws=2)
    assert [node.compared for node in found.nodes] == [10, 10, 40, 40, 200]
    assert found.nodes[2].alone == found.nodes[3].alone != found.nodes[1].alone


def test_where_a_sample_is_smaller_than_the_run_a_lone_node_keeps_its_rows():
    """A share of a sample would make the small node alone look worse than it is."""
    counts = {"n0": 200_000, "n1": 200_000, "n2": 400}
    small, large = (
        compared([2000, 2000, 4], 1.0, samples=2, draws=2, counts=given) for given in (None, counts)
    )
    assert [node.rows for node in large.nodes] == list(counts.values())
    assert [node.compared for node in large.nodes] == [4004, 4004, 400]
    assert large.nodes[2].alone["median"] < small.nodes[2].alone["median"] - 0.01
    assert large.wrong == small.wrong


def test_the_same_seed_gives_the_same_answer_and_another_one_another():
    one, again = (compared([100, 80], 2.0, draws=2) for _ in range(2))
    assert one.to_json() == again.to_json()
    assert compared([100, 80], 2.0, draws=2, seed=1).wrong["sum"] != one.wrong["sum"]


def test_each_nodes_total_and_the_weights_count():
    totals = {"n0": 0.1, "n1": 4.0}
    found = compared([200, 200], totals, samples=1, draws=2)
    assert [node.epsilon for node in found.nodes] == [0.1, 4.0]
    assert found.epsilon == 0.1  # what one trusted place may spend
    assert [node.sends for node in found.nodes] == [False, True]  # its noise is 32 times as long
    rows, equal = (
        compared([400, 300], 2.0, samples=1, draws=2, weights=weights)
        for weights in ("rows", "equal")
    )
    assert rows.wrong["sum"] != equal.wrong["sum"]
    assert rows.wrong["trusted"] == equal.wrong["trusted"]


def test_sealed_sums_stand_beside_sums_in_the_open():
    """Half of the nodes are taken to be honest, unless somebody declares it."""
    found = compared([80] * 20, 2.0, draws=6)
    assert (found.honesty.honest, found.honesty.nodes, found.honesty.assumed) == (10, 20, True)
    assert list(found.ways) == ["sum", "sealed", "admm"]
    for node in found.nodes:
        assert list(node.joined) == list(node.differences) == list(found.ways)
    for better, worse in (("trusted", "sealed"), ("sealed", "sum")):
        assert found.wrong[better]["median"] <= found.wrong[worse]["median"] + 0.005
    assert found.wrong["sealed"]["median"] < found.wrong["sum"]["median"] - 0.005
    told = found.to_json()
    assert told["honesty"]["honest"] == 10
    assert [point["colluding"] for point in told["honesty"]["if_more"]] == [16, 19]
    assert all(point["epsilon"] > 2.0 for point in told["honesty"]["if_more"])
    assert set(told["nodes"][0]["verdicts"]) == {"sum", "sealed", "admm"}


def test_what_is_declared_about_honesty_is_taken():
    few, most = (compared([100] * 6, 2.0, 1, 4, sealed=Sealed(honest=honest)) for honest in (1, 5))
    assert (few.honesty.honest, most.honesty.honest) == (1, 5)
    assert not few.honesty.assumed
    assert few.wrong["sealed"]["median"] > most.wrong["sealed"]["median"]
    assert few.wrong["sum"] == most.wrong["sum"]  # nothing else depends on it
    assert compared([20] * 3, 1.0, samples=1, draws=2).honesty is None  # half of 3: nothing gained
    declared = compared([20] * 3, 1.0, samples=1, draws=2, sealed=Sealed(colluding=1))
    assert (declared.honesty.honest, "sealed" in declared.wrong) == (2, True)
    with pytest.raises(DeclarationError, match="honest is 3 of 3 nodes"):
        compared([20] * 3, 1.0, samples=1, draws=2, sealed=Sealed(honest=3))


def test_a_sweeps_centre_has_the_noise_of_a_sealed_sum():
    """As much as with masks, and half as much as in the open where 4 of 5 are honest."""
    names, ring = NAMES, Topology.family("ring", 5).named(NAMES)
    rows = draw_public_rows(names, [200] * 5, 8, True)
    given = {"epsilon": 1.0, "delta": 1e-5, "features": rows.schema.feature_count}
    sizes, d = list(rows.counts), rows.schema.dimension
    sums = {p: NodeRows(rows.schema, rows.tables[p], p, seal=False).sums for p in names}
    spread = {}
    for way, mechanism in (("sealed", Sealed(honest=4)), ("sum", "sum")):
        planned = plan(sizes, ring, d, mechanism=mechanism, **given)
        for masked in (False, True) if way == "sealed" else (False,):
            centres = []
            for seed in range(40):
                draws = SeededEntropy(seed)
                if masked:
                    masks = run_masks(planned, draws)
                    found = centring_round(
                        planned, rows.schema, lambda p: sums[names[p]], draws, None, masks
                    ).applied(rows.schema)
                else:
                    found = centre_seeded(planned, rows.schema, lambda p: sums[names[p]], draws)
                centres.append(found.centre)
            spread[way, masked] = float(np.std(centres, axis=0).mean())
    assert spread["sealed", False] == pytest.approx(spread["sealed", True], rel=0.2)
    assert spread["sum", False] > 1.4 * spread["sealed", False]  # means are brought back to a range


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(DeclarationError, match="nobody to join"):
        compared([100], 1.0)
    with pytest.raises(DeclarationError, match="3 samples of rows and 2 draws"):
        compared([20, 20], 1.0, samples=3, draws=2)
    for counts in ({"n0": 20}, {"n0": 20, "n1": 0}):
        with pytest.raises(DeclarationError, match="rows of each node, from 1"):
            compared([20, 20], 1.0, samples=1, draws=2, counts=counts)
    with pytest.raises(DeclarationError, match="expected one for each node"):
        compared([20, 20], {"n0": 1.0}, samples=1, draws=2)
    names, pair = ("a", "b"), Topology.family("path", 2).named(("a", "b"))
    odd = [draw_public_rows(names, counts, 5, True) for counts in ((20, 20), (20, 30))]
    with pytest.raises(DeclarationError, match="samples differ"):
        should_join(odd, pair, 1.0, 1e-5)


# --------------------------------------------------------------------------------------------------
# as typed


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settle(census(900, seed=4, nodes=3), seed=1)
    return tmp_path


def test_a_run_file_is_compared_on_census_rows_and_on_public_ones(place):
    found = answer("tradeoff run.toml --join --json --draws 4")
    assert [(node["node"], node["rows"], node["epsilon"]) for node in found["nodes"]] == [
        (name, 300, 2.0) for name in NODES
    ]
    assert set(found["nodes"][0]["verdicts"]) == {"sum", "admm"}
    assert set(found["wrong"]) == {"sum", "admm", "trusted", "pooled"}
    assert found["test_rows"] == 20_000
    assert json.loads((place / "first-join/join.json").read_text()).items() <= found.items()
    assert (place / "first-join/join.png").read_bytes().startswith(b"\x89PNG")
    assert "joining with sums" in (place / "first-join/join.svg").read_text()
    Path("run.toml").write_text(Path("run.toml").read_text() + PUBLIC)
    text = dynadp("tradeoff run.toml --join --out words --draws 8").stdout
    assert "public.csv, which the run file declares public" in text
    assert "census rows are no node's own rows" not in text
    assert "nodes are taken to be alike" in text
    assert "SIMULATION" in text
    assert "north, south, west, 300 rows: alone " in text
    assert any(words in text for words in (f": {JOIN}", f": {ALONE}", f": {UNCLEAR}"))
    assert "only 8 draws" not in text
    assert "the nodes' 900 rows were drawn from 500 public ones" in text


def test_rounds_with_alpha_or_mu_are_compared_at_their_total(place):
    Path("alpha.toml").write_text(ALPHA.replace("rounds = 60", "rounds = 5"))
    setting = PublicSetting.of_file(Path("alpha.toml"))
    found = answer("tradeoff alpha.toml --join --json --draws 2 --out a")
    assert [node["epsilon"] for node in found["nodes"]] == [setting.epsilon] * 2
    assert any(words.startswith("only 2 draws") for words in found["words"])
    text = Path("run.toml").read_text().replace("epsilon = 2.0 ", "mu = 0.05 ")
    Path("mu.toml").write_text(text + '[training]\nalgorithm = "sum"\nrounds = 5\n')
    found = answer("tradeoff mu.toml --join --json --draws 2 --out m")
    total = PublicSetting.of_file(Path("mu.toml")).given.total.epsilon
    assert found["nodes"][0]["epsilon"] == pytest.approx(total)


def test_a_network_needs_no_rows_and_a_silent_node_is_told(place):
    key = "ed25519:" + "A" * 42
    nodes = "".join(
        f'[[nodes]]\nname = "{name}"\nrows = {rows}\nendpoint = "{name}.example.org:7447"\n'
        f'key = "{key}{mark}="\n{more}'
        for name, rows, mark, more in (
            ("big", 600, "A", ""),
            ("mid", 600, "E", "epsilon = 1.5\n"),
            ("small", 5, "I", ""),
        )
    )
    Path("net.toml").write_text(
        f'[run]\nname = "net"\n[data]\nschema = "schema.toml"\n{nodes}'
        "[privacy]\nepsilon = 1\ndelta = 1e-5\n"
    )
    made = dynadp("tradeoff net.toml --join --draws 4")
    assert made.exit_code == 0, made.output
    text = made.stdout
    assert "small, 5 rows: " in text
    silent = [line for line in text.splitlines() if "send and spend nothing" in line]
    assert len(silent) == 1
    assert silent[0].startswith("small")
    assert "epsilon = 1 to 1.5" in text


def test_public_rows_that_name_their_nodes_show_who_differs(place):
    """One node's labels are the others' turned round: alone it is right, joined it is not."""
    made = census(1500, seed=8, nodes=3).train
    site = np.array(NODES)[np.arange(1500) % 3]
    turned = np.where(made["income"] == "low", "high", "low")
    made["income"] = np.where(site == "west", turned, made["income"])
    for name in ("all.csv", "seen.csv"):
        write_csv(name, made, extra={"site": site})
    text = Path("run.toml").read_text() + PUBLIC.replace("public.csv", "seen.csv")
    for node in NODES:
        text = text.replace(f'file = "{node}.csv"\n', "")
    text = text.replace("# file = ", "file = ").replace("# node_column", "node_column")
    text = text.replace('file = "public.csv"   #', "#").replace("epsilon = 2.0", "epsilon = 20.0")
    Path("sites.toml").write_text(text)
    found = answer("tradeoff sites.toml --join --json --draws 8")
    verdicts = {node["node"]: node["verdicts"]["sum"] for node in found["nodes"]}
    assert verdicts["west"] == ALONE
    assert not found["alike"]
    north, _, west = found["nodes"]
    assert north["joined"]["sum"]["median"] < 0.3 < 0.6 < west["joined"]["sum"]["median"]
    assert any("which name their nodes" in words for words in found["words"])
    Path("seen.csv").write_text(Path("seen.csv").read_text().replace(",south", ",north"))
    refused = dynadp("tradeoff sites.toml --join --out again")
    assert refused.exit_code == 2
    assert "0 rows of node 'south'" in refused.output


def test_honest_nodes_are_declared_in_the_run_file_or_typed(place):
    text = Path("run.toml").read_text()
    sealed = 'mechanism = "sealed"\nhonest = 2\n# mechanism = "sum"'
    Path("sealed.toml").write_text(text.replace('# mechanism = "sum"', sealed))
    found = answer("tradeoff sealed.toml --join --json --draws 2 --out declared")
    assert found["honesty"]["honest"] == 2
    assert not found["honesty"]["assumed"]
    assert "joining with sealed sums" in Path("declared/join.svg").read_text()
    assert any(w.startswith("sealed sums: 2 of 3 nodes are honest") for w in found["words"])
    text = dynadp("tradeoff sealed.toml --join --draws 8 --out typed --colluding 2").stdout
    assert "1 of 3 nodes are honest, as declared" in text
    assert "tried without masks" in text
    assert "joining with sealed sums" in text
    for line in ("--honest 2", "--join --honest 3", "--join --honest 1 --colluding 1"):
        refused = dynadp(f"tradeoff run.toml {line} --draws 2 --out no")
        assert (refused.exit_code, "honest" in refused.output) == (2, True)
    assert not Path("no").exists()


def test_an_assumption_is_called_one(place):
    """Four nodes, of which one is too small to send anything in the open."""
    key = "ed25519:" + "A" * 42
    nodes = "".join(
        f'[[nodes]]\nname = "{name}"\nrows = {rows}\nendpoint = "{name}.example.org:7447"\n'
        f'key = "{key}{mark}="\n'
        for name, rows, mark in (("a", 400, "A"), ("b", 400, "E"), ("c", 400, "I"), ("d", 3, "M"))
    )
    Path("net.toml").write_text(
        f'[run]\nname = "net"\n[data]\nschema = "schema.toml"\n{nodes}'
        "[privacy]\nepsilon = 1\ndelta = 1e-5\n"
    )
    text = dynadp("tradeoff net.toml --join --draws 2").stdout
    assert "an ASSUMPTION that 2 of 4 nodes are honest, which nobody declared" in text
    assert "if 3 nodes collude" in text
    silent = [line for line in text.splitlines() if "send and spend nothing" in line]
    assert len(silent) == 1
    assert "With sealed sums every node sends and spends" in silent[0]


def test_what_does_not_go_with_join_is_refused(place):
    text = Path("run.toml").read_text()
    alone = text.split("[[nodes]]")
    Path("one.toml").write_text(
        f"{alone[0]}[[nodes]]{alone[1]}[privacy]{text.split('[privacy]')[1]}"
    )
    refused = dynadp("tradeoff one.toml --join --draws 2 --out x")
    assert (refused.exit_code, "nobody to join" in refused.output) == (2, True)
    assert not Path("x").exists()
    for line in ("--range 0.1 1", "--ceiling 0.2", "--utility 0.02 6 9 1"):
        refused = dynadp(f"tradeoff run.toml --join {line}")
        assert (refused.exit_code, line.split()[0] in refused.output) == (2, True)
    Path("none.toml").write_text(
        ALPHA.replace('"dual"', '"none"').replace("alpha = 0.5\ndelta = 1e-5\n", "")
    )
    assert dynadp("tradeoff none.toml --join").exit_code == 2
    Path("taken").mkdir()
    (Path("taken") / "file").write_text("")
    refused = dynadp("tradeoff run.toml --join --out taken")
    assert (refused.exit_code, "not an empty folder" in refused.output) == (2, True)
