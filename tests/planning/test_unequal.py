"""Nodes of very unequal sizes, tiny ones and one alone: what they cost in accuracy, and what weighs
the same.
"""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dynadp import NetworkClassifier
from dynadp.cli import main
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import BatchedDraws
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.problem.terms import shares
from support.run_files import write_plain

DRAWS = 12


@pytest.fixture(scope="module")
def rows():
    data = census(12_000, seed=5)
    return data, data.schema.rows(data.test).toarray(), data.schema.labels(data.test)


def error(rows, sizes, weights="rows", epsilon=1.0, draws=DRAWS, mechanism="primal"):
    """Mean test error of the planned run with rows dealt out by these sizes, in points."""
    data, X, y = rows
    ring = Topology.family("ring", len(sizes))
    parts = np.split(np.random.default_rng(0).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    shards = data.shards(parts, names=ring.nodes)
    p = plan(
        list(sizes),
        ring,
        data.schema.dimension,
        epsilon=epsilon,
        delta=1e-5,
        mechanism=mechanism,
        centring=False,
        weights=weights,
    )
    run = simulate(shards, ring, p, draws=BatchedDraws(1), replicas=draws)
    return 100 * float(np.mean(np.where(X @ run.models()[0].T > 0, 1, -1) != y[:, None]))


def test_one_node_does_as_well_as_two(rows):
    assert error(rows, [12_000]) < error(rows, [6_000, 6_000]) + 0.1


def test_a_tiny_node_and_very_unequal_ones_lose_little(rows):
    equal = error(rows, [1_200] * 10)
    assert error(rows, [1_331] * 9 + [21]) < equal + 0.3
    zipf = [4_236, 2_118, 1_412, 1_059, 847, 706, 605, 529, 468, 20]
    assert error(rows, zipf) < equal + 0.5
    assert (
        error(rows, zipf, "equal") > equal + 3
    )  # the paper's weights: a row of the smallest weighs 212 times as much


def test_sealed_a_row_counts_the_same_at_every_node(rows):
    """One noise for all: how rows are spread over nodes changes nothing but rounding."""
    sealed = {"mechanism": Sealed(honest=7), "epsilon": 0.3}
    equal = error(rows, [1_200] * 10, **sealed)
    zipf = [4_236, 2_118, 1_412, 1_059, 847, 706, 605, 529, 468, 20]
    assert error(rows, zipf, **sealed) == pytest.approx(equal, abs=0.05)
    assert equal < error(rows, [1_200] * 10, mechanism="sum", epsilon=0.3) - 0.5
    assert error(rows, zipf, "equal", **sealed) > equal + 3  # the smallest node's rows decide


@pytest.mark.slow
def test_twenty_nodes_of_zipf_sizes_lose_less_than_a_third_of_a_point(adult_data):
    X, y = (
        adult_data.schema.rows(adult_data.test).toarray(),
        adult_data.schema.labels(adult_data.test),
    )
    n = len(adult_data.train["age"])
    share = 1 / np.arange(1, 20)
    sizes = (share / share.sum() * (n - 20)).astype(int)
    sizes[0] += n - 20 - sizes.sum()
    uneven = [*np.random.default_rng(0).permutation(sizes).tolist(), 20]
    even = [n // 20 + (i < n % 20) for i in range(20)]
    given = adult_data, X, y
    assert error(given, uneven, draws=24) < error(given, even, draws=24) + 0.3
    assert error(given, [n], draws=24) < error(given, [n // 2, n - n // 2], draws=24) + 0.1


def test_shares():
    assert shares(2.0, [10, 30]).tolist() == [1.0, 3.0]
    assert shares(2.0, [10, 30], "equal").tolist() == [2.0, 2.0]
    with pytest.raises(DeclarationError, match="weights is 'nodes'"):
        shares(1.0, [1], "nodes")


def test_the_estimator_weighs_rows_alike_unless_told():
    """Without a mechanism the optimum is that of all rows in one place, or that of equally heavy
    nodes.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)) / 4
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=400) > 0, 1, 0)
    owner = np.where(np.arange(400) < 380, "large", "small")
    y[owner == "small"] = 1 - y[owner == "small"]

    def fitted(nodes, **how):
        graph = Topology.from_edges(
            [("large", "small")] if len(set(nodes)) > 1 else [], sorted(set(nodes))
        )
        how = {
            "mechanism": None,
            "topology": graph,
            "data_norm": 3.0,
            "rho": 1e-3,
            "tol": 1e-7,
        } | how
        return NetworkClassifier(**how).fit(X, y, nodes=nodes)

    pooled = fitted(np.full(400, "all"))
    np.testing.assert_allclose(fitted(owner).coef_, pooled.coef_, rtol=1e-4)
    assert np.linalg.norm(
        fitted(owner, weights="equal").coef_ - pooled.coef_
    ) > 0.1 * np.linalg.norm(pooled.coef_)


def test_run_files_say_what_weighs_the_same_and_check_names_nodes_that_bring_noise(
    tmp_path, monkeypatch
):
    data = census(1_500, seed=4, nodes=3)
    monkeypatch.chdir(tmp_path)
    names = list(data.train)
    for node, rows in (
        ("north", slice(0, 1000)),
        ("south", slice(1000, 1480)),
        ("tiny", slice(1480, None)),
    ):
        lines = [
            ",".join(names),
            *(
                ",".join(map(str, cells))
                for cells in zip(*(data.train[c][rows] for c in names), strict=True)
            ),
        ]
        Path(f"{node}.csv").write_text("\n".join(lines) + "\n")
    shell(
        "init . --node north=north.csv --node south=south.csv --node tiny=tiny.csv --label income "
        "--negative low "
        "--positive high --numeric age:17:90 --numeric hours:0:99 --epsilon 2"
    )
    write_plain()
    for node in ("north", "south", "tiny"):
        shell(f"ledger cap {node}.sqlite --node {node} --epsilon 2 --delta 1e-5")
    text = Path("run.toml").read_text()
    assert "'tiny' sends nothing and spends nothing" in " ".join(shell("check run.toml").split())
    text = text.replace('# mechanism = "sum"', 'mechanism = "primal"')
    Path("run.toml").write_text(text)
    assert "'tiny' brings more noise than signal" in " ".join(shell("check run.toml").split())
    plans = {}
    for weights in ("rows", "equal"):
        Path("run.toml").write_text(text + f'\n[training]\nweights = "{weights}"\n')
        plans[weights] = json.loads(shell("check run.toml --json"))["plan"]
        assert plans[weights]["weights"] == weights
    assert plans["equal"]["eta"] > 5 * plans["rows"]["eta"]  # the tiny node's noise asks for it
    assert json.loads(shell("train run.toml --json"))["protected"]
    assert json.loads(Path("runs/first/run.json").read_text())["plan"]["weights"] == "equal"


def shell(line):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, shlex.split(line))
    assert result.exit_code == 0, result.output
    return result.stdout
