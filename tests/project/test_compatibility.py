"""Files of version 0.1.0, read by the code of today: the same numbers come out of them."""

import csv
import io
import json
import re
import shutil
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dynadp as dynadp_package
from dynadp import NetworkClassifier
from dynadp._files import digest
from dynadp.cli import main
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.loading import table
from dynadp.data.schema import Label, Schema
from dynadp.data.seals import Seal
from dynadp.data.survey import survey
from dynadp.engines.inbox import AcceptanceRules, Inbox
from dynadp.engines.journal import LedgerJournal, _read_vector
from dynadp.engines.letters import run_id, verify
from dynadp.engines.lives import Life
from dynadp.engines.peers import PeerMemory
from dynadp.engines.zenoh.greetings import Greetings, differences
from dynadp.errors import (
    BudgetRefused,
    ConfigError,
    DataError,
    DynadpError,
    LedgerDamaged,
    Rejected,
)
from dynadp.mechanisms.dual import Dual
from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.inverse import calibrate
from dynadp.privacy.ledger.anchor import Anchor
from dynadp.privacy.ledger.file import Ledger
from dynadp.problem.losses import HuberHinge, Logistic, SmoothedHinge
from dynadp.problem.regularizers import SmoothElasticNet, SquaredL2
from dynadp.report.certificate import verify_certificate
from dynadp.runs.consent import Approval
from dynadp.runs.exports import verify_export
from dynadp.runs.folder import load_run, read_rounds
from dynadp.runs.identities import Identity, public_key
from dynadp.runs.last_run import terms_before
from dynadp.runs.local import LocalRun
from dynadp.runs.model import load_model
from dynadp.runs.node_file import load_node_file
from dynadp.runs.run_file import load_run_file, load_schema
from dynadp.runs.sections import TrainingSection
from dynadp.runs.silo import SiloRun
from dynadp.runs.status import read_status

FIXTURES = Path(__file__).parents[1] / "fixtures"
FIRST = FIXTURES / "run-v1"  # Algorithm 1, from before run files
SCHEMA = "65d499b53756ca448144184dafdf97eeab30a85ae8dfce545e82dd6b4ba30ac2"
CONFIG = "5d1d6316b0f97adc5fe741e690c6566034a9f843ae07c90b24a9586cc0dd734b"  # of the network run
NODES = ("north", "south", "west")
STAMP = {"who": "test", "at": "2026-12-01T12:00:00+00:00"}
HEADS = {
    "ledgers/north": "1bb0ac22c7a7b5b6979a940abde98911907b6efc29588a414d37d20b63e0b72b",
    "ledgers/interrupted-north": "c6e43cd4da8be47f02846a85a0db2b266abb339f11e50c8200b758e2eaaff52f",
    "network/west": "ab6724842df81113c247c7e3567411981f542fd1f4c23aab972650f8df066dd7",
}
ROWS = {
    "age": [17, 30.5, 64, 200],
    "gain": np.array([0, None, 2500, 1e9], dtype=object),
    "trade": ["craft", "dance", "?", "sales"],
    "code": [1, 2.5, 7, 1],
}


@pytest.fixture
def old(tmp_path):
    """A copy of what version 0.1.0 wrote, its keys closed to others as they were then."""
    home = shutil.copytree(FIXTURES / "v0.1.0", tmp_path / "v0.1.0")
    for file in (*home.glob("network/identities/*/*.key"), *home.rglob("*.sqlite")):
        file.chmod(0o600)
    for file in home.glob(
        "network/*/status.json"
    ):  # it tells where the ledger was, and a process that is over
        told = json.loads(file.read_text())
        told |= {"ledger": str(home / "network" / f"{told['node']}.sqlite"), "pid": 2**22 + 1}
        file.write_text(json.dumps(told))
    return home


def dynadp(*words):
    done = CliRunner(env={"COLUMNS": "200"}).invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def read(*words):
    return json.loads(dynadp(*words, "--json"))


# --------------------------------------------------------------------------------------------------
# run files and schemas


def test_schema_says_what_it_said(old):
    schema = load_schema(old / "schema.toml")
    assert schema.digest() == SCHEMA
    assert schema.features == ("age", "dose", "ward=day", "ward=night", "(intercept)")
    assert (schema.norm, schema.label.negative, schema.label.positive) == (1.5, "no", "yes")


@pytest.mark.parametrize("name", ["primal", "dual", "private", "interrupted"])
def test_run_file_says_what_its_run_recorded(old, name):
    file = load_run_file(old / f"{name}.toml")
    recorded = load_run(old / "trained" / name).file
    said = file.model_dump(mode="json", by_alias=True)
    for section in ("training", "privacy", "network"):  # some were added since
        said[section] = {k: v for k, v in said[section].items() if k in recorded[section]}
    if said["privacy"]["mechanism"] is None:  # left to the planner, which was always primal
        said["privacy"]["mechanism"] = "primal"
    if recorded["training"]["loss"]:  # None was written for the loss's own margin
        assert recorded["training"]["loss"].pop("margin") is None
        assert said["training"]["loss"].pop("margin") == 1.0
    assert differences({**said, "nodes": None}, {**recorded, "nodes": None}) == []
    assert [
        {**new, **then} for new, then in zip(said["nodes"], recorded["nodes"], strict=True)
    ] == said["nodes"]


@pytest.mark.parametrize(
    ("section", "table", "meant"),
    [
        ("loss", {"name": "logistic", "margin": None, "width": 0.5}, Logistic()),
        ("loss", {"name": "logistic", "margin": 2.0, "width": 0.5}, Logistic(2.0)),
        ("loss", {"name": "smoothed_hinge", "margin": None, "width": 0.5}, SmoothedHinge()),
        ("regularizer", {"name": "squared_l2", "l1": 1.0, "scale": 0.1}, SquaredL2()),
    ],
)
def test_recorded_tables_with_all_their_defaults_are_read(section, table, meant):
    assert getattr(TrainingSection.model_validate({section: table}), section) == meant


def test_run_file_is_understood_as_it_was(old):
    primal, dual = load_run_file(old / "primal.toml"), load_run_file(old / "dual.toml")
    assert primal.totals == {"north": 4.0, "south": 4.0, "west": 6.0}
    assert (primal.run.seed, primal.privacy.delta) == (7, 1e-5)
    assert primal.mechanism is None  # the planner's, which was always the primal one
    assert (dual.totals, dual.privacy.alpha, dual.privacy.made(), dual.run.output) == (
        None,
        0.5,
        Dual(),
        "tail",
    )
    assert dual.training.loss == HuberHinge(width=0.5)
    assert dual.training.regularizer == SmoothElasticNet(0.5, 0.1)
    assert dual.graph(old).edges == ((0, 1), (1, 2))


def test_checked_run_counts_the_same_rows(old):
    result = read("check", old / "dual.toml")
    assert {node: own["rows"] for node, own in result["nodes"].items()} == dict.fromkeys(NODES, 24)
    assert (result["columns"], result["simulation"]) == (5, True)


# --------------------------------------------------------------------------------------------------
# runs and models


def test_first_run_folder_stays_readable():
    record = load_run(FIRST)
    assert (record.kind, record.simulation, record.seed, record.planned) == (
        "demo",
        True,
        11,
        None,
    )
    assert record.topology.nodes == ("north", "east", "south")
    assert (record.plan["rho"], record.plan["rounds"], record.dimension) == (0.01, 4, 13)
    lines = list(read_rounds(FIRST))
    assert [(line["round"], line["node"]) for line in lines] == [
        (n, p) for n in range(1, 5) for p in ("north", "east", "south")
    ]
    assert all(
        line["alpha"] is None and line["disagreement"] > 0 and line["change"] > 0 for line in lines
    )


def test_first_model_answers_as_it_did():
    for path in (FIRST, FIRST / "model.json", str(FIRST)):
        found = load_model(path)
        expected = [-1.4077351722090432, -1.138169763843144, 2.0833351126022235, 1.9873879786052588]
        np.testing.assert_allclose(found.decision(ROWS), expected, rtol=1e-12)
        assert found.predict(ROWS).tolist() == ["low", "low", "high", "high"]
        assert (found.classes, found.mechanism, found.loss["name"]) == (
            ("low", "high"),
            "none",
            "logistic",
        )
        assert found.privacy["protected"] is False


@pytest.mark.parametrize(
    ("name", "simulation", "rounds", "nodes", "alpha", "last"),
    [
        ("primal", True, 20, NODES, 0.4535785767262615, (4.715244936684334, 0.4812542565440563)),
        ("dual", True, 5, NODES, 0.5, (3.077999654628593, 0.6429314979153657)),
        (
            "private",
            False,
            20,
            NODES[:2],
            0.24452287674372505,
            (3.674546848307322, 0.9671176002414607),
        ),
    ],
)
def test_run_folder_stays_readable(old, name, simulation, rounds, nodes, alpha, last):
    run, lines = load_run(old / "trained" / name), list(read_rounds(old / "trained" / name))
    assert (run.kind, run.simulation, run.libraries["dynadp"]) == (
        "one process",
        simulation,
        "0.1.0",
    )
    assert (run.schema_hash, run.planned.rounds) == (SCHEMA, rounds)
    assert run.rows == dict.fromkeys(nodes, 24)
    assert [(line["round"], line["node"]) for line in lines] == [
        (n, p) for n in range(1, rounds + 1) for p in nodes
    ]
    assert (lines[0]["alpha"], (lines[-1]["disagreement"], lines[-1]["change"])) == (alpha, last)


@pytest.mark.parametrize(
    ("name", "coef", "intercept", "epsilon", "protected", "scores", "accuracy"),
    [
        (
            "trained/primal",
            [8.660074869791666, 5.108186848958333, -5.096875, -2.3990885416666665],
            -0.990966796875,
            5.996460061967379,
            False,
            [-4.86968, 3.11809, -6.20659],
            10 / 12,
        ),
        (
            "trained/dual",
            [-0.2001953125, 0.2685546875, 1.4391276041666667, 1.3360188802083333],
            2.2672526041666665,
            2.307913137967296,
            False,
            [2.3234, 1.63299, 2.38353],
            3 / 12,
        ),
        (
            "trained/private",
            [3.1681640625, -0.556103515625, 2.861767578125, -0.291796875],
            0.621435546875,
            1.9992470714962456,
            True,
            [2.45661, 0.0804351, 0.260352],
            4 / 12,
        ),
    ],
)
def test_model_answers_as_it_did(old, name, coef, intercept, epsilon, protected, scores, accuracy):
    model = load_model(old / name)
    assert (model.coef.tolist(), model.intercept.tolist(), model.classes) == (
        [coef],
        [intercept],
        ("no", "yes"),
    )
    assert (model.privacy["epsilon"], model.privacy["delta"], model.privacy["protected"]) == (
        epsilon,
        1e-5,
        protected,
    )
    answers = list(csv.DictReader(io.StringIO(dynadp("predict", old / name, old / "public.csv"))))
    assert len(answers) == 12
    np.testing.assert_allclose([float(row["score"]) for row in answers[:3]], scores, rtol=1e-5)
    assert [row["prediction"] for row in answers[:3]] == [
        "yes" if score > 0 else "no" for score in scores
    ]
    found = read("evaluate", old / name, old / "public.csv", "--public")
    assert (found["rows"], found["accuracy"], found["majority"]) == (
        12,
        pytest.approx(accuracy),
        0.75,
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "trained/primal",
            [
                "SIMULATION",
                "(5.997, 1e-05)",
                "21 releases",
                "north, south: 48 rows",
                "west: 24 rows",
            ],
        ),
        (
            "trained/dual",
            ["SIMULATION", "(2.184, 1e-05)", "10 releases", "north, south, west: 72 rows"],
        ),
        ("trained/private", ["(2, 1e-05)", "21 releases", "made rows of two clinics", "21 of 21"]),
        ("trained/interrupted", ["not finished", "(2, 1e-05)", "4 of 21"]),
        ("network", ["(2.998, 1e-05)", "21 releases", "north, south, west: 72 rows", "21 of 21"]),
        ("network/west", ["(2.998, 1e-05)", "21 releases"]),
    ],
)
def test_report_tells_the_same_figures(old, name, parts):
    dynadp("report", old / name, "-o", old / "report.html")
    page = re.sub(r"<style.*?</style>", "", (old / "report.html").read_text(), flags=re.S)
    words = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))
    assert [part for part in parts if part not in words] == []
    assert ("SIMULATION" in words) == ("SIMULATION" in parts)


# --------------------------------------------------------------------------------------------------
# saved estimators


def test_estimator_of_three_classes_answers_as_it_did(old):
    model = NetworkClassifier.load(old / "three-classes.json")
    assert (model.classes_.tolist(), model.n_iter_, model.n_features_in_) == (
        ["blue", "green", "red"],
        4,
        3,
    )
    scores = [[-0.19285079150525042, -0.7809683402167394, -0.003049858349844392]]
    np.testing.assert_allclose(model.decision_function([[0.5, -0.25, 1]]), scores, rtol=1e-9)
    assert model.predict(np.eye(3)).tolist() == ["blue", "green", "red"]
    assert (model.privacy_["epsilon"], model.privacy_["protected"]) == (16.90565348669916, False)
    assert model.get_params()["alpha"] == 2.0


def test_estimator_of_raw_columns_answers_as_it_did(old):
    model = NetworkClassifier.load(old / "raw-columns.json")
    rows = table(load_schema(old / "schema.toml"), old / "public.csv")
    X = {name: rows[name] for name in ("age", "dose", "ward")}
    scores = [-0.49355958861139615, 0.4337087672833546, -5.706423330132596, 5.229031828872187]
    np.testing.assert_allclose(model.decision_function(X)[:4], scores, rtol=1e-12)
    assert model.predict(X).tolist() == [
        "no",
        "yes",
        "no",
        "yes",
        "no",
        "no",
        "yes",
        "yes",
        "no",
        "yes",
        "yes",
        "yes",
    ]
    assert model.schema_.centre == (
        -0.12711588541666666,
        0.3585611979166667,
        0.205810546875,
        0.6525065104166666,
    )


# --------------------------------------------------------------------------------------------------
# ledgers


@pytest.mark.parametrize("name", HEADS)
def test_ledger_is_sound_and_has_the_head_that_was_kept(old, name):
    found = read("ledger", "verify", old / f"{name}.sqlite", "--head", HEADS[name])
    assert found == {"sound": True, "problems": [], "head": HEADS[name]}


def test_ledger_with_closed_runs_says_what_was_spent(old):
    shown = read("ledger", "show", old / "ledgers" / "north.sqlite")
    cap = shown["cap"]
    assert (shown["node"], shown["entries"], cap["epsilon"], cap["delta"]) == (
        "north",
        28,
        10.0,
        1e-5,
    )
    assert (cap["sum"], cap["lost"]) == (
        pytest.approx(5.7164880371994675),
        pytest.approx(5.534949569273142),
    )
    runs = [
        (run["run"].split()[0], run["rounds_spent"], run["rounds_planned"], run["state"])
        for run in shown["runs"]
    ]
    assert runs == [("private", 21, 21, "finished"), ("evaluation", 1, 1, "finished")]
    with Ledger.open(old / "ledgers" / "north.sqlite", read_only=True) as ledger:
        spent = ledger.spent()
        first = np.frombuffer(ledger.message(shown["runs"][0]["run"], 1), "<f8")
    assert total(spent[:-1], 1e-5).epsilon == pytest.approx(1.9992470714962456)
    assert spent[-1] == L2Laplace("north", 0, "evaluation", 0.5, 1)
    assert (len(spent), first.shape) == (22, (5,))


def test_ledger_gets_the_view_of_this_version_when_it_is_written(old):
    path = old / "ledgers" / "north.sqlite"

    def seen(query):
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(query).fetchall()

    before = seen("SELECT id, at, who, run, round, alpha, bytes, hash FROM spends")
    with Ledger.open(path) as ledger:
        ledger.set_cap(Cap.of(9.0, 1e-5), **STAMP)
        assert ledger.verify(HEADS["ledgers/north"]) == []
    after = seen("SELECT id, at, who, run, round, alpha, bytes, hash, unknown FROM spends")
    assert after == [(*row, None) for row in before]
    assert seen("PRAGMA user_version") == [(2,)]


def test_ledger_of_an_interrupted_run_keeps_its_plan_reserved(old):
    path = old / "ledgers" / "interrupted-north.sqlite"
    (run,) = read("ledger", "show", path)["runs"]
    assert (run["state"], run["rounds_spent"], run["rounds_planned"]) == ("open", 4, 21)
    assert run["alpha_spent"] == pytest.approx(1.059599132556142)
    with Ledger.open(path) as ledger:
        assert ledger.rounds(run["run"]) == [0, 1, 2, 3]
        assert sum(event.alpha for event in ledger.reserved(run["run"])) == pytest.approx(
            5.2164880371994675
        )
        with pytest.raises(
            BudgetRefused
        ):  # the cap is 3: beside the reserved plan there is no room
            ledger.reserve(
                "more", [L2Laplace("north", 0, "evaluation", 2.9, 1)], dataset="rows", **STAMP
            )
    dynadp("ledger", "close", path, run["run"])
    with Ledger.open(path) as ledger:
        assert len(ledger.counted()) == 4
        assert (
            ledger.reserve(
                "more", [L2Laplace("north", 0, "evaluation", 0.5, 1)], dataset="rows", **STAMP
            )
            == "sum"
        )
        assert ledger.verify(HEADS["ledgers/interrupted-north"]) == []


# --------------------------------------------------------------------------------------------------
# interrupted runs


def test_interrupted_simulation_goes_on_to_the_same_model(old):
    folder = old / "trained" / "interrupted-dual"
    assert not (folder / "model.json").exists()
    result = read("train", old / "dual.toml", "--out", folder, "--resume")
    assert (result["rounds"], result["protected"]) == (5, False)
    again, whole = load_model(folder), load_model(old / "trained" / "dual")
    np.testing.assert_allclose(again.coef, whole.coef, rtol=1e-12)
    assert again.intercept == pytest.approx(whole.intercept, rel=1e-12)


@pytest.mark.parametrize("name", ["private", "primal"])
def test_plan_is_the_recorded_one_where_libraries_round_otherwise(old, name, monkeypatch):
    folder = old / "trained" / name
    said = json.loads((folder / "run.json").read_text())["config"]["plan"]
    monkeypatch.setattr(
        "dynadp.planning.planner.calibrate", lambda *given: calibrate(*given) * (1 - 1e-13)
    )
    job = LocalRun.load(old / f"{name}.toml")
    assert list(job.plan().alphas) != said["alphas"]
    plan = job.plan(folder)
    settings = plan.settings
    assert (list(plan.alphas), max(plan.centrings), settings.rho, settings.eta) == (
        said["alphas"],
        said["centring"],
        said["rho"],
        said["eta"],
    )
    assert plan.total.epsilon == pytest.approx(said["total"]["epsilon"], rel=1e-9)
    if name == "private":
        with Ledger.open(old / "ledgers" / "south.sqlite", read_only=True) as ledger:
            assert [event for event in plan.events if event.node == "south"] == ledger.spent()


def test_plan_of_another_run_is_not_taken(old, monkeypatch):
    monkeypatch.setattr("dynadp.planning.planner.calibrate", lambda *given: calibrate(*given) * 0.9)
    job = LocalRun.load(old / "private.toml", {"privacy.mechanism": "primal"})
    made = job.plan()  # weights are equal, as all were; here nodes are of one size
    other = replace(made, settings=replace(made.settings, weights="equal"))
    assert job.plan(old / "trained" / "private").to_json() == other.to_json()
    assert job.plan(old / "trained" / "primal").to_json() == other.to_json()


def test_interrupted_run_goes_on_where_libraries_round_otherwise(old, monkeypatch):
    monkeypatch.setattr(
        "dynadp.planning.planner.calibrate", lambda *given: calibrate(*given) * (1 - 1e-13)
    )
    result = read(
        "train", old / "interrupted.toml", "--out", old / "trained" / "interrupted", "--resume"
    )
    assert (result["rounds"], result["protected"]) == (20, True)


def test_interrupted_run_goes_on_whatever_words_its_plan_was_explained_in(old):
    folder = old / "trained" / "interrupted-dual"
    run = json.loads((folder / "run.json").read_text())
    run["config"]["plan"]["reasons"] = ["said otherwise"]
    del (
        run["config"]["file"]["network"],
        run["config"]["file"]["data"]["memory"],
    )  # as if they had been added since
    (folder / "run.json").write_text(json.dumps({**run, "config_hash": digest(run["config"])}))
    assert read("train", old / "dual.toml", "--out", folder, "--resume")["rounds"] == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["plan"].update(rho=0.02),
        lambda config: config["counts"].update(north=25),
        lambda config: config["file"]["run"].update(seed=8),
        lambda config: config.update(schema_hash="0" * 64),
        lambda config: config.pop("file"),
        lambda config: config["topology"].update(edges=[[0, 1], [0, 2]]),
    ],
)
def test_interrupted_run_does_not_go_on_as_another(old, change):
    folder = old / "trained" / "interrupted-dual"
    run = json.loads((folder / "run.json").read_text())
    change(run["config"])
    (folder / "run.json").write_text(json.dumps({**run, "config_hash": digest(run["config"])}))
    done = CliRunner().invoke(
        main, ["train", str(old / "dual.toml"), "--out", str(folder), "--resume"]
    )
    assert (done.exit_code, (folder / "model.json").exists()) == (2, False)
    assert "begun with another run file" in done.stderr


def test_interrupted_private_run_goes_on_and_spends_what_it_had_reserved(old):
    folder, paths = (
        old / "trained" / "interrupted",
        [old / "ledgers" / f"interrupted-{node}.sqlite" for node in NODES[:2]],
    )
    begun, name = list(read_rounds(folder)), load_run(folder).run_id
    with Ledger.open(paths[0], read_only=True) as ledger:
        sent, plan = [ledger.message(name, n) for n in range(4)], ledger.reserved(name)
    result = read("train", old / "interrupted.toml", "--out", folder, "--resume")
    assert (result["rounds"], result["protected"], result["epsilon"]) == (
        20,
        True,
        pytest.approx(1.9992470714962456),
    )
    assert list(read_rounds(folder))[: len(begun)] == begun
    for path in paths:
        assert [run["state"] for run in read("ledger", "show", path)["runs"]] == ["finished"]
    with Ledger.open(paths[0], read_only=True) as ledger:
        assert [ledger.message(name, n) for n in range(4)] == sent
        assert ledger.spent() == plan


# --------------------------------------------------------------------------------------------------
# networks


def keys(old):
    return {
        node.name: public_key(node.key)
        for node in load_run_file(old / "network" / "run.toml").nodes
    }


def test_network_files_are_understood_as_they_were(old):
    node, run = (
        load_node_file(old / "network" / "north.toml"),
        load_run_file(old / "network" / "run.toml"),
    )
    assert (node.node, node.file, node.ledger, node.patience) == (
        "north",
        "../north.csv",
        "north.sqlite",
        60.0,
    )
    assert (run.networked, [one.rows for one in run.nodes], run.privacy.epsilon) == (
        True,
        [24, 24, 24],
        3.0,
    )
    assert [one.endpoint for one in run.nodes] == [
        "127.0.0.1:27441",
        "127.0.0.1:27442",
        "127.0.0.1:27443",
    ]
    identity = Identity.load(
        old / "network" / "identities" / "north", datetime(2027, 1, 1, tzinfo=UTC)
    )
    assert (identity.name, identity.public) == ("north", run.nodes[0].key)
    silo = SiloRun.load(old / "network" / "south.toml")
    assert (silo.part.neighbours, silo.topology.edges, silo.schema.digest()) == (
        ("north", "west"),
        ((0, 1), (1, 2)),
        SCHEMA,
    )


@pytest.mark.parametrize("name", NODES)
def test_node_folder_stays_readable(old, name):
    run, lines = load_run(old / "network" / name), list(read_rounds(old / "network" / name))
    assert (run.config_hash, run.simulation, run.kind) == (CONFIG, False, "network")
    assert [(line["round"], line["node"], line["alpha"]) for line in lines] == [
        (n, name, pytest.approx(0.35141842, rel=1e-6)) for n in range(1, 21)
    ]
    model = load_model(old / "network" / name)
    assert model.coef.tolist() == [
        [1.1469889322916667, 3.8798014322916665, -1.938671875, 2.5461751302083333]
    ]
    assert model.intercept.tolist() == [1.5260579427083332]
    assert model.privacy["epsilon"] == 2.997477418524142


def test_status_of_old_nodes_is_told(old):
    nodes = read("status", old / "network")["nodes"]
    assert [(one["node"], one["state"], one["round"], one["rounds"]) for one in nodes] == [
        (p, "parted", 20, 20) for p in NODES
    ]
    for one in nodes:
        assert (
            one["spent"]["rounds_spent"],
            one["spent"]["rounds_planned"],
            one["spent"]["cap"],
        ) == (21, 21, 4.0)
        assert one["spent"]["lost"] == pytest.approx(2.997477, rel=1e-4)  # of one run: its plan's


def test_letters_are_opened_and_their_signatures_hold(old):
    (file,) = (old / "network" / "south").glob("letters-*.sqlite")
    connection = sqlite3.connect(file)
    letters = connection.execute("SELECT author, kind, round, content FROM letter").fetchall()
    connection.close()
    assert len(letters) == 3 * 21 + 3 + 3
    with Ledger.open(old / "network" / "west.sqlite", read_only=True) as ledger:
        entered = {
            entry.round: entry.message for entry in ledger.entries() if entry.kind == "spend"
        }
    heard = {}
    for author, kind, n, content in letters:
        letter = verify(content, keys(old))
        assert (letter.author, letter.kind, letter.round) == (author, kind, n)
        assert (letter.run, letter.config.hex()) == (run_id("network"), CONFIG)
        if (author, kind) == ("west", "message"):
            heard[n] = letter.body
        forged = bytes([*content[:-1], content[-1] ^ 1])
        with pytest.raises(Rejected, match="forged"):
            verify(forged, keys(old))
    assert heard == entered
    means = [verify(content, keys(old)).values for _, kind, _, content in letters if kind == "mean"]
    model = load_model(old / "network" / "south")
    np.testing.assert_allclose(
        np.mean(means, axis=0), [*model.coef[0], *model.intercept], rtol=1e-12
    )


def test_greeting_is_opened_and_says_its_configuration(old):
    letter = verify((old / "network" / "hello.letter").read_bytes(), keys(old))
    assert (letter.kind, letter.author, letter.round, letter.config.hex()) == (
        "hello",
        "north",
        0,
        CONFIG,
    )
    assert (
        digest(json.loads(letter.body)["config"]) == load_run(old / "network" / "north").config_hash
    )


def test_post_office_knows_its_letters(old):
    (file,) = (old / "network" / "north").glob("letters-*.sqlite")
    identity = Identity.load(
        old / "network" / "identities" / "north", datetime(2027, 1, 1, tzinfo=UTC)
    )
    rules = AcceptanceRules(
        "north", frozenset({"south"}), run_id("network"), bytes.fromhex(CONFIG), keys(old), 20, {}
    )
    post = Inbox(file, rules, identity.key)
    try:
        assert post.missing("message", 20, NODES) == ["west"]  # no neighbour of north
        assert post.missing("mean", 20, NODES) == []
        assert post.last("south") == post.get("south", "message", 20)
        with Ledger.open(old / "network" / "south.sqlite", read_only=True) as ledger:
            entered = {
                entry.round: entry.message for entry in ledger.entries() if entry.kind == "spend"
            }
        assert post.values("south", "message", 7).tobytes() == entered[7]
        assert post.letter("done", 20) == post.get(
            "north", "done", 20
        )  # signed again, the same bytes
    finally:
        post.close()


def test_letters_restore_a_ledger_that_was_lost(old):
    """Every release of the ledger is found in letters of 0.1.0, its own and its neighbours'."""
    network, new = old / "network", old / "network" / "anew.sqlite"
    told = dynadp(  # 0.1.0 kept no anchor: somebody must say that nothing else was charged
        *("ledger", "recover", new, "--node", "south", "--epsilon", 4, "--delta", 1e-5),
        *("--identity", network / "identities" / "south", "--from", network / "south"),
        *("--from", network / "north", "--nothing-else"),
    )
    assert "21 rounds entered that the ledger did not know" in told
    with (
        Ledger.open(network / "south.sqlite", read_only=True) as lost,
        Ledger.open(new, read_only=True) as found,
    ):
        (name,) = found.state().runs
        (before,) = lost.state().runs
        assert found.rounds(name) == lost.rounds(before) == list(range(21))
        for n in range(21):
            assert found.message(name, n) == lost.message(before, n)
        pairs = list(zip(found.spent(), lost.spent(), strict=True))
        for entered, once in pairs:  # letters' run.json has nine figures of each alpha
            assert entered.alpha == pytest.approx(once.alpha, rel=1e-8)
            assert replace(entered, alpha=once.alpha) == once


def test_a_ledger_is_exported_and_verified(old):
    network = old / "network"
    dynadp("ledger", "export", network / "west.sqlite", "--identity", network / "identities/west")
    found = read("verify", network / "west.sqlite.export.json", "--run", network / "run.toml")
    assert (found["sound"], found["key_known"], found["node"]) == (True, True, "west")
    assert found["ledger"]["head"] == HEADS["network/west"]
    assert found["ledger"] == {
        name: value
        for name, value in read("ledger", "show", network / "west.sqlite").items()
        if name != "notes"
    }


def test_a_greeting_is_answered_with_who_has_to_upgrade(old, tmp_path):
    """Of a node of 0.1.0: this one refuses it, and what it answers differs for the other, which
    prints the notice first.
    """
    identity = Identity.load(
        old / "network" / "identities" / "south", datetime(2027, 1, 1, tzinfo=UTC)
    )
    rules = AcceptanceRules(
        *("south", frozenset({"north", "west"}), run_id("network"), bytes.fromhex(CONFIG)),
        *(keys(old), 20, {}),
    )
    post = Inbox(tmp_path / "letters.sqlite", rules, identity.key)
    theirs = verify((old / "network" / "hello.letter").read_bytes(), keys(old))
    body = json.loads(theirs.body)
    try:
        greetings = Greetings(post, body["config"], None)
        with pytest.raises(
            ConfigError,
            match=r"south speaks version 2 of the wire, north version 1: north has to upgrade "
            r"dynadp to a release that speaks version 2 \(0\.2\.0 or later\)",
        ):
            greetings.compare(theirs, body)
        answer = verify(greetings.write("north", body["asks"], refuses=True), keys(old))
        shown = json.loads(answer.body)["config"]
        assert answer.config != theirs.config  # which is all that 0.1.0 looks at
        (line,) = differences(body["config"], shown)  # as 0.1.0 prints it
        assert line.startswith("(wire): None here, 'version 2 of the wire: whoever has none has to")
        notice = json.loads(verify(greetings.notice(body["asks"]), keys(old)).body)
        assert list(notice["config"]) == ["(wire)"]  # what goes without an envelope
        asked = verify(greetings.write(None), keys(old))
        greetings.compare(
            asked, json.loads(asked.body)
        )  # of this version, the same is no difference
        assert greetings.taken == {"south": 2}
    finally:
        post.close()


# --------------------------------------------------------------------------------------------------
# what the page promises of all formats

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
LISTED = {  # a format, the words of its row, and who reads such a file
    "dynadp-run": ("`run.json`", lambda path: load_run(path.parent)),
    "dynadp-model": ("`model.json`", lambda path: load_model(path.parent)),
    "dynadp-status": ("`status.json`", lambda path: read_status(path.parent)),
    "dynadp-anchor": ("anchor, neighbours' anchors", lambda path: Anchor(Path("x"), path).read()),
    "dynadp-peers": ("anchor, neighbours' anchors", lambda path: PeerMemory(path, {})),
    "dynadp-ledger-export": ("`dynadp ledger export`", verify_export),
    "dynadp-approval": ("`*.approval.json`", Approval.load),
    "dynadp-last-runs": ("`LEDGER-last-runs.json`", lambda path: terms_before(LEDGER(path), "x")),
    "dynadp-certificate": ("`dynadp certify`", verify_certificate),
    "dynadp-scorer": ("`dynadp export`, JSON", None),  # other programs read it
}
NAMES = {"dynadp-run": "run.json", "dynadp-model": "model.json", "dynadp-status": "status.json"}


def LEDGER(path):
    return path.with_name(path.name.removesuffix("-last-runs.json"))


def written():
    """{format: version} as the sources have it."""
    found = {}
    for file in (Path(dynadp_package.__file__).parent).rglob("*.py"):
        for name, version in re.findall(
            r'^\w+, \w+ = "(dynadp-[a-z-]+)", (\d+)$', file.read_text(), re.MULTILINE
        ):
            found[name] = int(version)
    return found


def test_the_page_lists_every_format_with_its_version():
    assert written().keys() == LISTED.keys()
    rows = re.findall(r"^\| (.*) \| (.*) \| .* \|$", PAGE, re.MULTILINE)
    for name, version in written().items():
        (versions,) = [cell for words, cell in rows if LISTED[name][0] in words]
        listed = [int(one) for one in re.findall(r"(?<![\d.])\d+(?![\d.])", versions)]
        assert listed == list(range(1, version + 1)), (name, versions)


@pytest.mark.parametrize("name", [name for name, (_, reads) in LISTED.items() if reads])
def test_a_file_of_a_later_version_is_refused_with_both_numbers(tmp_path, name):
    version = written()[name]
    path = tmp_path / NAMES.get(name, "north.sqlite-last-runs.json")
    path.write_text(json.dumps({"format": name, "version": version + 1}) + "\n")
    words = f"has version {version + 1}, this program reads up to {version}; upgrade dynadp"
    with pytest.raises(DynadpError, match=words) as refused:
        LISTED[name][1](path)
    assert not isinstance(refused.value, LedgerDamaged)


# --------------------------------------------------------------------------------------------------
# private files that 0.2.0 keeps beside a ledger while a run lasts, by their bytes

SEALED = (
    "85c95fab375ec77fbc92ed87c3e0aac2766ed6996ec267d777c2b511fd33886b"
    "a399c8230b2b72a0a439e46f2155bd62940b3f94bd28ce221ab85b8f5821805a"
)


def test_rows_that_were_sealed_are_known_again(tmp_path):
    schema = Schema(
        columns=(
            Numeric(name="age", low=0, high=99, missing=50.0),
            Categorical(name="job", values=("a", "b"), missing="other"),
        ),
        label=Label(name="y", negative=0, positive=1),
        missing_values=("", "?"),
    )
    rows = {"age": [1.0, 2.5, None, 4.0], "job": ["a", "ab", "b", None], "y": [0, 1, 1, 0]}
    file = tmp_path / "north.sqlite-rows-7692c3ad3540bb80"  # of SHA-256 of "one"
    file.write_text(json.dumps({"key": bytes(range(32)).hex(), "seal": SEALED}))
    seal = Seal.beside(tmp_path / "north.sqlite", "one", entered=True)
    assert seal.path == file
    seal.require(survey(schema, rows, seal=True).digest, "north")
    with pytest.raises(DataError, match="its rows changed"):
        seal.require(survey(schema, {**rows, "y": [1, 1, 1, 0]}, seal=True).digest, "north")


def test_a_vector_a_key_and_a_life_are_found_again(tmp_path):
    place = tmp_path / "north.sqlite"
    stem = f"{place.name}-own-7692c3ad3540bb80-"
    ledger = Ledger.create(place, "north", **STAMP)
    with ledger, ExitStack() as stack:
        journal = LedgerJournal({"north": ledger}, "one", dataset="rows", who="test")
        (tmp_path / f"{stem}3").write_bytes(np.array([1.0, -2.5], "<f8").tobytes())
        assert _read_vector(place, "one", 3).tolist() == [1.0, -2.5]
        (tmp_path / f"{stem}key").write_bytes(bytes(range(32)))
        assert journal.secret("north", lambda: b"another") == bytes(range(32))
        (tmp_path / f"{stem}life").write_text(json.dumps({"id": "ab" * 16, "number": 41}))
        assert Life.begin(stack, journal.life_file("north"), "north").number == 42
