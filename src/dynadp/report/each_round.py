"""What each round of a plan shows of a row, in words."""

from itertools import groupby

import numpy as np

from dynadp.planning import Plan
from dynadp.report.honesty import spare_attempts, spare_events

_FEW = 3  # different values that are listed; of more, the least and the largest
MEANINGS = {
    "mu": "mu is how far one row can move what is released, in standard deviations of its noise",
    "alpha": "alpha is the epsilon of one release by itself",
}


def unit_of(plan: Plan) -> str:
    """What a round's loss is called: ``mu`` where noise is Gaussian, otherwise ``alpha``."""
    return "mu" if plan.mechanism.noise == "gaussian" else "alpha"


def round_words(plan: Plan) -> str:
    """Each round's loss at the node that loses most in one: ``mu = 0.05 in each of rounds 1 to 20
    and 0.08 in round 21``, and in the centring round.
    """
    node = int(np.argmax(plan.alphas))
    losses = [f"{loss:.4g}" for loss in plan.table()[node, 0]]
    parts, n = [], 0
    for loss, same in groupby(losses):
        first, n = n + 1, n + len(list(same))
        if (first, n) == (1, len(losses)):
            parts.append(f"{loss} in each of {n} rounds" if n > 1 else f"{loss} in one round")
        elif first == n:
            parts.append(f"{loss} in round {n}")
        else:
            parts.append(f"{loss} in each of rounds {first} to {n}")
    if len(parts) > _FEW:
        low, high = (f"{end(map(float, losses)):.4g}" for end in (min, max))
        parts = [f"{low} to {high} in {n} rounds"]
    if plan.centrings:
        parts.append(f"{plan.centrings[node]:.4g} in the centring round")
    own = [event for event in plan.events if event.node == plan.bound.nodes[node]]
    if spares := spare_events(own):
        mu: float = getattr(spares[0], "mu", 0.0)  # only sums have spares
        parts.append(f"{mu:.4g} in {spare_attempts(len(spares))}")
    words = ", ".join(parts[:-1]) + " and " * (len(parts) > 1) + parts[-1]
    most = ", at the node that loses most" if len(set(plan.alphas)) > 1 else ""
    return f"{unit_of(plan)} = {words}{most}"
