"""The public numbers of a node and its neighbours that Theorems 3 to 6 need (maths.md 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynadp.consensus import Topology
from dynadp.errors import DeclarationError
from dynadp.research.lemmas import noise_scale

MOST_ROWS = 2**300  # no search goes further


@dataclass(frozen=True)
class Neighbour:
    """The public numbers of one neighbour of the node.

    Attributes
    ----------
    alpha
        alpha_j(n), or a schedule; its smallest value counts.
    rows
        B_j; None: as many as the node itself.
    """

    alpha: ArrayLike
    rows: float | None = None

    def __post_init__(self) -> None:
        smallest_alpha(self.alpha)
        if self.rows is not None:
            require_whole("rows of a neighbour", self.rows)


@dataclass(frozen=True, kw_only=True)
class TheoremInputs:
    """The numbers that a theorem is about; all public.

    Attributes
    ----------
    norm
        ||f0||, of the reference classifier; the largest where it moves.
    C
        The paper's C^R.
    dimension
        d, with the intercept.
    alpha
        alpha_p(n), or a schedule; its smallest value counts. For Algorithm 2 without the solver's
        share (maths.md 6).
    c1
        sup L'', which is Theorem 6's c4.
    eta, degree
        Penalty and N_p. Theorem 4 may leave them out, as its proof does.
    neighbours
        alpha and B of each neighbour, where they differ from the node's; N_p then follows. Empty:
        all have those of the node, as the paper assumes. Theorems 5 and 6 only: noise of others
        does not enter 3 and 4.
    Phi
        Of Algorithm 2; Theorem 4 only. The paper assumes 0.
    rounds
        The noise of this many rounds must behave at once; the paper speaks of one. Solved forms
        only.
    """

    norm: float
    C: float = 1.0
    dimension: int | None = None
    alpha: ArrayLike | None = None
    c1: float | None = None
    eta: float | None = None
    degree: int | None = None
    neighbours: Sequence[Neighbour] = ()
    Phi: float = 0.0
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.neighbours:
            if self.degree not in (None, len(self.neighbours)):
                raise DeclarationError(
                    f"degree is {self.degree!r}, and {len(self.neighbours)} neighbours are given; "
                    f"leave out degree"
                )
            object.__setattr__(self, "degree", len(self.neighbours))
        checks = {
            require_positive: ("norm", "C", "c1", "eta"),
            require_whole: ("dimension", "degree", "rounds"),
        }
        for check, names in checks.items():
            for name in names:
                if (value := getattr(self, name)) is not None:
                    check(name, value)
        if not (isfinite(self.Phi) and self.Phi >= 0):
            raise DeclarationError(f"Phi is {self.Phi!r}; expected a finite number, 0 or above")
        if self.alpha is not None:
            smallest_alpha(self.alpha)

    @classmethod
    def of_network(
        cls, topology: Topology, alphas: Sequence[ArrayLike], rows: Sequence[float], **shared: Any
    ) -> "dict[str, TheoremInputs]":
        """The inputs of every node of a network.

        Parameters
        ----------
        topology
            The network; every node needs a neighbour.
        alphas, rows
            alpha_p (a number or a schedule) and B_p of each node, in the topology's order.
        shared
            The fields that all nodes share.
        """
        each = [Neighbour(alpha, B) for alpha, B in zip(alphas, rows, strict=True)]
        return {
            name: cls(
                alpha=alphas[p],
                neighbours=[each[j] for j in np.flatnonzero(topology.adjacency[[p]].toarray()[0])],
                **shared,
            )
            for p, name in enumerate(topology.nodes)
        }

    @property
    def least(self) -> float:
        """The smallest alpha of the schedule; infinity where there is none."""
        return inf if self.alpha is None else smallest_alpha(self.alpha)

    def scales(self, rows: float, rho: float) -> tuple[float, float]:
        """theta_p of the node with this many rows, and the sum of theta_j over its neighbours."""
        own = noise_scale(rows, self.least, C=self.C, rho=rho)
        if not self.neighbours:
            return own, (self.degree or 0) * own
        each = (
            noise_scale(j.rows or rows, smallest_alpha(j.alpha), C=self.C, rho=rho)
            for j in self.neighbours
        )
        return own, sum(each)


def require_positive(name: str, value: float) -> None:
    """Raise unless the value is a number from 1e-30 to 1e30."""
    if isinstance(value, bool) or not 1e-30 <= value <= 1e30:
        raise DeclarationError(f"{name} is {value!r}; expected a number from 1e-30 to 1e30")


def require_whole(name: str, value: float) -> None:
    """Raise unless the value is a whole number from 1."""
    if isinstance(value, bool) or not 1 <= value <= MOST_ROWS or value != int(value):
        raise DeclarationError(f"{name} is {value!r}; expected a whole number from 1")


def smallest_alpha(alpha: ArrayLike) -> float:
    """Return the smallest alpha of a number or a schedule, or raise."""
    values = np.asarray(alpha, dtype=float)
    if values.size == 0 or not (values >= 1e-100).all():  # infinity stands for no noise
        raise DeclarationError("alpha must be a number from 1e-100, or a schedule of such numbers")
    return float(values.min())
