"""Mistakes that careful implementers make, each planted on purpose and each caught; docs/audit.md
shows the table.

PYTHONPATH=tests python tests/research/test_audit_mutants.py        writes the table anew
"""

import secrets
from dataclasses import replace
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

from dynadp import Plan
from dynadp.consensus import local_solver
from dynadp.consensus.acceleration import Acceleration
from dynadp.consensus.round import Releaser
from dynadp.consensus.topology import Topology
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError, NotCertified
from dynadp.mechanisms import base as perturbation
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal, PrimalNoise
from dynadp.mechanisms.sampling import to_grid
from dynadp.problem.losses import Logistic
from dynadp.problem.regularizers import SquaredL2
from dynadp.problem.solver import Solution, solve
from dynadp.research.audit import (
    AuditedNode,
    Case,
    Stream,
    audit,
    audit_mechanism,
    repeats_itself,
    worst_cases,
)
from support.mutants import Mutant, Table

DRAWS = 8_000
STATISTICAL = "statistical audit"
EXACT = "exact log-likelihood ratio"


# --------------------------------------------------------------------------------------------------
# how to plant


class Printed(Dual):
    def noise_for(self, public, alpha):
        c = super().noise_for(public, alpha)
        return replace(c, inner=2 * c.inner)


class WithoutJacobian(Dual):
    def noise_for(self, public, alpha):
        return replace(super().noise_for(public, alpha), inner=(1 - self.slack) * alpha / 2)


class OwnVectorPublicSensitivity(Primal):
    def plan(self, public, alpha):
        return tuple(self.noise_for(public, alpha[..., n]) for n in range(alpha.shape[-1]))


class WrongDegree(Primal):
    def noise_for(self, public, alpha):
        return super().noise_for(replace(public, degrees=public.degrees + 2), alpha)


class Bare(PrimalNoise):
    def release(self, g, draws, nodes, n):
        return g


class ExponentialRadius(PrimalNoise):
    def release(self, g, draws, nodes, n):
        rng = draws.generator("primal", nodes[0], n)
        direction = rng.standard_normal(g.shape)
        direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
        e = direction * rng.standard_exponential((*g.shape[:2], 1))
        return to_grid(g + e / self.outer[..., None], self.step, self.radius)


class PerCoordinate(PrimalNoise):
    def release(self, g, draws, nodes, n):
        e = draws.generator("primal", nodes[0], n).laplace(size=g.shape)
        return to_grid(g + e / self.outer[..., None], self.step, self.radius)


def released_by(kind):
    class Mutated(Primal):
        def noise_for(self, public, alpha):
            return kind(**vars(super().noise_for(public, alpha)))

    return Mutated()


def bare_every_second_round(send=Releaser.send):
    """Releaser.send of the shared round, which sends the minimiser every second time."""

    def mutated(self, n, state):
        g, V = send(self, n, state)
        return g, g if n % 2 == 0 else V

    return patch.object(Releaser, "send", mutated)


def unperturbed_own_vector():
    """Releaser.own of the shared round, as if every mechanism augmented with its private vector."""
    return patch.object(Releaser, "own", lambda self, n, g, V: 2 * g - V)


class FreeIntercept(SquaredL2):
    def gradient(self, f):
        return f * np.append(np.ones(f.shape[-1] - 1), 0.0)

    def curvature(self, f):
        return np.ones_like(f) * np.append(np.ones(f.shape[-1] - 1), 0.0)


def one_newton_step(problem, q, b, gamma, start, **rest):
    G = problem.gradient(start, q, b)
    H = problem.hessians(start, problem.rows.margins(start))[0] + q[:, :1, None] * np.eye(
        problem.dimension
    )
    return Solution(
        start - np.linalg.solve(H, G.transpose(0, 2, 1)).transpose(0, 2, 1),
        np.zeros(start.shape[:2]),
        factor=None,
        iterations=1,
        known=None,
    )


# --------------------------------------------------------------------------------------------------
# how to catch


def look(mechanism, dimension=1, rounds=1, cases=None, draws=DRAWS):
    return audit_mechanism(
        mechanism,
        1.0,
        dimension,
        rounds,
        draws=draws,
        source=Stream(7),
        cases=cases or worst_cases(dimension)[:2],
    )


def beyond(*args, **changes):
    """Do draws alone refute the claim?"""
    found = look(*args, **changes)
    return found.epsilon_lower > found.alpha_claimed


def exactly(*args, **changes):
    """Does the exact ratio of some draw refute it, and do draws alone?"""
    found = look(*args, **changes)
    return found.refuted_exactly and found.epsilon_lower > found.alpha_claimed


def with_round(mutated, catch):
    """What a catcher finds while the round that all engines share is a mutated one."""
    with mutated:
        return catch(Primal(), rounds=2)


def holds(*args, **changes):
    return not look(*args, **changes).refuted


def intercept(regularizer):
    rows = np.zeros((4, 2))
    rows[:, 1] = [1.0, 0.0, 0.0, 0.0]
    return (replace(worst_cases(2)[0], rows=rows, other=-rows, regularizer=regularizer, eta=0.1),)


FAR_OUT = Case(
    "a row or none, f pushed far out",
    np.eye(4)[:, :1],
    np.zeros((4, 1)),
    Logistic(),
    np.array([200.0]),
    0.4,
)


def stops_early():
    with pytest.raises(NotCertified):  # what the code does about it
        solve(
            AuditedNode(FAR_OUT, Primal(), 1.0)._solver(1, FAR_OUT.rows).problem,
            np.full((1, 1), 4.0),
            np.full((1, 1, 1), -200.0),
            np.full((1, 1), 1e-10),
            np.zeros((1, 1, 1)),
            max_iterations=1,
        )
    wide = patch.object(
        perturbation, "BALL", 1000.0
    )  # f is pushed far out, where a smaller ball would clip it
    # and what it would lose if it did not
    with wide, patch.object(local_solver, "solve", one_newton_step):
        return beyond(Primal(), cases=(FAR_OUT,))


def scaled(by):
    """Rows of norm 1, 1/10, 1/10, 1/10 or all of them 1/10, divided by ``by(rows)`` before
    training.
    """
    rows = np.full((4, 1), 0.1)
    first = np.concatenate([np.ones((1, 1)), rows[1:]])
    node, source = AuditedNode(worst_cases(1)[0], Primal(), 1.0), Stream(7)
    found = audit(
        lambda data, count: node.release(data / by(data), count, source),
        (first, rows),
        1.0,
        draws=DRAWS,
    )
    return found.refuted


def restarted(again):
    """A round begun twice, since other messages came in: V(1) for each, from ``again(call)`` as
    source of draws.
    """
    case = worst_cases(1)[0]
    with patch.object(
        perturbation, "BALL", 1000.0
    ):  # f is pushed far out, where a smaller ball would clip it
        nodes = [
            AuditedNode(replace(case, heard=np.array([heard])), Primal(), 1.0)
            for heard in (0.0, 250.0)
        ]
    calls = iter(range(100))

    def release(rows, count):
        call = next(calls)
        return np.hstack([node.release(rows, count, again(call)) for node in nodes])

    return audit(release, (case.rows, case.other), 2.0, draws=2_000).refuted


def stopped(stop):
    """Two rounds, the second only where ``stop(rows, V(1))`` says no; a message that is not sent is
    0.
    """
    case = worst_cases(1)[0]
    node, source = AuditedNode(case, Primal(), 1.0, rounds=2), Stream(7)

    def release(rows, count):
        V = node.release(rows, count, source)
        go = ~stop(rows, V[:, :1])
        return np.column_stack([V[:, 0], V[:, 1] * go, go])

    return audit(release, (case.rows, case.other), 2.0, draws=DRAWS).refuted


def training_error_fell(rows, V):
    return (V @ rows.T).sum(axis=1) > 0


def refuses_to_stop():
    """And the simulation takes no stopping rule in a private run."""
    from dynadp.data.shard import Shard

    with pytest.raises(DeclarationError, match="Algorithm 1 only"):
        simulate(
            [Shard.of(np.eye(2), [1, -1])] * 2,
            Topology.family("complete", 2),
            Plan.of(mechanism=Primal(), schedule=1.0),
            acceleration=Acceleration(residual=1e-3),
        )
    return stopped(training_error_fell)


def short_keys():
    random = Random(5)
    with patch.object(secrets, "randbits", lambda bits: random.getrandbits(min(bits, 32))):
        return repeats_itself(SystemEntropy())


MUTANTS = {
    "printed ζ": Mutant(
        "ζ = α̂ in Algorithm 2, as the paper prints it, instead of α̂/2",
        f"{STATISTICAL}, {EXACT}",
        lambda: exactly(Printed()),
        lambda: holds(Dual()),
    ),
    "no share for the Jacobian": Mutant(
        "ζ = α'/2 in Algorithm 2: ᾱ is not taken off",
        f"{STATISTICAL}, {EXACT}",
        lambda: exactly(WithoutJacobian(), cases=worst_cases(1)[1:2], draws=20_000),
        lambda: holds(Dual(), cases=worst_cases(1)[1:2], draws=20_000),
    ),
    "own unperturbed vector": Mutant(
        "Algorithm 3 goes on from its own unperturbed vector, with the sensitivity that only "
        "public vectors allow",
        f"{STATISTICAL} of two rounds, {EXACT}",
        lambda: exactly(OwnVectorPublicSensitivity(augment="iterate"), rounds=2),
        lambda: holds(Primal(augment="iterate"), rounds=2),
    ),
    "broadcast of f": Mutant(
        "Algorithm 3 sends the minimiser, not the noisy V",
        STATISTICAL,
        lambda: beyond(released_by(Bare)),
        lambda: holds(released_by(PrimalNoise)),
    ),
    "data-dependent scaling": Mutant(
        "rows are divided by the largest norm among them",
        STATISTICAL,
        lambda: scaled(lambda rows: np.abs(rows).max()),
        lambda: not scaled(lambda rows: 1.0),
    ),
    "Exponential radius": Mutant(
        "the radius of the noise is Exponential instead of Gamma(d), d = 2",
        STATISTICAL,
        lambda: beyond(released_by(ExponentialRadius), 2),
        lambda: holds(released_by(PrimalNoise), 2),
    ),
    "noise per coordinate": Mutant(
        "Laplace noise on each coordinate with the l2 sensitivity, d = 2",
        STATISTICAL,
        lambda: beyond(released_by(PerCoordinate), 2, draws=40_000),
        lambda: holds(released_by(PrimalNoise), 2, draws=40_000),
    ),
    "noise reused after a restart": Mutant(
        "a round is begun again with other messages and the same draw",
        STATISTICAL,
        lambda: restarted(SeededEntropy),
        lambda: not restarted(lambda call, source=Stream(7): source),  # noqa: B008
    ),
    "early-stopped solver": Mutant(
        "one Newton step from zero counts as the minimiser",
        f"`NotCertified`: the round fails; {STATISTICAL} where that is taken out",
        stops_early,
        lambda: holds(Primal(), cases=(FAR_OUT,)),
    ),
    "data-dependent stopping": Mutant(
        "no second round once the training error has fallen",
        f"`simulate` refuses stopping rules in private runs; {STATISTICAL} of what is sent",
        refuses_to_stop,
        lambda: not stopped(lambda rows, V: V[:, 0] > 0),
    ),
    "unregularised intercept": Mutant(
        "the regulariser leaves out the intercept",
        STATISTICAL,
        lambda: beyond(Primal(), 2, cases=intercept(FreeIntercept())),
        lambda: holds(Primal(), 2, cases=intercept(SquaredL2())),
    ),
    "wrong degree": Mutant(
        "the calibration counts two neighbours too many",
        f"{STATISTICAL}, {EXACT}",
        lambda: exactly(WrongDegree()),
        lambda: holds(Primal()),
    ),
    "a round without noise": Mutant(
        "the round that all engines share sends the minimiser every second time",
        f"{STATISTICAL} of two rounds",
        lambda: with_round(bare_every_second_round(), beyond),
        lambda: holds(Primal(), rounds=2),
    ),
    "private vector in the shared round": Mutant(
        "the round that all engines share goes on from the own unperturbed vector, whatever the "
        "mechanism",
        f"{STATISTICAL} of two rounds, {EXACT}",
        lambda: with_round(unperturbed_own_vector(), exactly),
        lambda: holds(Primal(), rounds=2),
    ),
    "32-bit entropy": Mutant(
        "the generators' keys have 32 bits",
        "`repeats_itself`: two of 2¹⁸ generators begin alike",
        short_keys,
        lambda: not repeats_itself(SystemEntropy(), 2**14),
    ),
}
TABLE = Table("mutant", MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught_and_its_sound_version_passes(name):
    MUTANTS[name].check()


@pytest.mark.slow
def test_system_entropy_does_not_repeat_itself_where_32_bits_would():
    assert not repeats_itself(SystemEntropy())


def test_the_page_shows_this_table():
    assert TABLE.is_shown()


if __name__ == "__main__":
    TABLE.write()
