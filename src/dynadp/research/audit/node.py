"""One node in front of an adversary: it holds D or D', hears what the adversary says, and the
adversary sees what it sends.

The node runs the rounds of every engine (:class:`~dynadp.consensus.round.Rounds`): the shipped
mechanism, solver, noise and grid. Where densities are known, the exact log-likelihood ratio of what
was sent can be computed for every draw.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import LocalSolver, ReleasePlan, Releaser, Rounds, Topology, admm
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Draws, Mechanism, RoundNoise, SystemEntropy
from dynadp.privacy import Event
from dynadp.problem import StackedProblem, Terms
from dynadp.research.audit.cases import Case

# replicas that are solved at once, and how many numbers their rows may make
BATCH, NUMBERS = 50_000, 10**7


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
        self.case, self.rounds = case, rounds
        self.degrees, self.eta = np.array([float(case.degree)]), np.array([float(case.eta)])
        self.batch = max(1, min(BATCH, NUMBERS // case.rows.size))
        star, (B, d) = Topology.family("star", case.degree + 1), case.rows.shape
        terms = Terms(
            np.full(len(star), float(B)), d, case.loss, case.regularizer, case.C, case.rho
        )
        start = np.zeros((len(star), 1, d))
        start[1:] = case.heard / max(case.degree, 1)  # what neighbours say first is public
        alphas = np.full((len(star), 1, rounds), float(alpha))
        whole = ReleasePlan.plan(terms, star, self.eta, mechanism, alphas, start)
        self.releases = replace(whole.some(slice(0, 1)), nodes=("node",))
        _require_densities(mechanism, self.releases.noises)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run costs, as claimed."""
        return self.releases.events(seeded=False)

    @property
    def log_ratio_bound(self) -> float:
        """What :meth:`log_ratio` may not pass at the points of :meth:`transcript`."""
        return sum(
            float(np.broadcast_to(c.log_ratio_bound, (1, 1))[0, 0]) for c in self.releases.noises
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
        points, messages = zip(*parts, strict=True)
        return np.concatenate(points), np.concatenate(messages)

    def release(self, rows: Array, count: int, draws: Draws) -> Array:
        """The messages of so many runs, count x T d."""
        return self.transcript(rows, count, draws)[1].reshape(count, -1)

    def _batch(self, rows: Array, count: int, draws: Draws) -> tuple[Array, Array]:
        releases, solver = self.releases.widened(count), self._solver(count, rows)
        seen = _Points(releases, solver, draws)
        self._run(seen)
        points, messages = (np.concatenate(v).transpose(1, 0, 2) for v in (seen.g, seen.V))
        return points, messages

    def log_ratio(self, points: Array, messages: Array) -> Array:
        """ln p_D - ln p_D' of each run, a sum over rounds of what each adds given the messages
        before it (maths.md 3, 4).

        Algorithm 3: zeta (||V - g'|| - ||V - g||), g and g' the minimisers of D and D'. Algorithm
        2: the noise e(f) that makes f the minimiser follows from stationarity, so ln p(f) = -zeta
        ||e(f)|| + ln det H(f) up to a constant. The bound holds for any points; the true ratio of
        messages, which are rounded, never exceeds it either.
        """
        return np.concatenate(
            [
                self._ratios(points[at : at + self.batch], messages[at : at + self.batch])
                for at in range(0, len(messages), self.batch)
            ]
        )

    def _ratios(self, points: Array, messages: Array) -> Array:
        solver = self._solver(len(messages), self.case.rows, self.case.other)
        both = _Ratios(self, solver, points, messages)
        self._run(both)
        return both.ratios

    def _run(self, releaser: Releaser) -> None:
        """All rounds, in which the node hears the same again and again."""
        heard = np.broadcast_to(self.case.heard, releaser.solver.f.shape)
        rounds = Rounds(releaser, heard)
        while not rounds.over:
            rounds.release()
            rounds.receive(heard)
        rounds.finish()

    def _solver(self, count: int, *blocks: Array) -> LocalSolver:
        case, nodes = self.case, len(blocks)
        problem = StackedProblem(
            blocks, case.loss, case.regularizer, case.C, case.rho, storage="dense"
        )
        degrees, gamma = (
            np.repeat(self.degrees, nodes),
            np.repeat(self.releases.public.gamma, nodes, 0),
        )
        zero = np.zeros((nodes, count, self.releases.public.dimension))
        return LocalSolver(problem, degrees, self.eta, gamma, zero, private=True)

    def log_density(self, solver: LocalSolver, state: admm.State, c: RoundNoise, F: Array) -> Array:
        """ln p(f) of Algorithm 2 at each data set's f, up to a constant."""
        q = float(self.releases.public.Lam[0, 0] - self.case.rho + c.phi[0, 0])
        b = admm.linear_terms(state, self.eta)[0]
        weight = self.releases.public.weight[..., None]
        e = solver.problem.gradient(F, np.full((1, 1), q), b) / weight
        ridge = self.case.rho * self.case.regularizer.curvature(F) + q
        volume = [
            self._log_det(rows, f, r)
            for rows, f, r in zip((self.case.rows, self.case.other), F, ridge, strict=True)
        ]
        return np.asarray(volume + _density(c, e))

    def _log_det(self, rows: Array, F: Array, ridge: Array) -> Array:
        """ln det( R + A^T W A ) = ln det R + ln det( I + W^(1/2) A R^-1 A^T W^(1/2) ) at each of K
        vectors, R diagonal.
        """
        rows = rows[rows.any(axis=1)]
        root = np.sqrt(
            self.case.loss.curvature(F @ rows.T) * float(self.releases.public.weight[0, 0])
        )
        inner = (
            np.einsum("bd,kd,cd->kbc", rows, 1 / ridge, rows, optimize=True)
            * root[:, :, None]
            * root[:, None, :]
        )
        return np.asarray(
            np.log(ridge).sum(axis=1) + np.linalg.slogdet(np.eye(len(rows)) + inner)[1]
        )


class _Points(Releaser):
    """Releases as always, and keeps where the density of each is known."""

    def __init__(self, releases: ReleasePlan, solver: LocalSolver, draws: Draws) -> None:
        super().__init__(releases, solver, draws)
        self.g: list[Array] = []
        self.V: list[Array] = []

    def send(self, n: int, state: admm.State) -> tuple[Array, Array]:
        """Make the release of round n."""
        g, V = super().send(n, state)
        self.g.append(g if self.releases.noises[n - 1].inside else V)
        self.V.append(V)
        return g, V


class _Ratios(Releaser):
    """Sends what was sent, and compares how likely D and D' make it."""

    def __init__(
        self, node: AuditedNode, solver: LocalSolver, points: Array, messages: Array
    ) -> None:
        super().__init__(node.releases, solver, SystemEntropy())
        self.node, self.points, self.messages = node, points, messages
        self.ratios = np.zeros(len(messages))

    def send(self, n: int, state: admm.State) -> tuple[Array, Array]:
        """Compare the densities of message n, given those before it."""
        c, shape = self.releases.noises[n - 1], self.solver.f.shape
        V = np.broadcast_to(self.messages[:, n - 1], shape)
        if c.inside:
            g = self.solver.f
            F = np.broadcast_to(self.points[:, n - 1], shape)
            density = self.node.log_density(self.solver, state, c, F)
        else:
            g = self.solver.local_step(n, state, None, c.phi)
            density = _density(c, V - g)
        self.ratios += density[0] - density[1]
        return g, V


def _density(c: RoundNoise, x: Array) -> Array:
    found = c.log_density(x)
    assert found is not None  # checked before the first round
    return found


def _require_densities(mechanism: Mechanism, noises: Sequence[RoundNoise]) -> None:
    """Refuse a mechanism whose messages have no density that the audit could compare."""
    for n, c in enumerate(noises, 1):
        if c.log_density(np.zeros((1, 1, 1))) is None:
            raise DeclarationError(
                f"{type(mechanism).__name__}, round {n}: its RoundNoise has no log_density to "
                "compare; define it, or audit what is released with dynadp.research.audit.audit"
            )
