"""All mechanisms, all losses, and the pairs of data sets that audits of people look at."""

from dataclasses import replace

import numpy as np

from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.problem.losses import HuberHinge, Logistic, SmoothedHinge
from dynadp.research.audit import random_cases, worst_cases, worst_sum_cases

M = [1, 2, 5]
SEALED = Sealed(honest=3, spares=0)
LAPLACE = [
    Primal(),
    Primal(augment="iterate"),
    Primal(augment="iterate", final_release=0.1),
    Dual(),
    Dual(split="paper"),
]
GAUSSIAN = [
    Sum(),
    Sum(second_moment=True),
    Primal(noise="gaussian"),
    Primal(noise="gaussian", augment="iterate"),
    SEALED,
    Sealed(honest=3, spares=1, second_moment=True),
]
# every loss of the package, saturated and curved
LOSSES = [
    Logistic(),
    Logistic(6.0),
    SmoothedHinge(0.2, 1.0),
    HuberHinge(0.05, 0.1),
    HuberHinge(10.0, 30.0),
]


def constructed(mechanism, dimension, alpha, m):
    if mechanism.algorithm == "sum":
        return worst_sum_cases(dimension, m)
    return worst_cases(dimension, alpha, m)


def searched(mechanism, dimension, alpha, m):
    """Worst pairs, with every loss in the first of them, and pairs at random."""
    worst = constructed(mechanism, dimension, alpha, m)
    rng = np.random.default_rng([m, dimension])
    return (
        *worst,
        *(replace(worst[0], loss=loss) for loss in LOSSES),
        *random_cases(rng, dimension, alpha, 3, m),
    )
