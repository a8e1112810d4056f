"""A run looked at again: frames, budgets, noise in messages, the measure of its averaged model."""

import json
import shutil

import numpy as np
import pytest

from dynadp.errors import RecordError
from dynadp.privacy import Gaussian, total
from dynadp.privacy.events import L2Laplace
from dynadp.report.accuracy import public_accuracy
from dynadp.report.budgets import planned_cost
from dynadp.report.comparison import compare
from dynadp.report.record_view import RunView
from dynadp.report.replay import app, history
from dynadp.report.replay.app import Replay, summary
from dynadp.report.replay.history import FRAMES, History, spent_at
from dynadp.report.replay.neighbour import Attacked
from dynadp.report.start.wizard import answered
from dynadp.runs.partial import released_messages
from support.asking import TOKEN, Client
from support.run_folders import make_network, make_run
from support.typed import dynadp


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A private run with public rows."""
    return make_run(tmp_path_factory.mktemp("measured"), public=True)


def test_the_last_frame_is_what_the_report_says(measured):
    found, view = History(measured).read(), RunView.read(measured)
    assert (found["done"], found["finished"]) == (view.plan.rounds, True)
    assert [frame["round"] for frame in found["frames"]] == list(range(1, view.plan.rounds + 1))
    (group,) = found["budgets"]
    _, total = planned_cost(view)
    assert group["curve"][-1] == [view.plan.rounds, pytest.approx(total.epsilon)]
    assert np.all(np.diff([epsilon for _, epsilon in group["curve"]]) > 0)
    last, own = found["measures"][-1], public_accuracy(view)
    assert (last["value"], last["low"], last["high"]) == pytest.approx(
        (own.accuracy, own.low, own.high)
    )
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("points", [64, 4])
def test_what_is_lost_so_far_is_never_understated(measured, simulated, monkeypatch, points):
    """Nor is it of a run whose totals are costly, so that few of them are computed."""
    monkeypatch.setattr(history, "FEW", points)
    monkeypatch.setattr(history, "Gaussian", L2Laplace if points == 4 else Gaussian)
    for run in (measured, simulated):
        found, (events, _) = History(run).read(), planned_cost(RunView.read(run))
        (curve,) = [group["curve"] for group in found["budgets"]]
        node, delta = found["budgets"][0]["nodes"][0], found["delta"]
        for line in summary(found):
            n = line["round"]
            exact = total([e for e in events if e.node == node and e.round <= n], delta).epsilon
            assert line["spent"] == spent_at(curve, n) >= exact * (1 - 1e-9)
            if points == 64:
                assert line["spent"] == pytest.approx(exact)


def test_the_share_of_noise_is_its_law_over_the_message(measured):
    found = History(measured).read()
    plan, held = released_messages(measured)
    for n in (1, plan.rounds):
        noise, shares = plan.release_plan.noises[n - 1], []
        for p, node in enumerate(plan.release_plan.nodes):
            deviation = float(noise.parameter[p, 0] * noise.step[p, 0])
            vector = held[node][n]
            shares.append(min(1.0, vector.size * deviation**2 / float(vector @ vector)))
        assert found["noise"][n - 1] == pytest.approx(float(np.median(shares)))
    assert 0 < found["noise"][0] < found["noise"][-1] <= 1  # the gradient shrinks, noise does not


def test_what_cannot_be_known_is_said(sealed, simulated):
    masked = History(sealed).read()
    assert masked["noise"] is None
    assert "masked" in masked["noise_note"]
    assert masked["measures"] == []
    assert "on private rows it would itself be a release" in masked["measure_note"]
    gone = History(simulated).read()
    assert gone["simulation"]
    assert gone["noise_note"].endswith("a SIMULATION that ended keeps none.")
    assert "on private rows it would itself be a release" in gone["measure_note"]


def test_without_messages_the_model_at_the_end_is_measured(seeded):
    found, own = History(seeded).read(), public_accuracy(RunView.read(seeded))
    (last,) = found["measures"]
    assert last["round"] == found["rounds"]
    assert (last["value"], last["low"], last["high"]) == (own.accuracy, own.low, own.high)
    assert found["measure_note"].startswith("Right answers of the model at the end, on public.csv")
    assert summary(found)[-2]["measure"] is None


def test_of_a_number_what_comes_first_of_it_is_played_and_compared(tmp_path, seeded):
    answers = {"label": "hours", "kind": "a number", "answer": "0:99"}
    run = make_kind(tmp_path, answers, "", public=True)
    found, own = History(run).read(), public_accuracy(RunView.read(run))
    assert (found["measure"], found["measures"][-1]["value"]) == own.others[0][:2]
    page = Client(Replay(run)).get(f"/{TOKEN}/").text
    assert f"{own.others[0][1]:.3g}</td>" in page
    assert "Averaged model on public rows, R2" in page
    both = compare([run, seeded])
    assert set(both.runs[0].measures) == {name for name, *_ in own.others}


def test_a_network_and_a_run_that_grows(tmp_path):
    folder, plan = make_network(tmp_path / "launch", finished=False, rounds=2)
    history = History(folder)
    found = history.read()
    assert (found["done"], found["finished"], found["rounds"]) == (2, False, plan.rounds)
    assert history.read() is found  # nothing is new
    for node in ("north", "south", "west"):
        line = {"round": 3, "node": node, "alpha": plan.alpha, "disagreement": 1.0, "change": 0.1}
        with open(folder / node / "rounds.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
    assert history.read()["done"] == 3


def test_many_rounds_come_as_few_frames(simulated, tmp_path):
    copy = tmp_path / "long"
    shutil.copytree(simulated, copy)
    lines = [
        json.dumps({"round": n, "node": p, "alpha": 0.1, "disagreement": 1.0, "change": 1.0 / n})
        for n in range(1, 1001)
        for p in ("north", "south", "west")
    ]
    (copy / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    found = History(copy).read()
    assert found["done"] == 1000
    assert len(found["frames"]) <= FRAMES + 1
    assert found["frames"][-1]["round"] == 1000
    assert len(json.dumps(found)) < 200_000


def test_the_page_reads_without_a_script(measured):
    client = Client(Replay(measured))
    page = client.get(f"/{TOKEN}/")
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    found = client.get(f"/{TOKEN}/api/history").json()
    for line in summary(found):
        assert f"{line['change']:.3g}" in page.text
    assert "epsilon" in page.text
    assert client.get("/other/api/history").status_code == 403
    assert client.post(f"/{TOKEN}/api/neighbour", origin="http://evil.example").status_code == 403


def test_the_attack_is_on_a_run_of_the_same_kind(measured, monkeypatch):
    asked = []

    class Found:
        def to_json(self):
            return {"made": True}

    def look(**given):
        asked.append(given)
        return Found()

    monkeypatch.setattr(app, "look", look)
    replay = Replay(measured)
    client = Client(replay)
    assert client.get(f"/{TOKEN}/api/neighbour").json() == {"state": "waiting"}
    client.post(f"/{TOKEN}/api/neighbour")
    while (answer := client.get(f"/{TOKEN}/api/neighbour").json())["state"] == "running":
        pass
    assert answer == {"state": "done", "found": {"made": True}}
    (given,) = asked
    assert (given["mechanism"], given["answer"]) == ("sum", "two values")
    assert (given["adjacency"], given["histogram"]) == ("replace", False)
    total = planned_cost(RunView.read(measured))[1].epsilon
    assert given["epsilon"] == pytest.approx(total)


TWO = {"label": "income", "negative": "low", "positive": "high"}
WAYS = {
    "primal, rows added": (
        TWO,
        'adjacency = "add-remove"\nmechanism = "primal"\n',
        ("primal", "two values", "add-remove", False),
        "was it there, or not?",
    ),
    "histogram": (
        TWO,
        "calibration = true\n",
        ("sum", "two values", "replace", True),
        "was it in, or its opposite?",
    ),
    "sealed, several values": (
        {"label": "income", "kind": "several", "answer": "low,high,none", "trust": "sealed"},
        "",
        ("sealed", "several values", "replace", False),
        "was it in, or the same row with another answer?",
    ),
    "a number, people": (
        {"label": "hours", "kind": "a number", "answer": "0:99", "person": "who"},
        "",
        ("sum", "a number", "replace", False),
        "was it in, or the same row with another answer?",
    ),
}


def make_kind(folder, answers, more, public=False):
    """A SIMULATION of such a run."""
    rows = [f"{17 + i % 70},{i % 99},{'low' if i % 4 else 'high'},p{i // 2}" for i in range(200)]
    for node in ("north", "south", "west"):
        (folder / f"{node}.csv").write_text("\n".join(["age,hours,income,who", *rows]) + "\n")
    given = {
        "nodes": " ".join(f"{node}={folder}/{node}.csv" for node in ("north", "south", "west")),
        **{"column age": "age", "rows_per_person": "2", "seed": "simulation"},
        "counts": "north=200 south=200 west=200",
    }
    found = answered(str(folder), {**given, **answers})
    assert found.start is not None, found.problem
    found.start.write(folder)
    text = (folder / "run.toml").read_text().replace("calibration = true", "# calibration")
    declared = '[evaluation]\nfile = "west.csv"\npublic = true\n' if public else ""
    text = text.replace("[privacy]\n", f"[privacy]\n{more}") + declared
    (folder / "run.toml").write_text(text)
    result = dynadp("train", folder / "run.toml", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.mark.parametrize("name", WAYS)
def test_runs_of_every_kind_are_attacked_as_what_they_are(tmp_path, name):
    answers, more, kind, question = WAYS[name]
    run = make_kind(tmp_path, answers, more)
    attacked = Attacked.of(RunView.read(run))
    names = ("mechanism", "answer", "adjacency", "histogram")
    assert tuple(attacked.given[one] for one in names) == kind
    assert attacked.asked == question
    words = Client(Replay(run)).get(f"/{TOKEN}/").text
    assert kind[1] in words
    assert question in words
    assert ("the neighbour colludes" in words) == (kind[0] == "sealed")
    assert ("Rows are there or not" in words) == (kind[2] == "add-remove")
    assert ("a histogram of scores" in words) == kind[3]
    assert ("all of them together" in words) == ("people" in name)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"no run\.json"):
        Replay(tmp_path)
