"""How a release is protected: what a mechanism is, from public numbers to one round's noise.

A :class:`Mechanism` turns :class:`PublicNumbers` and alpha_p(n) into a :class:`RoundNoise`, which
draws the noise of one round, rounds the message and knows which events that costs. Rows never
enter. Arrays are P x K: every node and every replica has its own.

A mechanism is one file: its class has a name, by which run files, the command line, the report and
the audit find it; an event of a new kind and its loss distribution are registered with
:mod:`dynadp.privacy` by the same file.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import Draws
from dynadp.privacy import Event
from dynadp.problem import Loss

# times the mean length of noise for the largest gamma, twice the usual one; larger balls cost a
# larger gamma
BALL = 8.0


@dataclass(frozen=True)
class PublicNumbers:
    """The public numbers that a calibration may use.

    Attributes
    ----------
    counts, degrees
        B_p and N_p of each node.
    dimension
        d, with the intercept.
    C
        The paper's C^R of each node (:func:`~dynadp.problem.terms.shares`).
    rho
        The paper's rho.
    eta
        Penalty of each replica.
    gamma
        Bound on the gradient at the solver's point, P x 1.
    loss
        L, for its constants.
    rounds
        T, which bounds how far vectors come; None for the limit of many.
    start
        How long V(0) is, at most.
    moves
        How far one row moves a sum of vectors of length 1: 2 where it is replaced, 1 where it is
        added or removed (maths.md 15).
    vectors
        How many vectors of d numbers a sum holds: one, or one for each of several classes.
    """

    counts: Array
    degrees: Array
    dimension: int
    C: Array
    rho: float
    eta: Array
    gamma: Array
    loss: Loss
    rounds: int | None = None
    start: float = 0.0
    moves: float = 2.0
    vectors: int = 1

    def some(self, nodes: slice) -> "PublicNumbers":
        """Return the numbers of some nodes alone."""
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
        return np.minimum(C / self.rho, np.sqrt(2 * C * self.loss.at_zero / self.rho))

    @property
    def travel(self) -> Array:
        """How far T rounds should come: min(reach, sqrt(2 C L(0) T/Lam)), C the largest, P x K.

        n steps of f <- argmin Z(f) + (Lam/2) ||f - f_before||^2 from 0 lower Z by C L(0) at most,
        and each by (Lam/2) times its length squared at least. It says where messages may be
        clipped, so it is about accuracy alone.
        """
        most = self.C.max() * self.loss.at_zero
        far = np.full(self.Lam.shape, np.sqrt(2 * most / self.rho))
        if self.rounds is None:
            return far
        return np.asarray(np.minimum(far, np.sqrt(2 * most * self.rounds / self.Lam)))


@dataclass(frozen=True)
class RoundNoise(ABC):
    """The noise of one round: public numbers, each P x K, and what is done with them.

    Attributes
    ----------
    phi
        Phi, added to q in the local problem; 0 where there is none.
    step, radius
        Grid step and ball of the message.
    """

    phi: Array
    step: Array
    radius: Array

    inside: ClassVar[bool] = False  # whether noise enters the objective, as in Algorithm 2

    def __init_subclass__(cls) -> None:
        draws = cls.linear is not RoundNoise.linear
        if draws and cls.longest_linear is RoundNoise.longest_linear:
            raise DeclarationError(
                f"{cls.__name__} draws a linear term and does not say how long it is; define "
                "longest_linear, which gamma has to cover"
            )

    @abstractmethod
    def release(self, g: Array, draws: Draws, nodes: Sequence[str], n: int) -> Array:
        """Make the message V of round n from the certified minimiser g, P x K x d."""

    @abstractmethod
    def events(
        self,
        nodes: Sequence[str],
        n: int,
        dimension: int,
        replica: int = 0,
        *,
        seeded: bool = False,
    ) -> tuple[Event, ...]:
        """List what round n costs each node in this replica."""

    def linear(
        self, public: PublicNumbers, draws: Draws, nodes: Sequence[str], n: int
    ) -> Array | None:
        """Draw the linear term (C/B_p) e that is added to the objective; None for no such noise."""
        return None

    def longest_linear(self, public: PublicNumbers) -> Array | float:
        """A length that :meth:`linear` passes with a chance of e^-64 at most, P x K."""
        return 0.0

    def log_density(self, x: Array) -> Array | None:
        """ln of the noise's density at x, up to a constant; None for what has no density.

        x is e where noise enters the objective as (C/B_p) e, otherwise V - g. Audits and attacks
        compare densities. The first axes of x are node and replica, its last one is coordinate.
        """
        return None

    def width(self, dimension: int) -> int:
        """How many numbers a message of the round holds, for rows of d columns."""
        return dimension

    @property
    def log_ratio_bound(self) -> Array | float:
        """What ln p_D - ln p_D' of :meth:`log_density` can never pass, P x K."""
        return np.inf

    def some(self, nodes: slice) -> Self:
        """Return the numbers of some nodes alone."""
        return self.each(lambda numbers: numbers[nodes])

    def each(self, change: Callable[[Array], Array]) -> Self:
        """Return a copy with ``change`` applied to every array."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        return self.changed(
            **{name: change(v) for name, v in arrays.items() if isinstance(v, np.ndarray)}
        )

    def changed(self, **numbers: Any) -> Self:
        """Return a copy with other numbers; whatever a subclass has beside them stays."""
        out = copy(self)
        for name, number in numbers.items():
            object.__setattr__(out, name, number)
        return out


@dataclass(frozen=True)
class Sealing:
    """Who takes part in sealed sums (maths.md 13).

    Attributes
    ----------
    members
        How many nodes a sum is over.
    honest
        h: members whose noise no observer knows, at least.
    partners
        With how many others each shares masks.
    away
        Members that may stay away: sums go on over all others, and h holds for the least of them.
    """

    members: int
    honest: int
    partners: int
    away: int = 0

    @property
    def least(self) -> int:
        """How many members a sum is over, at least: h + c."""
        return self.members - self.away

    @property
    def colluding(self) -> int:
        """c: members that may put together all they know, whoever stays away."""
        return self.least - self.honest

    @property
    def accounted(self) -> tuple[int, int, int]:
        """h, members and partners of the least sum: what events are about."""
        return self.honest, self.least, min(self.partners, self.least - 1)


class Mechanism(ABC):
    """How messages are protected.

    A subclass with a ``name`` enters ``registry`` under it.
    """

    registry: ClassVar[dict[str, type["Mechanism"]]] = {}
    name: ClassVar[str]
    why: ClassVar[str] = "as asked"  # one reason for a plan
    algorithm: ClassVar[str] = "admm"  # which one's messages it protects: "admm" or "sum"
    exchange: ClassVar[str] = "neighbours"  # who gets a message: they, or all ("open")

    def __init_subclass__(cls) -> None:
        maker = next(kind for kind in cls.__mro__ if "__init__" in vars(kind))
        if maker is not object and "__dataclass_fields__" not in vars(maker):
            raise DeclarationError(
                f"mechanism {cls.__qualname__} has an __init__ of its own, whose parameters would "
                "be missing in records; make them fields of a dataclass"
            )
        if "name" not in vars(cls):
            return
        known = Mechanism.registry.get(cls.name)
        place = cls.__module__, cls.__qualname__
        if known is not None and (known.__module__, known.__qualname__) != place:
            raise DeclarationError(
                f"two mechanisms are named {cls.name!r}: {known.__qualname__} and "
                f"{cls.__qualname__}; names must differ"
            )
        Mechanism.registry[cls.name] = cls

    @classmethod
    def translated(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters under the names of this version."""
        return dict(parameters)

    def describe(self) -> dict[str, Any]:
        """Return name and parameters, for the run record."""
        parameters: dict[str, Any] = asdict(self) if is_dataclass(self) else {}
        return {"name": self.name, **parameters}

    @property
    def noise(self) -> str:
        """``l2-laplace``, or ``gaussian``, for which alpha(n) is mu(n)."""
        return "l2-laplace"

    @property
    def by_alpha_alone(self) -> bool:
        """Whether events depend on no public number but alpha."""
        return False

    @property
    def private_iterate(self) -> bool:
        """Whether a node's own unperturbed vector enters its next problem, as the paper prints."""
        return False

    def allowance(self, public: PublicNumbers) -> Array:
        """The largest gamma of each node, P x 1: noise for the solver's error is then as long as
        noise for rows.
        """
        return public.weight * (public.moves / 2)

    def inflation(self, public: PublicNumbers) -> Array:
        """How much longer noise is on average than with gamma = 0, P x 1."""
        return 1 + public.gamma / self.allowance(public)

    @abstractmethod
    def noise_for(self, public: PublicNumbers, alpha: Array) -> RoundNoise:
        """Return the noise of a round whose releases may each lose alpha (P x K).

        It is a function of its arguments: rounds with the same alpha share one. A mechanism whose
        rounds depend on earlier ones defines :meth:`plan`.
        """

    def plan(self, public: PublicNumbers, alpha: Array) -> tuple[RoundNoise, ...]:
        """Return the noise of all rounds (alpha is P x K x T): public, and known before round 1.

        One that is longer than T ends with a final release, made from released vectors alone.
        """
        rounds: list[RoundNoise] = []
        for n in range(alpha.shape[-1]):
            if n and np.array_equal(alpha[..., n], alpha[..., n - 1]):
                rounds.append(rounds[-1])
                continue
            noise = self.noise_for(public, alpha[..., n])
            if not isinstance(noise, RoundNoise):
                raise DeclarationError(
                    f"{type(self).__name__}, round {n + 1}: noise_for gave a "
                    f"{type(noise).__name__}; expected a RoundNoise of dynadp.mechanisms, or of a "
                    "class of yours that inherits it"
                )
            rounds.append(noise)
        return tuple(rounds)

    @property
    def sealing(self) -> Sealing | None:
        """Who takes part in sealed sums; None in the open, and as long as that is unknown."""
        return None

    def among(self, members: int) -> Self:
        """Return the mechanism for so many nodes."""
        return self

    def spare_attempts(self, public: PublicNumbers, alpha: Array) -> tuple[RoundNoise, ...]:
        """Return what is reserved beyond one release for each round: none."""
        return ()


@dataclass(frozen=True)
class NoNoise(RoundNoise):
    """V = g."""

    def release(self, g: Array, draws: Draws, nodes: Sequence[str], n: int) -> Array:
        """Return g itself."""
        return g

    def events(
        self,
        nodes: Sequence[str],
        n: int,
        dimension: int,
        replica: int = 0,
        *,
        seeded: bool = False,
    ) -> tuple[Event, ...]:
        """Return nothing: there is no claim."""
        return ()


@dataclass(frozen=True)
class NoProtection(Mechanism):
    """V = g: Algorithm 1. Messages reveal rows."""

    name: ClassVar[str] = "none"

    def noise_for(self, public: PublicNumbers, alpha: Array) -> NoNoise:
        """No noise, no cost, no protection."""
        zero = np.zeros(alpha.shape)
        return NoNoise(zero, zero, zero)


def ball(public: PublicNumbers, noise: Array, step: Array) -> Array:
    """||V(0)|| + 2 travel + BALL noise: twice as far as vectors should come, and room for noise.

    Neighbours accept no more. Never past 2^50 steps, so that every point of the grid within is
    exact in float64.
    """
    wanted = public.start + 2 * np.minimum(public.travel, 1e6) + BALL * noise
    return np.asarray(np.minimum(wanted, step * 2.0**50))
