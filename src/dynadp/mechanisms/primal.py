"""Primal variable perturbation (paper, Algorithm 3; maths.md 4): noise joins the minimiser."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.mechanisms.base import Mechanism, PublicNumbers, RoundNoise, ball
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.gaussian import GaussianNoise, noise_step
from dynadp.mechanisms.sampling import (
    add_l2_laplace,
    grid_step,
    l2_laplace_density,
    l2_laplace_deviation,
)
from dynadp.privacy import Event, L2Laplace


@dataclass(frozen=True)
class PrimalNoise(RoundNoise):
    """The numbers of Algorithm 3 in one round.

    Attributes
    ----------
    outer
        zeta of the noise that is added to the minimiser.
    delta
        Delta(n), the sensitivity that it covers.
    alpha
        The loss of the release.
    """

    outer: Array
    delta: Array
    alpha: Array

    def release(self, g: Array, draws: Draws, nodes: Sequence[str], n: int) -> Array:
        """V = Round(g + e)."""
        return add_l2_laplace(g, self.outer, "primal", draws, nodes, n, self.step, self.radius)

    def spread(self, public: PublicNumbers) -> tuple[Array, Array]:
        """0, and sqrt(d + 1)/zeta."""
        outside = l2_laplace_deviation(self.outer, public.dimension)
        return np.zeros(outside.shape), outside

    def log_density(self, x: Array) -> Array:
        """-zeta ||V - g||."""
        return l2_laplace_density(x, self.outer)

    @property
    def log_ratio_bound(self) -> Array:
        """alpha."""
        return self.alpha

    def events(
        self,
        nodes: Sequence[str],
        n: int,
        dimension: int,
        replica: int = 0,
        *,
        seeded: bool = False,
    ) -> tuple[Event, ...]:
        """One event at each node."""
        losses = self.alpha[:, replica]
        return tuple(
            L2Laplace(node, n, "primal", float(alpha), dimension, seeded)
            for node, alpha in zip(nodes, losses, strict=True)
        )


@dataclass(frozen=True)
class GaussianPrimalNoise(GaussianNoise):
    """The numbers of Algorithm 3 with Gaussian noise in one round.

    Attributes
    ----------
    delta
        Delta(n), the sensitivity that it covers.
    """

    delta: Array


@dataclass(frozen=True)
class Primal(Mechanism):
    """Algorithm 3, corrected: V_p(n) = Round(g + e), e l2-Laplace with zeta = alpha/Delta(n).

    Attributes
    ----------
    augment
        ``message``: the node's own message V_p in the augmented term, as in Algorithm 1, and Delta
        = (2C/B + 2 gamma)/(rho + 2 eta N_p), or with C/B for 2C/B where rows are added and removed.
        ``iterate``: its own unperturbed vector minus the noise, as the paper prints it: 2 g - V
        stands for V_p. Its vector is private, so Delta(0) = 0 and Delta(n) = (2C/B + 2 gamma + 2
        eta N_p Delta(n-1))/(rho + 2 eta N_p).
    final_release
        alpha of one more release after the last round, by Algorithm 2 from released vectors only;
        None for none.
    noise
        ``l2-laplace``, as in the paper, or ``gaussian``: V_p(n) = h (rint(g/h) + e), e discrete
        Gaussian, and alpha(n) is mu(n) = (Delta(n) + sqrt(d) h)/(s h).
    """

    augment: Literal["message", "iterate"] = "message"
    final_release: float | None = None
    noise: Literal["l2-laplace", "gaussian"] = "l2-laplace"
    name: ClassVar[str] = "primal"
    why: ClassVar[str] = (
        "cheaper over many rounds than dual, part of whose cost adds up in full every round"
    )

    def __post_init__(self) -> None:
        if self.augment not in ("message", "iterate"):
            raise DeclarationError(f"augment is {self.augment!r}; expected 'message' or 'iterate'")
        if self.noise not in ("l2-laplace", "gaussian"):
            raise DeclarationError(f"noise is {self.noise!r}; expected 'l2-laplace' or 'gaussian'")
        if self.final_release is not None:
            more = ", the alpha of one more release"
            _require.positive("final_release", self.final_release, more)

    @classmethod
    def translated(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Take version 0.1.0's ``own`` and ``final`` too."""
        given = dict(parameters)
        if "own" in given:
            own = given.pop("own")
            given["augment"] = {"public": "message", "paper": "iterate"}.get(own, own)
        if "final" in given:
            given["final_release"] = given.pop("final")
        return given

    @property
    def by_alpha_alone(self) -> bool:
        """True, unless a final release by Algorithm 2 depends on rows and neighbours."""
        return type(self) is Primal and self.final_release is None

    @property
    def private_iterate(self) -> bool:
        """Whether the node's own unperturbed vector enters its next problem."""
        return self.augment == "iterate"

    def allowance(self, public: PublicNumbers) -> Array:
        """C/B_p, as 2 gamma stands beside 2C/B in Delta; less where a final release has its own
        rule.
        """
        usual = super().allowance(public)
        return usual if self.final_release is None else Dual().allowance(public)

    def noise_for(self, public: PublicNumbers, alpha: Array) -> PrimalNoise | GaussianPrimalNoise:
        """Delta and zeta of one round; of the first one where the node's own vector is private."""
        return self._after(public, alpha, 0.0)

    def plan(self, public: PublicNumbers, alpha: Array) -> tuple[RoundNoise, ...]:
        """Return the noise of all rounds, and of the final release where there is one."""
        if self.augment == "message":
            rounds = list(super().plan(public, alpha))
        else:
            rounds, delta = [], np.zeros(alpha.shape[:2])
            for n in range(alpha.shape[-1]):
                noise = self._after(public, alpha[..., n], (public.Lam - public.rho) * delta)
                delta = noise.delta
                rounds.append(noise)
        if self.final_release is not None:
            rounds.append(Dual().noise_for(public, np.full(alpha.shape[:2], self.final_release)))
        return tuple(rounds)

    def _after(
        self, public: PublicNumbers, alpha: Array, more: Array | float
    ) -> "PrimalNoise | GaussianPrimalNoise":
        moved = public.moves * public.weight + 2 * public.gamma + more
        delta = moved / public.Lam * (1 + 1e-12)
        delta = np.broadcast_to(delta, alpha.shape)
        if self.noise == "gaussian":
            return self._gaussian(public, alpha, delta)
        zeta = alpha / delta
        step = grid_step(np.sqrt(public.dimension + 1) / zeta)
        return PrimalNoise(
            phi=np.zeros(alpha.shape),
            step=step,
            radius=ball(public, public.dimension / zeta, step),
            outer=zeta,
            delta=delta,
            alpha=alpha,
        )

    @staticmethod
    def _gaussian(public: PublicNumbers, mu: Array, delta: Array) -> "GaussianPrimalNoise":
        """s = (Delta/h + sqrt(d))/mu: rounding to whole steps moves two vectors sqrt(d) h apart."""
        step = noise_step(delta / mu)
        steps = delta / step + np.sqrt(public.dimension)
        parameter = steps / mu * (1 + 1e-12)
        length = parameter * step * np.sqrt(public.dimension)
        return GaussianPrimalNoise(
            phi=np.zeros(mu.shape),
            step=step,
            radius=ball(public, length, step),
            mu=mu,
            parameter=parameter,
            purpose="primal",
            delta=delta,
        )
