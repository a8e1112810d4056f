"""Sealed sums (maths.md 13): what algorithm "sum" releases where nobody sees one node's vector."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar, Self

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.mechanisms.base import Mechanism, PublicNumbers, RoundNoise, Sealing
from dynadp.mechanisms.gaussian import LARGEST, LEAST, GaussianNoise, noise_step
from dynadp.mechanisms.histogram import HISTOGRAM
from dynadp.mechanisms.sampling import power_of_two
from dynadp.mechanisms.sums import CellNoise, MomentNoise, Sum, SumNoise, resolution_for
from dynadp.privacy import check_honest
from dynadp.problem import Resolution

ALL_PAIRS = 256  # up to so many members everybody shares masks with everybody
SOME = 64  # beyond, with so many at least
WIDER = 4.0  # times the longest sum that a first attempt gives: room for a spare one's noise
_PART = 2.0**-20  # of a row that weighs less than another
_APART = (
    f"mu of the centring round or of a round is more than {WIDER:g} times that of the last round, "
    "which spare attempts have, or far below it; give spares = 0, or losses that differ less"
)


@dataclass(frozen=True)
class Sealed(Sum):
    """letter_p = k_p + masks mod 2^64, k_p = sum_i sigma_i k(x_i) + e_p: masks cancel in the sum
    over all nodes, and e_p has 1/sqrt(h) of the noise.

    How many nodes are honest is declared, as ``honest`` or as ``colluding``: nobody can find out.

    Attributes
    ----------
    second_moment, weighed
        As of :class:`~dynadp.mechanisms.sums.Sum`.
    honest
        h: nodes that add their noise and keep their masks to themselves. Whoever looks is not
        among them, so that at most P - 1 are.
    colluding
        c = P - h: nodes that may put together all they know, or leave out their noise.
    spares
        Attempts that are reserved beyond one for each sum: where a sum cannot be decoded, it is
        released once more, with new noise and new masks.
    partners
        With how many others a node shares masks, an even number above c; by default with all, and
        beyond 256 nodes with as many as c asks for.
    away
        Nodes that may stay away: h and c hold for sums over all but so many, and
        honest + colluding + away = P.
    """

    honest: int | None = None
    colluding: int | None = None
    spares: int = 1
    partners: int | None = None
    away: int = 0
    name: ClassVar[str] = "sealed"
    exchange: ClassVar[str] = "sealed"
    why: ClassVar[str] = (
        "sums over rows of all nodes, of which nobody sees one node's part, so that each adds a "
        "part of the noise"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("honest", "colluding", "partners"):
            if getattr(self, name) is not None:
                _require.whole(name, getattr(self, name), 1 if name == "honest" else 0)
        _require.whole("spares", self.spares, 0)
        _require.whole("away", self.away, 0)

    def describe(self) -> dict[str, Any]:
        """Return name and parameters; without ``away`` where nobody may be."""
        made = super().describe()
        return made if self.away else {k: v for k, v in made.items() if k != "away"}

    def among(self, members: int) -> Self:
        """Return the mechanism for so many nodes, with ``honest`` and ``colluding`` both."""
        h, c = self.honest, self.colluding
        if h is None and c is None:
            raise DeclarationError(
                "mechanism 'sealed' rests on honest nodes: declare how many of the "
                f"{members} add their noise and keep their masks (honest = {max(1, members // 2)}, "
                "for example), or how many may collude (colluding), whoever looks among them"
            )
        least = members - self.away
        if least < 1:
            raise DeclarationError(f"away is {self.away} of {members} nodes; nobody would be left")
        h = least - c if h is None and c is not None else h
        assert h is not None
        check_honest(h, least)
        if c is not None and c != least - h:
            added = (
                f", colluding is {c} and away is {self.away}"
                if self.away
                else (f" and colluding is {c}")
            )
            raise DeclarationError(
                f"honest is {h}{added} of {members} nodes; they must add up to {members}: give "
                "one of honest and colluding"
            )
        made = replace(self, honest=h, colluding=least - h)
        made.sealing  # noqa: B018 (refused here, where partners are too few)
        return made

    @property
    def sealing(self) -> Sealing | None:
        """Who takes part, of a mechanism that knows its nodes (:meth:`among`)."""
        if self.honest is None or self.colluding is None:
            return None
        members, c = self.honest + self.colluding + self.away, self.colluding
        if self.partners is None:
            least = max(c + 1, SOME)
            partners = members - 1 if members <= ALL_PAIRS else least + least % 2
        else:
            partners = self.partners
        if partners < members - 1 and (partners <= c or partners % 2):
            raise DeclarationError(
                f"partners is {partners} where {c} of {members} nodes may collude; expected an "
                f"even number above {c}, so that no {c} of them part the others, or "
                f"{members - 1} for all"
            )
        return Sealing(members, self.honest, min(partners, members - 1), self.away)

    def plan(self, public: PublicNumbers, alpha: Array) -> tuple[RoundNoise, ...]:
        """As of sums in the open, with balls that hold spare attempts too."""
        rounds, last = super().plan(public, alpha), self.before_histogram(alpha)[..., -1]
        check_spares(self, alpha, last[..., None])
        wider = {id(c): c for c in rounds}
        for key, noise in wider.items():
            assert isinstance(noise, GaussianNoise)
            if self.spares and (noise.parameter * noise.mu < LEAST * sqrt(2.0) * last).any():
                raise DeclarationError(_APART)
            more = np.maximum(noise.mu / last, 1.0).max(axis=0)  # the same for all nodes
            wider[key] = noise.changed(radius=noise.radius * more)
        return tuple(wider[id(c)] for c in rounds)

    def spare_attempts(self, public: PublicNumbers, alpha: Array) -> tuple[RoundNoise, ...]:
        """As many as declared, each with the loss of the last round, whatever it is used for."""
        alpha = self.before_histogram(alpha)
        resolution, moment = self._resolution(public, alpha), bool(self.second_moment)
        noise = self._noise(public, alpha[..., -1], resolution, moment=moment)
        return (noise.changed(purpose="spare"),) * self.spares

    @staticmethod
    def _resolution(public: PublicNumbers, mu: Array) -> Resolution:
        """As in the open, and so that the sum over all nodes fits into 64 bits."""
        most = max(float(public.counts.max()), float(public.counts.sum()) / 2**7)
        return resolution_for(public, most, mu)

    def _cells(self, public: PublicNumbers, mu: Array) -> CellNoise:
        """Each node's part of sqrt(2)/mu, or of 1/mu; weighed numbers of rows are written down as
        multiples of 2^-20.
        """
        assert self.sealing is not None
        width = 2 * self.histogram
        numbers = sealed_numbers(
            *(self.sealing, public.counts, mu, sqrt(public.moves), _PART, width, sqrt(width)),
            longest=1.0,
        )
        return CellNoise(purpose=HISTOGRAM, bins=self.histogram, **numbers)

    def _noise(
        self, public: PublicNumbers, mu: Array, resolution: Resolution, *, moment: bool
    ) -> SumNoise:
        """Delta/(mu sqrt(h)) for each node, of one step; the ball holds the sum over all."""
        d, sealing = public.dimension, self.sealing
        assert sealing is not None
        if len(public.counts) != sealing.members:
            raise DeclarationError(
                f"a sealed sum is over {len(public.counts)} nodes, and noise was shared among "
                f"{sealing.members}; plan again"
            )
        width = d * (d + 1) // 2 if moment else public.vectors * d
        rounding = float(d) if moment else sqrt(width)  # an entry above the diagonal counts twice
        unit = resolution.step**2
        delta = resolution.sensitivity(moment=moment, moves=public.moves)
        kind = MomentNoise if moment else SumNoise
        return kind(
            resolution=resolution,
            purpose="moment" if moment else "gradient",
            weighed=self.weighed,
            **sealed_numbers(
                *(sealing, public.counts, mu, delta * unit, unit, width, rounding),
                longest=resolution.sensitivity(moment=moment) * unit,
            ),
        )


def check_spares(mechanism: Mechanism, mu: Array, last: Array) -> None:
    """Refuse losses that a spare attempt, which has that of the last round, cannot stand in for:
    its noise would be too long for the public ball.
    """
    spares = mechanism.spares if isinstance(mechanism, Sealed) else 0
    if spares and (mu > WIDER * last).any():
        raise DeclarationError(_APART)


def sealed_numbers(
    sealing: Sealing,
    counts: Array,
    mu: Array,
    delta: float,
    unit: float,
    width: int,
    rounding: float,
    longest: float | None = None,
) -> dict[str, Any]:
    """The numbers of the noise of a sealed sum.

    The rows of node p weigh w_p = mu_p over the largest mu, so that each node loses its own mu in
    one noise. Whole units of w_p S_p differ by at most w_p Delta + 2 ``rounding`` units.

    Parameters
    ----------
    sealing
        Who takes part.
    counts, mu
        B_p, and mu_p, P x K.
    delta
        How far a replaced row moves a node's sum.
    unit
        What exact sums are multiples of.
    width
        How many numbers they have.
    rounding
        The length of a vector that is 1 in each of them.
    longest
        What a row adds to a sum, at most; by default delta.
    """
    largest = mu.max(axis=0, keepdims=True)
    weights = None if (mu == largest).all() else mu / largest
    P = sealing.members
    longer = 0.0 if weights is None else 2 * rounding * unit / float(weights.min())
    together = (delta + longer) / np.broadcast_to(largest, mu.shape)  # of all who are honest
    own = together / sqrt(sealing.honest)
    w = np.ones(mu.shape) if weights is None else weights
    rows = (w * counts[:, None]).sum(axis=0) * (delta if longest is None else longest)
    reach = rows + own * sqrt(P) * (sqrt(width) + 12.0)
    # as fine as noise in the open, unless the sum over all nodes would not fit
    least = power_of_two(WIDER * reach / LARGEST)
    step = np.maximum(noise_step(own / sqrt(2.0), unit), least)
    if (step > unit).any() or (own < LEAST * sqrt(2.0) * step).any():
        raise DeclarationError(
            f"sums over {counts.sum():,.0f} rows of {P} nodes with mu = {float(mu.max()):.3g} do "
            "not fit into 64 bits with their noise; take a smaller epsilon, fewer rows, or split "
            "the run"
        )
    return {
        "phi": np.zeros(mu.shape),
        "step": step,
        "radius": np.broadcast_to(reach, mu.shape),
        "mu": mu,
        "parameter": own / step * (1 + 1e-12),
        "sealing": sealing,
        "weights": weights,
        "unit": unit,
    }
