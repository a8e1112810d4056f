"""Mistakes that careful implementers of sums make, each planted on purpose and each caught;
docs/audit.md shows the table.

PYTHONPATH=tests python tests/research/test_sum_mutants.py        writes the table anew
"""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from dynadp._arrays import namespace
from dynadp.consensus.sums import SumRounds, SumSolver
from dynadp.data.columns import Numeric
from dynadp.data.schema import Label, Schema
from dynadp.data.survey import FeatureSums
from dynadp.mechanisms import centring, discrete_gaussian, gaussian
from dynadp.mechanisms.gaussian import GaussianNoise
from dynadp.mechanisms.sums import MomentNoise, Sum
from dynadp.privacy.accountant import total
from dynadp.problem import integer_rows
from dynadp.problem.integer_rows import IntegerRows, Resolution
from dynadp.problem.losses import HuberHinge, Logistic
from dynadp.research.audit import Stream, audit, audit_mechanism, audited_node, worst_sum_cases
from support.mutants import PatchedMutant as Mutant
from support.mutants import Table

DRAWS = 8_000
STATISTICAL, EXACT = "bound on μ from draws", "exact distance before noise"


def case(dimension, words):
    return next(c for c in worst_sum_cases(dimension) if words in c.name)


def look(mechanism, chosen, rounds=1):
    d = chosen.rows.shape[1]
    how = {"draws": DRAWS, "source": Stream(7), "cases": (chosen,)}
    return audit_mechanism(mechanism, 1.0, d, rounds, **how)


def exactly(chosen, mechanism=None, rounds=1):
    return lambda: look(mechanism or Sum(), chosen, rounds).refuted_exactly


def beyond(chosen, mechanism=None, rounds=1):
    def caught():
        found = look(mechanism or Sum(), chosen, rounds)
        return found.mu_lower > found.mu_claimed

    return caught


OPPOSITE, ROUNDED = case(1, "opposite"), case(105, "rounded up")
ACROSS = case(2, "right angles")
MOMENT = Sum(second_moment=True)


# --------------------------------------------------------------------------------------------------
# what a row adds


def unrounded_length():
    """K_x as if rounding made no row longer, in the sensitivity alone."""
    short = property(lambda self: 4**self.bits)
    return patch.multiple(Resolution, gradient=short, moment=short)


def long_rows_kept():
    def whole(self, signed, *, overwrite=False):
        return np.rint(signed / self.step)

    return patch.object(Resolution, "whole", whole)


def too_long():
    """A row three times as long as declared, past the checks that should have stopped it."""
    chosen = replace(OPPOSITE)
    for name in ("rows", "other"):
        object.__setattr__(chosen, name, 3 * getattr(chosen, name))
    return chosen


def slopes_not_clipped():
    def steep(loss, margins, resolution, y=None, weights=None):
        return namespace(margins).rint(loss.slope(margins * resolution.step) / resolution.step)

    return patch.object(integer_rows, "whole_slopes", steep)


class Steep(HuberHinge):
    """Declares |L'| <= 1 and has 2."""

    def slope(self, z):
        return 2 * super().slope(z)


def weights_before_noise():
    honest = SumSolver.local_step

    def heavier(self, *args):
        return 2.0 * honest(self, *args)

    return patch.object(SumSolver, "local_step", heavier)


# --------------------------------------------------------------------------------------------------
# the second moment


def moment_of_sensitivity_one():
    honest = Sum._noise

    def smaller(self, public, mu, resolution, *, moment):
        noise = honest(self, public, mu, resolution, moment=moment)
        return replace(noise, parameter=noise.parameter / np.sqrt(2.0)) if moment else noise

    return patch.object(Sum, "_noise", smaller)


def diagonal_as_the_rest():
    """s/sqrt(2) everywhere, as if the diagonal stood for two as well."""

    def draw(self, rng, s, count, dimension):
        made = discrete_gaussian.discrete_gaussian(rng, s / np.sqrt(2.0), count * dimension)
        return made.reshape(count, dimension)

    return patch.object(MomentNoise, "draw", draw)


def triangle_at_half():
    """s/2 above the diagonal: sqrt(2) taken off twice."""

    def draw(self, rng, s, count, dimension):
        d = self.resolution.dimension
        parts = [(s, d), (s / 2, dimension - d)]
        return np.hstack(
            [
                discrete_gaussian.discrete_gaussian(rng, each, count * width).reshape(count, width)
                for each, width in parts
            ]
        )

    return patch.object(MomentNoise, "draw", draw)


# rows at 45 degrees to both axes and at right angles: they differ above the diagonal alone
DIAGONAL = replace(
    ACROSS,
    rows=np.vstack([np.full((1, 2), 0.5**0.5), np.zeros((3, 2))]),
    other=np.vstack([np.array([[0.5**0.5, -(0.5**0.5)]]), np.zeros((3, 2))]),
)


# --------------------------------------------------------------------------------------------------
# what is charged


def nothing_charged(kind):
    return patch.object(kind, "events", lambda *args, **more: ())


SCHEMA = Schema(
    columns=(Numeric(name="v", low=0, high=1),), label=Label(name="y", negative=0, positive=1)
)


def centre_free_of_charge():
    return patch.object(centring, "centring_events", lambda *args, **more: ())


def centre_beyond_its_events():
    """All that ten rows release: sums of a feature, for a row at either end of its range."""
    source = Stream(7)
    ends = SCHEMA.only_features().rows({"v": np.array([0.0, 1.0])}).toarray()
    events = centring.private_centre(
        SCHEMA, [FeatureSums(10, 10 * ends[0])], ["node"], 1.0, source, "gaussian"
    ).events

    def release(row, count):
        noise = centring._gaussian(SCHEMA, np.array([10.0]), np.array([1.0]))
        g = np.broadcast_to(9 * ends[0] + row, (1, count, len(row)))
        wide = noise.each(lambda v: np.broadcast_to(v, (1, count)))
        return wide.release(g, source, ["node"], 0)[0]

    claimed = max(total(events, 1e-3).epsilon, 1e-9)
    return audit(release, tuple(ends), claimed, delta=1e-3, draws=DRAWS).refuted


# --------------------------------------------------------------------------------------------------
# noise


def no_tail():
    """The discrete Laplace law that candidates come from ends at twice its scale."""
    return patch.object(
        discrete_gaussian,
        "_geometric",
        lambda rng, count: np.minimum(rng.geometric(1 - np.exp(-1), count) - 1, 1),
    )


def coarse_noise():
    """Noise in steps 2^10 times as coarse as those of sums, as of numbers with too few bits."""

    def draw(rng, sigma, size):
        return 2**10 * np.rint(rng.normal(0, sigma / 2**10, size)).astype(np.int64)

    return patch.object(gaussian, "discrete_gaussian", draw)


def low_bits():
    """Whether the last ten bits of a message tell rows apart that differ by a hair."""
    hair = replace(
        OPPOSITE,
        rows=np.full((1, 1), 0.7),
        other=np.full((1, 1), 0.7001),
        loss=Logistic(),
        heard=np.array([0.3]),
    )
    node, source = audited_node(hair, Sum(), 1.0), Stream(7)
    noise = node.releases.noises[0]
    held = IntegerRows([hair.rows], noise.resolution, hair.loss)
    own = held.gradient(hair.heard[None])[0, 0, 0] * noise.resolution.step**2

    def score(outputs):
        return (np.mod((outputs[:, 0] - own) / float(noise.step[0, 0]), 2**10) == 0).astype(float)

    return audit(
        lambda rows, count: node.release(rows, count, source),
        (hair.rows, hair.other),
        0.5,
        delta=1e-3,
        draws=DRAWS,
        score=score,
    ).refuted


def rounded_normal():
    """A normal number, rounded, where noise is only 0.7 steps wide."""
    return patch.object(
        discrete_gaussian,
        "discrete_gaussian",
        lambda rng, sigma, size: np.rint(rng.normal(0, sigma, size)).astype(np.int64),
    )


def another_law():
    """Is P(1)/P(0) = e^(-1/(2 sigma^2)), as far as draws can tell?"""
    drawn = discrete_gaussian.discrete_gaussian(np.random.default_rng(5), 0.7, 100_000)
    ones, zeros = np.count_nonzero(drawn == 1), np.count_nonzero(drawn == 0)
    share = 1 / (1 + np.exp(0.5 / 0.7**2))
    away = abs(ones - share * (ones + zeros))
    return away > 5 * np.sqrt(share * (1 - share) * (ones + zeros))


def drawn_once():
    """One draw for all rounds of a run."""
    honest, kept = GaussianNoise._noise, {}

    def again(self, shape, draws, nodes, n):
        if n == 1:
            kept[shape] = honest(self, shape, draws, nodes, n)
        return kept[shape]

    return patch.object(GaussianNoise, "_noise", again)


# in two rounds a row whose slope moves, or none: their difference shows which
MOVING = replace(
    OPPOSITE, other=np.zeros((4, 1)), loss=Logistic(), eta=1e-3, name="a row or none, logistic"
)


def point_from_private_sums():
    """z goes on from the sums without noise."""
    honest = SumRounds.receive

    def receive(self, total):
        own = self.releaser.solver.local_step(self.n, self.state, None, None)[0]
        return honest(self, own)

    return patch.object(SumRounds, "receive", receive)


# one row decides on which side of 0 the point goes, and with it the slopes of all others
MAJORITY = replace(
    OPPOSITE,
    rows=np.array([1.0] * 6 + [-1.0] * 5)[:, None],
    other=np.array([-1.0] + [1.0] * 5 + [-1.0] * 5)[:, None],
    loss=HuberHinge(width=1e-3, margin=0.0),
    heard=np.array([-1e-6]),
    eta=1e-3,
    name="one row decides",
)


MUTANTS = {
    "length before rounding": Mutant(
        "K_x = 1/h: that rounding makes rows longer is forgotten, d = 105",
        EXACT,
        unrounded_length,
        exactly(ROUNDED),
    ),
    "length taken on trust": Mutant(
        "a row that is too long is not dropped", EXACT, long_rows_kept, exactly(too_long())
    ),
    "slope taken on trust": Mutant(
        "slopes are not clipped to 1, under a loss that is steeper than it declares",
        EXACT,
        slopes_not_clipped,
        exactly(replace(OPPOSITE, loss=Steep(10.0, 30.0))),
    ),
    "weight before noise": Mutant(
        "a node's weight 2 is applied before noise, which stays the same",
        EXACT,
        weights_before_noise,
        exactly(OPPOSITE),
    ),
    "second moment without √2": Mutant(
        "Σxxᵀ with sensitivity 1, as if one row were added",
        f"{EXACT}, {STATISTICAL}",
        moment_of_sensitivity_one,
        lambda: exactly(ACROSS, MOMENT)() and beyond(ACROSS, MOMENT)(),
    ),
    "diagonal like the triangle": Mutant(
        "s/√2 on the diagonal too, whose entries stand for one",
        STATISTICAL,
        diagonal_as_the_rest,
        beyond(ACROSS, MOMENT),
    ),
    "√2 twice": Mutant(
        "s/2 above the diagonal instead of s/√2",
        STATISTICAL,
        triangle_at_half,
        beyond(DIAGONAL, MOMENT),
    ),
    "second moment for free": Mutant(
        "the round of the second moment is not charged",
        EXACT,
        lambda: nothing_charged(MomentNoise),
        exactly(ACROSS, MOMENT, rounds=2),
    ),
    "centre for free": Mutant(
        "the sums of features that make the centre are not charged",
        "bound on ε from draws",
        centre_free_of_charge,
        centre_beyond_its_events,
    ),
    "no tail": Mutant("the sampler's candidates end early", STATISTICAL, no_tail, beyond(OPPOSITE)),
    "noise with few bits": Mutant(
        "noise in coarser steps than sums, whose last bits stay what they are",
        "bound on ε from the last bits",
        coarse_noise,
        low_bits,
    ),
    "rounded normal": Mutant(
        "a rounded normal number instead of the discrete Gaussian, s = 0.7",
        "test of the sampler's law",
        rounded_normal,
        another_law,
    ),
    "noise drawn once": Mutant(
        "one draw serves two rounds",
        f"{STATISTICAL} of two rounds",
        drawn_once,
        beyond(MOVING, rounds=2),
    ),
    "point moved in private": Mutant(
        "z goes on from sums without noise",
        f"{STATISTICAL} of two rounds",
        point_from_private_sums,
        beyond(MAJORITY, rounds=2),
    ),
}
TABLE = Table("mutant of sums", MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught_and_the_shipped_version_passes(name):
    MUTANTS[name].check()


def test_the_page_shows_this_table():
    assert TABLE.is_shown()


if __name__ == "__main__":
    TABLE.write()
