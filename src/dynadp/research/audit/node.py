"""One node in front of an adversary: it holds D or D', hears what the adversary sends, and the
adversary sees what it sends.

The node runs the rounds of every engine (:class:`~dynadp.consensus.round.Rounds`): the shipped
mechanism, solver, noise and grid. Where densities are known, the exact log-likelihood ratio of what
was sent can be computed for every draw.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.consensus import LocalSolver, LocalWork, ReleasePlan, Releaser, Rounds, Topology, admm
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Draws, GaussianNoise, Mechanism, RoundNoise, SystemEntropy
from dynadp.privacy import Event, Unit
from dynadp.problem import StackedProblem, Terms, row_weights
from dynadp.research.audit.cases import Case, labels_of

# replicas that are solved at once, and how many numbers their rows may make
BATCH, NUMBERS = 50_000, 10**7


class Comparison(NamedTuple):
    """What D and D' make of each of K runs.

    Attributes
    ----------
    ratio
        ln p_D - ln p_D'.
    shift
        sqrt(sum_n ||g - g'||^2/s^2) over rounds with Gaussian noise: the mu of this run, exactly.
    """

    ratio: Array
    shift: Array


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
    silos
        s: at how many nodes a person has the case's rows. Each node is alike, has noise of its own
        and runs by itself; what all of them send is one output.

    Attributes
    ----------
    unit
        Whom the claim is about: a person with the case's m rows at each of s nodes.
    """

    def __init__(
        self, case: Case, mechanism: Mechanism, alpha: float, rounds: int = 1, silos: int = 1
    ) -> None:
        _require.whole("silos_per_person", silos)
        self.case, self.unit = case, Unit(case.rows_per_person, silos, case.adjacency)
        self.degrees, self.eta = np.array([float(case.degree)]), np.array([float(case.eta)])
        self.releases = self._releases(mechanism, alpha, rounds)
        widths = [self.releases.width(n + 1) for n in range(len(self.releases.noises))]
        self.width = max(widths)  # of a message; shorter ones end with zeros
        largest = max(case.rows.size, self.width, case.rows_per_person**2)
        self.batch = max(1, min(BATCH, NUMBERS // largest))
        for n, noise in enumerate(self.releases.noises, 1):
            if noise.log_density(np.zeros((1, 1, 1))) is None:
                raise DeclarationError(
                    f"{type(mechanism).__name__}, round {n}: its RoundNoise has no log_density to "
                    "compare; define it, or audit what is released with "
                    "dynadp.research.audit.audit"
                )

    def _releases(self, mechanism: Mechanism, alpha: float, rounds: int) -> ReleasePlan:
        """The public numbers of the node's releases, in the middle of a star."""
        case = self.case
        star, (B, d) = Topology.family("star", case.degree + 1), case.rows.shape
        counts = np.full(len(star), float(B))
        terms = Terms(counts, d, case.loss, case.regularizer, case.C, case.rho)
        start = np.zeros((len(star), 1, d))
        start[1:] = case.heard / max(case.degree, 1)  # neighbours' first messages are public
        alphas = np.full((len(star), 1, rounds), float(alpha))
        given = terms, star, self.eta, mechanism, alphas, start
        whole = ReleasePlan.plan(*given, unit=self.unit)
        return replace(whole.some(slice(0, 1)), nodes=("node",))

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run costs, as claimed for ``unit``."""
        return self.releases.events(seeded=False)

    @property
    def numbers(self) -> int:
        """How many numbers an output holds."""
        return self.unit.silos * len(self.releases.noises) * self.width

    @property
    def log_ratio_bound(self) -> float:
        """What :meth:`log_ratio` may not pass at the points of :meth:`transcript`."""
        one = sum(
            float(np.broadcast_to(c.log_ratio_bound, (1, 1))[0, 0]) for c in self.releases.noises
        )
        return self.unit.rows * self.unit.silos * one

    def transcript(self, rows: Array, count: int, draws: Draws) -> tuple[Array, Array]:
        """(points, messages) of so many independent runs on these rows, each count x s T x width.

        Messages are what is sent. Points are where the density is known: the minimiser of a noisy
        objective (Algorithm 2), the message otherwise. Of a person's s nodes, those of one follow
        those of the other.
        """
        parts, runs = [], count * self.unit.silos
        for at in range(0, runs, self.batch):
            size = min(self.batch, runs - at)
            recorder = _Recorder(self.releases.widened(size), self._solver(size, rows), draws)
            self._run(recorder)
            sent = [
                np.pad(V, [(0, 0)] * 3 + [(0, self.width - V.shape[-1])]) for V in recorder.sent
            ]
            parts.append(np.concatenate(sent, axis=1).transpose(0, 2, 1, 3))
        points, messages = np.concatenate(parts, axis=1).reshape(2, count, -1, self.width)
        return points, messages

    def release(self, rows: Array, count: int, draws: Draws) -> Array:
        """The messages of so many runs, count x s T width."""
        return self.transcript(rows, count, draws)[1].reshape(count, -1)

    def log_ratio(self, points: Array, messages: Array) -> Array:
        """ln p_D - ln p_D' of each run, a sum over rounds of what each adds given the messages
        before it (maths.md 3, 4).

        Algorithm 3: zeta (||V - g'|| - ||V - g||), g and g' the minimisers of D and D'. Algorithm
        2: the noise e(f) that makes f the minimiser follows from stationarity, so ln p(f) = -zeta
        ||e(f)|| + ln det H(f) up to a constant. The bound holds for any points; the true ratio of
        messages, which are rounded, never exceeds it either. Gaussian noise has no such bound.
        """
        return self.compare(points, messages).ratio

    def compare(self, points: Array, messages: Array) -> Comparison:
        """Compare what D and D' make of each run."""
        count, each = len(messages), (-1, len(self.releases.noises), self.width)
        points, messages = points.reshape(each), messages.reshape(each)
        parts = []
        for at in range(0, len(messages), self.batch):
            batch = slice(at, at + self.batch)
            both = _Ratios(self, points[batch], messages[batch])
            self._run(both)
            parts.append(np.stack([both.ratios, both.squares]))
        # noise of different nodes is independent
        ratios, squares = np.concatenate(parts, axis=1).reshape(2, count, -1).sum(axis=-1)
        return Comparison(ratios, np.sqrt(squares))

    def _run(self, releaser: Releaser) -> None:
        """All rounds, in which the node hears the same again and again."""
        heard = np.broadcast_to(self.case.heard, releaser.solver.f.shape)
        rounds = Rounds(releaser, heard)
        while not rounds.over:
            rounds.release()
            rounds.receive(heard)
        rounds.finish()

    def _solver(self, count: int, *blocks: Array) -> Any:
        case, public, nodes = self.case, self.releases.public, len(blocks)
        problem = StackedProblem(
            blocks,
            case.loss,
            case.regularizer,
            case.C,
            case.rho,
            storage="dense",
            labels=[labels_of(rows) for rows in blocks],
            class_weights=case.class_weights,
            targets=self._targets(*blocks),
        )
        degrees, gamma = np.repeat(self.degrees, nodes), np.repeat(public.gamma, nodes, 0)
        zero = np.zeros((nodes, count, public.dimension))
        return LocalSolver(problem, degrees, self.eta, gamma, zero, private=True)

    def _targets(self, *blocks: Array) -> list[Array] | None:
        """Targets of these blocks of rows; None for a loss of margins."""
        case = self.case
        return [case.answers_of(block) for block in blocks] if case.loss.residual else None

    def log_density(
        self, solver: LocalSolver, state: admm.State, noise: RoundNoise, F: Array
    ) -> Array:
        """ln p(f) of Algorithm 2 at each data set's f, up to a constant."""
        public = self.releases.public
        q = float(public.Lam[0, 0] - public.rho + noise.phi[0, 0])
        b = admm.linear_terms(state, self.eta)[0]
        e = solver.problem.gradient(F, np.full((1, 1), q), b) / public.weight[..., None]
        ridge = public.rho * self.case.regularizer.curvature(F) + q
        pair = self.case.rows, self.case.other
        targets = self._targets(*pair) or [np.zeros(len(rows)) for rows in pair]
        volumes = [self._log_det(*each) for each in zip(pair, targets, F, ridge, strict=True)]
        return volumes + _density(noise, e)

    def _log_det(self, rows: Array, targets: Array, F: Array, ridge: Array) -> Array:
        """ln det( R + A^T W A ) = ln det R + ln det( I + W^(1/2) A R^-1 A^T W^(1/2) ) at each of K
        vectors, R diagonal.
        """
        there = rows.any(axis=1)
        rows, targets = rows[there], targets[there]
        weight = float(self.releases.public.weight[0, 0])
        weights = weight * row_weights(labels_of(rows), self.case.class_weights)
        root = np.sqrt(self.case.loss.curvature(F @ rows.T - targets) * weights)
        inner = np.einsum("bd,kd,cd->kbc", rows, 1 / ridge, rows, optimize=True)
        inner = np.eye(len(rows)) + inner * root[:, :, None] * root[:, None, :]
        return np.asarray(np.log(ridge).sum(axis=1) + np.linalg.slogdet(inner)[1])


class _Recorder(Releaser):
    """Releases as always, and keeps each message with the point where its density is known."""

    def __init__(self, releases: ReleasePlan, solver: LocalWork, draws: Draws) -> None:
        super().__init__(releases, solver, draws)
        self.sent: list[Array] = []

    def send(self, n: int, state: Any, attempt: int = 0) -> tuple[Array, Array]:
        """Make the release of round n."""
        g, V = super().send(n, state)
        self.sent.append(np.stack([g if self.releases.noises[n - 1].inside else V, V]))
        return g, V


class _Ratios(Releaser):
    """Sends what was sent, and compares how likely D and D' make it."""

    def __init__(self, node: AuditedNode, points: Array, messages: Array) -> None:
        solver = node._solver(len(messages), node.case.rows, node.case.other)
        super().__init__(node.releases, solver, SystemEntropy())
        self.local = solver
        self.node, self.points, self.messages = node, points, messages
        self.ratios, self.squares = np.zeros((2, len(messages)))

    def send(self, n: int, state: Any, attempt: int = 0) -> tuple[Array, Array]:
        """Compare the densities of message n, given those before it."""
        noise, g = self.releases.noises[n - 1], self.solver.f
        width = self.releases.width(n)
        V = np.broadcast_to(self.messages[:, n - 1, :width], (*g.shape[:2], width))
        if noise.inside:
            F = np.broadcast_to(self.points[:, n - 1], g.shape)
            density = self.node.log_density(self.local, state, noise, F)
        else:
            g = self.solver.local_step(n, state, None, noise.phi)
            density = _density(noise, V - g)
            if isinstance(noise, GaussianNoise):
                self.squares += -2 * _density(noise, g[:1] - g[1:])[0]
        self.ratios += density[0] - density[1]
        return g, V


def _density(noise: RoundNoise, x: Array) -> Array:
    density = noise.log_density(x)
    assert density is not None  # checked before the first round
    return density
