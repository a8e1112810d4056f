"""Runs told to MLflow: what is logged is the record and nothing else, without gaps or repetitions,
and only when asked.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.file_store import FileStore

from dynadp._files import digest
from dynadp.errors import DeclarationError, RecordError
from dynadp.report.record_view import NotYet
from dynadp.report.tracking import mlflow as tracking
from dynadp.report.tracking.mlflow import Store, StoreAway, StoreRefused, alone, follow, track
from dynadp.report.tracking.selection import LIBRARIES, METRICS, TrackedRun
from dynadp.runs.folder import load_run
from dynadp.runs.model import load_model
from support.networks import LONG, Network, end_group, ended, ports, typed, until
from support.run_folders import NODES, make_job, make_network, make_run
from support.typed import dynadp

SPARE = (
    "MLFLOW_DISABLE_TELEMETRY",
    "DO_NOT_TRACK",
    "MLFLOW_ALLOW_FILE_STORE",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES",
)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """As at a user's; what the code under test sets is taken back."""
    for name in SPARE:
        monkeypatch.setenv(name, "true" if name != SPARE[-1] else "0")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(simulated):
    return simulated


def lines_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def stored(uri, experiment="dynadp"):
    """All runs of an experiment as MLflow gives them back."""
    client = MlflowClient(str(uri))
    known = client.get_experiment_by_name(experiment)
    found = client.search_runs([known.experiment_id]) if known else []
    out = []
    for run in found:
        history = {
            name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics
        }
        names, files = list(client.list_artifacts(run.info.run_id)), {}
        while names:
            item = names.pop()
            if item.is_dir:
                names += client.list_artifacts(run.info.run_id, item.path)
            else:
                files[item.path] = Path(
                    client.download_artifacts(run.info.run_id, item.path)
                ).read_bytes()
        out.append(
            {
                "id": run.info.run_id,
                "name": run.info.run_name,
                "status": run.info.status,
                "times": (run.info.start_time, run.info.end_time),
                "params": dict(run.data.params),
                "tags": {
                    name: value
                    for name, value in run.data.tags.items()
                    if not name.startswith("mlflow.")
                },
                "metrics": {
                    name: [(point.step, point.value) for point in points]
                    for name, points in history.items()
                },
                "files": files,
            }
        )
    return out


def only(uri, **given):
    (one,) = stored(uri, **given)
    return one


def expected_metrics(folders, model, centring):
    """The same figures, from the files, another way."""
    rounds = {}
    for folder in folders:
        for line in lines_of(folder):
            rounds.setdefault(line["round"], []).append(line)
    out = {name: [] for name in METRICS}
    for n in range(1, len(rounds) + 1):
        for name in ("disagreement", "change"):
            values = [line[name] for line in rounds[n]]
            out[f"{name}/median"].append((n, np.median(values)))
            out[f"{name}/min"].append((n, np.min(values)))
            out[f"{name}/max"].append((n, np.max(values)))
        if "mu" in rounds[n][0]:  # Gaussian releases have no sum
            out["mu/largest"].append((n, max(line["mu"] for line in rounds[n])))
            continue
        alpha = max(line["alpha"] for line in rounds[n])
        out["alpha/largest"].append((n, alpha))
        out["epsilon/sum_so_far"].append((n, pytest.approx(centring + n * alpha, rel=1e-8)))
    out["epsilon/total"] = [(len(rounds), model.privacy["epsilon"])]
    if out["epsilon/sum_so_far"]:
        assert out["epsilon/sum_so_far"][-1][1] == model.privacy["epsilon_sum"]
    return {name: points for name, points in out.items() if points}


# ---- what is logged is the record
# --------------------------------------------------------------------------------------------------


def test_a_seeded_run_protects_nobody_from_its_first_round_on(run, tmp_path):
    folder = Path(shutil.copytree(run, tmp_path / "begun"))
    (folder / "model.json").unlink()
    told = TrackedRun.read(folder)
    assert (told.protected, told.tags["dynadp.protected"], told.status) == (
        False,
        "false",
        "RUNNING",
    )


def test_an_address_without_a_scheme_is_not_taken_for_a_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = dynadp("track", run, "--uri", "my_user:s3cret@host:5000")
    assert done.exit_code != 0
    assert "s3cret" not in done.output
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("which", ["run", "private"])
def test_everything_that_is_read_back_is_the_record(which, request, tmp_path):
    folder = request.getfixturevalue(which)
    done = dynadp("track", folder, "--uri", tmp_path / "store", "--json")
    assert done.exit_code == 0, done.output
    record, model, found = (
        json.loads((folder / "run.json").read_text()),
        load_model(folder),
        only(tmp_path / "store"),
    )
    plan = record["plan"]
    told = json.loads(done.stdout)
    each = 8 if which == "run" else 7  # Gaussian releases have no sum of alpha
    assert told == {
        "version": 1,
        "run": record["file"]["run"]["name"],
        "mlflow_run": found["id"],
        "experiment": "dynadp",
        "uri": str(tmp_path / "store"),
        "status": "FINISHED",
        "rounds": plan["rounds"],
        "values": each * plan["rounds"] + 1,
        "new_values": each * plan["rounds"] + 1,
        "simulation": which == "run",
        "protected": which == "private",
    }
    assert found["metrics"] == expected_metrics([folder], model, plan["centring"] or 0.0)
    assert found["files"] == {"model.json": (folder / "model.json").read_bytes()}
    assert (found["name"], found["status"]) == (told["run"], "FINISHED")
    assert found["times"][0] == int(datetime.fromisoformat(record["created"]).timestamp() * 1000)
    assert abs(found["times"][1] / 1000 - (folder / "model.json").stat().st_mtime) < 0.01
    params = {
        name: json.loads(value) if name not in TEXTS else value
        for name, value in found["params"].items()
    }
    seed = {"seed": 3} if which == "run" else {}
    assert params == {
        **{name: plan[name] for name in PLANNED if plan[name] is not None},
        **{f"version.{name}": record["libraries"][name] for name in LIBRARIES},
        **seed,
        "run": told["run"],
        "kind": "one process",
        "config_hash": digest(load_run(folder).config),
        "schema_hash": record["schema_hash"],
        "python": record["python"],
        "topology": record["topology"]["name"],
        "nodes": 3,
        "edges": 3,
        "rows": sum(record["rows"].values()),
        "dimension": model.schema.dimension,
        "mechanism": plan["mechanism"]["name"],
        "epsilon": model.privacy["epsilon"],
        "delta": 1e-5,
    }
    tags = found["tags"]
    assert tags.pop("dynadp.key") == TrackedRun.read(folder).key
    assert tags == {
        "dynadp.protected": "false" if which == "run" else "true",
        "dynadp.simulation": "true" if which == "run" else "false",
        "dynadp.created": record["created"],
        "dynadp.statement": model.privacy["statement"],
    }
    assert ("SIMULATION" in tags["dynadp.statement"]) == (which == "run")


PLANNED = (
    *("algorithm", "noise", "loss", "regularizer", "C", "weights", "rho", "eta", "steps"),
    *("rounds", "alpha", "mu", "centring", "output"),
)
TEXTS = {
    "run",
    "algorithm",
    "noise",
    "weights",
    "kind",
    "config_hash",
    "schema_hash",
    "python",
    "topology",
    "mechanism",
    "output",
    *(f"version.{n}" for n in LIBRARIES),
}


def test_who_must_be_honest_is_logged_as_declared(tmp_path):
    made = '{ name = "sealed", honest = 2, spares = 2 }'
    folder = make_run(tmp_path, seed=3, mechanism=made)
    assert dynadp("track", folder, "--uri", tmp_path / "store").exit_code == 0
    plan, found = json.loads((folder / "run.json").read_text())["plan"], only(tmp_path / "store")
    params = {name: found["params"].get(name) for name in ("honest", "members", "colluding")}
    assert params == {"honest": "2", "members": "3", "colluding": "1"}
    assert found["params"]["spares"] == "2"
    assert "partners" not in found["params"]  # all: none was declared
    for name in ("epsilon", "mu"):
        planned = [(point["colluding"], point[name]) for point in plan["collusion"]]
        assert found["metrics"][f"collusion/{name}"] == planned
        assert [step for step, _ in planned] == [1, 2]
    assert found["metrics"]["epsilon/total"][0][1] == plan["collusion"][0]["epsilon"]
    assert found["files"] == {"model.json": (folder / "model.json").read_bytes()}
    assert json.loads(found["files"]["model.json"])["privacy"]["honest"] == [[2, 3]]
    assert "as long as 2 of the 3 nodes are honest" in found["tags"]["dynadp.statement"]
    (folder / "model.json").unlink()
    begun = TrackedRun.read(folder)  # known before the first round
    assert begun.points["collusion/epsilon", 2] == plan["collusion"][1]["epsilon"]


def test_algorithm_1_is_called_unprotected(tmp_path):
    job = make_job(tmp_path, seed=3)
    text = job.read_text()
    start = text.index("[privacy]")
    job.write_text(
        text[:start] + '[privacy]\nmechanism = "none"\n\n[training]\nrounds = 4\nrho = 0.01\n'
    )
    done = dynadp("train", job, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    done = dynadp("track", tmp_path / "run", "--uri", tmp_path / "store")
    found = only(tmp_path / "store")
    assert "protects nobody" in done.stdout
    assert set(found["metrics"]) == {
        f"{name}/{which}"
        for name in ("change", "disagreement")
        for which in ("median", "min", "max")
    }
    assert found["tags"]["dynadp.protected"] == "false"
    assert {name: found["params"][name] for name in ("mechanism", "rounds", "rho")} == {
        "mechanism": "none",
        "rounds": "4",
        "rho": "0.01",
    }
    assert "epsilon" not in found["params"]


@pytest.mark.slow
def test_a_demo_is_logged_too(tmp_path):
    assert dynadp("demo", "--mechanism", "primal", "--out", tmp_path / "demo").exit_code == 0
    done = dynadp("track", tmp_path / "demo" / "primal", "--uri", tmp_path / "store")
    found, model = only(tmp_path / "store"), load_model(tmp_path / "demo" / "primal")
    assert done.stdout.startswith(
        "demo, primal: 20 rounds, 161 new values of 161, finished. SIMULATION, protects nobody.\n"
    )
    assert found["metrics"]["epsilon/total"] == [(20, model.privacy["epsilon"])]
    assert found["params"]["seed"] == "0"


def test_whatever_else_lies_in_a_folder_stays_there(run, tmp_path):
    folder, secret = tmp_path / "run", "c0ffee-secret"
    shutil.copytree(run, folder)
    np.save(folder / "own.npy", np.arange(3.0))  # the private vector of own = "paper"
    (folder / "messages").mkdir()
    for name in ("own.json", "notes.txt", "messages/private.txt", "model.json.bak"):
        (folder / name).write_text(secret)
    (folder / "rounds.jsonl").write_text(
        "".join(
            json.dumps({**line, "norm": 4.25e77, "accuracy": 0.875, secret: secret}) + "\n"
            for line in lines_of(run)
        )
    )
    content = json.loads((folder / "model.json").read_text())
    content[secret] = content["rows"] = content["privacy"][secret] = secret
    content["estimator"] = {secret: secret}
    (folder / "model.json").write_text(json.dumps(content))
    record = load_run(folder)
    more = {"libraries": {**record.libraries, secret: secret}, "source": secret}
    more |= {"file": {**record.file, secret: secret}, "made": {secret: secret, "name": secret}}
    (folder / "run.json").write_text(record.model_copy(update=more).to_json())
    assert dynadp("track", folder, "--uri", tmp_path / "store").exit_code == 0
    assert dynadp("track", run, "--uri", tmp_path / "clean").exit_code == 0
    found, clean = only(tmp_path / "store"), only(tmp_path / "clean")
    others = {"mu/largest", "collusion/epsilon", "collusion/mu"}  # of Gaussian noise, sealed sums
    assert set(found["metrics"]) == set(METRICS) - others
    assert set(found["files"]) == {"model.json"}
    for part in ("params", "tags", "metrics", "files"):
        assert found[part] == clean[part]
    for file in (tmp_path / "store").rglob("*"):
        assert secret not in str(file)
        assert file.is_dir() or not any(
            word in file.read_bytes() for word in (secret.encode(), b"4.25e+77", b"0.875")
        )


@pytest.mark.parametrize(
    "change",
    [{"disagreement": "x"}, {"change": None}, {"node": "nobody"}, {"alpha": float("nan")}, []],
)
def test_a_line_that_is_none_is_refused(run, tmp_path, change):
    shutil.copytree(run, tmp_path / "run")
    line = json.dumps({**lines_of(run)[0], **change} if change else change)
    with open(tmp_path / "run" / "rounds.jsonl", "a") as file:
        file.write(line + "\n")
    done = dynadp("track", tmp_path / "run", "--uri", tmp_path / "store")
    assert done.exit_code == 2
    assert (
        f"line {len(lines_of(run)) + 1} is not a round's line; the file is damaged" in done.stderr
    )
    assert not (tmp_path / "store").exists()


# ---- no gap, nothing twice
# --------------------------------------------------------------------------------------------------


def tree(path):
    return {
        str(file): file.read_bytes() for file in sorted(Path(path).rglob("*")) if file.is_file()
    }


def compared(found):
    return {name: value for name, value in found.items() if name != "id"}


def part_of(run, folder, lines, cut=0):
    """The folder as it was after so many lines of rounds.jsonl, with a piece of the next."""
    shutil.copytree(run, folder, dirs_exist_ok=True)
    (folder / "model.json").unlink()
    whole = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(
        b"".join(whole[:lines]) + (whole[lines][:cut] if cut else b"")
    )


def test_twice_is_the_same(run, tmp_path):
    assert dynadp("track", run, "--uri", tmp_path / "store").exit_code == 0
    before = tree(tmp_path / "store")
    for _ in range(2):
        done = dynadp("track", run, "--uri", tmp_path / "store", "--json")
        assert json.loads(done.stdout)["new_values"] == 0
    assert tree(tmp_path / "store") == before
    assert dynadp("track", run, "--uri", tmp_path / "store", "--experiment", "other").exit_code == 0
    assert compared(only(tmp_path / "store", experiment="other")) == compared(
        only(tmp_path / "store")
    )


def test_a_folder_that_grows_line_by_line_leaves_no_gap(run, tmp_path):
    folder, store, lines = tmp_path / "run", tmp_path / "store", lines_of(run)
    ids = set()
    for count in range(0, len(lines), 4):
        part_of(run, folder, count, cut=11)
        told = track(folder, str(store))
        ids.add(told["mlflow_run"])
        assert (told["status"], told["rounds"]) == ("RUNNING", count // 3)
        assert only(store)["metrics"].get("alpha/largest", []) == [
            (n, lines[0]["alpha"]) for n in range(1, count // 3 + 1)
        ]
    (folder / "rounds.jsonl").write_bytes(b"")  # a run that goes on tells its rounds again
    assert track(folder, str(store))["new_values"] == 0
    shutil.copytree(run, folder, dirs_exist_ok=True)
    ids.add(track(folder, str(store))["mlflow_run"])
    assert len(ids) == 1
    assert dynadp("track", run, "--uri", tmp_path / "at once").exit_code == 0
    assert compared(only(store))["metrics"] == only(tmp_path / "at once")["metrics"]
    assert only(store)["files"] == only(tmp_path / "at once")["files"]


class Faulty:
    """MLflow's client, of which one call fails: before it does anything, or after it did all."""

    def __init__(self, client, fails, late):
        self.client, self.fails, self.late, self.calls = client, fails, late, 0

    def __getattr__(self, name):
        def call(*args, **given):
            self.calls += 1
            if self.calls == self.fails and not self.late:
                raise MlflowException("the server restarts")
            found = getattr(self.client, name)(*args, **given)
            if self.calls == self.fails:
                raise MlflowException("the server restarts")
            return found

        return call


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(tracking, "BATCH", 50)


def test_wherever_a_call_fails_the_next_look_completes_it(run, tmp_path, monkeypatch, few):
    track(run, str(tmp_path / "sound"))
    sound, real = only(tmp_path / "sound"), tracking._client
    made = Faulty(None, 10**6, False)

    def client(uri):
        made.client = real(uri)
        return made

    monkeypatch.setattr(tracking, "_client", client)
    track(run, str(tmp_path / "counted"))
    calls = made.calls
    assert calls > 8
    for late in (False, True):
        for k in range(1, calls + 1):
            made, store = Faulty(None, k, late), tmp_path / f"{k} {late}"
            with pytest.raises(StoreAway, match="try again later"):
                track(run, str(store))
            cut = stored(store)
            assert all(
                one["status"] == "RUNNING" or compared(one) == compared(sound) for one in cut
            ), (k, late)
            track(run, str(store))
            assert compared(only(store)) == compared(sound), (k, late)
            if k > 2:
                # the first two ask for the experiment: an address that was never right is not
                # waited
                # for
                made, store = Faulty(None, k, late), tmp_path / f"{k} {late} followed"
                assert follow(run, str(store), pause=Steps(lambda: None))["status"] == "FINISHED"
                assert compared(only(store)) == compared(sound), (k, late)


@pytest.mark.parametrize("values", [1, 7, 49, 50, 51, 120])
def test_a_batch_that_is_cut_is_completed(run, tmp_path, monkeypatch, few, values):
    """The store of files takes values one by one, and any may be the last."""
    track(run, str(tmp_path / "sound"))
    real, count = FileStore._log_run_metric, [0]

    def cut(self, info, metric):
        if count[0] == values:
            raise KeyboardInterrupt
        count[0] += 1
        real(self, info, metric)

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "_log_run_metric", cut)
        with pytest.raises(KeyboardInterrupt):
            track(run, str(tmp_path / "store"))
    assert sum(map(len, only(tmp_path / "store")["metrics"].values())) == values
    track(run, str(tmp_path / "store"))
    assert compared(only(tmp_path / "store")) == compared(only(tmp_path / "sound"))


def test_two_processes_do_not_log_at_once(run, tmp_path):
    with alone(run):
        done = dynadp("track", run, "--uri", tmp_path / "store")
    assert done.exit_code == 8  # for now: the same command succeeds later
    assert "another process logs" in done.stderr
    assert dynadp("track", run, "--uri", tmp_path / "store").exit_code == 0


# ---- runs that go on
# --------------------------------------------------------------------------------------------------


class Steps:
    """In place of waiting: the next thing happens."""

    def __init__(self, *steps):
        self.steps, self.waited = list(steps), []

    def __call__(self, seconds):
        self.waited.append(seconds)
        self.steps.pop(0)()


def test_a_run_is_followed_from_before_its_beginning_to_its_end(run, tmp_path):
    folder, said = tmp_path / "later" / "run", []
    steps = Steps(
        lambda: folder.mkdir(parents=True),
        lambda: part_of(run, folder, 0),
        lambda: part_of(run, folder, 9),
        lambda: None,
        lambda: part_of(run, folder, 6),  # told again
        lambda: part_of(run, folder, 31),
        lambda: shutil.copytree(run, folder, dirs_exist_ok=True),
    )
    told = follow(folder, str(tmp_path / "store"), say=said.append, pause=steps)
    assert (told["status"], told["new_values"], steps.steps) == ("FINISHED", told["values"], [])
    rounds = told["rounds"]
    assert said[0] == f"{folder} is not there yet"
    assert "has no run.json" in said[1]
    assert said[2:] == [f"round {n} of {rounds}" for n in (0, 3, 2, 10)]
    track(run, str(tmp_path / "at once"))
    assert compared(only(tmp_path / "store"))["metrics"] == only(tmp_path / "at once")["metrics"]


def test_a_store_that_is_away_is_waited_for(run, tmp_path, monkeypatch):
    folder, store, said, away = tmp_path / "run", tmp_path / "store", [], tmp_path / "away"
    part_of(run, folder, 6)

    def grow():
        part_of(run, folder, 20)
        store.rename(away)
        store.write_text("")

    def back():
        store.unlink()
        away.rename(store)

    steps = Steps(
        grow, lambda: None, back, lambda: shutil.copytree(run, folder, dirs_exist_ok=True)
    )
    told = follow(folder, str(store), say=said.append, pause=steps)
    assert told["new_values"] == told["values"]
    assert [words[:7] for words in said] == ["round 2", "MLflow'", "round 6"]
    assert steps.waited[2] >= 2 * steps.waited[1] > steps.waited[0]
    track(run, str(tmp_path / "at once"))
    assert only(store)["metrics"] == only(tmp_path / "at once")["metrics"]


def test_another_run_in_the_same_place_is_another_run(run, private, tmp_path):
    folder = tmp_path / "run"
    part_of(run, folder, 30)

    def replace():
        shutil.rmtree(folder)
        shutil.copytree(private, folder)

    told = follow(folder, str(tmp_path / "store"), pause=Steps(replace))
    found = {one["id"]: one for one in stored(tmp_path / "store")}
    assert len(found) == 2
    track(private, str(tmp_path / "at once"))
    assert compared(found[told["mlflow_run"]]) == compared(only(tmp_path / "at once"))


def test_a_run_that_failed_ends_the_following(tmp_path):
    make_network(tmp_path / "net", finished=False)
    status = tmp_path / "net" / "north" / "status.json"
    told = json.loads(status.read_text())
    status.write_text(json.dumps({**told, "state": "failed: BudgetRefused"}))
    done = dynadp("track", tmp_path / "net" / "north", "--uri", tmp_path / "store", "--follow")
    assert done.exit_code == 1
    assert "the run failed" in done.stderr
    assert only(tmp_path / "store")["status"] == "FAILED"
    assert dynadp("track", tmp_path / "net", "--uri", tmp_path / "other").exit_code == 0
    assert only(tmp_path / "other")["status"] == "RUNNING"  # the other nodes
    status.write_text(json.dumps(told))
    assert dynadp("track", tmp_path / "net" / "north", "--uri", tmp_path / "store").exit_code == 0
    assert only(tmp_path / "store")["status"] == "RUNNING"  # started again


@pytest.mark.slow
def test_a_live_run_in_processes(tmp_path):
    folder, store = tmp_path / "run", tmp_path / "store"
    job = make_job(tmp_path, seed=3)
    follower = typed("track", folder, "--uri", store, "--follow", "--json")
    try:
        until(lambda: (store / "0").exists(), "the store to be made")
        code, _, err = ended(typed("train", job, "--out", folder))
        assert code == 0, err
    except BaseException:
        end_group(follower)
        raise
    code, out, err = ended(follower)
    assert code == 0, err
    told, found = json.loads(out), only(store)
    assert (told["status"], told["new_values"]) == ("FINISHED", told["values"])
    centring = json.loads((folder / "run.json").read_text())["plan"]["centring"]
    assert found["metrics"] == expected_metrics([folder], load_model(folder), centring)
    track(folder, str(tmp_path / "at once"))
    assert compared(found) == compared(only(tmp_path / "at once"))


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_a_following_that_is_ended_goes_on(run, tmp_path, number):
    folder, store = tmp_path / "run", tmp_path / "store"
    part_of(run, folder, 10)
    follower = typed("track", folder, "--uri", store, "--follow")
    try:
        until(lambda: list(store.glob("*/*/metrics/epsilon/sum_so_far")), "rounds to be logged")
        os.kill(follower.pid, number)
    except BaseException:
        end_group(follower)
        raise
    code, out, err = ended(follower)
    assert (code, out) == (130 if number == signal.SIGINT else -9, "")
    assert number == signal.SIGKILL or "goes on where it was" in err
    shutil.copytree(run, folder, dirs_exist_ok=True)
    assert dynadp("track", folder, "--uri", store, "--follow").exit_code == 0
    track(run, str(tmp_path / "at once"))
    assert compared(only(store))["metrics"] == only(tmp_path / "at once")["metrics"]


INTERRUPTED = """
import gc, signal, sys, weakref
from dynadp.cli import main
from dynadp.report.tracking import mlflow as tracking

class Thing:
    pass

class Mortal:
    def __del__(self):
        once()

def once(*_, left=[1]):
    if left:
        left.pop()
        signal.raise_signal(signal.SIGINT)

def callback():
    thing = Thing()
    thing.watch = weakref.ref(thing, once), weakref.finalize(Thing(), once)

def collection():
    gc.callbacks.append(once)
    gc.collect()

def at_the_worst_moment(do):
    def look(*given):
        MOMENTS[sys.argv[1]]()
        return do(*given)
    return look

MOMENTS = {"finaliser": Mortal, "callback": callback, "collection": collection, "plain": once}
owner, name = {
    "read": (tracking.TrackedRun, "read"),
    "log": (tracking.Store, "log"),
    "sleep": (tracking.time, "sleep"),
}[sys.argv[2]]
setattr(owner, name, at_the_worst_moment(getattr(owner, name)))
main(sys.argv[3:])
"""


AT_ONCE = {("finaliser", "read"), ("plain", "sleep")}


@pytest.mark.parametrize(
    ("moment", "where"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case not in AT_ONCE))
        for case in product(
            ["finaliser", "callback", "collection", "plain"], ["read", "log", "sleep"]
        )
    ],
)
def test_an_interrupt_that_python_drops_is_not_lost(run, tmp_path, moment, where):
    """What is raised in finalisers and callbacks goes nowhere; the following ends all the same."""
    part_of(run, tmp_path / "run", 3)
    words = ["track", tmp_path / "run", "--uri", tmp_path / "store", "--follow"]
    follower = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, moment, where, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    code, out, err = ended(follower)
    assert (code, out) == (130, ""), err
    assert "goes on where it was" in err
    assert ("Exception ignored" in err) == (
        moment != "plain"
    )  # it was dropped, as it should be here


# ---- networks
# --------------------------------------------------------------------------------------------------


def test_nodes_of_a_network_by_themselves_and_together(tmp_path, nursery):
    network = Network.make(tmp_path / "net", nursery).go()
    for name in network.names:
        assert dynadp("track", network.folder(name), "--uri", tmp_path / "store").exit_code == 0
    found = {one["tags"]["dynadp.node"]: one for one in stored(tmp_path / "store")}
    assert set(found) == set(network.names)
    for name, one in found.items():
        folder = network.folder(name)
        assert one["name"] == f"trial, {name}"
        assert one["metrics"] == expected_metrics([folder], load_model(folder), 0.0)
        assert one["files"] == {"model.json": network.model(name)}
        assert one["tags"]["dynadp.protected"] == "true"
        assert (one["params"]["kind"], one["params"]["nodes"], one["params"]["rows"]) == (
            "network",
            "3",
            "360",
        )
    done = dynadp("track", network.out, "--uri", tmp_path / "together", "--follow", "--json")
    assert done.exit_code == 0, done.output
    together = only(tmp_path / "together")
    homes = [network.folder(name) for name in network.names]
    assert together["metrics"] == expected_metrics(homes, load_model(homes[0]), 0.0)
    assert together["files"] == {
        f"{name}/model.json": network.model(name) for name in network.names
    }
    assert "dynadp.node" not in together["tags"]

    # a folder that was lost is made anew, and the run is the same
    again = load_run(homes[0]).model_copy(update={"created": "2031-01-01T00:00:00+00:00"})
    (homes[0] / "run.json").write_text(again.to_json())
    assert dynadp("track", homes[0], "--uri", tmp_path / "store").exit_code == 0
    assert len(stored(tmp_path / "store")) == 3


def test_a_network_is_logged_when_all_nodes_are_there(tmp_path):
    make_network(tmp_path / "net", finished=False)
    shutil.move(tmp_path / "net" / "west", tmp_path / "west")
    done = dynadp("track", tmp_path / "net", "--uri", tmp_path / "store")
    assert done.exit_code == 2
    assert "2 of the 3 nodes" in done.stderr
    assert "--follow" in done.stderr
    said = []

    def fail():
        shutil.move(tmp_path / "west", tmp_path / "net" / "west")
        for node in NODES:
            status = tmp_path / "net" / node / "status.json"
            status.write_text(
                json.dumps({**json.loads(status.read_text()), "state": "failed: NodeLost"})
            )

    told = follow(tmp_path / "net", str(tmp_path / "store"), say=said.append, pause=Steps(fail))
    assert "2 of the 3 nodes" in said[0]
    assert (told["rounds"], told["status"]) == (5, "FAILED")
    assert only(tmp_path / "store")["metrics"]["disagreement/max"][0] == (1, 3.0)


def test_nodes_that_have_not_agreed_are_waited_for(tmp_path):
    make_network(tmp_path / "net", finished=False)
    (tmp_path / "net" / "north" / "run.json").unlink()
    with pytest.raises(NotYet, match="have not agreed on a run yet"):
        TrackedRun.read(tmp_path / "net" / "north")


# ---- only when asked, and to nobody else
# --------------------------------------------------------------------------------------------------

GUARD = """
import sys

def watch(event, args):
    if event in ("socket.connect", "socket.sendto"):
        found = args[1]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        found = args[0]
    else:
        return
    host = found[0] if isinstance(found, tuple) else found
    if host not in ("127.0.0.1", "::1", "localhost", None):
        with open({log!r}, "a") as file:
            file.write(f"{{event}} {{host}}\\n")
        raise ConnectionError("nobody outside may be talked to")

sys.addaudithook(watch)
"""


def guarded(folder, *line):
    """A process that tells whom it would talk to, where MLflow does not know that it is tested."""
    folder.mkdir()
    (folder / "home").mkdir()
    (folder / "sitecustomize.py").write_text(GUARD.format(log=str(folder / "log")))
    known = ("PATH", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    env = {name: os.environ[name] for name in known if name in os.environ}
    here = os.pathsep.join([str(folder), str(Path(tracking.__file__).parents[2])])
    env |= {
        "PYTHONPATH": here,
        "HOME": str(folder / "home"),
        "XDG_CONFIG_HOME": str(folder / "home"),
    }
    done = subprocess.run(
        [sys.executable, *map(str, line)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    return done, (folder / "log").read_text() if (folder / "log").exists() else ""


def test_nobody_outside_is_talked_to(run, tmp_path):
    done, heard = guarded(tmp_path / "guarded", "-m", "dynadp", "track", run)
    assert done.returncode == 0, done.stderr
    assert heard == ""
    assert (
        list((tmp_path / "guarded" / "home").iterdir()) == []
    )  # no number of this installation is kept either
    assert only(tmp_path / "guarded" / "mlruns")["status"] == "FINISHED"
    connect = "import socket; socket.create_connection(('192.0.2.1', 9), 1)"
    done, heard = guarded(tmp_path / "control", "-c", connect)
    assert done.returncode != 0
    assert "192.0.2.1" in heard


def test_mlflow_is_told_so_before_it_is_imported(tmp_path):
    code = (
        "import os, sys\n"
        "from dynadp.report.tracking.mlflow import Store\n"
        "assert 'mlflow' not in sys.modules\n"
        "sys.addaudithook(lambda event, args: print(os.environ.get('MLFLOW_DISABLE_TELEMETRY'), "
        "os.environ.get('DO_NOT_TRACK'))"
        " if event == 'import' and args[0] == 'mlflow' else None)\n"
        "Store('store')\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled\n"
        "assert is_telemetry_disabled()\n"
    )
    done, _ = guarded(tmp_path / "guarded", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "true true"


def test_nothing_is_logged_unasked(tmp_path):
    job = make_job(tmp_path, seed=3)
    code = (
        "import sys, dynadp\n"
        "from dynadp.cli import main\n"
        f"main(['train', {str(job)!r}, '--out', {str(tmp_path / 'run')!r}], "
        f"standalone_mode=False)\n"
        "import dynadp.report.tracking.mlflow, dynadp.cli.report\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'mlflow']\n"
    )
    env = {**os.environ, "MLFLOW_TRACKING_URI": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.json").exists()
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "mlruns").exists()


# ---- what can be wrong
# --------------------------------------------------------------------------------------------------


def test_without_mlflow_the_extra_is_named(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    done = dynadp("track", run, "--uri", tmp_path / "store")
    assert done.exit_code == 2
    assert done.stderr == "dynadp: logging to MLflow needs mlflow: pip install 'dynadp[mlflow]'\n"


def test_what_is_no_run_is_refused_before_a_store_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for what, why in (
        ("empty", "has no run.json"),
        ("missing", "is not a folder"),
        ("file", "is not a folder"),
    ):
        done = dynadp("track", tmp_path / what)
        assert done.exit_code == 2
        assert why in done.stderr
        assert "`dynadp train`" in done.stderr
    assert dynadp("track", tmp_path / "file", "--follow").exit_code == 2
    assert not (tmp_path / "mlruns").exists()


def test_the_environment_says_where_and_flags_beat_it(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert dynadp("track", run, MLFLOW_TRACKING_URI="", MLFLOW_EXPERIMENT_NAME="").exit_code == 0
    assert (
        dynadp("track", run, MLFLOW_TRACKING_URI="theirs", MLFLOW_EXPERIMENT_NAME="named").exit_code
        == 0
    )
    line = ("track", run, "--uri", (tmp_path / "mine").as_uri(), "--experiment", "chosen")
    assert (
        dynadp(*line, MLFLOW_TRACKING_URI="theirs", MLFLOW_EXPERIMENT_NAME="named").exit_code == 0
    )
    ids = [
        only(tmp_path / "mlruns"),
        only(tmp_path / "theirs", experiment="named"),
        only(tmp_path / "mine", experiment="chosen"),
    ]
    assert len({one["id"] for one in ids}) == 3


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:hunter2@127.0.0.1:{port}",
        "http://me:hun/ter2@127.0.0.1:{port}/",
        "http://me:hun?ter2@127.0.0.1:{port}",
        "http://me:hun://ter2@127.0.0.1:{port}",
        "http://127.0.0.1:{port}?token=hunter2",
        "http:/me:hunter2@127.0.0.1:{port}",
        "http://[me:hunter2@127.0.0.1:{port}",
        "nonsense://me:hunter2@127.0.0.1:{port}",
    ],
)
def test_credentials_are_never_shown(run, uri, caplog):
    (port,) = ports(1)
    done = dynadp("track", run, "--uri", uri.format(port=port))
    assert done.exit_code in (1, 2)
    assert "MLflow's store" in done.stderr
    assert not any(word in done.output + caplog.text for word in ("hunter2", "hun", "ter2", "me:"))


def test_a_server_that_is_away_is_named(run):
    (port,) = ports(1)
    done = dynadp("track", run, "--uri", f"http://127.0.0.1:{port}")
    assert done.exit_code == 1
    assert (
        f"MLflow's store http://127.0.0.1:{port} cannot be reached or does not answer"
        in done.stderr
    )


def test_a_deleted_experiment_is_not_written_to(run, tmp_path):
    track(run, str(tmp_path / "store"))
    client = MlflowClient(str(tmp_path / "store"))
    client.delete_experiment(client.get_experiment_by_name("dynadp").experiment_id)
    with pytest.raises(DeclarationError, match="was deleted in"):
        track(run, str(tmp_path / "store"))


def test_a_run_that_was_deleted_is_logged_anew(run, tmp_path):
    first = track(run, str(tmp_path / "store"))
    MlflowClient(str(tmp_path / "store")).delete_run(first["mlflow_run"])
    second = track(run, str(tmp_path / "store"))
    assert first["mlflow_run"] != second["mlflow_run"]
    assert only(tmp_path / "store")["id"] == second["mlflow_run"]


def test_a_store_that_refuses_is_not_tried_again(run, tmp_path):
    with pytest.raises(StoreRefused, match="refused") as caught:
        Store(str(tmp_path / "store"), experiment="")
    assert not isinstance(caught.value, StoreAway)


def test_a_damaged_record_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    content = json.loads((run / "run.json").read_text())
    content["rows"]["north"] += 1
    (tmp_path / "run" / "run.json").write_text(json.dumps(content))
    with pytest.raises(RecordError, match="does not match its hash"):
        follow(tmp_path / "run", str(tmp_path / "store"))


# ---- other stores, where all of MLflow is installed
# --------------------------------------------------------------------------------------------------

WHOLE = all(find_spec(name) for name in ("sqlalchemy", "alembic", "flask"))
if not WHOLE:

    def test_databases_need_all_of_mlflow(run, tmp_path):
        done = dynadp("track", run, "--uri", f"sqlite:///{tmp_path}/store.db")
        assert done.exit_code == 2
        assert "pip install mlflow" in done.stderr

else:  # pragma: no cover

    @pytest.mark.slow
    @pytest.mark.filterwarnings("default")  # MLflow's own use of SQLAlchemy
    def test_a_database(run, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        uri = f"sqlite:///{tmp_path}/store.db"
        part_of(run, tmp_path / "run", 10)
        track(tmp_path / "run", uri)
        shutil.copytree(run, tmp_path / "run", dirs_exist_ok=True)
        for _ in range(2):
            track(tmp_path / "run", uri)
        track(run, str(tmp_path / "files"))
        assert compared(only(uri)) == compared(only(tmp_path / "files"))

    @pytest.mark.slow
    def test_a_server_that_is_started_again(run, tmp_path, monkeypatch):
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        (port,), folder, said = ports(1), tmp_path / "run", []
        uri = f"http://127.0.0.1:{port}"
        part_of(run, folder, 10)

        def served():
            store = (
                "--backend-store-uri",
                f"sqlite:///{tmp_path}/store.db",
                "--artifacts-destination",
                tmp_path / "files",
            )
            line = [
                sys.executable,
                "-m",
                "mlflow",
                "server",
                "--port",
                port,
                "--workers",
                1,
                *store,
            ]
            server = subprocess.Popen(
                [*map(str, line)], cwd=tmp_path, start_new_session=True, stderr=subprocess.DEVNULL
            )
            until(
                lambda: (
                    not subprocess.run(["curl", "-fso", os.devnull, f"{uri}/health"]).returncode
                ),
                "the server",
            )
            return server

        servers = [served()]

        def away():
            end_group(servers[0])
            part_of(run, folder, 20)

        def back():
            servers.append(served())
            shutil.copytree(run, folder, dirs_exist_ok=True)

        try:
            told = follow(folder, uri, say=said.append, pause=Steps(away, back))
            assert [words.split()[0] for words in said] == ["round", "MLflow's"]
            assert told["new_values"] == told["values"]
            assert track(folder, uri)["new_values"] == 0
            track(run, str(tmp_path / "at once"))
            assert compared(only(uri)) == compared(only(tmp_path / "at once"))
        finally:
            for server in servers:
                end_group(server)
