"""The paper's experiments on Adult, as numbers: convergence, loss against alpha, final outputs,
choice of rho (maths.md 11).

Everything is a seeded SIMULATION on published or made rows, so losses may be shown. The paper names
no number of nodes, no graph and no eta: a ring of five with eta = 1 is ours. A loss is a mean over
rows (the paper's divided by C): that of a node's message on its own rows, averaged over nodes. A
draw is one seed of the noise; the split of the rows stays.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp._intervals import quantile_band, standard_error
from dynadp.consensus import Topology
from dynadp.data import Dataset, Shard, adult, census, partition
from dynadp.errors import DatasetError
from dynadp.research.bench import DELTA, ETA, MATCHED, PLAIN, PRIVATE, Bench, Trace
from dynadp.research.experiments import compare_schedules
from dynadp.research.public_rows import HeldOut
from dynadp.research.recommendation import recommend
from dynadp.research.tradeoff import fit_loss

NODES = 5
EARLY = 2  # the paper's other iteration
TOTAL = 1.0  # epsilon at which schedules are compared

OnStep = Callable[[str], None]
Traces = dict[str, dict[float, Trace]]  # algorithm -> alpha -> trace


@dataclass(frozen=True)
class Effort:
    """How much to run.

    Attributes
    ----------
    draws, rounds, seed
        Seeds of the noise for each point, rounds of each run, and the first seed.
    shown
        alphas of the convergence figure, among ``alphas``.
    alphas
        Of the curves against alpha.
    rhos, rho_alpha, rho_draws, rho_rounds
        Among which rho is chosen, at which alpha, with how many draws and rounds.
    margins, margin_rows, margin_draws
        Of the made problems: least ``|f0 . x|`` of unit f0, rows a node, draws.
    census_rows, schedule_draws
        For the comparison of schedules.
    """

    draws: int = 50
    rounds: int = 100
    seed: int = 0
    shown: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)
    alphas: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
    rhos: tuple[float, ...] = (1e-10, 1e-6, 1e-4, 10**-2.5, 1e-2, 1e-1, 1.0, 10.0, 100.0)
    rho_alpha: float = 0.3
    rho_draws: int = 10
    rho_rounds: int = 100
    margins: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.4)
    margin_rows: int = 6000
    margin_draws: int = 20
    census_rows: int = 20_000
    schedule_draws: int = 50


FULL = Effort()
QUICK = Effort(
    draws=3,
    alphas=(0.01, 0.05, 0.1, 0.5, 1.0),
    rhos=(1e-10, 10**-2.5, 1e-1, 10.0),
    rho_draws=2,
    rho_rounds=20,
    margins=(0.02, 0.1, 0.4),
    margin_rows=2000,
    margin_draws=3,
    census_rows=10_000,
    schedule_draws=12,
)


def load(data: str | None, effort: Effort) -> tuple[Dataset, str]:
    """Load Adult, or make census rows where there is none; and the label of every figure."""
    try:
        rows = adult(data)
        return rows, f"UCI Adult, {len(rows.train['age']):,} published rows"
    except DatasetError:
        if data is not None:
            raise
        rows = census(effort.census_rows, seed=effort.seed, nodes=NODES)
        source = f"census rows made here, {effort.census_rows:,} (synthetic; no UCI Adult at hand)"
        return rows, source


def reproduce(
    data: Dataset, source: str, effort: Effort, on_step: OnStep = lambda text: None
) -> dict[str, Any]:
    """The numbers behind every figure and claim, version 1 of numbers.json; the same for the same
    effort.

    Parameters
    ----------
    data, source
        Published or made rows, and what to call them.
    effort
        How much to run.
    on_step
        Called with each step in words.
    """
    rows = len(next(iter(data.train.values())))
    shards = data.shards(partition(rows, NODES, seed=effort.seed))
    held_out = HeldOut.of(data.schema, data.test)
    bench = Bench(shards, held_out, effort.rounds, effort.seed)
    on_step("Algorithm 1")
    plain = bench.run(PLAIN, (1.0,), 1)[1.0]
    traces: Traces = {}
    for algorithm in PRIVATE:
        on_step(f"{algorithm.name}: {len(effort.alphas)} alphas, {effort.draws} draws each")
        traces[algorithm.name] = bench.run(algorithm, effort.alphas, effort.draws)
    shared = {"nodes": NODES, "graph": "ring", "eta": ETA, "delta": DELTA, "rows": rows}
    return {
        "version": 1,
        "simulation": True,
        "source": source,
        "settings": {**asdict(effort), **shared},
        "algorithms": {
            a.name: {"rho": a.rho, "C": a.C, "stated": a.stated} for a in (PLAIN, *PRIVATE)
        },
        "majority_error": held_out.majority_error,
        "plain": {"losses": plain.losses[:, 0].tolist(), "error": float(plain.error[0])},
        "flow": bench.measure_flow(EARLY, effort.rho_alpha),
        "convergence": [
            {"algorithm": name, "alpha": alpha, "round": n, **quantile_band(losses)}
            for name, own in traces.items()
            for alpha in effort.shown
            for n, losses in enumerate(own[alpha].losses, 1)
        ],
        "tradeoff": [
            _against_alpha(name, n, own)
            for name, own in traces.items()
            for n in (EARLY, effort.rounds)
        ],
        "control": {"algorithm": MATCHED.name, "points": _control(bench, effort, on_step)},
        "final": [
            _final(name, alpha, trace, len(held_out))
            for name, own in traces.items()
            for alpha, trace in own.items()
        ],
        "rho": _choose_rho(replace(bench, rounds=effort.rho_rounds), effort, on_step),
        "margins": _margins(effort, on_step),
        "schedules": _schedules(effort, on_step),
    }


def _schedules(effort: Effort, on_step: OnStep) -> dict[str, Any]:
    """Schedules of alpha at one total, on census rows."""
    on_step("schedules")
    made = census(effort.census_rows, seed=effort.seed, nodes=NODES)
    ring = Topology.family("ring", NODES)
    return {
        "source": f"census rows made here, {effort.census_rows:,} (synthetic)",
        "epsilon": TOTAL,
        "delta": DELTA,
        "rows": compare_schedules(made, ring, TOTAL, DELTA, effort.schedule_draws, effort.seed),
    }


def _against_alpha(algorithm: str, n: int, traces: dict[float, Trace]) -> dict[str, Any]:
    """Loss at round n against alpha, L_acc fitted to its medians, and the measured alpha with the
    best U_priv - loss.
    """
    points = [_point(alpha, trace.losses[n - 1]) for alpha, trace in traces.items()]
    alphas, medians = np.array(list(traces)), [point["median"] for point in points]
    fit = fit_loss(alphas, medians)
    # c4 alpha^-c5 + c6 is exponential in ln alpha
    power = fit_loss(1 + np.log(alphas / alphas.min()), medians)
    return {
        "algorithm": algorithm,
        "round": n,
        "points": points,
        "fit": fit.to_json(),
        "power_r2": power.r2,
        "recommended": recommend(points, fit=fit if fit.c4 >= 0 else None).to_json(),
    }


def _point(alpha: float, losses: Array) -> dict[str, float]:
    return {
        "alpha": alpha,
        **quantile_band(losses),
        "error": standard_error(losses),
        "deviation": float(np.std(losses, ddof=1)),
    }


def _control(bench: Bench, effort: Effort, on_step: OnStep) -> list[dict[str, float]]:
    """Losses of the last round with DVP's (rho, C) in place of PVP's."""
    on_step(f"{MATCHED.name}: {len(effort.alphas)} alphas, {effort.draws} draws each")
    traces = bench.run(MATCHED, effort.alphas, effort.draws, short=True)
    return [_point(alpha, trace.losses[-1]) for alpha, trace in traces.items()]


def _final(name: str, alpha: float, trace: Trace, tested: int) -> dict[str, Any]:
    """Cost and test error of the messages; cost and loss of the final output."""
    return {
        "algorithm": name,
        "alpha": alpha,
        "epsilon": trace.epsilon,
        "final_epsilon": trace.final_epsilon,
        "loss": quantile_band(trace.final),
        "error": quantile_band(trace.error, tested),
        "network_error": quantile_band(trace.network_error, tested),
    }


def _choose_rho(bench: Bench, effort: Effort, on_step: OnStep) -> list[dict[str, Any]]:
    """Loss of the last messages for each rho, at the paper's alpha."""
    rows = []
    for algorithm in (PLAIN, *PRIVATE):
        on_step(f"{algorithm.name}, choice of rho at alpha = {effort.rho_alpha:g}")
        alpha, draws = effort.rho_alpha, effort.rho_draws if algorithm.mechanism else 1
        for rho in effort.rhos:
            one = replace(algorithm, rho=rho)
            trace = bench.run(one, (alpha,), draws, short=True)[alpha]
            rows.append({"algorithm": one.name, "rho": rho, **quantile_band(trace.losses[-1])})
    return rows


def _margins(effort: Effort, on_step: OnStep) -> list[dict[str, Any]]:
    """Test error on made problems that a unit f0 separates with a given margin: the smaller, the
    longer f must be.
    """
    alpha, rows = effort.rho_alpha, []
    for margin in effort.margins:
        on_step(f"made problems with margin {margin:g}")
        rng = np.random.default_rng([effort.seed, 0x3A46])
        X, y = _separable(rng, NODES * effort.margin_rows, margin)
        test, label = _separable(rng, 5000, margin)
        parts = np.split(np.arange(len(y)), NODES)
        shards = [Shard.of(X[part], y[part], name=str(p)) for p, part in enumerate(parts)]
        bench = Bench(shards, HeldOut(test, label > 0), effort.rounds, effort.seed)
        for algorithm in (*PRIVATE, MATCHED):
            trace = bench.run(algorithm, (alpha,), effort.margin_draws, short=True)[alpha]
            error = quantile_band(trace.error, len(label))
            rows.append({"algorithm": algorithm.name, "margin": margin, **error})
    return rows


def _separable(
    rng: np.random.Generator, rows: int, margin: float, dimension: int = 20
) -> tuple[Array, Array]:
    """Unit rows with |x_1| uniform in [margin, 2 margin] and label sign x_1; the rest of the row is
    uniform on its sphere.
    """
    y = rng.choice([-1.0, 1.0], rows)
    first = y * margin * rng.uniform(1, 2, rows)
    rest = rng.normal(size=(rows, dimension - 1))
    rest *= (np.sqrt(1 - first**2) / np.linalg.norm(rest, axis=1))[:, None]
    return np.column_stack([first, rest]), y
