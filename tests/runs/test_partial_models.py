"""What a run released before it was stopped becomes a model, and costs nothing more."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from dynadp.data.datasets.synthetic import census
from dynadp.engines.journal import now
from dynadp.errors import RecordError
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.folder import load_run
from dynadp.runs.local import LocalRun
from dynadp.runs.model import load_model
from dynadp.runs.partial import partial_model, plan_of
from support.run_files import settle
from support.typed import dynadp

MECHANISMS = ['"sum"', '{ name = "sum", second_moment = true }', '"sealed"\nhonest = 2', '"primal"']


class Enough(Exception):
    pass


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settle(census(600, seed=4, nodes=3))
    assert dynadp("ledger cap --run run.toml --epsilon 2 --delta 1e-5").exit_code == 0
    return tmp_path


def declare(mechanism):
    text = Path("run.toml").read_text()
    text = text.replace('# mechanism = "sum"', f"mechanism = {mechanism}")
    Path("run.toml").write_text(text)


def train(out, rounds=None, **overrides):
    """Train, and stop after some rounds."""

    def noted(entry):
        if entry.number == rounds:
            raise Enough

    with contextlib.suppress(Enough):
        LocalRun.load("run.toml", overrides).run(Path(out), who="me", created=now(), on_round=noted)


def vector(model):
    return np.append(model.coef, model.intercept)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=["sum", "moment", "sealed", "primal"])
def test_of_a_whole_run_it_is_the_models_own_mean(place, mechanism):
    declare(mechanism)
    train("out")
    whole, part = load_model("out"), partial_model("out")
    assert vector(part) == pytest.approx(vector(whole), rel=1e-9, abs=1e-9)
    assert part.partial["rounds"] == part.partial["planned"] == load_run("out").planned.rounds
    assert part.schema == whole.schema  # with its private centre
    assert whole.partial is None
    if whole.mechanism == "primal":  # which rounds of whom are averaged is not what was planned
        assert whole.noise is not None
        assert part.noise is None
    else:
        np.testing.assert_allclose(part.noise.coef_se, whole.noise.coef_se)
        assert part.noise.basis == whole.noise.basis
    assert "partial" not in json.loads(Path("out/model.json").read_text())


def test_the_plan_of_a_record_is_the_plan(place):
    train("out", 1)
    record = load_run("out")
    made = plan_of(record).to_json()
    expected = {**record.plan, "epsilon": [], "reasons": []}
    assert {**made, "epsilon": [], "reasons": []} == expected


@pytest.mark.parametrize("mechanism", MECHANISMS[:2], ids=["sum", "moment"])
def test_a_node_that_sends_nothing_is_no_hindrance(place, mechanism):
    declare(mechanism)
    few = Path("south.csv").read_text().splitlines()[:4]
    Path("south.csv").write_text("\n".join(few) + "\n")
    train("out")
    assert not any(load_run("out").planned.alphas["south"])
    whole, part = load_model("out"), partial_model("out")
    assert vector(part) == pytest.approx(vector(whole), rel=1e-9, abs=1e-9)
    assert part.partial["members"] == ["north", "west"]
    np.testing.assert_allclose(part.noise.coef_se, whole.noise.coef_se)


@pytest.mark.parametrize("mechanism", ['"sum"', '"primal"'])
def test_a_run_that_was_stopped_leaves_a_model_and_can_go_on(place, mechanism):
    declare(mechanism)
    train("out", 5)
    before = {node: Path(f"{node}.sqlite").read_bytes() for node in ("north", "south", "west")}
    done = dynadp("model out --json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["rounds"], found["planned"], found["members"]) == (5, 20, sorted(before))
    model = load_model("out/partial-model.json")
    assert model.partial == {name: found[name] for name in ("rounds", "planned", "members")}
    assert np.isfinite(vector(model)).all()
    assert {node: Path(f"{node}.sqlite").read_bytes() for node in before} == before
    assert "A model of 5 of 20 rounds" in dynadp("model out").output
    assert dynadp("predict out/partial-model.json north.csv").exit_code == 0
    assert dynadp("train run.toml --out out --resume").exit_code == 0


def test_the_mean_is_over_the_last_half_of_what_was_released(place):
    declare('"primal"')
    train("out", 4)
    run = load_run("out").run_id
    messages = []
    for node in ("north", "south", "west"):
        with Ledger.open(f"{node}.sqlite", read_only=True) as ledger:
            messages += [np.frombuffer(ledger.message(run, n)) for n in (3, 4)]
    assert vector(partial_model("out")) == pytest.approx(np.mean(messages, axis=0))


def test_a_seeded_run_has_its_messages_in_its_folder(place):
    train("out", 3, **{"run.seed": 3})
    made = partial_model("out")
    assert made.partial["rounds"] == 3
    assert not made.privacy["protected"]


def test_without_a_round_or_its_ledgers_there_is_no_model(place):
    train("out", 2)
    Path("elsewhere").mkdir()
    Path("south.sqlite").rename("elsewhere/south.sqlite")
    with pytest.raises(RecordError, match="no ledger with this run was found for south"):
        partial_model("out")
    assert partial_model("out", ["elsewhere/south.sqlite"]).partial["rounds"] == 2
