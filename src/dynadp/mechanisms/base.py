"""Dual and primal variable perturbation, corrected (paper, Algorithms 2 and 3; maths.md 3, 4, 6).

A mechanism turns public numbers and alpha_p(n) into a :class:`RoundNoise`; the calibration says
what is added to the local problem, what is added to its certified minimiser, how the result is
rounded, and which events that costs. Rows never enter. Arrays are P x K: every node and every
replica has its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy.optimize import minimize_scalar

from dynadp import _require
from dynadp._arrays import Array, on
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import Draws, grid_step, l2_laplace, to_grid
from dynadp.privacy import DualPerturbation, Event, L2Laplace
from dynadp.problem import Loss

# times the mean length of noise for the largest gamma, twice the usual one; larger balls cost a
# larger gamma
BALL = 8.0


@dataclass(frozen=True)
class PublicNumbers:
    """All that a calibration may look at.

    Attributes
    ----------
    counts, degrees
        B_p and N_p of each node.
    dimension
        d, with the intercept.
    C
        The paper's C^R of each node (:func:`~dynadp.problem.objective.shares`).
    rho
        The paper's rho.
    eta
        Penalty of each replica.
    gamma
        Bound on the gradient at the solver's point, P x 1.
    c1, at_zero
        sup L'' and L(0).
    rounds
        T, which bounds how far vectors come; None for the limit of many.
    start
        How long V(0) is, at most.
    """

    counts: Array
    degrees: Array
    dimension: int
    C: Array
    rho: float
    eta: Array
    gamma: Array
    c1: float
    at_zero: float
    rounds: int | None = None
    start: float = 0.0

    @classmethod
    def of(
        cls,
        counts: Array,
        degrees: Array,
        dimension: int,
        C: float | Array,
        rho: float,
        eta: Array,
        gamma: Array,
        loss: Loss,
        rounds: int | None = None,
        start: float = 0.0,
    ) -> "PublicNumbers":
        """With the constants of the loss; C may be one number for all nodes."""
        each = np.broadcast_to(np.asarray(C, dtype=float), np.shape(counts))
        at_zero = float(loss.value(np.zeros(1))[0])
        return cls(
            counts, degrees, dimension, each, rho, eta, gamma, loss.c1, at_zero, rounds, start
        )

    def some(self, nodes: slice) -> "PublicNumbers":
        """Of some nodes alone."""
        own = {name: getattr(self, name)[nodes] for name in ("counts", "degrees", "C", "gamma")}
        return replace(self, **own)

    @property
    def Lam(self) -> Array:
        """rho + 2 eta N_p, the strong convexity of the local problem: P x K."""
        return self.rho + 2 * self.degrees[:, None] * self.eta

    @property
    def weight(self) -> Array:
        """C_p/B_p, what one row weighs: P x 1."""
        return (self.C / self.counts)[:, None]

    @property
    def reach(self) -> Array:
        """A bound on ||argmin Z_p||: min(C_p/rho, sqrt(2 C_p L(0)/rho)), P x 1."""
        C = self.C[:, None]
        return np.minimum(C / self.rho, np.sqrt(2 * C * self.at_zero / self.rho))

    @property
    def travel(self) -> Array:
        """How far T rounds should come: min(reach, sqrt(2 C L(0) T/Lam)), C the largest, P x K.

        n steps of f <- argmin Z(f) + (Lam/2) ||f - f_before||^2 from 0 lower Z by C L(0) at most,
        and each by (Lam/2) times its length squared at least. It says where messages may be
        clipped, so it is about accuracy alone.
        """
        most = self.C.max() * self.at_zero
        far = np.sqrt(2 * most / self.rho)
        return (
            np.minimum(far, np.sqrt(2 * most * self.rounds / self.Lam))
            if self.rounds
            else np.full(self.Lam.shape, far)
        )


ARRAYS = ("phi", "inner", "outer", "step", "radius", "delta")


@dataclass(frozen=True)
class RoundNoise:
    """One round's numbers, each P x K; all public.

    Attributes
    ----------
    phi
        Phi, added to q; 0 where there is none.
    inner
        zeta of the noise e that enters the objective as (C/B_p) e.f; None where there is none.
    outer
        zeta of the noise that is added to the minimiser; None where there is none.
    step, radius
        Grid step and ball of the message.
    delta
        Delta(n), the sensitivity that ``outer`` covers.
    losses
        Loss of each event: ``abar`` and ``ah`` (Algorithm 2), ``slack`` (its z), ``primal``
        (Algorithm 3).
    """

    phi: Array
    inner: Array | None
    outer: Array | None
    step: Array
    radius: Array
    delta: Array
    losses: dict[str, Array] = field(repr=False)

    def some(self, nodes: slice) -> "RoundNoise":
        """Of some nodes alone."""
        own = {name: v[nodes] for name in ARRAYS if (v := getattr(self, name)) is not None}
        return self.changed(
            **own, losses={name: values[nodes] for name, values in self.losses.items()}
        )

    def changed(self, **numbers: Any) -> Self:
        """The same with other numbers, of whatever class it is, with what it has beside these."""
        out = copy(self)
        for name, number in numbers.items():
            object.__setattr__(out, name, number)
        return out

    def inner_noise(
        self, public: PublicNumbers, draws: Draws, nodes: Sequence[str], n: int
    ) -> Array | None:
        """(C/B_p) e, e ~ exp(-zeta ||e||): the linear term of Algorithm 2, P x K x d."""
        if self.inner is None:
            return None
        e = l2_laplace(draws, "dual", nodes, n, self.inner.shape[1], public.dimension)
        return e * on((public.weight / self.inner)[..., None], e)

    def release(self, g: Array, draws: Draws, nodes: Sequence[str], n: int) -> Array:
        """V = Round(g + noise), the only thing that is ever sent."""
        if self.outer is None:
            return g
        noise = on(
            l2_laplace(
                draws, "primal" if self.inner is None else "slack", nodes, n, g.shape[1], g.shape[2]
            ),
            g,
        )
        return to_grid(g + noise / on(self.outer[..., None], noise), self.step, self.radius)

    def events(
        self,
        nodes: Sequence[str],
        n: int,
        dimension: int,
        replica: int = 0,
        *,
        seeded: bool = False,
    ) -> tuple[Event, ...]:
        """What round n costs each node in this replica."""
        out: list[Event] = []
        for p, node in enumerate(nodes):
            loss = {name: float(values[p, replica]) for name, values in self.losses.items()}
            if "ah" in loss:
                out.append(DualPerturbation(node, n, loss["abar"], loss["ah"], dimension, seeded))
            for purpose in ("slack", "primal"):
                if purpose in loss:
                    out.append(L2Laplace(node, n, purpose, loss[purpose], dimension, seeded))
        return tuple(out)


class Mechanism(ABC):
    """How messages are protected.

    ``steady`` says that, with ``own`` = ``public``, :meth:`noise_for` looks at alpha alone and not
    at the round before, so that rounds with one alpha share a calibration. A class that defines its
    own has to say so itself.
    """

    name: ClassVar[str]
    steady: ClassVar[bool] = False
    own: Literal["public", "paper"] = "public"
    final: float | None = None

    def __init_subclass__(cls) -> None:
        if "noise_for" in vars(cls) and "steady" not in vars(cls):
            cls.steady = False

    def allowance(self, public: PublicNumbers) -> Array:
        """The largest gamma of each node, P x 1: there the noise for the solver's error is as long
        as that for rows.
        """
        return public.weight

    def inflation(self, public: PublicNumbers) -> Array:
        """How much longer noise is on average than with gamma = 0, P x 1."""
        return 1 + public.gamma / self.allowance(public)

    @abstractmethod
    def noise_for(
        self, public: PublicNumbers, alpha: Array, before: RoundNoise | None = None
    ) -> RoundNoise:
        """The numbers of one round whose releases may each lose alpha (P x K), after the round
        ``before``.
        """

    def plan(self, public: PublicNumbers, alpha: Array) -> tuple[RoundNoise, ...]:
        """The numbers of all rounds (alpha is P x K x T) and of a final release: public, and known
        before round 1.
        """
        rounds: list[RoundNoise] = []
        for n in range(alpha.shape[-1]):
            if (
                n
                and self.steady
                and self.own == "public"
                and np.array_equal(alpha[..., n], alpha[..., n - 1])
            ):
                rounds.append(rounds[-1])
            else:
                made = self.noise_for(public, alpha[..., n], rounds[-1] if rounds else None)
                if not isinstance(made, RoundNoise):
                    raise DeclarationError(
                        f"{type(self).__name__}, round {n + 1}: noise_for gave a "
                        f"{type(made).__name__}; expected a RoundNoise "
                        "of dynadp.mechanisms.base, or of a class of yours that inherits it"
                    )
                rounds.append(made)
        if self.final is not None:
            rounds.append(Dual().noise_for(public, np.full(alpha.shape[:2], self.final)))
        return tuple(rounds)

    def describe(self) -> dict[str, Any]:
        """Name and parameters, for the run record."""
        parameters: dict[str, Any] = asdict(self) if is_dataclass(self) else {}
        return {"name": self.name, **parameters}


@dataclass(frozen=True)
class NoProtection(Mechanism):
    """V = g: Algorithm 1. Messages reveal rows."""

    name: ClassVar[str] = "none"

    def noise_for(
        self, public: PublicNumbers, alpha: Array, before: RoundNoise | None = None
    ) -> RoundNoise:
        """No noise, no cost, no protection."""
        zero = np.zeros(alpha.shape)
        return RoundNoise(zero, None, None, zero, zero, zero, {})


@dataclass(frozen=True)
class Dual(Mechanism):
    """Algorithm 2, corrected: zeta = (alpha' - abar)/2, abar = ln(1 + c1/(a (rho + Phi + 2 eta
    N_p))), a = B_p/C.

    alpha is the release's total loss; alpha' = alpha - alpha2 and alpha2 = ``slack`` alpha pays for
    the solver's inexactness: z is l2-Laplace with zeta2 = alpha2 Lam/(2 gamma). Replacing a row
    changes the Hessian by rank one, so one factor (1 + c1/..) suffices where the paper has its
    square; and moves the noise by up to 2, so zeta is half of the paper's.

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
    steady: ClassVar[bool] = True

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
        return self.slack * public.weight

    def inflation(self, public: PublicNumbers) -> Array:
        """sqrt(1 + (gamma/allowance)^2), as z is independent of e."""
        return np.hypot(1, public.gamma / self.allowance(public))

    def noise_for(
        self, public: PublicNumbers, alpha: Array, before: RoundNoise | None = None
    ) -> RoundNoise:
        """Phi, zeta and zeta2 of one round."""
        alpha2 = self.slack * alpha
        rest = alpha - alpha2  # alpha'
        a = 1 / public.weight
        F = np.broadcast_to(public.reach if self.F is None else self.F, (len(public.counts), 1))
        phi = np.empty(alpha.shape)
        zeta = np.empty(alpha.shape)
        least = public.Lam
        for p, k in np.ndindex(alpha.shape):
            numbers = float(rest[p, k]), float(a[p, 0]), float(least[p, k]), public.c1
            if self.split == "paper":
                phi[p, k], zeta[p, k] = _paper_split(*numbers)
            else:
                phi[p, k] = _best_phi(*numbers, public.rho, public.dimension, float(F[p, 0]))
        Lam = public.Lam + phi
        abar = np.log1p(public.c1 / (a * Lam)) * (1 + 1e-12)  # from the final Phi, rounded up
        if self.split == "optimal":
            zeta = (rest - abar) / 2
        outer = alpha2 * Lam / (2 * public.gamma)
        scale = (
            public.weight
            * np.sqrt(public.dimension)
            / (zeta * (Lam + public.C[:, None] * public.c1))
        )
        step = grid_step(scale)
        ball = _ball(public, public.dimension * (public.weight / (zeta * Lam) + 1 / outer), step)
        losses = {"abar": abar, "ah": 2 * zeta, "slack": alpha2}
        return RoundNoise(phi, zeta, outer, step, ball, 2 * public.gamma / Lam, losses)


@dataclass(frozen=True)
class Primal(Mechanism):
    """Algorithm 3, corrected: V_p(n) = Round(g + e), e l2-Laplace with zeta = alpha/Delta(n).

    Attributes
    ----------
    own
        ``public``: the node's own message V_p in the augmented term, as in Algorithm 1, and Delta =
        (2C/B + 2 gamma)/(rho + 2 eta N_p). ``paper``: its own unperturbed vector minus the noise,
        as printed: 2 g - V stands for V_p. Its vector is private, so Delta(0) = 0 and Delta(n) =
        (2C/B + 2 gamma + 2 eta N_p Delta(n-1))/(rho + 2 eta N_p).
    final
        alpha of one more release after the last round, by Algorithm 2 from released vectors only;
        None for none.
    """

    own: Literal["public", "paper"] = "public"
    final: float | None = None
    name: ClassVar[str] = "primal"
    steady: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.own not in ("public", "paper"):
            raise DeclarationError(f"own is {self.own!r}; expected 'public' or 'paper'")
        if self.final is not None:
            _require.positive("final", self.final, ", the alpha of one more release")

    def allowance(self, public: PublicNumbers) -> Array:
        """C/B_p, as 2 gamma stands beside 2C/B in Delta; less where a final release has its own
        rule.
        """
        return public.weight if self.final is None else Dual().allowance(public)

    def noise_for(
        self, public: PublicNumbers, alpha: Array, before: RoundNoise | None = None
    ) -> RoundNoise:
        """Delta and zeta of one round."""
        moved = 2 * public.weight + 2 * public.gamma
        if self.own == "paper" and before is not None:
            moved = moved + (public.Lam - public.rho) * before.delta
        delta = np.broadcast_to(moved / public.Lam * (1 + 1e-12), alpha.shape)
        zeta = alpha / delta
        scale = np.sqrt(public.dimension + 1) / zeta
        step = grid_step(scale)
        ball = _ball(public, public.dimension / zeta, step)
        return RoundNoise(np.zeros(alpha.shape), None, zeta, step, ball, delta, {"primal": alpha})


def _ball(public: PublicNumbers, noise: Array, step: Array) -> Array:
    """||V(0)|| + 2 travel + BALL noise: twice as far as vectors should come, and room for noise.
    Neighbours accept no more.

    Never past 2^50 steps, so that every point of the grid within is exact in float64.
    """
    wanted = public.start + 2 * np.minimum(public.travel, 1e6) + BALL * noise
    return np.asarray(np.minimum(wanted, step * 2.0**50))


def _paper_split(alpha: float, a: float, Lam: float, c1: float) -> tuple[float, float]:
    """(Phi, zeta) by the paper's rule: the squared determinant, and alpha/2 where that leaves
    nothing; zeta halved.
    """
    left = alpha - 2 * float(np.log1p(c1 / (a * Lam)))
    if left > 0:
        return 0.0, left / 2
    return c1 / (a * float(np.expm1(alpha / 4))) - Lam, alpha / 4


@lru_cache(maxsize=100_000)
def _best_phi(alpha: float, a: float, Lam: float, c1: float, rho: float, d: int, F: float) -> float:
    """argmin over Phi >= Phi_min of Phi F^2/2 + 2 d (d+1)/(a^2 (alpha - abar)^2 (rho + Phi)),
    convex in Phi (maths.md 3).
    """
    least = max(0.0, c1 / (a * float(np.expm1(min(alpha, 700.0)))) - Lam)

    def bound(phi: float) -> float:
        left = alpha - float(np.log1p(c1 / (a * (Lam + phi)))) * (1 + 1e-12)
        return (
            phi * F**2 / 2 + 2 * d * (d + 1) / (a * left) ** 2 / (rho + phi)
            if left > 0
            else float("inf")
        )

    unit = least + rho + Lam
    found = minimize_scalar(
        lambda t: bound(least + unit * float(np.exp(t))),
        bounds=(-40.0, 40.0),
        method="bounded",
        options={"xatol": 1e-9},
    )
    candidates = [least + unit * float(np.exp(found.x)), 0.0]
    return min((phi for phi in candidates if phi >= least), key=bound)
