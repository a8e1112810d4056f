"""From a total (epsilon, delta) to everything that a private run needs, by rules of public numbers alone (maths.md 5).

The constants of the rules were found on census-like rows that are made here (``make plan-study`` finds them again); rows of the
run itself have no part in them. docs/results.md says how far they are from the best choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dynadp.errors import DeclarationError
from dynadp.losses import Logistic, Loss
from dynadp.perturbation import Dual, Perturbation, Primal, Public
from dynadp.privacy.accountant import Total, check_delta, check_epsilon, network
from dynadp.privacy.calibration import calibrate
from dynadp.privacy.events import Event, L2Laplace
from dynadp.runtime.simulation import Output
from dynadp.topology import Topology

MECHANISMS: dict[str, Perturbation] = {"primal": Primal(), "dual": Dual()}
C = 1.0  # only C/q counts


@dataclass(frozen=True)
class Constants:
    """What the study on census rows found.

    Attributes
    ----------
    rounds
        T.
    pull
        k in q = k T/(B mu sqrt(P)).
    ridge
        rho/q.
    margin
        m of the loss ln(1 + e^(m - z)).
    centring
        The centring round's share of the sum of alpha^2/d; 0 for none.
    """

    rounds: int = 20
    pull: float = 0.7
    ridge: float = 0.002
    margin: float = 3.0
    centring: float = 0.1


@dataclass(frozen=True)
class Plan:
    """What a run will do, decided before any row is read.

    Attributes
    ----------
    mechanism, loss, C, rho, eta, rounds, alpha
        As for :func:`~dynadp.runtime.simulation.simulate`.
    output
        Which mean of released vectors becomes the model.
    centring
        alpha of the centring round; None for none.
    events
        Everything that will be spent, by all nodes.
    total
        What that costs a person with a row at one node: at most what was asked.
    reasons
        The choices in words.
    """

    mechanism: Perturbation
    loss: Loss
    C: float
    rho: float
    eta: float
    rounds: int
    alpha: float
    output: Output
    centring: float | None
    events: tuple[Event, ...] = field(repr=False)
    total: Total
    reasons: tuple[str, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """The plan for a record."""
        return {
            "mechanism": self.mechanism.describe(),
            "loss": self.loss.describe(),
            **{name: getattr(self, name) for name in ("C", "rho", "eta", "rounds", "alpha", "output", "centring")},
            "total": self.total.to_json(),
            "reasons": list(self.reasons),
        }


def plan(
    counts: Sequence[float],
    topology: Topology,
    dimension: int,
    *,
    epsilon: float,
    delta: float,
    mechanism: str = "primal",
    centring: bool = True,
    constants: Constants | None = None,
) -> Plan:
    """q = rho + 2 eta N = k T/(B mu sqrt(P)), constant alpha by :func:`~dynadp.privacy.calibration.calibrate`.

    mu is that of the Gaussian mechanism with this total. Each released coordinate then carries noise of about 2 sqrt(P/T)/k,
    and the mean over the network and the last half of the rounds of about 2 sqrt(2)/(k T): the same for all totals, so that
    the pull towards 0 and the noise stay in proportion.

    Parameters
    ----------
    counts
        B_p of each node, in the topology's order: public.
    topology
        The network.
    dimension
        d, with the intercept.
    epsilon, delta
        The total that nobody with a row at one node may lose more of.
    mechanism
        ``primal`` or ``dual``.
    centring
        Whether rows can be centred first: not where the schema has a public centre already.
    constants
        Of the rules; by default as found on census rows.
    """
    constants = constants or Constants()
    check_epsilon(epsilon)
    check_delta(delta)
    if mechanism not in MECHANISMS:
        raise DeclarationError(f"mechanism is {mechanism!r}; expected one of {', '.join(MECHANISMS)}")
    B, P, T = np.asarray(counts, dtype=float), len(topology.nodes), constants.rounds
    if B.shape != (P,) or not (np.isfinite(B).all() and (B >= 1).all()):
        raise DeclarationError(f"counts are {list(counts)!r}; expected the number of rows of each of {P} nodes, from 1")
    if not delta:
        raise DeclarationError("delta is 0; plans need one above 0, well below one over the number of rows, such as 1e-5")
    mu = gaussian_mu(epsilon, delta)
    typical = float(np.mean(B**-2.0) ** -0.5)  # noise of a node goes with 1/B_p, of a mean over nodes with its mean square
    q = constants.pull * T / (typical * mu * sqrt(P))
    rho = constants.ridge * q
    eta = (q - rho) / (2 * max(float(topology.degrees.mean()), 1.0)) if P > 1 else q
    loss, chosen = Logistic(constants.margin), MECHANISMS[mechanism]
    share = constants.centring if centring else 0.0
    weight = sqrt(share / (1 - share) * T * max(dimension - 1, 1) / dimension)  # alpha of the centring round over alpha

    def events(alpha: float, which: NDArray[np.intp]) -> list[Event]:
        """Of these nodes; the solver's gamma moves no event."""
        nodes, degrees, gamma = [topology.nodes[p] for p in which], topology.degrees[which], np.full((len(which), 1), 1e-9)
        public = Public.of(B[which], degrees, dimension, C, rho, np.array([eta]), gamma, loss)
        spent: list[Event] = [L2Laplace(p, 0, "centring", weight * alpha, dimension - 1) for p in nodes if share]
        for n, release in enumerate(chosen.plan(public, np.full((len(which), 1, T), alpha)), 1):
            spent += release.events(nodes, n, dimension)
        return spent

    kinds = np.unique(np.stack([B, topology.degrees]), axis=1, return_index=True)[1]  # nodes alike spend alike
    alpha = calibrate(lambda scale: events(scale, kinds), epsilon, delta)
    everything = tuple(events(alpha, np.arange(P)))
    total = network(everything, delta)
    reasons = (
        f"{chosen.name} perturbation: {_WHY[mechanism]}",
        f"{T} rounds, each with the same alpha = {alpha:.4g}; only rounds over penalty counts, and uneven alphas gain nothing",
        f"penalty q = {q:.3g} (eta = {eta:.3g}, rho = {rho:.2g}): in proportion to the noise that epsilon = {epsilon:g}, "
        f"delta = {delta:g} ask for, which a Gaussian mechanism with mu = {mu:.3g} has; C = {C:g}, since only C/q counts",
        f"loss {loss!r}: a margin raises the signal for the same sensitivity; scores are then no log-odds",
        f"a centring round with alpha = {weight * alpha:.4g}, {share:.0%} of the budget: centred rows differ more"
        if share
        else "no centring round: none was asked for, or the schema has a public centre",
        "the model is the mean of all nodes' messages of the last half of the rounds: averaging released vectors is free",
        f"in total epsilon = {total.epsilon:.4g} at delta = {delta:g} for anybody with a row at one node",
    )
    centre = weight * alpha if share else None
    return Plan(chosen, loss, C, rho, eta, T, alpha, "network", centre, everything, total, reasons)


_WHY = {
    "primal": "its losses average out over rounds, the dual one's Jacobian share does not",
    "dual": "asked for; at the same total it is noisier over many rounds",
}


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu of the Gaussian mechanism that loses (epsilon, delta): Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) = delta.

    >>> round(gaussian_mu(1.0, 1e-5), 3)
    0.268
    """

    def excess(mu: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - exp(min(epsilon + log_ndtr(-mu / 2 - epsilon / mu), 0.0)) - delta)

    return float(brentq(excess, 1e-12, 100 + 2 * sqrt(epsilon)))
