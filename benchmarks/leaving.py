"""Silos as processes on loopback, of which some leave for good at random rounds and others leave
and return: what those who remain find, and what it costs them.

``python -m benchmarks.leaving [exact|noisy|sum|sealed ...]`` (some minutes each). *exact*: ADMM
whose noise is far below what is asked for, beside the optimum of the rows of those who are there in
the end. *noisy*, *sum*, *sealed*: the test error beside that of a run that never had the silos that
left. Rows are made here. The processes stop by themselves.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.network import ONE_THREAD, WORKER
from dynadp._arrays import Array
from dynadp.consensus.topology import Topology
from dynadp.data.loading import table
from dynadp.data.schema import Schema
from dynadp.engines.journal import now
from dynadp.errors import LedgerError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.planning.plans import Plan
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import prepare_trial
from dynadp.runs.local import LocalRun
from dynadp.runs.model import Model, load_model
from dynadp.runs.training import train

FEATURES, ROWS, TESTS, DRAWS, EXACT = 4, 400, 20_000, 20, 300
PACES = {"exact": 0.1, "noisy": 8.0}  # seconds; 2 for the others
WAYS = {
    "exact": 'mechanism = "primal"\nalpha = 1e7\ndelta = 1e-5',
    "noisy": 'mechanism = "primal"\nepsilon = 1.0\ndelta = 1e-5',
    "sum": 'mechanism = "sum"\nepsilon = 1.0\ndelta = 1e-5',
    "sealed": 'mechanism = "sealed"\nepsilon = 1.0\ndelta = 1e-5\n'
    "honest = {honest}\naway = {away}\nspares = {spares}",
}


def made_rows(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Numbers in [-1, 1], and which of two labels."""
    x = rng.uniform(-1, 1, (count, FEATURES))
    return x, x[:, 0] - 0.5 * x[:, 1] + rng.normal(0, 0.5, count) > 0


def write(folder: Path, way: str, names: list[str], *, patience: float | None, away: int) -> Path:
    """A run file over these silos, with their rows and ledgers, all waiting or going on."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = [f"x{i}" for i in range(FEATURES)]
    schema = {
        "columns": [{"kind": "numeric", "name": name, "low": -1, "high": 1} for name in columns],
        "label": {"name": "y", "negative": "no", "positive": "yes"},
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    honest = len(names) // 2
    privacy = WAYS[way].format(honest=honest, away=away, spares=2 * away)
    lines = [
        f'[run]\nname = "leaving"\noutput = "{"last" if way == "exact" else "network"}"',
        '[data]\nschema = "schema.json"',
        f"[privacy]\n{privacy}",
        '[topology]\nfamily = "small_world"',
    ]
    if way == "exact":
        lines.append(f"[training]\nrounds = {EXACT}\nrho = 0.5\neta = 0.2")
    if patience is not None:
        lines.append(f'[network]\non_absence = "go on"\npatience = {patience}')
    for name in names:
        rng = np.random.default_rng(int(name[1:]))
        with open(folder / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, "y"])
            writer.writerows(
                [*(f"{v:.6f}" for v in row), "yes" if label else "no"]
                for row, label in zip(*made_rows(rng, ROWS), strict=True)
            )
        with Ledger.create(folder / f"{name}.sqlite", name, who="benchmark", at=now()) as ledger:
            cap = Cap.of(1e12 if way == "exact" else 1.001, 1e-5)
            ledger.set_cap(cap, who="benchmark", at=now())
        lines.append(f'[[nodes]]\nname = "{name}"\nfile = "{name}.csv"\nledger = "{name}.sqlite"')
    (folder / "run.toml").write_text("\n".join(lines))
    return folder / "run.toml"


@dataclass
class Trial:
    """One run of processes, with those who leave.

    Attributes
    ----------
    gone, back
        Who leaves for good, and who returns; in which round each leaves, first as planned, then as
        it was.
    pace
        Seconds that all wait after a round, so that who returns finds the run.
    apart
        Whether each is lost after the others went on without the one before.
    """

    folder: Path
    files: dict[str, Path]
    gone: dict[str, int]
    back: dict[str, int]
    pace: float
    apart: bool
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def go(self, limit: float) -> None:
        """Start all; kill each in its round, or as soon after it as the others went on without the
        one before; start again who returns; wait for the others.
        """
        end, left, lost = time.monotonic() + limit, dict[str, int](), dict[str, int]()
        for name in self.files:
            self.start(name)
        due = {**self.gone, **self.back}
        try:
            while any(self.running[name].poll() is None for name in self.running):
                if time.monotonic() > end:
                    raise RuntimeError(f"not finished after {limit:g} seconds")
                time.sleep(0.2)
                for name in [name for name in due if self.rounds(name) >= due[name]]:
                    if self.apart and not all(self.went_on(*one) for one in lost.items()):
                        break  # of two in one round both are left out of one sum
                    self.running[name].kill()
                    self.running[name].wait()
                    left[name] = lost[name] = self.rounds(name)
                    (self.gone if name in self.gone else self.back)[name] = left[name]
                    print(f"{name} left in round {left[name]}", flush=True)
                    del due[name]
                for name in list(left):
                    if name in self.back and self.went_on(name, left[name]):
                        print(f"{name} returns", flush=True)
                        del left[name]
                        self.start(name)
                for name, process in self.running.items():
                    if name not in left and process.poll() not in (None, 0):
                        raise RuntimeError(
                            f"{name} ended with {process.returncode}: {self.said(name)}"
                        )
        finally:
            for process in self.running.values():
                process.kill()
                process.wait()

    def went_on(self, name: str, n: int) -> bool:
        """Whether all others that are there have released something without a silo."""
        others = [one for one in self.files if one not in self.gone and one not in self.back]
        return all(self.rounds(one) > n + 2 for one in others)

    def start(self, name: str) -> None:
        """Start a silo's process."""
        file = self.files[name]
        command = [sys.executable, str(WORKER), str(file), str(file.with_suffix(".json"))]
        with open(file.with_suffix(".out"), "ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                env={**os.environ, **ONE_THREAD, "PACE": str(self.pace)},
                stdout=log,
                stderr=log,
            )

    def said(self, name: str) -> str:
        """The last that a silo said."""
        return self.files[name].with_suffix(".out").read_text(errors="replace")[-2000:]

    def rounds(self, name: str) -> int:
        """How many releases a silo has spent."""
        try:
            with Ledger.open(self.ledger(name), read_only=True) as ledger:
                return len(ledger.spent())
        except LedgerError:  # busy
            return 0

    def ledger(self, name: str) -> Path:
        """Its ledger."""
        return self.folder / f"{name}.sqlite"


@dataclass(frozen=True)
class Found:
    """What came out of one run.

    Attributes
    ----------
    rounds, seconds
        Planned, and how long it took.
    gone, back
        Who left, and after how many releases.
    releases, spares
        What each silo was charged for, and which of it are further attempts.
    members
        How many the model was made of in the end; of all silos that did not leave for good.
    far
        Largest distance of theirs from the optimum of their rows; of *exact*.
    error, others
        Test error, and those of runs that never had the silos that left.
    """

    rounds: int
    seconds: float
    gone: dict[str, int]
    back: dict[str, int]
    releases: dict[str, int]
    spares: dict[str, int]
    members: int
    far: float | None = None
    error: float = 0.0
    others: tuple[float, ...] = ()

    def __str__(self) -> str:
        who = f"left for good {self.gone}, returned {self.back}"
        if self.far is not None:
            end = f"all others within {self.far:.1e} of the optimum of their rows"
        else:
            low, middle, high = np.quantile(self.others, (0.05, 0.5, 0.95))
            end = (
                f"members in the end {self.members}; test error {self.error:.2%}; of "
                f"{len(self.others)} runs that never had them {middle:.2%} ({low:.2%} to "
                f"{high:.2%})"
            )
        return (
            f"{len(self.releases)} silos, {self.rounds} rounds, {self.seconds:.0f} s; {who}; {end};"
            f" releases {self.releases}; spare attempts {self.spares}"
        )


def trial(
    way: str,
    nodes: int,
    gone: int,
    back: int,
    seed: int,
    patience: float,
    pace: float | None = None,
) -> Found:
    """One run, checked."""
    rng, names = random.Random(seed), [f"n{p}" for p in range(nodes)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = write(folder, way, names, patience=patience, away=gone + back)
        job = LocalRun.load(file)
        plan = job.plan()
        assert plan is not None
        who = leavers(rng, job.topology, gone, back)
        when = sorted(rng.sample(range(2, max(plan.rounds // 2, gone + back + 3)), gone + back))
        rng.shuffle(when)
        due = dict(zip(who, when, strict=True))
        paths = prepare_trial(str(file), folder / "net", patience)
        made = Trial(
            folder,
            {path.stem: path for path in paths},
            {name: due[name] for name in who[:gone]},
            {name: due[name] for name in who[gone:]},
            PACES.get(way, 2.0) if pace is None else pace,
            way != "noisy",  # ADMM has few rounds then; each edge is given up by itself
        )
        began = time.monotonic()
        made.go(3600.0)
        took = time.monotonic() - began
        rest = [name for name in names if name not in made.gone]
        late = [
            name for name in rest if not (made.files[name].with_suffix("") / "model.json").exists()
        ]
        if late:
            raise RuntimeError(f"{', '.join(late)} left too late to return; take another seed")
        models = {name: load_model(made.files[name].with_suffix("")) for name in rest}
        members = models[rest[0]].members or tuple(names)
        releases = {name: made.rounds(name) for name in names}
        for name in names:
            with Ledger.open(made.ledger(name), read_only=True) as ledger:
                assert not ledger.verify(), name
        spares = {name: spare_attempts(made.ledger(name)) for name in rest}
        given = plan.rounds, took, made.gone, made.back, releases, spares, len(members)
        if way == "exact":
            best = optimum(plan, job.schema, [folder / f"{name}.csv" for name in rest])
            far = max(float(np.abs(weights(model) - best).max()) for model in models.values())
            return Found(*given, far)
        assert len({weights(model).tobytes() for model in models.values()}) == 1, "one model"
        never = write(folder / "never", way, rest, patience=None, away=0)
        return Found(*given, None, *beside(never, models[rest[0]]))


def weights(model: Model) -> Array:
    """All that a model holds."""
    return np.append(model.coef, model.intercept)


def optimum(plan: Plan, schema: Schema, files: list[Path]) -> Array:
    """The minimum over all rows of these files, by Newton's method."""
    A = np.vstack([schema.shard(table(schema, file)).signed.toarray() for file in files])
    loss, regularizer, n = plan.settings.loss, plan.settings.regularizer, len(files)
    rho, C = n * float(plan.settings.rho), float(plan.settings.C) / ROWS  # rows are as many
    f = np.zeros(A.shape[1])
    for _ in range(50):
        z = A @ f
        gradient = C * A.T @ loss.slope(z) + rho * regularizer.gradient(f)
        curvature = C * (A.T * loss.curvature(z)) @ A + np.diag(rho * regularizer.curvature(f))
        f = f - np.linalg.solve(curvature, gradient)
        if np.abs(gradient).max() < 1e-12 * n:
            return f
    raise RuntimeError("Newton's method did not converge")


def leavers(rng: random.Random, topology: Topology, gone: int, back: int) -> list[str]:
    """Draw who leaves, so that the others stay connected, and more than half of the neighbours of
    those who return are there (they grant the lease).
    """
    while True:
        names = rng.sample(topology.nodes, gone + back)
        left = {topology.nodes.index(name) for name in names}
        near = {p: topology.neighbours(p) for p in range(len(topology))}
        enough = all(
            2 * sum(j not in left for j in near[topology.nodes.index(name)])
            > len(near[topology.nodes.index(name)])
            for name in names[gone:]
        )
        here, seen = [p for p in range(len(topology)) if p not in left], set[int]()
        todo = here[:1]
        while todo:
            p = todo.pop()
            if p not in seen:
                seen.add(p)
                todo += [j for j in near[p] if j not in left]
        if enough and len(seen) == len(here):
            return list(names)


def spare_attempts(path: Path) -> int:
    """How many further attempts a silo was charged for."""
    with Ledger.open(path, read_only=True) as ledger:
        return sum(event.purpose == "spare" for event in ledger.spent())


def beside(never: Path, found: Model) -> tuple[float, tuple[float, ...]]:
    """Test error of a model, and those of runs that never had the silos that left."""
    job = LocalRun.load(never)
    plan = job.plan()
    x, labels = made_rows(np.random.default_rng(10**6), TESTS)
    rows = {f"x{i}": x[:, i] for i in range(FEATURES)}

    def error(model: Model) -> float:
        return float(np.mean((model.predict(rows) == "yes") != labels))

    errors = [
        error(train(job.schema, job.rows, job.topology, plan, draws=SeededEntropy(k)).model())
        for k in range(DRAWS)
    ]
    return error(found), tuple(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--gone", type=int, default=3)
    parser.add_argument("--back", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=20.0)
    given = parser.parse_args()
    for way in given.ways:
        counts = given.nodes, given.gone, given.back
        found = trial(way, *counts, given.seed, given.patience)
        print(f"{way}: {found}", flush=True)


if __name__ == "__main__":
    main()
