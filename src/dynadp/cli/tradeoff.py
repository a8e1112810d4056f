"""``dynadp design`` and ``dynadp tradeoff``: which alpha, from a loss curve and a utility of privacy."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.sparse import csr_array

from dynadp.cli.cluster import spreading
from dynadp.data import Shard
from dynadp.datasets import census
from dynadp.errors import DeclarationError
from dynadp.jobs import Job
from dynadp.planner import Plan, planning, spending
from dynadp.privacy.accountant import Total, network, total, up
from dynadp.privacy.calibration import primal
from dynadp.record import RunFolder, write_whole
from dynadp.sources import shard
from dynadp.sweeps import band, sweep
from dynadp.tradeoff import RANGE, AccuracyLoss, Design, PrivacyUtility, design, fit_loss

POINTS, DRAWS = 9, 12  # of a sweep: alphas, and draws of the noise for each


def run_design(
    loss_fit: tuple[float, float, float],
    utility: tuple[float, float, float, float],
    limits: tuple[float, float] = RANGE,
    ceiling: float | None = None,
    floor: float | None = None,
    releases: tuple[int, int, float] | None = None,
    as_json: bool = False,
) -> None:
    """Print the alpha that maximises U_priv - L_acc.

    Parameters
    ----------
    loss_fit, utility
        (c4, c5, c6) and (w1, w2, w3, w4).
    limits, ceiling, floor
        Range of alpha, largest loss, least utility.
    releases
        Rounds, dimension and delta of primal perturbation, to be told what the chosen alpha costs in total.
    as_json
        Print JSON.
    """
    found = design(AccuracyLoss(*loss_fit), PrivacyUtility(*utility), *limits, ceiling, floor)
    cost = None if releases is None else total(primal(found.alpha, releases[1], releases[0]), releases[2])
    if as_json:
        click.echo(json.dumps({"version": 1, **found.to_json(), "total": cost.to_json() if cost else None}, indent=1))
        return
    click.echo(f"alpha = {found.alpha:.4g}" + (" (an interior maximum)" if found.interior else " (an end of the range)"))
    for reason in found.reasons:
        click.echo(f"  - {reason}")
    if cost and releases:
        click.echo(f"{releases[0]} rounds cost epsilon = {up(cost.epsilon)} at delta = {cost.delta:g} in total: {cost.odds}.")


def run_tradeoff(
    run_file: str,
    out: str | None = None,
    as_json: bool = False,
    utility: tuple[float, float, float, float] = (0.02, 6.0, 9.0, 1.0),
    limits: tuple[float, float] = RANGE,
    ceiling: float | None = None,
    floor: float | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    runtime: str = "local",
    address: str | None = None,
) -> None:
    """Sweep alpha on public rows of the run file's sizes, draw the curve and recommend an alpha with its total.

    Parameters
    ----------
    run_file
        Whose rows' numbers, graph, mechanism and penalty are used; not one private cell is.
    out
        Folder to make; ``NAME-tradeoff`` by default. Must not hold anything.
    as_json
        Print JSON.
    utility, limits, ceiling, floor
        As for :func:`run_design`.
    draws, seed
        How many draws for each alpha, and their seed.
    runtime, address
        ``local`` or ``ray``, and the address of a Ray cluster that does the sweep.
    """
    from dynadp.report import charts, paper

    charts.require()
    job = Job.load(run_file, spending=False)
    planned, delta = job.plan(), job.file.privacy.delta
    if planned is None or delta is None:
        raise DeclarationError(f"{run_file} protects nothing, so there is no alpha to choose; set privacy.mechanism")
    folder = Path(out or f"{job.file.run.name}-tradeoff")
    RunFolder.require_empty(folder)
    shards, source = _rows(job, seed)
    alphas = np.geomspace(*limits, POINTS).tolist()
    with spreading(runtime, address) as spread:
        losses = sweep(
            shards, job.topology, alphas, draws, seed, mechanism=planned.mechanism, loss=planned.loss, C=planned.C,
            rho=planned.rho, eta=planned.eta, rounds=planned.rounds, output=planned.output, spread=spread,
        )  # fmt: skip
    points = [{"alpha": alpha, **band(row)} for alpha, row in zip(alphas, losses, strict=True)]
    medians = np.array([point["median"] for point in points])
    spreads = np.array([point["high"] - point["low"] for point in points])  # small alphas say little: weigh them by that
    fit, w = fit_loss(alphas, medians, np.maximum(spreads, 1e-3 * medians)), PrivacyUtility(*utility)
    found = design(fit, w, *limits, ceiling, floor)
    cost = _cost(job, planned, found.alpha, delta)
    result: dict[str, Any] = {
        "version": 1, "simulation": True, "source": source, "alpha": found.alpha, "epsilon": cost.epsilon, "delta": delta,
        "rounds": planned.rounds, "words": _words(planned, source, fit, found, cost, draws), "points": points,
        "fit": fit.to_json(), "design": found.to_json(),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "tradeoff.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    said = [
        f"data: {source}",
        f"SIMULATION, seed {seed}: {job.topology.name}, {planned.rounds} rounds, {draws} draws, 10 to 90%",
    ]
    pictures = paper.save(paper.curve(points, fit, w, found.alpha, said), folder / "tradeoff")
    result |= {"folder": str(folder), "pictures": [str(path) for path in pictures]}
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    click.echo(f"alpha = {found.alpha:.4g} a round: epsilon = {up(cost.epsilon)} at delta = {delta:g} in total")
    for words in result["words"]:
        click.echo(f"  - {words}")
    click.echo(f"Picture: {pictures[0]}")


def _rows(job: Job, seed: int) -> tuple[list[Shard], str]:
    """As many public rows at each node as the run has: the run file's public ones, drawn again and again, or census rows."""
    nodes, counts = job.topology.nodes, [job.counts[p] for p in job.topology.nodes]
    rng = np.random.default_rng([seed, 0x7AD0])
    if job.file.evaluation is not None:
        public = shard(job.schema, job.path.parent / job.file.evaluation.file, "public")
        picks = [rng.integers(public.rows, size=count) for count in counts]
        made = [Shard(public.signed[pick], public.y[pick], p) for p, pick in zip(nodes, picks, strict=True)]
        return made, f"{job.file.evaluation.file} (public), drawn with replacement to the nodes' sizes"
    data = census(sum(counts), seed=seed, nodes=1, test_rows=0)
    wanted, cuts = job.schema.dimension, np.cumsum(counts)[:-1]
    made = data.shards(np.split(rng.permutation(sum(counts)), cuts), nodes)
    more = wanted - made[0].dimension
    if more > 0:  # noise in d dimensions, as the run has it
        made = [
            Shard(csr_array((s.signed.data, s.signed.indices, s.signed.indptr), (s.rows, wanted)), s.y, s.name) for s in made
        ]
    said = "" if more == 0 else f", {-more} columns more" if more < 0 else f", padded to {wanted} columns"
    return made, f"census rows made here (synthetic), of the nodes' sizes{said}"


def _cost(job: Job, planned: Plan, alpha: float, delta: float) -> Total:
    nodes = job.topology.nodes
    counts = np.array([job.counts[p] for p in nodes], dtype=float)
    public = planning(
        counts, job.topology.degrees, job.schema.dimension, planned.C, planned.rho, planned.eta, planned.loss
    )  # fmt: skip
    alphas = np.full(len(nodes), alpha)
    return network(spending(planned.mechanism, public, planned.rounds, nodes, alphas, (), 0), delta)


def _words(planned: Plan, source: str, fit: AccuracyLoss, found: Design, cost: Total, draws: int) -> Sequence[str]:
    facts: dict[str, Any] = {"c4": fit.c4, "c5": fit.c5, "c6": fit.c6}
    fitted = ", ".join(f"{name} = {value:.3g}" for name, value in facts.items())
    return [
        f"a SIMULATION on {source}: {draws} seeded draws for each alpha; your own rows may behave otherwise",
        f"the loss falls with alpha as {fitted} say ({fit.r2 or 0.0:.1%} of its weighted variance)",
        *found.reasons,
        f"{planned.rounds} rounds with this alpha cost epsilon = {up(cost.epsilon)} at delta = {cost.delta:g}, without "
        f"centring: {cost.odds}",
        f"the penalty stayed as the run file has it (eta = {planned.eta:.3g}, rho = {planned.rho:.3g}, C = {planned.C:g})",
    ]
