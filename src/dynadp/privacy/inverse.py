"""The inverse of the accountant: a total and a plan's shape -> alpha or mu, or rounds; never less
privacy than asked (maths.md 5).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from math import exp, inf, log

from dynadp.errors import DeclarationError
from dynadp.privacy.accountant import check_delta, check_epsilon, worst_node
from dynadp.privacy.events import (
    DualPerturbation,
    Event,
    Gaussian,
    L2Laplace,
    SealedGaussian,
    check_honest,
)

Plan = Callable[[float], Iterable[Event]]  # scale -> all events of the plan
GAUSSIAN = ("gaussian", "sum", "sealed")  # names whose rounds are declared by mu
PRECISION = 1e-3  # how far below the asked epsilon a calibrated total may stay, relative


def calibrate(
    plan: Plan, epsilon: float, delta: float, rows: int | None = None, silos: int | None = None
) -> float:
    """The largest scale, within a thousandth of epsilon, whose plan stays within (epsilon, delta)
    in total, at every node.

    Parameters
    ----------
    plan
        All events of a plan at a scale, such as ``lambda alpha: primal(alpha, 105, rounds=100)``;
        more at a larger scale.
    epsilon, delta
        The total.
    rows
        How many rows a person may have at the node; by default as the events were planned.
    silos
        At how many nodes she may have them; likewise.
    """
    check_epsilon(epsilon)
    check_delta(delta)

    def cost(scale: float) -> float:
        return worst_node(plan(scale), delta, rows, silos).epsilon

    low, at_low = epsilon, cost(epsilon)
    stuck = 0
    while (
        at_low > epsilon
    ):  # the sum is linear in the scale, so this ends, unless part of the plan does not scale
        low, before = low * (min(0.9 * epsilon / at_low, 0.5) if at_low < inf else 0.1), at_low
        at_low = cost(low)
        stuck = stuck + 1 if at_low > 0.999 * before else 0
        if stuck > 8 or low < 1e-290:
            raise DeclarationError(
                f"no scale of this plan stays within epsilon = {epsilon:g}, delta = {delta:g}"
            )
    high = low
    while (at_high := cost(high)) <= epsilon and high < 1e6:
        low, at_low, high = (
            high,
            at_high,
            high * (min(max(1.2 * epsilon / at_high, 1.1), 16.0) if at_high else 16.0),
        )
    for _ in range(100):
        if at_low >= epsilon * (1 - PRECISION) or high <= low * (1 + 1e-6):
            break
        middle = _between(low, at_low, high, at_high, epsilon)
        at_middle = cost(middle)
        if at_middle <= epsilon:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low


def _between(low: float, at_low: float, high: float, at_high: float, epsilon: float) -> float:
    """A secant step between logarithms, aimed a little below epsilon and kept off both ends."""
    share = 0.5
    if 0 < at_low < at_high < inf:
        share = (log(epsilon * (1 - PRECISION / 2)) - log(at_low)) / (log(at_high) - log(at_low))
    return exp(log(low) + min(max(share, 0.02), 0.98) * (log(high) - log(low)))


def affordable_rounds(
    plan: Callable[[int], Iterable[Event]], epsilon: float, delta: float, most: int = 100_000
) -> int:
    """The largest number of rounds, up to ``most``, whose plan stays within (epsilon, delta); 0
    where not even one does.
    """
    check_epsilon(epsilon)
    check_delta(delta)

    def too_many(rounds: int) -> bool:
        return worst_node(plan(rounds), delta).epsilon > epsilon

    low, high = 0, 1
    while high <= most and not too_many(high):
        low, high = high, 2 * high
    return low + bisect_left(range(low + 1, min(high, most + 1)), True, key=too_many)


def primal(alpha: float, dimension: int, rounds: int, node: str = "node") -> list[Event]:
    """The events of Algorithm 3 with constant alpha."""
    return [L2Laplace(node, n, "primal", alpha, dimension) for n in range(1, rounds + 1)]


def dual(
    alpha: float, dimension: int, rounds: int, jacobian_share: float, node: str = "node"
) -> list[Event]:
    """The events of Algorithm 2 with constant alpha: abar = share alpha, ah = alpha - abar, exact
    minimisers.
    """
    abar = jacobian_share * alpha
    return [DualPerturbation(node, n, abar, alpha - abar, dimension) for n in range(1, rounds + 1)]


def gaussian(mu: float, rounds: int, dimension: int = 1, node: str = "node") -> list[Event]:
    """The events of Gaussian releases with constant mu, whose cost does not depend on d."""
    return [Gaussian(node, n, "gradient", mu, dimension) for n in range(1, rounds + 1)]


def sealed(
    mu: float, rounds: int, nodes: int, honest: int, dimension: int = 1, node: str = "node"
) -> list[Event]:
    """The events of sealed sums with constant mu, which rest on so many honest nodes."""
    check_honest(honest, nodes)
    those = honest, nodes, nodes - 1
    return [
        SealedGaussian(node, n, "gradient", mu, dimension, 0.0, False, *those)
        for n in range(1, rounds + 1)
    ]


def equal_rounds(
    mechanism: str,
    alpha: float | None = None,
    dimension: int | None = None,
    rounds: int = 1,
    jacobian_share: float | None = None,
    node: str = "node",
    mu: float | None = None,
    nodes: int | None = None,
    honest: int | None = None,
) -> list[Event]:
    """The events of :func:`primal`, :func:`dual` or Gaussian releases, by the mechanism's name.

    Primal and dual perturbation need alpha and a dimension, Gaussian releases need mu alone; sealed
    ones also how many of how many nodes are honest.
    """
    if mechanism not in ("primal", "dual", *GAUSSIAN):
        raise DeclarationError(
            f"mechanism is {mechanism!r}; expected primal, dual, {', '.join(GAUSSIAN)}"
        )
    hidden = nodes is not None or honest is not None
    if hidden and mechanism not in ("gaussian", "sealed"):
        raise DeclarationError(
            f"nodes and honest (--nodes, --honest) are of sealed sums; {mechanism} has noise of "
            "its own at every node: leave them out"
        )
    if (hidden or mechanism == "sealed") and (nodes is None or honest is None):
        raise DeclarationError(
            "sealed sums rest on honest nodes: give how many there are and how many of them are "
            "honest (--nodes, --honest), whoever looks not among them"
        )
    if jacobian_share is not None and mechanism != "dual":
        raise DeclarationError(
            f"a Jacobian share (--jacobian-share) is for dual perturbation; {mechanism} has none: "
            "leave it out"
        )
    if mechanism in GAUSSIAN:
        if mu is None or alpha is not None:
            raise DeclarationError(
                "a Gaussian release is declared by mu (--mu), sensitivity over noise, such as "
                "0.1; it has no alpha (--alpha): give mu, and no alpha"
            )
        d = 1 if dimension is None else dimension
        if nodes is not None and honest is not None:
            return sealed(mu, rounds, nodes, honest, d, node)
        return gaussian(mu, rounds, d, node)
    if alpha is None or dimension is None or mu is not None:
        raise DeclarationError(
            f"{mechanism} perturbation is declared by alpha and a dimension (--alpha, "
            "--dimension); mu (--mu) is for gaussian: leave it out"
        )
    if mechanism == "primal":
        return primal(alpha, dimension, rounds, node)
    if jacobian_share is None:
        raise DeclarationError(
            "dual perturbation needs a Jacobian share (--jacobian-share): abar/alpha, such as 0.01"
        )
    return dual(alpha, dimension, rounds, jacobian_share, node)
