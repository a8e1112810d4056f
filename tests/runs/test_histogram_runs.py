"""The histogram of scores that the last round of sums releases: on every path, with its price, and
what follows from it.
"""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

from dynadp.consensus.sums import score_edges
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.schema import Schema
from dynadp.engines.memory import MemoryNetwork
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.histogram import NoisyHistogram
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import CellNoise, Sum
from dynadp.planning.parts import Consortium
from dynadp.planning.planner import plan
from dynadp.planning.plans import Plan
from dynadp.privacy.units import Unit
from dynadp.report import charts_of_run
from dynadp.runs.binned import histogram_measures
from dynadp.runs.calibration import calibration_of
from dynadp.runs.model import load_model
from dynadp.runs.thresholds import Costs, threshold_for
from dynadp.runs.training import train
from support.typed import answer, dynadp

DELTA, NODES = 1e-5, ("a", "b", "c")
RING = Topology.family("ring", 3).named(NODES)
MECHANISMS = [Sum(), Sum(True), Sealed(honest=2), Sealed(True, honest=2)]
LOUD = 1e4  # mu of a release whose noise is far below one row


@pytest.fixture(scope="module")
def data():
    return census(600, seed=1, nodes=3, test_rows=100)


def loud(schema, mechanism, **more):
    """A plan with a histogram and next to no noise."""
    mechanism = replace(mechanism, histogram=16)
    made = Plan.of(mechanism=mechanism, schedule=LOUD, delta=DELTA, rounds=6, pull=1e-3, **more)
    dimension, features = schema.dimension, schema.feature_count
    return made.on(Consortium(RING, (200, 200, 200), dimension, features))


def counted(model, tables, schema):
    """The histogram without noise, from raw rows."""
    cells = np.zeros((2, len(model.histogram.edges) + 1))
    for table in tables.values():
        bins = np.searchsorted(model.histogram.edges, model.decision(table))
        np.add.at(cells, ((schema.labels(table) > 0).astype(int), bins), 1)
    return cells


# --------------------------------------------------------------------------------------------------
# paths


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_the_histogram_is_of_the_models_own_scores(data, mechanism):
    tables = data.tables(NODES)
    trained = train(data.schema, tables, RING, loud(data.schema, mechanism), draws=SeededEntropy(0))
    model = trained.model()
    found = model.histogram
    # whole numbers of rows and features stand for scores: one at an edge may be in the next bin
    assert np.abs(found.counts - counted(model, tables, data.schema)).max() < 1.5
    assert found.counts.sum() == pytest.approx(600, abs=0.1)
    assert len(trained.run.rounds) == 6
    assert found.edges[7] == 0
    assert found.noise < 0.01


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_nodes_apart_release_the_same_histogram(data, mechanism, tmp_path):
    tables, chosen = data.tables(NODES), loud(data.schema, mechanism)
    network = MemoryNetwork(data.schema, chosen, tables, tmp_path, SeededEntropy(3))
    results = network.finish()
    alone = train(data.schema, tables, RING, chosen, draws=SeededEntropy(3))
    network.close()
    assert len({found.histogram.message for found in results.values()}) == 1
    found = results["a"].histogram
    np.testing.assert_allclose(found.edges, alone.histogram.edges)
    np.testing.assert_allclose(found.counts, alone.histogram.counts, atol=1e-3)


def test_streamed_rows_have_the_same_histogram(data, tmp_path):
    tables, streamed = data.tables(NODES), {}
    for node, table in tables.items():
        pq.write_table(
            pa.table({k: list(v) for k, v in table.items()}), tmp_path / f"{node}.parquet"
        )
        streamed[node] = source(tmp_path / f"{node}.parquet", memory=LEAST_MEMORY)
    chosen = loud(data.schema, Sum(True))
    held, read = (
        train(data.schema, given, RING, chosen, draws=SeededEntropy(1)).histogram
        for given in (tables, streamed)
    )
    np.testing.assert_array_equal(held.counts, read.counts)


@pytest.mark.parametrize("mechanism", MECHANISMS[::2], ids=str)
def test_null_rows_are_in_no_cell(data, mechanism):
    schema = Schema.model_validate(data.schema.model_dump() | {"adjacency": "add-remove"})
    tables = {node: {k: v[:150] for k, v in t.items()} for node, t in data.tables(NODES).items()}
    unit = Unit(adjacency="add-remove")
    chosen = loud(schema, mechanism, unit=unit)
    found = train(schema, tables, RING, chosen, rows=200, draws=SeededEntropy(0)).histogram
    assert found.counts.sum() == pytest.approx(450, abs=0.1)


def test_replicas_have_a_histogram_each(data):
    shards = list(data.shards())
    run = simulate(
        [replace(s, name=n) for s, n in zip(shards, NODES, strict=True)],
        RING,
        loud(data.schema, Sum()),
        replicas=3,
        draws=SeededEntropy(0),
    )
    assert len(run.histograms) == 3
    assert all(h.counts.sum() == pytest.approx(600, abs=0.1) for h in run.histograms)


def test_nodes_of_unequal_weight_weigh_their_rows_alike(data):
    """A row counts as it does in the model, and noise is that of the weighed sum."""
    chosen = loud(data.schema, Sum(), node_weights=(1.0, 0.5, 0.0))
    found = train(data.schema, data.tables(NODES), RING, chosen, draws=SeededEntropy(0)).histogram
    assert found.counts.sum() == pytest.approx(300, abs=0.1)
    assert found.noise == pytest.approx(np.sqrt(2) / LOUD * np.sqrt(1.25), rel=1e-6)


# --------------------------------------------------------------------------------------------------
# its price


@pytest.mark.parametrize("moves", [1.0, 2.0])
@pytest.mark.parametrize("mechanism", [Sum(histogram=8), Sealed(honest=2, histogram=8)], ids=str)
def test_noise_of_a_histogram_is_that_of_its_sensitivity(mechanism, moves):
    unit = Unit(adjacency="replace" if moves == 2 else "add-remove")
    made = Plan.of(mechanism=mechanism, schedule=0.5, delta=DELTA, rounds=4, unit=unit)
    bound = made.on(Consortium(RING, (100, 100, 100), 5, 4))
    last = bound.release_plan.noises[-1]
    assert isinstance(last, CellNoise)
    deviation = last.parameter * last.step * np.sqrt(2 if bound.sealing else 1)
    np.testing.assert_allclose(deviation, np.sqrt(moves) / 0.5, rtol=1e-6)
    assert bound.release_plan.width(4) == 16
    events = [event for event in bound.events if event.purpose == "histogram"]
    assert [event.mu for event in events] == [0.5] * 3
    assert {event.dimension for event in events} == {16}


@pytest.mark.parametrize("mechanism", [None, Sealed(honest=2), Sealed(honest=3, weighed=True)])
@pytest.mark.parametrize("unit", [Unit(), Unit(3, limited=True), Unit(adjacency="add-remove")])
def test_a_plan_pays_for_the_histogram_within_its_total(mechanism, unit):
    how = {"epsilon": 1.0, "delta": DELTA, "mechanism": mechanism, "unit": unit}
    with_, without = (
        plan([2000] * 4, Topology.family("ring", 4), 20, calibration=on, **how)
        for on in (True, False)
    )
    assert with_.rounds == without.rounds + 1
    assert 0.98 < with_.total.epsilon <= 1.0
    ratio = float(with_.gradient_mus[0] / without.gradient_mus[0])
    assert ratio == pytest.approx(np.sqrt(0.8 / 0.9), rel=0.02)
    assert sum("in each of 32 bins" in reason for reason in with_.reasons) == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"mechanism": "primal"}, "messages go to neighbours alone"),
        ({"mechanism": Sum(histogram=8), "problems": 3}, "a histogram of scores is of one"),
    ],
)
def test_what_cannot_have_a_histogram_is_refused(how, words):
    given = {"epsilon": 1.0, "delta": DELTA, "calibration": True} | how
    with pytest.raises(DeclarationError, match=words):
        plan([2000] * 3, RING, 20, **given)


@pytest.mark.parametrize("bins", [1, 2, 7, -2, 2.5])
def test_bins_are_even_and_more_than_two(bins):
    with pytest.raises(DeclarationError, match="histogram"):
        Sum(histogram=bins)


def test_a_plan_needs_a_round_before_its_histogram_and_a_mean():
    with pytest.raises(DeclarationError, match="one more than those"):
        Plan.of(mechanism=Sum(histogram=8), schedule=0.5, delta=DELTA, rounds=1)
    with pytest.raises(DeclarationError, match="of the mean's scores"):
        Plan.of(mechanism=Sum(histogram=8), schedule=0.5, delta=DELTA, rounds=5, output="last")


def test_descriptions_of_earlier_versions_stay_as_they_were():
    assert "histogram" not in Sum().describe()
    assert Sum(histogram=8).describe()["histogram"] == 8


def test_edges_cover_scores_and_hold_zero():
    f = np.array([[3.0, 4.0], [0.0, 0.0]])
    edges = score_edges(f, 8)
    assert edges.shape == (2, 7)
    assert edges[0, 3] == edges[1, 3] == 0
    assert edges[0, -1] == pytest.approx(5 * 0.75)
    moment = np.broadcast_to(np.eye(2) * 0.01, (2, 2, 2))
    assert score_edges(f, 8, moment)[0, -1] == pytest.approx(2 * 0.5 * 0.75)
    assert (np.diff(edges) > 0).all()


# --------------------------------------------------------------------------------------------------
# what follows from it


@pytest.fixture(scope="module")
def rare():
    """A model with a histogram of many rows, of which few are positive."""
    data = census(20_000, seed=2, nodes=3, positives=0.12)
    trained = train(
        data.schema,
        data.tables(NODES),
        RING,
        epsilon=2.0,
        delta=DELTA,
        mechanism=Sealed(honest=2),
        calibration=True,
        draws=SeededEntropy(0),
    )
    return trained.model(), data.test


def test_probabilities_thresholds_and_measures_follow(rare):
    model, test = rare
    scores, y = model.decision(test), test["income"] == "high"
    p = model.probabilities(scores)
    assert p.mean() == pytest.approx(y.mean(), abs=0.02)
    ordered = np.argsort(p)
    for tenth in np.array_split(ordered, 5):
        assert p[tenth].mean() == pytest.approx(y[tenth].mean(), abs=0.05)
    found = histogram_measures(model.histogram, calibration=model.calibration).found
    assert found["auc"].low < roc_auc_score(y, scores) < found["auc"].high
    assert found["log_loss"].value == pytest.approx(
        -np.mean(np.log(np.where(y, p, 1 - p))), abs=0.05
    )

    def balanced(threshold):
        return (np.mean(scores[y] > threshold) + np.mean(scores[~y] <= threshold)) / 2

    best = max(balanced(t) for t in np.quantile(scores, np.linspace(0, 1, 200)))
    assert balanced(0.0) < best - 0.05
    assert balanced(threshold_for(model, "balanced")) > best - 0.02

    def cost(threshold):
        return 5 * np.sum(scores[y] <= threshold) + np.sum(scores[~y] > threshold)

    least = min(cost(t) for t in np.quantile(scores, np.linspace(0, 1, 200)))
    assert cost(threshold_for(model, Costs(1, 5))) < 1.05 * least < 0.95 * cost(0.0)


def test_a_model_file_keeps_its_histogram(rare, tmp_path):
    model, test = rare
    replace(model, threshold=-1.5).save(tmp_path / "model.json")
    again = load_model(tmp_path / "model.json")
    np.testing.assert_array_equal(again.histogram.counts, model.histogram.counts)
    assert again.calibration == model.calibration
    assert again.threshold == -1.5
    np.testing.assert_array_equal(again.predict(test) == "high", model.decision(test) > -1.5)
    content = json.loads((tmp_path / "model.json").read_text())
    content["histogram"]["counts"] = [[1.0], [2.0]]
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(Exception, match="is damaged"):
        load_model(tmp_path / "model.json")


def test_a_histogram_that_noise_drowns_gives_no_probabilities(data):
    trained = train(
        data.schema,
        data.tables(NODES),
        RING,
        epsilon=0.5,
        delta=DELTA,
        calibration=True,
        draws=SeededEntropy(0),
    )
    model = trained.model()
    assert model.histogram.faint
    assert model.calibration is None
    assert not model.gives_probabilities


def test_rows_that_stand_out_of_empty_bins_give_probabilities():
    """Few positive rows in a third of the bins: the noise of the others alone would drown them."""
    rng = np.random.default_rng(0)
    edges = np.linspace(-8, 8, 33)[1:-1]
    scores = np.concatenate([rng.normal(-1, 1, 8_300), rng.normal(0.5, 1, 700)])
    y = np.repeat([0, 1], [8_300, 700])
    cells = np.zeros((2, 32))
    np.add.at(cells, (y, np.searchsorted(edges, scores)), 1)
    drawn = rng.normal(0, 28, (40, *cells.shape))
    found = [calibration_of(NoisyHistogram(edges, cells + e, 28.0, 1.0)) for e in drawn]
    given = [one for one in found if one is not None]
    assert len(given) > 32
    for one in given:
        p = expit(one.log_odds(scores))
        assert p.mean() == pytest.approx(700 / 9_000, rel=0.35)
        assert log_loss(y, p) < 0.95 * log_loss(y, np.full(9_000, 700 / 9_000))
    assert all(NoisyHistogram(edges, e, 28.0, 1.0).faint for e in drawn)  # no rows at all


@pytest.mark.parametrize("noise", [1.0, 30.0, 60.0])
def test_empty_bins_do_not_bend_probabilities(noise):
    """Their noise would be taken for rows, far out, where they count most."""
    rng = np.random.default_rng(0)
    edges = np.linspace(-8, 8, 33)[1:-1]
    scores = np.concatenate([rng.normal(-1, 1, 20_000), rng.normal(1, 1, 3_000)])
    y = np.repeat([0, 1], [20_000, 3_000])
    cells = np.zeros((2, 32))
    np.add.at(cells, (y, np.searchsorted(edges, scores)), 1)
    drawn = [cells + rng.normal(0, noise, cells.shape) for _ in range(60)]
    found = [calibration_of(NoisyHistogram(edges, each, noise, 1.0)) for each in drawn]
    assert np.mean([one.slope for one in found]) == pytest.approx(2.0, abs=0.12)
    assert np.mean([one.offset for one in found]) == pytest.approx(np.log(3 / 20), abs=0.1)


# --------------------------------------------------------------------------------------------------
# run files


RUN = """
[run]
name = "branches"
{run}

[data]
schema = "schema.json"

[privacy]
mechanism = "{mechanism}"
epsilon = 4.0
delta = 1e-5
calibration = true
{honest}

[training]
{training}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = census(9_000, seed=5, nodes=3, test_rows=400, positives=0.2)
    Path("schema.json").write_text(made.schema.model_dump_json())
    for node, table in {**made.tables(NODES), "test": made.test}.items():
        with open(f"{node}.csv", "w", newline="") as file:
            csv.writer(file).writerows([table, *zip(*table.values(), strict=True)])

    def write(mechanism, run="", training=""):
        honest = "honest = 2" if mechanism == "sealed" else ""
        text = RUN.format(mechanism=mechanism, run=run, honest=honest, training=training)
        for node in NODES:
            text += f'\n[[nodes]]\nname = "{node}"\nfile = "{node}.csv"\nledger = "{node}.sqlite"\n'
            if not Path(f"{node}.sqlite").exists():
                cap = f"ledger cap {node}.sqlite --node {node} --epsilon 50 --delta 1e-4"
                assert dynadp(cap).exit_code == 0
        Path("run.toml").write_text(text)

    return write


@pytest.mark.first(1)
@pytest.mark.parametrize("mechanism", ["sum", "sealed"])
def test_a_run_file_gives_probabilities_and_a_threshold(home, mechanism):
    home(mechanism, run='threshold = "balanced"')
    done = dynadp("train run.toml --out run")
    assert done.exit_code == 0, done.output
    assert "by the noisy histogram that the last round released" in done.output
    model = load_model("run")
    assert model.threshold == pytest.approx(threshold_for(model, "balanced"))
    assert model.threshold != 0
    spent = [json.loads(line) for line in Path("run/rounds.jsonl").read_text().splitlines()]
    assert spent[-1]["round"] == json.loads(Path("run/run.json").read_text())["plan"]["rounds"]
    shown = answer("ledger show a.sqlite --json")
    assert shown["runs"][0]["state"] == "finished"
    out = dynadp("predict run test.csv --probability").stdout.splitlines()
    assert out[0] == "prediction,score,probability"
    for line in out[1:]:
        label, score, p = line.split(",")
        assert (label == "high") == (float(score) > model.threshold)
        assert 0 < float(p) < 1
    found = answer("evaluate run test.csv --public --json")
    assert found["threshold"] == model.threshold
    assert {"log_loss", "brier"} <= set(found["measures"])
    assert dynadp("report run --out page.html").exit_code == 0
    page = Path("page.html").read_text()
    assert "from the noisy histogram of scores" in page
    assert "How often its probabilities come true" in page
    curve = histogram_measures(model.histogram, model.threshold, model.calibration).calibration
    chart = charts_of_run("run")["calibration"].to_dict()
    assert [one["share"] for one in chart["datasets"]["calibration"]] == [
        one.share.value for one in curve
    ]
    public = dynadp("evaluate run test.csv --public").output.splitlines()
    at = next(k for k, line in enumerate(public) if line.startswith("  calibration: rows by"))
    chance, share = found["calibration"][0]["probability"], found["calibration"][0]["share"]
    assert public[at + 1].startswith(f"    {chance:.3f}: {share['value']:.3f} (")


def test_a_threshold_that_noise_drowns_is_said_so(home):
    home("sum", run="cost = { false_positive = 1, false_negative = 5 }")
    quiet = Path("run.toml").read_text().replace("epsilon = 4.0", "epsilon = 0.05")
    Path("run.toml").write_text(quiet)
    done = dynadp("train run.toml --out run")
    assert done.exit_code == 0, done.output
    assert "gives no probabilities, and its threshold is 0, not the one" in done.output
    assert load_model("run").threshold == 0
    refused = dynadp("predict run test.csv --probability")
    assert refused.exit_code == 2
    assert "noise drowns the rows of a label" in refused.output
    assert "calibration = true" not in refused.output


def test_an_interrupted_run_still_has_its_histogram(home):
    """The partial model of a run that is whole is the whole model."""
    home("sealed")
    assert dynadp("train run.toml --out run").exit_code == 0
    whole = load_model("run")
    Path("run/model.json").unlink()
    assert dynadp("train run.toml --out run --resume").exit_code == 0
    again = load_model("run")
    np.testing.assert_array_equal(again.histogram.counts, whole.histogram.counts)
    assert dynadp("model run").exit_code == 0
    part = load_model("run/partial-model.json")
    np.testing.assert_allclose(part.histogram.counts, whole.histogram.counts)
    np.testing.assert_allclose(part.coef, whole.coef)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mechanism": "primal"}, "messages go to neighbours alone"),
        ({"mechanism": "none"}, "calibration is a private release"),
        ({"mechanism": "sum", "run": 'output = "last"'}, "output is 'last'"),
        (
            {
                "mechanism": "sum",
                "run": "threshold = 1.0\ncost = { false_positive = 1, false_negative = 2 }",
            },
            "not both",
        ),
    ],
)
def test_run_files_that_contradict_themselves_are_refused(home, given, words):
    home(**given)
    text = Path("run.toml").read_text()
    if given["mechanism"] == "none":
        Path("run.toml").write_text(text.replace("epsilon = 4.0\ndelta = 1e-5\n", ""))
    done = dynadp("check run.toml")
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_a_threshold_by_cost_needs_probabilities(home):
    home("sum", run='threshold = "balanced"')
    Path("run.toml").write_text(Path("run.toml").read_text().replace("calibration = true", ""))
    done = dynadp("check run.toml")
    assert done.exit_code == 2
    assert "calibration = true" in done.output
