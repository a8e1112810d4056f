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
from dynadp.research.bench import (
    DELTA,
    DVP,
    ETA,
    MATCHED,
    PLAIN,
    PRIVATE,
    PUBLIC,
    Algorithm,
    Bench,
    Trace,
)
from dynadp.research.flow import Flow, measure_flow
from dynadp.research.public_rows import HeldOut
from dynadp.research.recommendation import recommend
from dynadp.research.schedule_comparison import compare_schedules
from dynadp.research.tradeoff import fit_loss

NODES = 5
EARLY = 2  # the paper's other iteration
TOTAL = 1.0  # epsilon at which schedules are compared


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


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The numbers behind every figure, as tables of records.

    Attributes
    ----------
    source
        Whose rows, in words.
    settings
        The effort, and what else all runs share.
    algorithms
        (rho, C) and the stated constants of each algorithm.
    majority_error
        Share of wrong answers of always giving the commoner answer.
    plain
        Losses by round and the test error of Algorithm 1.
    flow
        Norms of one node's vectors in one round, for the paper's Figures 1 and 2.
    convergence, tradeoff, control, final, rho, margins, schedules
        What each other figure shows.
    """

    source: str
    settings: dict[str, Any]
    algorithms: dict[str, dict[str, Any]]
    majority_error: float
    plain: dict[str, Any]
    flow: dict[str, Any]
    convergence: list[dict[str, Any]]
    tradeoff: list[dict[str, Any]]
    control: dict[str, Any]
    final: list[dict[str, Any]]
    rho: list[dict[str, Any]]
    margins: list[dict[str, Any]]
    schedules: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Version 1 of numbers.json, which figures and claims are made from."""
        return {"version": 1, "simulation": True, **asdict(self)}


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
    data: Dataset, source: str, effort: Effort, on_step: Callable[[str], None] = lambda text: None
) -> Reproduction:
    """All numbers behind the figures; the same for the same effort.

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
    plain = bench.run(PLAIN, (1.0,), 1)[0]
    traces: dict[tuple[str, float], Trace] = {}
    for algorithm in PRIVATE:
        on_step(f"{algorithm.name}: {len(effort.alphas)} alphas, {effort.draws} draws each")
        for alpha, trace in zip(
            effort.alphas, bench.run(algorithm, effort.alphas, effort.draws), strict=True
        ):
            traces[algorithm.name, alpha] = trace
    shared = {"nodes": NODES, "graph": "ring", "eta": ETA, "delta": DELTA, "rows": rows}
    return Reproduction(
        source=source,
        settings={**asdict(effort), **shared},
        algorithms={
            a.name: {"rho": a.rho, "C": a.C, "stated": a.stated} for a in (PLAIN, *PRIVATE)
        },
        majority_error=held_out.majority_error,
        plain={"losses": plain.losses[:, 0].tolist(), "error": float(plain.error[0])},
        flow=_flow(bench, effort).to_json(),
        convergence=[
            {"algorithm": name, "alpha": alpha, "round": n, **quantile_band(losses)}
            for (name, alpha), trace in traces.items()
            if alpha in effort.shown
            for n, losses in enumerate(trace.losses, 1)
        ],
        tradeoff=[
            _against_alpha(a, n, traces, effort) for a in PRIVATE for n in (EARLY, effort.rounds)
        ],
        control={"algorithm": MATCHED.name, "points": _control(bench, effort, on_step)},
        final=[
            _final(name, alpha, trace, len(held_out)) for (name, alpha), trace in traces.items()
        ],
        rho=_choose_rho(replace(bench, rounds=effort.rho_rounds), effort, on_step),
        margins=_margins(effort, on_step),
        schedules=_schedules(effort, on_step),
    )


def _flow(bench: Bench, effort: Effort) -> Flow:
    """Round EARLY of DVP and PVP at the alpha of the choice of rho, and the final release."""
    dual, primal = ({"C": a.C, "rho": a.rho, "eta": ETA} for a in (DVP, PUBLIC))
    return measure_flow(
        bench.shards,
        bench.ring,
        dual,
        primal,
        rounds=EARLY,
        alpha=effort.rho_alpha,
        seed=effort.seed,
    )


def _schedules(effort: Effort, on_step: Callable[[str], None]) -> dict[str, Any]:
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


def _against_alpha(
    algorithm: Algorithm, n: int, traces: dict[tuple[str, float], Trace], effort: Effort
) -> dict[str, Any]:
    """Loss at round n against alpha, L_acc fitted to its medians, and the measured alpha with the
    best U_priv - loss.
    """
    points = [_point(alpha, traces[algorithm.name, alpha].losses[n - 1]) for alpha in effort.alphas]
    alphas, medians = np.array(effort.alphas), np.array([p["median"] for p in points])
    fit = fit_loss(alphas, medians)
    power = fit_loss(
        1 + np.log(alphas / alphas.min()), medians
    ).r2  # c4 alpha^-c5 + c6 is exponential in ln alpha
    chosen = recommend(points, fit=fit if fit.c4 >= 0 else None).to_json()
    return {
        "algorithm": algorithm.name,
        "round": n,
        "points": points,
        "fit": fit.to_json(),
        "power_r2": power,
        "recommended": chosen,
    }


def _point(alpha: float, losses: Array) -> dict[str, float]:
    deviation = float(np.std(losses, ddof=1))
    return {
        "alpha": alpha,
        **quantile_band(losses),
        "error": standard_error(losses),
        "deviation": deviation,
    }


def _control(
    bench: Bench, effort: Effort, on_step: Callable[[str], None]
) -> list[dict[str, float]]:
    """Losses of the last round with DVP's (rho, C) in place of PVP's."""
    on_step(f"{MATCHED.name}: {len(effort.alphas)} alphas, {effort.draws} draws each")
    traces = bench.run(MATCHED, effort.alphas, effort.draws, every=False, final=False)
    return [
        _point(alpha, trace.losses[-1]) for alpha, trace in zip(effort.alphas, traces, strict=True)
    ]


def _final(name: str, alpha: float, trace: Trace, tested: int) -> dict[str, Any]:
    """Cost and test error of the messages; cost and loss of the final output."""
    shares = {"error": trace.error, "network_error": trace.network_error}
    costs = {"epsilon": trace.epsilon, "final_epsilon": trace.final_epsilon}
    return {
        "algorithm": name,
        "alpha": alpha,
        **costs,
        "loss": quantile_band(trace.final),
        **{key: quantile_band(share, tested) for key, share in shares.items()},
    }


def _choose_rho(
    bench: Bench, effort: Effort, on_step: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Loss of the last messages for each rho, at the paper's alpha."""
    rows = []
    for algorithm in (PLAIN, *PRIVATE):
        on_step(f"{algorithm.name}, choice of rho at alpha = {effort.rho_alpha:g}")
        for rho in effort.rhos:
            one, draws = (
                replace(algorithm, rho=rho),
                effort.rho_draws if algorithm.mechanism else 1,
            )
            trace = bench.run(one, (effort.rho_alpha,), draws, every=False, final=False)[0]
            rows.append(
                {"algorithm": algorithm.name, "rho": rho, **quantile_band(trace.losses[-1])}
            )
    return rows


def _margins(effort: Effort, on_step: Callable[[str], None]) -> list[dict[str, Any]]:
    """Test error on made problems that a unit f0 separates with a given margin: the smaller, the
    longer f must be.
    """
    rows = []
    for margin in effort.margins:
        on_step(f"made problems with margin {margin:g}")
        rng = np.random.default_rng([effort.seed, 0x3A46])
        X, y = _separable(rng, NODES * effort.margin_rows, margin)
        test, label = _separable(rng, 5000, margin)
        parts = np.split(np.arange(len(y)), NODES)
        shards = [Shard.of(X[part], y[part], name=str(p)) for p, part in enumerate(parts)]
        bench = Bench(shards, HeldOut(test, label > 0), effort.rounds, effort.seed)
        for algorithm in (*PRIVATE, MATCHED):
            trace = bench.run(
                algorithm, (effort.rho_alpha,), effort.margin_draws, every=False, final=False
            )[0]
            rows.append(
                {
                    "algorithm": algorithm.name,
                    "margin": margin,
                    **quantile_band(trace.error, len(label)),
                }
            )
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
