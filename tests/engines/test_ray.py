"""Nodes as actors: the same run as in one process, whatever happens to actors and hosts.

``support.clusters`` has Ray in this process. The rest is the real Ray: a cluster of this machine,
and two hosts that are two raylets."""

import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w

from dynadp import Topology
from dynadp.engines.journal import LedgerJournal
from dynadp.engines.ray.pool import cluster, map_on_cluster
from dynadp.engines.ray.spec import Checksum
from dynadp.errors import BudgetRefused, ConfigError, DataError, DeclarationError, RecordError
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.file import Ledger
from dynadp.report.explore.setting import PublicSetting
from dynadp.research.experiments import map_serially, try_plan
from dynadp.runs.cluster import ClusterRun
from dynadp.runs.folder import read_rounds
from dynadp.runs.local import LocalRun
from dynadp.runs.model import load_model
from support.clusters import (
    DUAL,
    LONG,
    NAMES,
    PLANNED,
    PRIMAL,
    SEED,
    STAMP,
    Killing,
    Pinned,
    Stop,
    make,
)
from support.typed import dynadp

# --------------------------------------------------------------------------------------------------
# runs


def run(file, out="out", *, per_actor=None, pinned=SEED, **given):
    job = replace(ClusterRun.load(file), per_actor=per_actor)
    draws = Pinned(pinned) if pinned is not None and job.file.run.seed is None else None
    return job.run(file.parent / out, who="test", created=STAMP["at"], draws=draws, **given)


def in_one_process(home, **given):
    """The same run, seeded, in one process: what pinned draws must give."""
    file = make(home, seed=SEED, **given)
    LocalRun.load(file).run(home / "out", who="test", created=STAMP["at"])
    return vector(home / "out")


def vector(folder):
    model = load_model(folder)
    return np.append(model.coef, model.intercept)


@functools.cache
def planned_by(file):
    return LocalRun.load(file).plan()


def spends(file, name):
    """{round: message} of a node's ledger, which must hold one run, closed, as it was planned."""
    planned = planned_by(file)
    with Ledger.open(file.parent / f"{name}.sqlite", read_only=True) as ledger:
        assert ledger.verify() == []
        assert ledger.spent() == [event for event in planned.events if event.node == name]
        entries = list(ledger.entries())
    assert Counter(entry.kind for entry in entries)["close"] == 1
    spent = [entry for entry in entries if entry.kind == "spend"]
    assert len({entry.run for entry in spent}) == 1
    assert sorted(entry.round for entry in spent) == list(
        range(0 if planned.centrings else 1, len(planned.release_plan.noises) + 1)
    )
    return {entry.round: entry.message for entry in spent}


def letters_of(actor, me, author):
    """The bodies of an author's messages that a node of an actor holds, by round."""
    actor._start()
    actor._ready.wait()
    post, part = actor._posts[me], actor._orders[me].part
    sums = part.plan.algorithm == "sum"
    kinds = {n: "sum" if n and sums else "message" for n in range(part.rounds + 1)}
    held = [(n, kind) for n, kind in kinds.items() if not post.missing(kind, n, [author])]
    return {n: post.values(author, kind, n).astype("<f8").tobytes() for n, kind in held}


def process_of(actor):
    return os.getpid()


def host_of(actor):
    import ray

    return ray.get_runtime_context().get_node_id()


class Sentry:
    """Sees all letters that actors hold when every node has told its last round."""

    def __init__(self, file, get):
        self.topology, self.get, self.company, self.held = (
            LocalRun.load(file).topology,
            get,
            None,
            {},
        )
        self.messages = planned_by(file).rounds + bool(planned_by(file).centrings)

    def start(self, company):
        self.company = company

    def round(self, progress):
        if progress.number == progress.rounds:
            for p, me in enumerate(self.topology.nodes):
                for author in (me, *(self.topology.nodes[j] for j in self.topology.neighbours(p))):
                    self.see(me, author)

    def see(self, me, author):
        for _ in range(10 * LONG):
            actor = self.company.actors[self.company.homes[me]]
            self.held[me, author] = self.get(actor.__ray_call__.remote(letters_of, me, author))
            if len(self.held[me, author]) == self.messages:
                return
            time.sleep(0.1)  # an actor that was started again a moment ago replays
        raise AssertionError(f"{me} does not get all letters of {author}")

    def sound(self, file):
        """What was spent is what was sent, byte for byte and one to one."""
        assert self.held
        rounds = planned_by(file).rounds  # a final release is the node's own model, and not sent
        for (me, author), letters in self.held.items():
            sent = {n: V for n, V in spends(file, author).items() if n <= rounds}
            assert letters == sent, (me, author)


# --------------------------------------------------------------------------------------------------
# Ray, pretended


CASES = {
    "dual": {"privacy": DUAL, "nodes": 4},
    "primal": {"privacy": PRIMAL, "topology": {"family": "complete"}, "output": "neighbours"},
    "centring": {"privacy": PLANNED},
    "sum": {"privacy": {"epsilon": 4.0, "delta": 1e-5}, "nodes": 4},
    "moment": {
        "privacy": {
            "mechanism": {"name": "sum", "second_moment": True},
            "epsilon": 4.0,
            "delta": 1e-5,
        },
        "topology": {"family": "star"},
    },
    "iterate": {"privacy": {**PRIMAL, "own": "paper"}},
    "by round": {"privacy": {**PRIMAL, "alpha": [0.5, 0.4, 0.3, 0.4, 0.5, 0.6]}},
    "by node": {"privacy": {**DUAL, "alpha": {"north": 0.5, "south": 0.7, "west": 0.6}}},
    "final": {
        "privacy": {**PRIMAL, "mechanism": {"name": "primal", "final_release": 0.4}},
        "output": "last",
    },
    "csr": {"privacy": DUAL, "columns": None, "output": "last"},
    "tail": {"privacy": DUAL, "output": "tail", "topology": {"family": "star"}},
}


@pytest.mark.first(6)
@pytest.mark.parametrize(
    ("case", "per_actor"), [("dual", 2), *((case, 1) for case in CASES), ("centring", None)]
)
def test_actors_run_what_one_process_runs(case, per_actor, tmp_path, pretended):
    given = CASES[case]
    expected = in_one_process(tmp_path / "one", **given)
    file = make(tmp_path / "many", **given)
    sentry, seen = Sentry(file, pretended.get), []
    result = run(
        file,
        per_actor=per_actor,
        on_start=sentry.start,
        on_round=lambda progress: (seen.append(progress), sentry.round(progress)),
    )
    np.testing.assert_allclose(vector(file.parent / "out"), expected, rtol=1e-9, atol=1e-12)
    sentry.sound(file)
    rounds = LocalRun.load(file).plan().rounds
    assert [progress.number for progress in seen] == list(range(1, rounds + 1))
    assert {progress.rounds for progress in seen} == {rounds}
    assert (result.rounds, result.protected, result.simulation) == (rounds, True, False)
    mine, theirs = (
        list(read_rounds(file.parent / "out")),
        list(read_rounds(tmp_path / "one" / "out")),
    )
    assert [(line["round"], line["node"], line["alpha"]) for line in mine] == [
        (line["round"], line["node"], line["alpha"]) for line in theirs
    ]
    for key in ("disagreement", "change"):
        np.testing.assert_allclose(
            [line[key] for line in mine], [line[key] for line in theirs], rtol=1e-6, atol=1e-9
        )


def test_a_seeded_run_is_a_simulation_and_leaves_no_messages(tmp_path, pretended):
    expected = in_one_process(tmp_path / "one")
    file = make(tmp_path / "many", seed=SEED)
    result = run(file)
    assert not result.protected
    assert result.simulation
    assert "SIMULATION" in result.statement
    np.testing.assert_allclose(vector(file.parent / "out"), expected, rtol=1e-9, atol=1e-12)
    assert sorted(path.name for path in (file.parent / "out").iterdir()) == [
        "model.json",
        "rounds.jsonl",
        "run.json",
    ]
    there = json.loads((tmp_path / "one" / "out" / "model.json").read_text())
    here_ = json.loads((file.parent / "out" / "model.json").read_text())
    assert here_["privacy"] == there["privacy"]


@pytest.mark.parametrize("pinned", [SEED, None])
def test_two_incarnations_at_once_send_one_letter_a_round(pinned, tmp_path, pretended):
    """Every actor is replaced again and again while its predecessors go on: with the system's
    entropy, all of them draw.
    """
    file = make(tmp_path, privacy=PLANNED, nodes=3)
    sentry, rng = Sentry(file, pretended.get), np.random.default_rng(3)

    def on_round(progress):
        sentry.round(progress)
        if progress.number % 2 and progress.number < progress.rounds:
            pretended.restart(str(rng.choice(list(sentry.company.actors))))

    run(file, pinned=pinned, on_start=sentry.start, on_round=on_round)
    sentry.sound(file)
    if pinned is not None:
        expected = in_one_process(tmp_path / "one", privacy=PLANNED)
        np.testing.assert_allclose(vector(tmp_path / "out"), expected, rtol=1e-9, atol=1e-12)


def test_letters_that_are_lost_are_asked_for(tmp_path, pretended):
    rng, lock = np.random.default_rng(0), threading.Lock()

    def lose(name, method):
        with lock:
            return method == "take" and rng.random() < 0.3

    pretended.lose = lose
    file = make(tmp_path, privacy=PLANNED)
    sentry = Sentry(file, pretended.get)
    run(file, on_start=sentry.start, on_round=sentry.round)
    pretended.lose = lambda name, method: False
    assert pretended.calls["ask"] > 6
    for name in NAMES[:3]:
        spends(file, name)
    np.testing.assert_allclose(
        vector(tmp_path / "out"),
        in_one_process(tmp_path / "one", privacy=PLANNED),
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.parametrize("runtime", [ClusterRun, LocalRun])
@pytest.mark.parametrize("seed", [None, SEED])
def test_a_run_that_was_stopped_goes_on_here_or_there(runtime, seed, tmp_path, pretended):
    file = make(tmp_path, seed=seed)

    def stop(progress):
        if progress.number == 3:
            raise Stop

    with pytest.raises(Stop):
        run(file, on_round=stop)
    with pytest.raises(RecordError, match="nothing is overwritten"):
        run(file)
    job = runtime.load(file)
    job.run(tmp_path / "out", resume=True, who="test", created=STAMP["at"])
    assert len(list(read_rounds(tmp_path / "out"))) == 18
    if seed is None:
        for name in NAMES[:3]:
            spends(file, name)
    else:
        np.testing.assert_allclose(
            vector(tmp_path / "out"), in_one_process(tmp_path / "one"), rtol=1e-9, atol=1e-12
        )
    with pytest.raises(ConfigError, match="finished"):
        job.run(tmp_path / "out", resume=True, who="test", created=STAMP["at"])


def test_a_cluster_does_not_go_on_with_other_rows(tmp_path, pretended):
    file = make(tmp_path, rounds=40)  # actors run ahead of the driver, but not to the end

    def stop(progress):
        if progress.number == 3:
            raise Stop

    with pytest.raises(Stop):
        run(file, on_round=stop)
    before = (tmp_path / "west.csv").read_text()
    head, first, second, *rest = before.splitlines()
    (tmp_path / "west.csv").write_text("\n".join([head, second, first, *rest]))
    with pytest.raises(DataError, match="node 'west': its rows changed since the run began"):
        ClusterRun.load(file).run(tmp_path / "out", resume=True, who="test", created=STAMP["at"])
    (tmp_path / "west.csv").write_text(before)
    ClusterRun.load(file).run(tmp_path / "out", resume=True, who="test", created=STAMP["at"])
    for name in NAMES[:3]:
        spends(file, name)
    assert not list(tmp_path.rglob("*-rows-*"))


def test_a_bad_cell_is_found_before_anything_is_reserved(tmp_path, pretended):
    file = make(tmp_path)
    rows = (tmp_path / "south.csv").read_text().splitlines()
    rows[7] = rows[7].replace(",", ",bad", 1)
    (tmp_path / "south.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError, match=r"south.*row 6") as caught:
        run(file)
    assert "bad" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    with Ledger.open(tmp_path / "south.sqlite", read_only=True) as ledger:
        assert ledger.counted() == []


def test_a_refused_budget_leaves_no_folder_and_no_reservation(tmp_path, pretended):
    file = make(tmp_path)
    with Ledger.open(tmp_path / "west.sqlite") as ledger:
        ledger.set_cap(Cap.of(0.1, 1e-5), **STAMP)
    with pytest.raises(BudgetRefused, match="do not fit"):
        run(file)
    assert not (tmp_path / "out").exists()
    for name in NAMES[:3]:
        with Ledger.open(tmp_path / f"{name}.sqlite", read_only=True) as ledger:
            assert ledger.counted() == []


def test_trouble_in_an_actor_ends_the_run_and_is_told(tmp_path, pretended):
    file = make(tmp_path)

    def gone(company):
        (tmp_path / "north.sqlite").unlink()

    with pytest.raises(Exception, match=r"no ledger at|north\.sqlite"):
        run(file, on_start=gone)


def test_what_actors_cannot_run_is_refused(tmp_path, pretended):
    file = make(tmp_path, seed=SEED)
    import tomllib

    said = tomllib.loads(file.read_text()) | {"privacy": {"mechanism": "none"}}
    said.pop("training", None)
    file.write_text(tomli_w.dumps(said))
    with pytest.raises(DeclarationError, match="Algorithm 1 runs in one process"):
        run(file)
    assert not pretended.calls


def test_rows_in_one_file_do_not_travel(tmp_path, pretended):
    file = make(tmp_path, seed=SEED)
    import tomllib

    said = tomllib.loads(file.read_text())
    rows = [(tmp_path / f"{name}.csv").read_text().splitlines() for name in NAMES[:3]]
    lines = [
        f"node,{rows[0][0]}",
        *(f"{name},{line}" for name, own in zip(NAMES, rows, strict=False) for line in own[1:]),
    ]
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    said["data"] |= {"file": "all.csv", "node_column": "node"}
    said["nodes"] = [{"name": name} for name in NAMES[:3]]
    file.write_text(tomli_w.dumps(said))
    with pytest.raises(ConfigError, match="each node has a file of its own"):
        run(file)


def test_another_version_on_a_host_is_refused(tmp_path, pretended, monkeypatch):
    file = make(tmp_path)
    monkeypatch.setattr("dynadp.engines.ray.pool.version", lambda name: "0.1.0")
    monkeypatch.setattr("dynadp.engines.ray.actor.version", lambda name: "0.2.0")
    with pytest.raises(ConfigError, match=r"has dynadp 0\.2\.0, the driver 0\.1\.0"):
        run(file)


# --------------------------------------------------------------------------------------------------
# the pieces


def test_of_two_that_enter_a_round_both_send_what_the_first_entered(tmp_path):
    """One checks and enters around the other's check: the ledger's refusal is the fence."""
    plan = [L2Laplace("north", n, "primal", 0.1, 3) for n in (1, 2)]
    with (
        Ledger.create(tmp_path / "north", "north", **STAMP) as first,
        contextlib.ExitStack() as stack,
    ):
        first.set_cap(Cap.of(10.0, 1e-5), **STAMP)
        second = stack.enter_context(Ledger.open(tmp_path / "north"))
        mine, theirs = (
            LedgerJournal({"north": one}, "run", dataset="d", who="w", resume=True)
            for one in (first, second)
        )
        mine.reserve(plan)
        theirs.reserve(plan)
        a, b = np.arange(3.0), np.ones(3)
        enter = second.spend

        def late(*given, **more):  # theirs looked and found nothing; meanwhile mine enters
            mine.spend(1, plan[:1], {"north": a})
            return enter(*given, **more)

        second.spend = late
        np.testing.assert_array_equal(theirs.spend(1, plan[:1], {"north": b})["north"], a)
        second.spend = enter
        assert first.rounds("run") == [1]
        with pytest.raises(BudgetRefused):
            theirs.spend(3, [L2Laplace("north", 3, "primal", 0.1, 3)], {"north": b})
        mine.spend(2, plan[1:], {"north": a})
        finish = second.close_run

        def closed(*given, **more):
            mine.close("finished")
            return finish(*given, **more)

        second.close_run = closed
        theirs.close("finished")
        assert second.is_closed("run")
        theirs.run = "another"
        with pytest.raises(BudgetRefused):
            theirs.close("finished")


def test_a_checksum_finds_damage():
    sum_ = Checksum()
    sum_.verify(sum_.sign(b"letter"), b"letter")
    with pytest.raises(ValueError, match="another"):
        sum_.verify(sum_.sign(b"letter"), b"lettre")


def test_addresses_are_checked_before_ray_waits_for_minutes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    for address in ("head", "ray://head:10001", "head:"):
        with pytest.raises(ConfigError, match="expected HOST:PORT"), cluster(address):
            pass
    with (
        pytest.raises(ConfigError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 "),
        cluster("127.0.0.1:1"),
    ):
        pass


def test_the_command_says_what_is_missing(tmp_path, monkeypatch):
    file = make(tmp_path)
    done = dynadp("train", file, "--address", "auto")
    assert (done.exit_code, "give --runtime ray too" in done.output) == (2, True)
    done = dynadp(
        "train", file, "--out", tmp_path / "out", "--runtime", "ray", "--address", "127.0.0.1:1"
    )
    assert (done.exit_code, "no Ray cluster answers" in done.output) == (2, True)
    monkeypatch.setitem(sys.modules, "ray", None)
    done = dynadp("train", file, "--out", tmp_path / "out", "--runtime", "ray")
    assert done.exit_code == 2
    assert "pip install 'dynadp[ray]'" in done.output


def test_an_interrupted_command_says_how_to_go_on(tmp_path, pretended, monkeypatch):
    file = make(tmp_path)

    def interrupt(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(ClusterRun, "run", interrupt)
    done = dynadp(
        "train", file, "--out", tmp_path / "out", "--runtime", "ray", "--address", "head:6379"
    )
    assert done.exit_code == 130
    assert "--runtime ray --address head:6379" in done.output
    assert "--resume" in done.output


# --------------------------------------------------------------------------------------------------
# the real Ray

# Ray leaves sockets and log files to the garbage collector, and its threads may end after a test
# has.
real = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def _ray_ends():
    before = os.environ.get("PYTHONPATH")
    here = Path(__file__).parent  # where actors find what tests send them
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parent)])
    with contextlib.ExitStack() as stack:
        yield stack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


@pytest.fixture
def ray_here(_ray_ends):
    """A cluster of this machine, which tests share."""
    _ray_ends.enter_context(cluster())  # does nothing where it is there already
    import ray

    return ray


class Fate:
    """Kills actors as rounds pass: {round: how}."""

    def __init__(self, ray, sentry, plan):
        self.ray, self.sentry, self.plan, self.done = ray, sentry, dict(plan), 0

    def __call__(self, progress):
        for n in [n for n in self.plan if n <= progress.number]:
            how = self.plan.pop(n)
            actor = list(self.sentry.company.actors.values())[
                self.done % len(self.sentry.company.actors)
            ]
            self.done += 1
            if how == "killed by Ray":
                self.ray.kill(actor, no_restart=False)
            else:
                os.kill(self.ray.get(actor.__ray_call__.remote(process_of)), signal.SIGKILL)
        self.sentry.round(progress)


@real
@pytest.mark.slow
def test_actors_that_are_killed_go_on_and_nothing_is_spent_twice(tmp_path, ray_here):
    given = {"rounds": 120}
    expected = in_one_process(tmp_path / "one", **given)
    file = make(tmp_path / "many", **given)
    sentry = Sentry(file, ray_here.get)
    fate = Fate(ray_here, sentry, {2: "killed by Ray", 20: "its process killed"})
    run(file, on_start=sentry.start, on_round=fate)
    assert fate.done == 2
    sentry.sound(file)
    np.testing.assert_allclose(vector(file.parent / "out"), expected, rtol=1e-9, atol=1e-12)


@real
@pytest.mark.slow
def test_the_command_gives_the_same_on_a_cluster(tmp_path, ray_here):
    file, told = make(tmp_path, seed=SEED), {}
    for runtime in ("local", "ray"):
        done = dynadp("train", file, "--out", tmp_path / runtime, "--runtime", runtime, "--json")
        assert done.exit_code == 0, done.output
        told[runtime] = json.loads(done.stdout) | {"folder": ""}
    assert told["ray"] == told["local"]
    np.testing.assert_allclose(
        vector(tmp_path / "ray"), vector(tmp_path / "local"), rtol=1e-9, atol=1e-12
    )


@real
@pytest.mark.slow
def test_the_trade_off_is_the_same_on_a_cluster(tmp_path, ray_here):
    file = make(tmp_path, seed=SEED)
    done = {
        runtime: dynadp(
            "tradeoff",
            file,
            "--draws",
            2,
            "--range",
            0.05,
            2,
            "--out",
            tmp_path / f"{runtime} sweep",
            "--json",
            "--runtime",
            runtime,
        )
        for runtime in ("local", "ray")
    }
    assert done["ray"].exit_code == 0, done["ray"].output
    points = [json.loads(one.stdout)["points"] for one in done.values()]
    assert points[0] == points[1]


@real
@pytest.mark.slow
def test_trials_are_the_same_on_a_cluster_and_say_why_they_fail(ray_here):
    setting = PublicSetting("small", Topology.family("ring", 3), (30,) * 3, 9, 8)
    shared = {"topology": setting.topology, "rows": setting.rows(), "draws": 3}
    plans = [setting.plan(epsilon) for epsilon in (0.5, 5.0)]
    apart, together = (
        how(try_plan, [{"planned": one} for one in plans], shared)
        for how in (map_on_cluster, map_serially)
    )
    assert apart == together
    with pytest.raises(DeclarationError, match="replicas is 0"):
        map_on_cluster(try_plan, [{"planned": plans[0]}], {**shared, "draws": 0})


@real
@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["computed", "spent", "kept", "published", "received", "noted", "closed"]
)
def test_a_process_that_dies_at_any_point_of_a_round(point, tmp_path, ray_here):
    expected = in_one_process(tmp_path / "one")
    file = make(tmp_path / "many")
    sentry = Sentry(file, ray_here.get)
    killing = Killing(tmp_path, point, 1 if point == "closed" else 3)
    run(file, on_start=sentry.start, on_round=sentry.round, checkpoint=killing)
    assert killing.mark.exists()
    sentry.sound(file)
    np.testing.assert_allclose(vector(file.parent / "out"), expected, rtol=1e-9, atol=1e-12)


@real
@pytest.mark.slow
def test_random_kills(tmp_path, ray_here):
    given = {"nodes": 5, "rounds": 60}
    expected = in_one_process(tmp_path / "one", **given)
    file = make(tmp_path / "many", **given)
    sentry, rng = Sentry(file, ray_here.get), np.random.default_rng(11)
    rounds = rng.choice(np.arange(2, 58), 10, replace=False).tolist()
    fate = Fate(
        ray_here,
        sentry,
        {n: rng.choice(["killed by Ray", "its process killed"]) for n in sorted(rounds)},
    )
    run(file, per_actor=2, on_start=sentry.start, on_round=fate)
    assert fate.done == 10
    sentry.sound(file)
    np.testing.assert_allclose(vector(file.parent / "out"), expected, rtol=1e-9, atol=1e-12)


@pytest.fixture
def two_hosts(_ray_ends):
    """A head and a worker host: two raylets of this machine."""
    import ray
    from ray.cluster_utils import Cluster

    _ray_ends.pop_all().close()
    noticed = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    hosts = Cluster(initialize_head=True, head_node_args={**small, "_system_config": noticed})
    worker = hosts.add_node(**small)
    ray.init(address=hosts.address, namespace="dynadp", log_to_driver=False)
    yield ray, hosts, worker
    ray.shutdown()
    hosts.shutdown()


@real
@pytest.mark.slow
def test_a_host_is_lost_and_its_nodes_go_on_elsewhere(tmp_path, two_hosts):
    ray, hosts, worker = two_hosts
    given = {"nodes": 4, "rounds": 300}
    expected = in_one_process(tmp_path / "one", **given)
    file = make(tmp_path / "many", **given)
    sentry, lived, entered = Sentry(file, ray.get), [], []

    def on_round(progress):
        if not lived:
            lived.append(
                [
                    ray.get(actor.__ray_call__.remote(host_of))
                    for actor in sentry.company.actors.values()
                ]
            )
            hosts.remove_node(worker, allow_graceful=False)
            for name in NAMES[:4]:
                with Ledger.open(tmp_path / "many" / f"{name}.sqlite", read_only=True) as ledger:
                    entered.append(len(ledger.spent()))
        if progress.number == progress.rounds:
            lived.append(
                [
                    ray.get(actor.__ray_call__.remote(host_of))
                    for actor in sentry.company.actors.values()
                ]
            )
        sentry.round(progress)

    run(file, on_start=sentry.start, on_round=on_round)
    assert [len(set(hosts)) for hosts in lived] == [2, 1]
    assert max(entered) < 300
    sentry.sound(file)
    np.testing.assert_allclose(vector(file.parent / "out"), expected, rtol=1e-9, atol=1e-12)


@real
@pytest.mark.slow
def test_a_whole_cluster_is_lost_and_the_run_goes_on_with_another(tmp_path):
    """The driver, and with it all of its Ray, is killed; the same command with --resume finishes at
    once.
    """
    file, out = make(tmp_path, nodes=3, rounds=200), tmp_path / "out"
    words = [
        sys.executable,
        "-m",
        "dynadp",
        "train",
        str(file),
        "--out",
        str(out),
        "--runtime",
        "ray",
    ]
    quiet = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "start_new_session": True,
    }
    with subprocess.Popen(words, **quiet) as first:
        for _ in range(10 * LONG):
            if (out / "rounds.jsonl").exists() and len(
                (out / "rounds.jsonl").read_bytes().splitlines()
            ) > 60:
                break
            assert first.poll() is None, first.stdout.read()
            time.sleep(0.1)
        first.kill()
    before = len((out / "rounds.jsonl").read_bytes().splitlines())
    done = subprocess.run(
        [*words, "--resume", "--json"], capture_output=True, text=True, timeout=5 * LONG
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 200
    assert 60 < before < 600
    assert len(list(read_rounds(out))) == 600
    sent = {name: spends(file, name) for name in NAMES[:3]}
    tail = [
        np.mean([np.frombuffer(sent[name][n], "<f8") for n in range(101, 201)], axis=0)
        for name in sent
    ]
    np.testing.assert_allclose(vector(out), np.mean(tail, axis=0), rtol=1e-9, atol=1e-12)
