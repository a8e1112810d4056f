"""Standard errors of the model of a plan: how far its noise moves it (maths.md 22)."""

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import (
    Output,
    ReleasePlan,
    RoundSpread,
    Spread,
    SumPath,
    admm_spread,
    shares_of,
    sum_spread,
)
from dynadp.planning.plans import Plan


def spread_of(
    plan: Plan,
    path: SumPath | None = None,
    *,
    node: int | None = 0,
    output: Output | None = None,
    releases: ReleasePlan | None = None,
    along: Array | None = None,
) -> Spread | None:
    """Return the spread of a model over its noise; None where nothing is protected, where an own
    mechanism does not say how far its noise spreads, or where the path is not known.

    Parameters
    ----------
    plan
        Bound to its consortium.
    path
        Of algorithm "sum": what its rounds left.
    node, output
        Of ADMM: whose model it is, by position, None for the mean of all nodes'; and which mean of
        messages, by default the plan's.
    releases
        What a run released, where it was more than the plan's (from another V(0), for example).
    along
        U, where the spread of U f is asked for instead of f's.
    """
    if plan.protection is None:
        return None
    if plan.steps is not None:
        if path is None or not any(path.averaged):
            return None
        return sum_spread(path, plan.steps, plan.settings.loss, along=along)
    found = _of_messages(plan, releases or plan.release_plan, node, output or plan.output)
    return found if found is None or along is None else found.alike(along)


def _of_messages(
    plan: Plan, releases: ReleasePlan, node: int | None, output: Output
) -> Spread | None:
    s, topology = plan.settings, plan.bound.topology
    rounds = list[RoundSpread]()
    for noise in releases.noises:
        known = noise.spread(releases.public)
        if known is None:
            return None
        inside, outside = (v[:, 0] for v in known)
        rounds.append(RoundSpread(inside, outside, noise.phi[:, 0]))
    means = shares_of(output, plan.rounds, topology, node)
    if releases.final and output == "last":
        means = np.vstack([0 * means, means[-1:]])
    elif releases.final:
        rounds.pop()
    return admm_spread(
        rounds,
        means,
        topology,
        float(s.eta_of()[0]),
        s.rho,
        releases.public.C * s.loss.c1,
        plan.bound.dimension,
        private_iterate=plan.mechanism.private_iterate,
    )
