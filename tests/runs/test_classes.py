"""Several classes on every path: run files, resumed runs, networks, streamed rows, clusters' parts,
records, models, measures and charged answers.
"""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)

from dynadp import Topology, census, plan, train
from dynadp.data.node_rows import NodeRows, StreamedShard
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.engines.memory import MemoryNetwork
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError, DynadpError, RecordError
from dynadp.mechanisms.entropy import BatchedDraws, SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.parts import Consortium
from dynadp.planning.plans import Plan
from dynadp.planning.sums import SumConstants
from dynadp.privacy.ledger.file import Ledger
from dynadp.problem.softmax import Softmax
from dynadp.runs.class_measures import measures_of_classes
from dynadp.runs.folder import load_run
from dynadp.runs.model import load_model
from dynadp.runs.partial import partial_model
from dynadp.runs.scoring import evaluate
from support.typed import dynadp

NODES = ("north", "south", "west")
RING = Topology.family("ring", 3).named(NODES)
J, TOTAL = 4, {"epsilon": 6.0, "delta": 1e-5}
RUN = """
[run]
name = "groups"
{seed}
[data]
schema = "schema.json"
[[nodes]]
name = "north"
file = "north.csv"
{north}
[[nodes]]
name = "south"
file = "south.csv"
{south}
[[nodes]]
name = "west"
file = "west.csv"
{west}
[topology]
family = "ring"
[privacy]
mechanism = {mechanism}
epsilon = 6.0
delta = 1e-5
[evaluation]
file = "public.csv"
public = true
"""


@pytest.fixture(scope="module")
def data():
    return census(rows=900, nodes=3, classes=J, seed=3, test_rows=300)


def write(path, table):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


@pytest.fixture
def folder(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for node, table in data.tables(NODES).items():
        write(tmp_path / f"{node}.csv", table)
    write(tmp_path / "public.csv", data.test)
    (tmp_path / "schema.json").write_text(json.dumps(data.schema.model_dump(mode="json")))
    return tmp_path


def run_file(folder, mechanism, seeded=False):
    ledgers = {n: "" if seeded else f'ledger = "{n}.sqlite"' for n in NODES}
    text = RUN.format(mechanism=mechanism, seed="seed = 4" if seeded else "", **ledgers)
    (folder / "run.toml").write_text(text)


def test_made_rows_are_balanced_and_seeded():
    one, again = (census(rows=7_000, classes=7, seed=5, nodes=2) for _ in range(2))
    shares = np.unique(one.train["group"], return_counts=True)[1] / 7_000
    assert len(shares) == 7
    assert (np.abs(shares - 1 / 7) < 0.02).all()
    assert (one.train["group"] == again.train["group"]).all()
    assert one.truth.shape == (7, one.schema.dimension)
    plain = one.schema.model_copy(update={"norm": 1.0, "scaling": "none"})
    best = np.asarray(plain.rows(one.test) @ one.truth.T).argmax(axis=1)
    assert 0.8 < np.mean(best == one.schema.labels(one.test)) < 0.88
    with pytest.raises(DeclarationError, match="classes is 1"):
        census(classes=1)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "mechanism",
    ['{ name = "sealed", honest = 2 }', '"sum"', '{ name = "sum", second_moment = true }'],
)
def test_a_run_file_from_check_to_report(folder, data, mechanism):
    run_file(folder, mechanism)
    assert dynadp("ledger cap --run run.toml --epsilon 60 --delta 1e-4").exit_code == 0
    checked = dynadp("check run.toml")
    assert checked.exit_code == 0, checked.output
    assert "one model of 4 classes" in checked.output
    done = dynadp("train run.toml --out out")
    assert done.exit_code == 0, done.output
    model, record = load_model(folder / "out"), load_run(folder / "out")
    assert model.coef.shape == (J, 50)
    assert model.classes == data.schema.label.values
    widths = {event.dimension for event in record.events if event.purpose == "gradient"}
    assert widths == {J * 51}
    with Ledger.open(folder / "north.sqlite", read_only=True) as ledger:
        spent = [event for event in ledger.spent() if event.purpose == "gradient"]
    assert len(spent) == record.planned.rounds - ("moment" in mechanism)
    found = evaluate(model, data.test)
    assert found.found["accuracy"].value > 0.55
    assert np.array(found.confusion).sum() == 300
    shown = dynadp("predict out public.csv")
    lines = list(csv.DictReader(shown.output.splitlines()))
    assert [line["prediction"] for line in lines] == model.predict(data.test).tolist()
    assert all(1 / J <= float(line["probability"]) <= 1 for line in lines)
    public = dynadp("evaluate out public.csv --public --json")
    assert json.loads(public.output)["confusion"] == [list(row) for row in found.confusion]
    measured = {name: one.value for name, one in found.found.items()}
    for name in ("area under the roc curve", "balanced accuracy"):
        assert name in done.output.lower()
    assert f"{measured['auc']:.4f} (" in done.output
    report = dynadp("report out")
    assert report.exit_code == 0, report.output
    page = (folder / "out" / "report.html").read_text()
    assert "answered group-4" in page
    assert "Each label against all others" in page
    assert "How often its probabilities come true" in page
    words = dynadp("evaluate out public.csv --public").output
    recall = found.by_class["group-1"]["recall"].value
    assert f"group-1: recall {recall:.3f} (" in words
    assert "calibration: rows by probability of the answer that is given" in words
    before = found.found["log_loss"].value
    assert dynadp("evaluate out public.csv --public --calibrate").exit_code == 0
    after = evaluate(load_model(folder / "out"), data.test)
    assert after.found["log_loss"].value < before
    assert after.confusion == found.confusion


def test_answers_on_private_rows_are_charged(folder, data):
    run_file(folder, '"sum"')
    assert dynadp("ledger cap --run run.toml --epsilon 60 --delta 1e-4").exit_code == 0
    assert dynadp("train run.toml --out out").exit_code == 0
    table = dynadp("evaluate out north.csv --ledger north.sqlite --mu 5 --json")
    assert table.exit_code == 0, table.output
    found = json.loads(table.output)
    assert np.shape(found["counts"]) == (J, J)
    held = evaluate(load_model(folder / "out"), source(folder / "north.csv"))
    assert np.abs(np.array(found["counts"]) - held.confusion).max() < 6 * found["noise"]
    assert set(found["measures"]) == {"accuracy", "balanced_accuracy", "precision"}
    value = held.found["accuracy"].value
    assert found["measures"]["accuracy"]["low"] < value < found["measures"]["accuracy"]["high"]
    one = dynadp("evaluate out north.csv --ledger north.sqlite --alpha 2")
    assert "Accuracy about" in one.output
    with Ledger.open(folder / "north.sqlite", read_only=True) as ledger:
        charged = {event.purpose for event in ledger.spent()}
    assert {"histogram", "accuracy"} <= charged or "evaluation" in charged
    refused = dynadp("evaluate out north.csv --ledger north.sqlite --mu 1 --calibrate")
    assert refused.exit_code == 2
    assert "calibrated on public rows alone" in refused.output
    for asked in ("--cost 1 2", "--threshold balanced", "--threshold 0.5"):
        refused = dynadp(f"predict out public.csv {asked}")
        assert refused.exit_code == 2
        assert "4 classes, of which the one with the largest score" in refused.output
        assert "Costs(" not in refused.output


@pytest.mark.parametrize("command", ["check run.toml", "train run.toml --out out"])
@pytest.mark.parametrize("mechanism", ['"primal"', '"dual"'])
def test_admm_refuses_several_classes(folder, command, mechanism):
    run_file(folder, mechanism, seeded=True)
    found = dynadp(command)
    assert found.exit_code == 2
    assert "take mechanism sum or sealed" in found.output
    assert not (folder / "out").exists()


def test_studies_of_two_classes_refuse_several(folder):
    run_file(folder, '"sum"', seeded=True)
    for words, says in (
        ("tradeoff run.toml --join", "separates two values"),
        ("tradeoff run.toml --measure recall", "has several values; expected one of accuracy"),
        ("tradeoff run.toml --measure r2", "has several values; expected one of accuracy"),
    ):
        found = dynadp(words)
        assert found.exit_code == 2
        assert says in found.output


@pytest.mark.slow
def test_tradeoff_by_a_measure_of_classes(folder):
    run_file(folder, '"sum"', seeded=True)
    found = dynadp("tradeoff run.toml --draws 2 --measure balanced_accuracy --json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["measure"] == "balanced_accuracy"
    losses = [point["median"] for point in answer["points"]]
    assert losses[0] > losses[-1] + 0.2
    assert min(losses) < 0.4  # chance is 6/7


@pytest.mark.parametrize("mechanism", [Sum(False), Sum(True), Sealed(honest=2)], ids=str)
def test_a_network_computes_what_a_simulation_does(data, tmp_path, mechanism):
    """Letters hold classes times d numbers; every node ends with the same model."""
    d = data.schema.dimension
    chosen = plan(
        [300] * 3,
        RING,
        d,
        **TOTAL,
        mechanism=mechanism,
        centring=False,
        constants=SumConstants.of(J, rounds=3, moment_rounds=3),
        classes=J,
    )
    rows = data.tables(NODES)
    with MemoryNetwork(data.schema, chosen, rows, tmp_path, SeededEntropy(3)) as network:
        found = [made.vector for made in network.finish().values()]
    shards = [data.schema.shard(rows[name], name) for name in NODES]
    run = simulate(shards, RING, chosen, draws=SeededEntropy(3))
    assert chosen.release_plan.width(chosen.rounds) == J * d
    assert len(found) == 3
    for vector in found:
        np.testing.assert_array_equal(vector, run.models()[0, 0])


def test_streamed_rows_train_the_same_model(data, tmp_path):
    rows = data.tables(NODES)
    for name, table in rows.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    shards = [
        StreamedShard.of(
            data.schema, source(tmp_path / f"{name}.parquet", memory=LEAST_MEMORY), name
        )
        for name in NODES
    ]
    chosen = plan([300] * 3, RING, 51, **TOTAL, mechanism=Sum(False), centring=False, classes=J)
    runs = [
        simulate(held, RING, chosen, draws=SeededEntropy(1))
        for held in (shards, [data.schema.shard(rows[name], name) for name in NODES])
    ]
    np.testing.assert_allclose(*(run.models() for run in runs), atol=1e-3)


def test_few_columns_give_no_scores_that_are_far_too_sure():
    """Where nearly all of a row's length is the intercept's, steps are steep and must not swing."""
    made = census(6_000, seed=11, nodes=3, classes=J)
    columns = tuple(c for c in made.schema.columns if c.name in ("age", "hours", "sex"))
    schema = made.schema.model_copy(update={"columns": columns})
    for total in (2.0, 4.0):
        given = {"epsilon": total, "delta": 1e-5, "mechanism": Sealed(honest=2)}
        rows = made.tables(NODES)
        model = train(schema, rows, RING, **given, draws=SeededEntropy(1)).model()
        found = evaluate(model, made.test).found
        assert found["log_loss"].value < np.log(J)
        assert found["accuracy"].value > 0.48


def test_replicas_are_runs_of_their_own(data):
    shards = data.shards(names=NODES)
    chosen = plan([300] * 3, RING, 51, **TOTAL, mechanism=Sum(True), centring=False, classes=J)
    run = simulate(shards, RING, chosen, replicas=3, draws=BatchedDraws(1))
    assert run.models().shape == (3, 3, J * 51)
    assert len(np.unique(run.models()[0, :, 0])) == 3


def test_weighed_people_and_secret_counts(data):
    rows = {p: {**t, "who": np.arange(300) // 2} for p, t in data.tables(NODES).items()}
    schema = data.schema.model_copy(update={"person": "who", "rows_per_person": 2})
    for mechanism in (Sum(weighed=True), Sum(), Sealed(honest=2, weighed=True)):
        made = train(schema, rows, RING, **TOTAL, mechanism=mechanism, draws=SeededEntropy(1))
        assert made.total.epsilon <= 6
        assert made.model().coef.shape == (J, 50)
    secret = data.schema.model_copy(update={"adjacency": "add-remove"})
    tables = data.tables(NODES)
    made = train(secret, tables, RING, **TOTAL, rows=320, draws=SeededEntropy(1))
    assert np.mean(made.model().predict(data.test) == data.test["group"]) > 0.5


def test_a_run_that_was_cut_short_goes_on_and_gives_a_part(folder, data, monkeypatch):
    from dynadp.runs.local import LocalRun

    run_file(folder, '"sum"')
    assert dynadp("ledger cap --run run.toml --epsilon 60 --delta 1e-4").exit_code == 0

    def stop(entry):
        if entry.number == 5:
            raise KeyboardInterrupt

    at = "2026-03-01T12:00:00+00:00"
    with pytest.raises(KeyboardInterrupt):
        LocalRun.load("run.toml").run(folder / "out", who="me", created=at, on_round=stop)
    part = partial_model(folder / "out", [folder / f"{n}.sqlite" for n in NODES])
    assert part.coef.shape == (J, 50)
    assert part.partial["rounds"] == 5
    done = dynadp("train run.toml --out out --resume")
    assert done.exit_code == 0, done.output
    assert load_model(folder / "out").coef.shape == (J, 50)


def test_a_changed_model_is_refused(folder, data):
    made = train(data.schema, data.tables(NODES), RING, **TOTAL, draws=SeededEntropy(1)).model()
    made.save(folder / "model.json")
    content = json.loads((folder / "model.json").read_text())
    assert load_model(folder / "model.json").probabilities(np.zeros((1, J)))[0, 0] == 1 / J
    for change in ({"coef": content["coef"][:2]}, {"classes": content["classes"][::-1]}):
        (folder / "model.json").write_text(json.dumps(content | change))
        with pytest.raises(RecordError):
            load_model(folder / "model.json")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": Softmax(), "classes": 2}, "is for three classes or more, and the label has two"),
        ({"classes": 3}, "is for two classes, and the label has three classes or more; take loss"),
        ({"loss": Softmax(), "classes": 0}, "the label has numbers to predict"),
    ],
)
def test_losses_and_labels_must_fit(given, says):
    classes = given.pop("classes")
    unbound = Plan.of(**given, mechanism=Sum(False), schedule=0.1, rounds=3)
    with pytest.raises(DeclarationError, match=says):
        unbound.on(Consortium(RING, (100,) * 3, 5, classes=classes))


def test_a_round_by_round_plan_with_slopes_as_long_as_they_are(data):
    """Noise is in proportion to the bound on slopes, and so is the pull."""
    shards, steps = data.shards(names=NODES), []
    for longest in (1.0, 2**0.5):
        made = Plan.of(loss=Softmax(2.0, longest), mechanism=Sum(False), schedule=0.2, rounds=8)
        run = simulate(shards, RING, made, draws=SeededEntropy(1))
        noise = run.noises[0]
        steps.append(float(noise.parameter[0, 0] * noise.step[0, 0]))
    assert steps[1] / steps[0] == pytest.approx(2**0.5, rel=1e-3)


def test_measures_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    scores, y = rng.normal(size=(400, 3)), rng.integers(3, size=400)
    scores[np.arange(400), y] += 1
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    found = measures_of_classes(("a", "b", "c"), scores, y, p)
    answers = scores.argmax(axis=1)
    assert np.array_equal(found.confusion, confusion_matrix(y, answers))
    expected = {
        "accuracy": np.mean(answers == y),
        "balanced_accuracy": balanced_accuracy_score(y, answers),
        "precision": precision_score(y, answers, average="macro"),
        "auc": roc_auc_score(y, p, multi_class="ovr"),
        "average_precision": average_precision_score(np.eye(3)[y], p),
        "log_loss": log_loss(y, p),
        "brier": np.mean(np.sum((p - np.eye(3)[y]) ** 2, axis=1)),
    }
    assert {n: one.value for n, one in found.found.items()} == pytest.approx(expected)
    for one in found.found.values():
        assert one.low < one.value < one.high
    for j, own in enumerate(found.by_class.values()):
        assert own["recall"].value == recall_score(y == j, answers == j)
        assert own["precision"].value == precision_score(y == j, answers == j)
        assert own["auc"].value == pytest.approx(roc_auc_score(y == j, p[:, j]))
        assert own["average_precision"].low < average_precision_score(y == j, p[:, j])
    shares, chances = calibration_curve(answers == y, p.max(axis=1), n_bins=10)
    assert [one.share.value for one in found.calibration] == pytest.approx(shares)
    assert [one.probability for one in found.calibration] == pytest.approx(chances)
    missing = measures_of_classes(("a", "b", "c"), scores[y > 0], y[y > 0], None)
    assert set(missing.found) == {"accuracy", "precision"}
    assert set(missing.by_class["a"]) == {"precision"}
    assert missing.calibration == ()
    with pytest.raises(DynadpError, match="no rows"):
        measures_of_classes(("a", "b", "c"), scores[:0], y[:0], None)


def test_init_declares_classes(folder):
    asked = (
        "init made --node north=../north.csv --label group --numeric age:17:90 --seed 1 "
        "--answer group-1,group-2,group-3,group-4"
    )
    assert dynadp(asked).exit_code == 0
    found = dynadp("check made/run.toml")
    assert "one model of 4 classes" in found.output, found.output
    refused = dynadp(asked.replace("made", "other") + " --negative no")
    assert "--answer is in place of --negative and --positive" in refused.output


def test_rows_of_other_sources_are_prepared_alike(data):
    held = NodeRows(data.schema, data.tables(NODES)["north"], "north")
    shard = held.shard(data.schema)
    assert (shard.kind, shard.classes) == ("classes", J)
