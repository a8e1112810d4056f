"""A number to predict on every path: run files, Python, sealed, streamed, resumed, apart; and its
measures.
"""

import csv
import json

import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner
from scipy.stats import norm
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from dynadp.cli import main
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.encoding import Blocks
from dynadp.data.labels import Target
from dynadp.data.node_rows import StreamedShard
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.engines.memory import MemoryNetwork
from dynadp.engines.simulation import simulate
from dynadp.errors import ConfigError, DeclarationError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.noisy_errors import error_sums, private_errors
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan
from dynadp.planning.plans import Plan
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.units import Unit
from dynadp.problem.gamma import default_gamma
from dynadp.problem.integer_rows import Resolution, integer_rows_of
from dynadp.problem.losses import Logistic
from dynadp.problem.regularizers import SquaredL2
from dynadp.problem.residual_losses import Huber, LogisticCosh, PseudoHuber
from dynadp.problem.solver import solve
from dynadp.problem.streamed import local_problem
from dynadp.runs.folder import load_run
from dynadp.runs.local import LocalRun
from dynadp.runs.model import load_model
from dynadp.runs.partial import partial_model
from dynadp.runs.run_file import load_run_file
from dynadp.runs.scoring import evaluate_target
from dynadp.runs.target_measures import measures_of_target, noisy_target_measures
from dynadp.runs.training import train
from support.reference import centralised_optimum

NODES = ("a", "b", "c")
RING = Topology.family("ring", 3).named(NODES)


@pytest.fixture(scope="module")
def data():
    return census(3_000, seed=4, nodes=3, target=True)


def trained(data, **given):
    tables = data.tables(NODES)
    how = {"epsilon": 4.0, "delta": 1e-5, "draws": SeededEntropy(0)} | given
    return train(data.schema, tables, RING, **how)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [{}, {"mechanism": Sealed(honest=2)}, {"algorithm": "admm"}, {"mechanism": "dual"}],
    ids=str,
)
def test_private_runs_learn(data, how):
    found = trained(data, **how)
    sums = "algorithm" not in how and how.get("mechanism") != "dual"
    assert type(found.plan.settings.loss) is (Huber if sums else PseudoHuber)
    least = 0.6 if sums else 0.3
    assert evaluate_target(found.model(), data.test).found["r2"].value > least
    assert found.total.epsilon <= 4.0


@pytest.mark.parametrize("loss", [Huber(), PseudoHuber(0.3), LogisticCosh()], ids=repr)
@pytest.mark.parametrize("texts", [False, True])
def test_streamed_rows_add_up_as_rows_in_memory(data, tmp_path, loss, texts):
    """Also where the target is written as text, which takes the slow path."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {k: v[:400] for k, v in data.train.items()}
    stored = table | ({"pay": [f" {pay}" for pay in table["pay"]]} if texts else {})
    pq.write_table(pa.table(dict(stored)), tmp_path / "a.parquet")
    held = data.schema.shard(table, "a")
    blocks = Blocks(data.schema, source(tmp_path / "a.parquet", memory=LEAST_MEMORY), "a")
    there = StreamedShard(blocks, 400, "a")
    rng = np.random.default_rng(0)
    resolution, z = Resolution.of(400, held.dimension), rng.normal(size=(2, held.dimension))
    sums = [integer_rows_of([one], resolution, loss).gradient(z) for one in (held, there)]
    np.testing.assert_allclose(*sums, atol=50 * resolution.longest)
    given = loss, SquaredL2(), 2.0, 0.1
    one, other = (local_problem([one], *given) for one in (held, there))
    F = rng.normal(size=(1, 2, held.dimension))
    np.testing.assert_allclose(one.local_gradient(F), other.local_gradient(F), atol=1e-12)
    np.testing.assert_allclose(one.local_value(F), other.local_value(F), rtol=1e-12)
    H, K = (each.hessians(F, each.margins(F)) for each in (one, other))
    np.testing.assert_allclose(H, K, atol=1e-10)
    q, b = np.full((1, 1), 0.1), np.zeros((1, 1, held.dimension))
    start = np.zeros((1, 1, held.dimension))
    ends = [solve(each, q, b, default_gamma(each), start).point for each in (one, other)]
    np.testing.assert_allclose(*ends, atol=1e-7)


def test_without_noise_a_network_ends_at_the_pooled_optimum(data):
    loss, rho = PseudoHuber(0.2), 1e-3
    shards = data.shards(names=NODES)
    run = simulate(shards, RING, Plan.of(loss=loss, rho=rho, rounds=300))
    expected = centralised_optimum(shards, loss, SquaredL2(), 1.0, rho)
    np.testing.assert_allclose(run.V[:, 0], np.tile(expected, (3, 1)), atol=1e-4)


@pytest.mark.parametrize("node", range(2))
def test_losses_that_do_not_fit_the_rows_are_refused(data, node):
    shards = data.shards(names=NODES) if node else census(300, nodes=3).shards(names=NODES)
    loss = Logistic() if node else Huber()
    with pytest.raises(DeclarationError, match=r"loss '(logistic|huber)' is for"):
        simulate(shards, RING, Plan.of(loss=loss, rho=0.1, rounds=2))


def test_steps_stay_small_whatever_the_rows(data):
    """Rows that all point one way make the steepest curvature that there is."""
    schema = data.schema.model_copy(update={"columns": data.schema.columns[:1], "norm": 1.0})
    for total in (0.2, 1.0, 8.0):
        made = plan(
            [1_000] * 3,
            RING,
            schema.dimension,
            epsilon=total,
            delta=1e-5,
            classes=0,
            features=schema.feature_count,
            centring=False,
        )
        assert (
            made.steps.pull >= 1.1 * made.settings.loss.c1 / 18 * (1 - 1e-9)
            or made.mechanism.second_moment
        )
        tables = {p: {n: t[n] for n in ("age", "pay")} for p, t in data.tables(NODES).items()}
        found = train(schema, tables, RING, made, draws=SeededEntropy(1)).model()
        assert np.linalg.norm([*found.coef[0], *found.intercept]) < 30


def test_measures_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = rng.normal(50, 20, 400)
    p = y + rng.normal(0, 8, 400)
    found = measures_of_target(p, y)
    assert found.found["r2"].value == pytest.approx(r2_score(y, p), rel=1e-12)
    assert found.found["mae"].value == pytest.approx(mean_absolute_error(y, p), rel=1e-12)
    assert found.found["rmse"].value == pytest.approx(root_mean_squared_error(y, p), rel=1e-12)
    assert found.mean_error == pytest.approx(y.std())
    assert "r2" not in measures_of_target(p, np.full(400, 3.0)).found
    assert measures_of_target(p[:1], p[:1]).found["mae"].value == 0


def test_intervals_hold_as_often_as_they_say():
    """R2, MAE and RMSE of a known law, over many samples of rows."""
    rng, n, inside = np.random.default_rng(1), 300, {"r2": 0, "mae": 0, "rmse": 0}
    truth = {"r2": 0.8, "mae": 2 / np.sqrt(2 * np.pi) * 5, "rmse": 5.0}
    for _ in range(400):
        p = rng.normal(0, 10, n)
        found = measures_of_target(p, p + rng.normal(0, 5, n)).found
        for name, one in found.items():
            inside[name] += one.low <= truth[name] <= one.high
    assert all(0.91 <= times / 400 <= 0.99 for times in inside.values()), inside


def test_noisy_measures_hold_noise_and_sampling():
    rng, target, n = np.random.default_rng(2), Target(name="y", low=0, high=100), 5_000
    e = rng.normal(0, 0.1, 10**6)
    t = np.clip(rng.normal(0, 0.35, 10**6), -1, 1)
    p = np.clip(t + e, -1, 1)
    truth = {
        "r2": 1 - np.mean((p - t) ** 2) / t.var(),
        "mae": 50 * np.abs(p - t).mean(),
        "rmse": 50 * np.sqrt(np.mean((p - t) ** 2)),
    }
    inside = dict.fromkeys(truth, 0)
    for seed in range(100):
        some = rng.integers(10**6, size=n)
        made = private_errors(
            error_sums(p[some], t[some]), 1.0, node="a", draws=SeededEntropy(seed), unit=Unit()
        )
        for name, one in noisy_target_measures(made, target).items():
            inside[name] += one.low <= truth[name] <= one.high
    assert all(times >= 90 for times in inside.values()), inside
    few = private_errors(
        error_sums(p[:5], t[:5]), 0.1, node="a", draws=SeededEntropy(0), unit=Unit()
    )
    assert noisy_target_measures(few, target) == {}
    assert norm.ppf(0.975) == pytest.approx(1.959964, abs=1e-5)


@pytest.fixture
def folder(data, tmp_path, monkeypatch):
    """A run file with a target, its rows and its schema."""
    monkeypatch.chdir(tmp_path)
    for name, table in {**data.tables(NODES), "test": data.test}.items():
        with open(f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
    (tmp_path / "schema.json").write_text(data.schema.model_dump_json())
    return tmp_path


def run_file(folder, **sections):
    content = {
        "run": {"seed": 3},
        "data": {"schema": "schema.json"},
        "nodes": [{"name": p, "file": f"{p}.csv"} for p in NODES],
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "evaluation": {"file": "test.csv", "public": True},
    } | sections
    (folder / "run.toml").write_text(tomli_w.dumps(content))
    return folder / "run.toml"


def command(*given):
    return CliRunner().invoke(main, [*map(str, given)])


def test_a_run_file_from_check_to_predict(folder, data):
    path = run_file(folder)
    told = command("check", path)
    assert told.exit_code == 0, told.output
    assert "residuals beyond the width" in told.output
    made = command("train", path, "--out", "out", "--json")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)["evaluation"]
    assert found["measures"]["r2"]["value"] > 0.6
    model = load_model("out")
    assert model.target == data.schema.label
    assert r2_score(data.test["pay"], model.predict(data.test)) == pytest.approx(
        found["measures"]["r2"]["value"]
    )
    lines = command("predict", "out", "test.csv").stdout.split()
    assert lines[0] == "prediction"
    np.testing.assert_allclose(np.array(lines[1:], float), model.predict(data.test), rtol=1e-5)
    shown = command("evaluate", "out", "test.csv", "--public")
    assert "R2 (share of the variance that is explained)" in shown.output
    for wrong in (
        ["--ledger", "a.sqlite", "--alpha", "0.1"],
        ["--public", "--threshold", "0.5"],
        ["--public", "--calibrate"],
    ):
        assert command("evaluate", "out", "test.csv", *wrong).exit_code == 2
    for asked in (["--probability"], ["--cost", 1, 2], ["--threshold", "balanced"]):
        refused = command("predict", "out", "test.csv", *asked)
        assert refused.exit_code == 2
        assert "answers a number" in refused.output
    again = command("train", path, "--out", "words")
    assert "R2 0." in again.output
    compared = command("compare", "out", "words").output
    assert "root of the mean squared error" in compared
    assert "Not measured" not in compared
    page = command("report", "out", "--out", "out.html")
    assert page.exit_code == 0, page.output
    assert "How near the model&#39;s numbers are" in (folder / "out.html").read_text()
    assert "separates two values" in command("tradeoff", path, "--join").output
    refused = command("tradeoff", path, "--measure", "auc").output
    assert "'pay' has numbers; expected one of r2, mae, rmse" in refused


@pytest.mark.slow
def test_tradeoff_for_a_target(folder):
    path = run_file(folder)
    found = command("tradeoff", path, "--draws", "2", "--measure", "rmse", "--json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["measure"] == "rmse"
    losses = [point["median"] for point in answer["points"]]
    assert losses[0] > 1.3 * min(losses)
    assert any("root of the mean squared error" in words for words in answer["words"])
    again = command("tradeoff", path, "--draws", "2", "--out", "by-file", "--json")
    assert json.loads(again.stdout)["measure"] == "r2"


def test_private_rows_are_charged(folder):
    path = run_file(folder)
    assert command("train", path, "--out", "out").exit_code == 0
    made = command("ledger", "cap", "a.sqlite", "--node", "a", "--epsilon", "5", "--delta", "1e-5")
    assert made.exit_code == 0, made.output
    told = command("evaluate", "out", "a.csv", "--ledger", "a.sqlite", "--mu", "0.5", "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["public"] is False
    assert 0.3 < found["measures"]["r2"]["value"] < 1.2
    shown = command("ledger", "show", "a.sqlite")
    assert "errors" in shown.output


@pytest.mark.parametrize("loss", ["pseudo_huber", "logistic_cosh", "huber"])
def test_a_loss_may_be_chosen_beside_a_total(folder, loss):
    training = {"loss": {"name": loss, "width": 0.2}, "algorithm": "admm"}
    path = run_file(folder, training=training)
    told = command("check", path, "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["plan"]["loss"]["name"] == loss


def test_losses_that_cannot_be_are_refused(folder):
    with pytest.raises(ConfigError, match="with a total epsilon the planner chooses loss"):
        load_run_file(run_file(folder, training={"loss": {"name": "logistic"}}))
    told = command("check", run_file(folder, training={"loss": {"name": "squared"}}))
    assert told.exit_code == 2
    assert "squared" in told.output or "huber" in told.output


@pytest.mark.slow
def test_by_round_and_without_noise(folder):
    sums = {"mechanism": "sum", "mu": 0.1, "delta": 1e-5}
    path = run_file(folder, privacy=sums, training={"rounds": 20})
    made = command("train", path, "--out", "by-round", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["evaluation"]["measures"]["r2"]["value"] > 0.4
    plain = run_file(folder, privacy={"mechanism": "none"}, training={"rho": 1e-3}, run={})
    made = command("train", plain, "--out", "plain", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["evaluation"]["measures"]["r2"]["value"] > 0.7


# --------------------------------------------------------------------------------------------------
# apart, and in two goes


@pytest.mark.parametrize("mechanism", [Sum(), Sum(True), Sealed(honest=2)], ids=str)
def test_a_network_computes_what_a_simulation_does(data, tmp_path, mechanism):
    given = {"epsilon": 4.0, "delta": 1e-5, "mechanism": mechanism, "centring": False, "classes": 0}
    chosen = plan([1_000] * 3, RING, data.schema.dimension, **given)
    rows = data.tables(NODES)
    with MemoryNetwork(data.schema, chosen, rows, tmp_path, SeededEntropy(3)) as network:
        found = [made.vector for made in network.finish().values()]
    shards = [data.schema.shard(rows[name], name) for name in NODES]
    run = simulate(shards, RING, chosen, draws=SeededEntropy(3))
    assert len(found) == 3
    for vector in found:
        np.testing.assert_array_equal(vector, run.models()[0, 0])


def test_a_run_that_was_cut_short_goes_on(folder, data):
    nodes = [{"name": p, "file": f"{p}.csv", "ledger": f"{p}.sqlite"} for p in NODES]
    path = run_file(folder, run={"name": "pay"}, nodes=nodes)
    assert command("ledger", "cap", "--run", path, "--epsilon", 60, "--delta", 1e-4).exit_code == 0

    def stop(entry):
        if entry.number == 4:
            raise KeyboardInterrupt

    at = "2026-03-01T12:00:00+00:00"
    with pytest.raises(KeyboardInterrupt):
        LocalRun.load(path).run(folder / "out", who="me", created=at, on_round=stop)
    part = partial_model(folder / "out", [folder / f"{n}.sqlite" for n in NODES])
    assert part.target == data.schema.label
    done = command("train", path, "--out", "out", "--resume")
    assert done.exit_code == 0, done.output
    assert r2_score(data.test["pay"], load_model("out").predict(data.test)) > 0.5
    with Ledger.open(folder / "a.sqlite", read_only=True) as ledger:
        assert len(ledger.spent()) == 1 + load_run(folder / "out").plan["rounds"]
