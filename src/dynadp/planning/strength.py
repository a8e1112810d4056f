"""N, rows over noise: the one number of a plan on which accuracy depends (maths.md 5 and 12).

It follows from public numbers alone, without a plan: two runs with the same N see their rows as
clearly, whatever their totals, nodes and people are.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from dynadp._arrays import Array
from dynadp.mechanisms import Mechanism, Sum, mechanism_for
from dynadp.planning.parts import check_counts
from dynadp.planning.sums import (
    gaussian_mu,
    sealed_signal,
    signal,
    weigh_nodes,
    weigh_sealed,
)
from dynadp.privacy import Unit
from dynadp.problem import Weights, shares


def row_mus(totals: Sequence[float], delta: float, mechanism: Mechanism, unit: Unit) -> Array:
    """mu of one row at each node, as if it were replaced, of the Gaussian mechanism with a person's
    total.

    A person's m rows move a sum m times as far as one, unless they are weighed. At s nodes she
    moves sqrt(s) noisy sums of their own noise as much as one, or one sealed sum s times. A row
    that is added moves a sum half as far as one that is replaced.
    """
    mus = np.array([gaussian_mu(total, delta) for total in totals])
    sums = isinstance(mechanism, Sum)
    most = 1 if isinstance(mechanism, Sum) and mechanism.weighed else unit.rows
    sealed = sums and mechanism.sealing is not None
    mus /= most * (unit.silos if sealed else sqrt(unit.silos))
    return np.asarray(mus * (2 / unit.moves))


def admm_signal(counts: Array, mus: Array, weights: Weights) -> float:
    """N = sqrt(P) / sqrt(mean (share_p mu_p)^-2): of ADMM, for which only C/q counts."""
    shared = shares(1.0, counts, weights)
    return float(np.mean((counts / shared * mus) ** -2.0) ** -0.5) * sqrt(len(counts))


def strength_of(
    counts: Sequence[float],
    *,
    epsilon: float,
    delta: float,
    mechanism: str | Mechanism | None = None,
    weights: Weights = "rows",
    unit: Unit | None = None,
) -> float:
    """N for this total at every node.

    Parameters
    ----------
    counts
        B_p of each node: public.
    epsilon, delta, mechanism, weights, unit
        As for :func:`~dynadp.planning.planner.plan`.
    """
    whom, P = unit or Unit(), len(counts)
    B = check_counts(counts, P)
    chosen = mechanism_for(mechanism, "sum" if mechanism is None else None)
    assert chosen is not None
    if not isinstance(chosen, Sum):
        return admm_signal(B, row_mus([epsilon] * P, delta, chosen, whom), weights)
    chosen = chosen.among(P)
    mus = row_mus([epsilon] * P, delta, chosen, whom)
    # rows of a person that are weighed count less: by the root of their number
    fewer = sqrt(whom.rows) if chosen.weighed else 1.0
    if chosen.sealing is not None:
        weighed = np.array(weigh_sealed(B, mus, weights))
        return sealed_signal(B, mus, weighed, chosen.sealing) / fewer
    return signal(B, mus, np.array(weigh_nodes(B, mus, weights))) / fewer
