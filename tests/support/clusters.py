"""Runs for a cluster, and ``Pretended``: Ray in this process. Calls are threads, and a killed
actor's threads live on as those of a host that was given up for lost too early.
"""

import contextlib
import csv
import os
import pickle
import signal
import sys
import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import tomli_w

from dynadp.data.datasets.synthetic import census, census_schema
from dynadp.data.schema import Schema
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger

NAMES = ("north", "south", "west", "east", "centre")
SMALL = ("age", "schooling", "hours", "sex", "status")
SEED, LONG = 7, 120
STAMP = {"who": "test", "at": "2026-03-01T12:00:00+00:00"}
DUAL = {"mechanism": "dual", "alpha": 0.5, "delta": 1e-5}
PRIMAL = {"mechanism": "primal", "alpha": 0.5, "delta": 1e-5}
PLANNED = {"mechanism": "primal", "epsilon": 4.0, "delta": 1e-5}
TRAINING = {"rounds": 6, "rho": 1e-3, "eta": 0.05}


class Pinned(SeededEntropy):
    """Draws that can be had again, for ledgers that refuse seeded ones."""

    seeded = False


class Killing:
    """Ends its process at the K-th passing of a point, once in all."""

    def __init__(self, folder, point, k):
        self.mark, self.point, self.k, self.passed = (
            Path(folder) / f"killed at {point}",
            point,
            k,
            Counter(),
        )

    def __call__(self, point):
        self.passed[point] += 1
        if point == self.point and self.passed[point] == self.k:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


def make(
    home,
    *,
    nodes=3,
    rows=120,
    columns=SMALL,
    topology=None,
    privacy=DUAL,
    seed=None,
    rounds=6,
    output="network",
):
    """A run file with its rows, and ledgers unless it is seeded."""
    home.mkdir(parents=True, exist_ok=True)
    names = NAMES[:nodes]
    data = census(rows * nodes, seed=4, nodes=nodes, heterogeneity=0.4, test_rows=0)
    chosen = tuple(
        column for column in census_schema().columns if columns is None or column.name in columns
    )
    (home / "schema.json").write_text(
        Schema(columns=chosen, label=data.schema.label, norm=2.0).model_dump_json()
    )
    for name, table in data.tables(names).items():
        own = {column: cells.tolist() for column, cells in table.items()}
        with open(home / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(own)
            writer.writerows(zip(*own.values(), strict=True))
        if seed is None:
            with Ledger.create(home / f"{name}.sqlite", name, **STAMP) as ledger:
                ledger.set_cap(Cap.of(100.0, 1e-5), **STAMP)
    said = {
        "run": {"name": "trial", "output": output, **({} if seed is None else {"seed": seed})},
        "data": {"schema": "schema.json"},
        "nodes": [
            {"name": n, "file": f"{n}.csv", **({"ledger": f"{n}.sqlite"} if seed is None else {})}
            for n in names
        ],
        "topology": topology or {"family": "ring"},
        "privacy": privacy,
        **({"training": {**TRAINING, "rounds": rounds}} if "alpha" in privacy else {}),
    }
    (home / "run.toml").write_text(tomli_w.dumps(said))
    return home / "run.toml"


class Pretended:
    """Ray's calls in this process; what is pickled there is pickled here."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayActorError(RayError):
            pass

        class RayTaskError(RayError):
            pass

    cloudpickle = pickle

    def __init__(self, cores=1):
        self.pool, self.named, self.made, self.cores, self.objects = (
            ThreadPoolExecutor(64),
            {},
            {},
            cores,
            {},
        )
        self.calls, self.lose = Counter(), lambda name, method: False
        self.pending, self.crews, self.lock = [], {}, threading.RLock()

    def cluster_resources(self):
        return {"CPU": float(self.cores)}

    def is_initialized(self):
        return True

    def put(self, value):
        self.objects[len(self.objects)] = value
        return len(self.objects) - 1

    def get(self, ref):
        if isinstance(ref, int):
            return self.objects[ref]
        return [one.result(LONG) for one in ref] if isinstance(ref, list) else ref.result(LONG)

    def wait(self, refs, num_returns=1, timeout=None):
        done, left = wait(refs, timeout, FIRST_COMPLETED if num_returns == 1 else "ALL_COMPLETED")
        return list(done), list(left)

    def kill(self, actor):
        with self.lock:
            self.named.pop(actor.name, None)
            ended = self.crews.pop(actor.name)
        for crew in ended:
            crew._fail(SystemExit())  # the next time it looks
            crew._thread and crew._thread.join(LONG)

    def get_actor(self, name, namespace):
        return self.handle(name)

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "here")

    def remote(self, kind):
        def task(**given):
            return self.pool.submit(kind, **self.fetched(given))

        def options(name=None, **_):
            def start(*given):
                self.made[name] = lambda: kind(*pickle.loads(pickle.dumps(given)))
                self.restart(name)
                return self.handle(name)

            return SimpleNamespace(remote=start if name else task)

        return SimpleNamespace(options=options, remote=task)

    def fetched(self, given):
        return {n: self.objects[v] if isinstance(v, int) else v for n, v in given.items()}

    def restart(self, name):
        """A new incarnation, which gets the calls that are open; the old one's threads go on."""
        fresh = self.made[name]()
        with self.lock:
            self.named[name] = fresh
            self.crews.setdefault(name, []).append(fresh)
            for to, method, given, answer in self.pending:
                if to == name:
                    self.pool.submit(self.attempt, fresh, to, method, given, answer)

    def handle(self, name):
        class Handle:
            def __getattr__(handle, method):
                return SimpleNamespace(remote=lambda *given: self.call(name, method, given))

        handle = Handle()
        handle.__dict__["name"] = name
        return handle

    def call(self, name, method, given):
        self.calls[method] += 1
        answer, given = Future(), pickle.loads(pickle.dumps(given))
        with self.lock:
            actor = self.named.get(name)
            if actor is None or self.lose(name, method):
                answer.set_result(None)
                return answer
            self.pending = [one for one in self.pending if not one[-1].done()]
            self.pending.append((name, method, given, answer))
            self.pool.submit(self.attempt, actor, name, method, given, answer)
        return answer

    def attempt(self, actor, name, method, given, answer):
        try:
            if method == "__ray_call__":  # which every actor of Ray has
                function, *given = given
                answered = function(actor, *given)
            else:
                answered = getattr(actor, method)(*given)
            result, error = pickle.loads(pickle.dumps(answered)), None
        except BaseException as raised:
            result, error = None, raised
        with self.lock:
            if self.named.get(name) is actor and not answer.done():
                answer.set_result(result) if error is None else answer.set_exception(error)


@contextlib.contextmanager
def pretend(monkeypatch):
    """Ray's place is taken, and nobody waits for long."""
    made = Pretended()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setattr("dynadp.engines.ray.actor._AGAIN", 0.05)
    monkeypatch.setattr("dynadp.engines.ray.actor._RARELY", 0.2)
    monkeypatch.setattr("dynadp.engines.ray.actor._DWELL", 0.01)
    yield made
    made.pool.shutdown(wait=False, cancel_futures=True)


class Stop(Exception):
    """Somebody stops the driver."""
