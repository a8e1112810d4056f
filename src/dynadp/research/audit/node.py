"""One node in front of an adversary: it holds D or D', hears what the adversary says, and the
adversary sees what it sends.

The node is the shipped code: calibrations from a :class:`~dynadp.mechanisms.base.Mechanism`, the
two halves of a round from :mod:`dynadp.consensus.admm`, l2-Laplace noise and the grid. Where
densities are known, the exact log-likelihood ratio of what was sent can be computed for every draw.
"""

from collections.abc import Sequence

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import ReleasePlan, Topology, admm
from dynadp.errors import DeclarationError
from dynadp.mechanisms import ARRAYS, Draws, Mechanism, RoundNoise
from dynadp.privacy import Event
from dynadp.problem import Factor, Problem, Terms, StackedProblem
from dynadp.research.audit.cases import Case

BATCH, NUMBERS = (
    50_000,
    10**7,
)  # replicas that are solved at once, and how many numbers their rows may make


class AuditedNode:
    """The node of a case under a mechanism: what it would send from D or D', and how likely each of
    them makes what was sent.

    Parameters
    ----------
    case
        Data sets, public numbers, and what the node hears.
    mechanism
        What is audited.
    alpha
        The claimed loss of each round.
    rounds
        T.
    """

    def __init__(self, case: Case, mechanism: Mechanism, alpha: float, rounds: int = 1) -> None:
        self.case, self.mechanism, self.rounds = case, mechanism, rounds
        self.degrees, self.eta = np.array([float(case.degree)]), np.array([float(case.eta)])
        self.batch = max(1, min(BATCH, NUMBERS // case.rows.size))
        star, (B, d) = Topology.family("star", case.degree + 1), case.rows.shape
        terms = Terms(
            np.full(len(star), float(B)), d, case.loss, case.regularizer, case.C, case.rho
        )
        start = np.zeros((len(star), 1, d))
        start[1:] = case.heard / max(case.degree, 1)  # what neighbours say first is public
        alphas = np.full((len(star), 1, rounds), float(alpha))
        releases = ReleasePlan.plan(terms, star, self.eta, mechanism, alphas, start).some(
            slice(0, 1)
        )
        self.public, self.calibrations = releases.public, releases.calibrations
        _require_densities(mechanism, self.calibrations)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run costs, as claimed."""
        named = enumerate(self.calibrations, 1)
        return tuple(
            event for n, c in named for event in c.events(("node",), n, self.public.dimension)
        )

    @property
    def log_ratio_bound(self) -> float:
        """What :meth:`log_ratio` may not pass at the points of :meth:`transcript`: all losses but
        the solver's slack.
        """
        return sum(
            float(v[0, 0])
            for c in self.calibrations
            for name, v in c.losses.items()
            if name != "slack"
        )

    def transcript(self, rows: Array, count: int, draws: Draws) -> tuple[Array, Array]:
        """(points, messages) of so many independent runs on these rows, each count x T x d.

        Messages are what is sent. Points are where the density is known: the minimiser of a noisy
        objective (Algorithm 2), the message otherwise.
        """
        parts = [
            self._batch(rows, min(self.batch, count - at), draws)
            for at in range(0, count, self.batch)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate(
            [part[1] for part in parts]
        )

    def release(self, rows: Array, count: int, draws: Draws) -> Array:
        """The messages of so many runs, count x T d."""
        return self.transcript(rows, count, draws)[1].reshape(count, -1)

    def _batch(self, rows: Array, count: int, draws: Draws) -> tuple[Array, Array]:
        problem, factor = self._problem(rows), None
        state, g = self._begin(1, count)
        points, messages = [], []
        for n, narrow in enumerate(self.calibrations, 1):
            c = _widened(narrow, count)
            noise = c.inner_noise(self.public, draws, ("node",), n)
            g, factor = self._solve(problem, state, narrow, g, noise, factor)
            V = c.release(g, draws, ("node",), n)
            points.append(V if c.inner is None else g)
            messages.append(V)
            state = self._receive(n, state, V, g)
        return np.concatenate(points).transpose(1, 0, 2), np.concatenate(messages).transpose(
            1, 0, 2
        )

    def log_ratio(self, points: Array, messages: Array) -> Array:
        """ln p_D - ln p_D' of each run, a sum over rounds of what each adds given the messages
        before it (maths.md 3, 4).

        Algorithm 3: zeta (||V - g'|| - ||V - g||), g and g' the minimisers of D and D'. Algorithm
        2: the noise e(f) that makes f the minimiser follows from stationarity, so ln p(f) = -zeta
        ||e(f)|| + ln det H(f) up to a constant. The bound holds for any points; the true ratio of
        messages, which are rounded, never exceeds it either.
        """
        parts = [
            self._ratios(points[at : at + self.batch], messages[at : at + self.batch])
            for at in range(0, len(messages), self.batch)
        ]
        return np.concatenate(parts)

    def _ratios(self, points: Array, messages: Array) -> Array:
        problem, factor, ratios = (
            self._problem(self.case.rows, self.case.other),
            None,
            np.zeros(len(messages)),
        )
        state, g = self._begin(2, len(messages))
        for n, c in enumerate(self.calibrations, 1):
            V = np.broadcast_to(messages[:, n - 1], g.shape)
            if c.inner is None:
                g, factor = self._solve(problem, state, c, g, None, factor)
                assert c.outer is not None  # no noise, no density
                distance = np.linalg.norm(V - g, axis=-1)
                ratios += float(c.outer[0, 0]) * (distance[1] - distance[0])
            else:
                density = self._log_density(
                    problem, state, c, np.broadcast_to(points[:, n - 1], g.shape)
                )
                ratios += density[0] - density[1]
            state = self._receive(n, state, V, g)
        return ratios

    def _log_density(self, problem: Problem, state: admm.State, c: RoundNoise, F: Array) -> Array:
        assert c.inner is not None
        q = float(self.public.Lam[0, 0] - self.case.rho + c.phi[0, 0])
        b = admm.linear_terms(state, self.eta)[0]
        e = problem.gradient(F, np.full((1, 1), q), b) / self.public.weight[..., None]
        ridge = self.case.rho * self.case.regularizer.curvature(F) + q
        volume = [
            self._log_det(rows, f, r)
            for rows, f, r in zip((self.case.rows, self.case.other), F, ridge, strict=True)
        ]
        return np.asarray(volume - float(c.inner[0, 0]) * np.linalg.norm(e, axis=-1))

    def _log_det(self, rows: Array, F: Array, ridge: Array) -> Array:
        """ln det( R + A^T W A ) = ln det R + ln det( I + W^(1/2) A R^-1 A^T W^(1/2) ) at each of K
        vectors, R diagonal.
        """
        rows = rows[rows.any(axis=1)]
        root = np.sqrt(self.case.loss.curvature(F @ rows.T) * float(self.public.weight[0, 0]))
        inner = (
            np.einsum("bd,kd,cd->kbc", rows, 1 / ridge, rows, optimize=True)
            * root[:, :, None]
            * root[:, None, :]
        )
        return np.asarray(
            np.log(ridge).sum(axis=1) + np.linalg.slogdet(np.eye(len(rows)) + inner)[1]
        )

    def _problem(self, *blocks: Array) -> Problem:
        case = self.case
        return StackedProblem(blocks, case.loss, case.regularizer, case.C, case.rho, storage="dense")

    def _begin(self, nodes: int, count: int) -> tuple[admm.State, Array]:
        zero = np.zeros((nodes, count, self.public.dimension))
        return admm.begin(
            zero, np.broadcast_to(self.case.heard, zero.shape), self._repeated(nodes)
        ), zero

    def _solve(
        self,
        problem: Problem,
        state: admm.State,
        c: RoundNoise,
        warm: Array,
        linear: Array | None,
        factor: Factor | None,
    ) -> tuple[Array, Factor | None]:
        gamma = np.repeat(self.public.gamma, len(problem), axis=0)
        found = admm.send(
            problem,
            state,
            self._repeated(len(problem)),
            self.eta,
            gamma,
            warm,
            linear=linear,
            phi=c.phi,
            factor=factor,
        )
        return found.point, found.factor

    def _receive(self, n: int, state: admm.State, V: Array, g: Array) -> admm.State:
        pull = (
            2 * g - V if self.mechanism.own == "paper" and n < self.rounds else None
        )  # as in runtime/simulation.py
        heard = np.broadcast_to(self.case.heard, V.shape)
        return admm.receive(state, V, heard, self._repeated(len(V)), self.eta, pull=pull)

    def _repeated(self, nodes: int) -> Array:
        return np.repeat(self.degrees, nodes)


def _widened(c: RoundNoise, count: int) -> RoundNoise:
    """The same public numbers for so many replicas."""
    numbers = {name: getattr(c, name) for name in ARRAYS}
    return c.changed(
        **{name: np.broadcast_to(v, (1, count)) for name, v in numbers.items() if v is not None}
    )


def _require_densities(mechanism: Mechanism, calibrations: Sequence[RoundNoise]) -> None:
    """Refuse a mechanism whose messages have no density that the audit could compare."""
    for n, c in enumerate(calibrations, 1):
        name = type(mechanism).__name__
        if c.inner is None and c.outer is None:
            raise DeclarationError(
                f"{name}, round {n}: its Calibration has neither inner nor outer noise, so "
                f"messages are exact and have no "
                "density to compare; set the rate of one of them, or audit what is released with "
                "dynadp.research.audit.audit"
            )
