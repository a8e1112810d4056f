"""Dual variable perturbation (paper, Algorithm 2; maths.md 3): noise enters the objective."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import ClassVar, Literal

import numpy as np

from dynadp import _require
from dynadp._arrays import Array, on
from dynadp.errors import DeclarationError
from dynadp.mechanisms.base import Mechanism, PublicNumbers, RoundNoise, ball
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.sampling import (
    add_l2_laplace,
    grid_step,
    l2_laplace,
    l2_laplace_density,
    l2_laplace_deviation,
    l2_laplace_reach,
)
from dynadp.privacy import DualPerturbation, Event, L2Laplace


@dataclass(frozen=True)
class DualNoise(RoundNoise):
    """The numbers of Algorithm 2 in one round.

    Attributes
    ----------
    inner
        zeta of the noise e that enters the objective as (C/B_p) e.f.
    outer
        zeta2 of the noise z that is added to the minimiser, for the solver's error.
    abar, ah, slack
        Losses: of the determinant, of e, and of z.
    """

    inner: Array
    outer: Array
    abar: Array
    ah: Array
    slack: Array

    inside: ClassVar[bool] = True

    def linear(self, public: PublicNumbers, draws: Draws, nodes: Sequence[str], n: int) -> Array:
        """(C/B_p) e, e ~ exp(-zeta ||e||): the linear term of Algorithm 2, P x K x d."""
        e = l2_laplace(draws, "dual", nodes, n, self.inner.shape[1], public.dimension)
        return e * on((public.weight / self.inner)[..., None], e)

    def longest_linear(self, public: PublicNumbers) -> Array:
        """(C/B_p)/zeta times what the length of a vector with zeta = 1 never passes."""
        return public.weight / self.inner * l2_laplace_reach(public.dimension)

    def release(self, g: Array, draws: Draws, nodes: Sequence[str], n: int) -> Array:
        """V = Round(g + z)."""
        return add_l2_laplace(g, self.outer, "slack", draws, nodes, n, self.step, self.radius)

    def spread(self, public: PublicNumbers) -> tuple[Array, Array]:
        """(C/B_p) sqrt(d + 1)/zeta, and sqrt(d + 1)/zeta2."""
        inside = public.weight * l2_laplace_deviation(self.inner, public.dimension)
        return inside, l2_laplace_deviation(self.outer, public.dimension)

    def log_density(self, x: Array) -> Array:
        """-zeta ||e||."""
        return l2_laplace_density(x, self.inner)

    @property
    def log_ratio_bound(self) -> Array:
        """abar + ah: all but the solver's slack."""
        return self.abar + self.ah

    def events(
        self,
        nodes: Sequence[str],
        n: int,
        dimension: int,
        replica: int = 0,
        *,
        seeded: bool = False,
    ) -> tuple[Event, ...]:
        """One event for e with its determinant, one for z, at each node."""
        out: list[Event] = []
        for p, node in enumerate(nodes):
            abar, ah, slack = (float(v[p, replica]) for v in (self.abar, self.ah, self.slack))
            out.append(DualPerturbation(node, n, abar, ah, dimension, seeded))
            out.append(L2Laplace(node, n, "slack", slack, dimension, seeded))
        return tuple(out)


@dataclass(frozen=True)
class Dual(Mechanism):
    """Algorithm 2, corrected: zeta = (alpha' - abar)/2, abar = ln(1 + c1/(a (rho + Phi + 2 eta
    N_p))), a = B_p/C.

    alpha is the release's total loss; alpha' = alpha - alpha2 and alpha2 = ``slack`` alpha pays for
    the solver's inexactness: z is l2-Laplace with zeta2 = alpha2 Lam/(2 gamma). Replacing a row
    changes the Hessian by rank one, so one factor (1 + c1/..) suffices where the paper has its
    square; and moves the noise by up to 2, so zeta is half of the paper's. Adding or removing one
    moves it by up to 1, and zeta = alpha' - abar (maths.md 15).

    Attributes
    ----------
    split
        ``optimal``: Phi minimises Phi F^2/2 + 2 (C/B)^2 d (d+1)/((alpha' - abar)^2 (rho + Phi)), a
        bound on the expected excess of Z_p. ``paper``: the paper's rule with its squared
        determinant, for comparison.
    slack
        alpha2/alpha, in (0, 1).
    F
        Public guess of ||argmin Z_p||, for ``optimal``; affects accuracy only. By default
        min(C/rho, sqrt(2 C L(0)/rho)).
    """

    split: Literal["optimal", "paper"] = "optimal"
    slack: float = 0.01
    F: float | None = None
    name: ClassVar[str] = "dual"
    why: ClassVar[str] = "asked for; at the same total it is noisier over many rounds"

    def __post_init__(self) -> None:
        if self.split not in ("optimal", "paper"):
            raise DeclarationError(f"split is {self.split!r}; expected 'optimal' or 'paper'")
        _require.share("slack", self.slack)
        if self.F is not None:
            _require.positive("F", self.F)

    def allowance(self, public: PublicNumbers) -> Array:
        """``slack`` C/B_p: z is 2 gamma d/(alpha2 Lam) long on average, e moves f by (C/B_p)
        d/(zeta Lam), 2 zeta <= alpha.
        """
        return self.slack * super().allowance(public)

    def inflation(self, public: PublicNumbers) -> Array:
        """sqrt(1 + (gamma/allowance)^2), as z is independent of e."""
        return np.hypot(1, public.gamma / self.allowance(public))

    def noise_for(self, public: PublicNumbers, alpha: Array) -> DualNoise:
        """Phi, zeta and zeta2 of one round."""
        alpha2 = self.slack * alpha
        rest = alpha - alpha2  # alpha'
        a, c1, Lam = 1 / public.weight, public.loss.c1, public.Lam
        if self.split == "paper":  # the squared determinant, and half where that leaves nothing
            left = rest - 2 * np.log1p(c1 / (a * Lam))
            phi = np.where(left > 0, 0.0, c1 / (a * np.expm1(rest / 4)) - Lam)
        else:
            F = public.reach if self.F is None else self.F
            best = np.vectorize(_best_phi, otypes=[float])
            phi = best(rest, a, Lam, c1, public.rho, public.dimension, F, public.moves)
        Lam = Lam + phi
        abar = np.log1p(c1 / (a * Lam)) * (1 + 1e-12)  # from the final Phi, rounded up
        if self.split == "paper":
            zeta = np.where(left > 0, left, rest / 2) / public.moves
        else:
            zeta = (rest - abar) / public.moves
        outer = alpha2 * Lam / (2 * public.gamma)
        spread = zeta * (Lam + public.C[:, None] * c1)
        step = grid_step(public.weight * np.sqrt(public.dimension) / spread)
        mean = public.dimension * (public.weight / (zeta * Lam) + 1 / outer)
        return DualNoise(
            phi=phi,
            step=step,
            radius=ball(public, mean, step),
            inner=zeta,
            outer=outer,
            abar=abar,
            ah=public.moves * zeta,
            slack=alpha2,
        )


@lru_cache(maxsize=100_000)
def _best_phi(
    alpha: float, a: float, Lam: float, c1: float, rho: float, d: int, F: float, moves: float
) -> float:
    """argmin over Phi >= Phi_min of Phi F^2/2 + 2 d (d+1)/(a^2 (alpha - abar)^2 (rho + Phi)),
    convex in Phi (maths.md 3); 1/2 for 2 where rows are added and removed.
    """
    least = max(0.0, c1 / (a * float(np.expm1(min(alpha, 700.0)))) - Lam)

    def bound(phi: float) -> float:
        left = alpha - float(np.log1p(c1 / (a * (Lam + phi)))) * (1 + 1e-12)
        if left <= 0:
            return inf
        return phi * F**2 / 2 + moves**2 / 2 * d * (d + 1) / (a * left) ** 2 / (rho + phi)

    unit = least + rho + Lam
    from scipy.optimize import minimize_scalar  # 0.1 s, which other mechanisms save

    found = minimize_scalar(
        lambda t: bound(least + unit * float(np.exp(t))),
        bounds=(-40.0, 40.0),
        method="bounded",
        options={"xatol": 1e-9},
    )
    candidates = [least + unit * float(np.exp(found.x)), 0.0]
    return min((phi for phi in candidates if phi >= least), key=bound)
