"""What a run releases: its public numbers, known before round 1, and every round's release, entered before it is sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dynadp import admm
from dynadp.arrays import Array, host, on
from dynadp.errors import DeclarationError
from dynadp.noise import Draws
from dynadp.objective import Terms
from dynadp.perturbation import BALL, Calibration, NoPerturbation, Perturbation, Public
from dynadp.privacy.events import Event
from dynadp.runtime.books import Outbox
from dynadp.runtime.steps import Steps
from dynadp.solvers import default_gamma


def nowhere(point: str) -> None:
    """What happens at a point of a round: nothing."""


@dataclass(frozen=True)
class Releases:
    """The public numbers of all rounds of some nodes.

    Attributes
    ----------
    nodes
        Whose.
    mechanism
        How messages are protected.
    public
        What calibrations look at; the certified bound gamma on every local gradient among it.
    calibrations
        One for each round, and one for a final release where there is one.
    rounds
        T.
    aim
        What solvers go on to, where they can: gamma for vectors as long as they are likely to get.
    """

    nodes: tuple[str, ...]
    mechanism: Perturbation
    public: Public = field(repr=False)
    calibrations: tuple[Calibration, ...] = field(repr=False)
    rounds: int
    aim: Array = field(repr=False)

    @classmethod
    def plan(
        cls,
        terms: Terms,
        nodes: Sequence[str],
        degrees: Array,
        eta: Array,
        mechanism: Perturbation,
        alpha: Array,
        start: Array,
        gamma: float | None = None,
    ) -> "Releases":
        """From what is public alone: alpha is P x K x T, V(0) is P x K x d."""
        if gamma is None:
            bounds, aim = _gamma(terms, degrees, eta, mechanism, alpha, start)
        else:
            bounds = aim = np.full((len(terms), 1), float(gamma))
        constants = terms.counts, degrees, terms.dimension, terms.C, terms.rho
        public = Public.of(*constants, eta, bounds, terms.loss)
        rounds = alpha.shape[-1]
        if isinstance(mechanism, NoPerturbation):
            calibrations = (mechanism.calibrate(public, alpha[..., 0]),) * rounds
        else:
            calibrations = mechanism.plan(public, alpha)
        return cls(tuple(nodes), mechanism, public, calibrations, rounds, aim)

    @property
    def private(self) -> bool:
        """Whether messages are protected."""
        return not isinstance(self.mechanism, NoPerturbation)

    def events(self, replica: int = 0, *, seeded: bool) -> tuple[Event, ...]:
        """Everything that will be spent, in order."""
        made = enumerate(self.calibrations, 1)
        return tuple(e for n, c in made for e in c.events(self.nodes, n, self.public.dimension, replica, seeded=seeded))


class Sender:
    """Makes and enters one release after the other.

    Parameters
    ----------
    releases
        Their public numbers.
    steps
        The local work.
    draws
        Where noise comes from.
    books
        Where messages are entered before they are sent; what they hold is not made again.
    linear
        A further linear term of round n for every local problem, P x K x d.
    at
        Told ``computed`` before a message is entered, and ``spent`` after: where a test may pull the plug.
    """

    def __init__(
        self,
        releases: Releases,
        steps: Steps,
        draws: Draws,
        books: Outbox | None = None,
        linear: Callable[[int], Array] | None = None,
        at: Callable[[str], None] = nowhere,
    ) -> None:
        self.at = at
        self.releases, self.steps, self.draws, self.books, self.linear = releases, steps, draws, books, linear
        self.seeded = releases.private and draws.seeded
        if books:
            if not releases.private or releases.public.eta.size > 1:
                raise DeclarationError("ledgers are for one private run: give a mechanism, and one replica")
            if releases.mechanism.own == "paper" and books.sent(1) is not None:
                raise DeclarationError(
                    "own = 'paper' needs a private vector that is not kept, so such a run cannot go on; begin anew"
                )
            books.reserve(releases.events(seeded=self.seeded))

    def send(self, n: int, state: admm.State) -> tuple[Array, Array]:
        """The certified minimiser g of round n, and the message V made of it, P x K x d."""
        nodes, public = self.releases.nodes, self.releases.public
        if self.books and (stored := self.books.sent(n)) is not None:
            V = on(np.array([stored[node] for node in nodes])[:, None], state.W)
            return V, V
        calibration = self.releases.calibrations[n - 1]
        noise = calibration.inner_noise(public, self.draws, nodes, n)
        if self.linear is not None:
            noise = self.linear(n) if noise is None else noise + self.linear(n)
        if noise is not None:
            noise = on(noise, state.W)
        g = self.steps.local_step(n, state, noise, on(calibration.phi, state.W))
        V = calibration.release(g, self.draws, nodes, n)
        if self.books:
            events = calibration.events(nodes, n, public.dimension, seeded=self.seeded)
            self.at("computed")
            sent = self.books.spend(n, events, dict(zip(nodes, host(V)[:, 0], strict=True)))
            self.at("spent")
            V = on(np.array([sent[node] for node in nodes])[:, None], state.W)
        return g, V


def _gamma(
    terms: Terms, degrees: Array, eta: Array, mechanism: Perturbation, alpha: Array, start: Array
) -> tuple[Array, Array]:
    """The default gamma for vectors as long as start, noise and what neighbours may send can make them; and for likely ones.

    A node believes messages of up to the public radius R, so that ||W_p|| <= N_p R, ||lam_p|| <= eta N_p R T and the minimiser
    is no longer than (T + 1) R and its own share. A gamma for shorter vectors would let a neighbour bring a node to where the
    certificate fails on some rows and not on others: whether it stops would then tell of rows.
    """
    likely = far = np.asarray(np.linalg.norm(start, axis=-1))
    if not isinstance(mechanism, NoPerturbation):
        constants = terms.counts, degrees, terms.dimension, terms.C, terms.rho
        public = Public.of(*constants, eta, default_gamma(terms), terms.loss)
        least = mechanism.calibrate(public, alpha.min(axis=-1))
        growth = public.Lam / public.rho if mechanism.own == "paper" else 1.0  # its sensitivity grows by at most this
        likely = likely + np.minimum(10 * least.radius / BALL * growth, 1e9)
        if mechanism.own == "public":  # the paper's way runs in one process, where nobody lies
            far = far + (alpha.shape[-1] + 1) * (least.radius + least.step * np.sqrt(terms.dimension))
    q = admm.penalty(degrees, eta)
    aim = default_gamma(terms, q, likely)
    return np.maximum(default_gamma(terms, q, far), aim), aim
