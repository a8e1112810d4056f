"""Rows that are there or not: releases never lose more than is claimed for adding or removing a
person's rows, come near to it, and a forgotten factor is caught.
"""

from dataclasses import dataclass, replace
from math import sqrt
from unittest.mock import patch

import numpy as np
import pytest

from dynadp.data.columns import Categorical, Numeric
from dynadp.data.schema import Label, Schema
from dynadp.data.survey import feature_sums
from dynadp.errors import DeclarationError
from dynadp.mechanisms import centring
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sums import Sum
from dynadp.privacy.accountant import total
from dynadp.privacy.gaussian import joint_mu
from dynadp.privacy.units import Unit
from dynadp.problem.integer_rows import Resolution
from dynadp.research.audit import Stream, audit_mechanism, audited_node, worst_cases
from support.audits import GAUSSIAN, LAPLACE, SEALED, M, constructed, searched
from support.typed import dynadp


def swapped(case):
    """Her rows are removed, not added."""
    return replace(case, rows=case.other, other=case.rows)


@pytest.mark.diagonal
@pytest.mark.parametrize("m", M)
@pytest.mark.parametrize("mechanism", LAPLACE, ids=str)
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_no_density_ratio_passes_what_adding_m_rows_may_lose(mechanism, dimension, m):
    for alpha, rounds in ((0.2, 1), (1.0, 3)):
        for case in searched(mechanism, dimension, alpha, m):
            for each in (case.added(), swapped(case.added())):
                node = audited_node(each, mechanism, alpha, rounds)
                assert {event.adjacency for event in node.events} == {"add-remove"}
                most = alpha * rounds + (getattr(mechanism, "final_release", None) or 0)
                assert node.log_ratio_bound <= m * most * (1 + 1e-9)
                points = node.transcript(each.rows, 30, Stream(dimension))
                ratio = np.abs(node.log_ratio(*points)).max()
                assert ratio <= node.log_ratio_bound * (1 + 1e-9)


@pytest.mark.diagonal
@pytest.mark.parametrize("m", M)
@pytest.mark.parametrize("mechanism", GAUSSIAN, ids=str)
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_no_shift_passes_what_adding_m_rows_may_lose(mechanism, dimension, m):
    for mu, rounds in ((0.2, 1), (1.0, 3)):
        for case in searched(mechanism, dimension, mu, m):
            added = case.added()
            node = audited_node(added, mechanism, mu, rounds)
            claimed = joint_mu(node.events, m)
            spares = getattr(mechanism, "spares", 0)
            assert claimed == pytest.approx(m * mu * sqrt(rounds + spares))
            points = node.transcript(added.other, 10, Stream(dimension))
            assert node.compare(*points).shift.max() <= claimed * (1 + 1e-9)


@pytest.mark.parametrize("mechanism", [*LAPLACE[:2], Dual(), *GAUSSIAN], ids=str)
def test_some_pair_comes_within_two_percent(mechanism):
    """Noise is not longer than it has to be: half of that for rows that are replaced."""
    m, d, alpha, largest = 5, 2, 0.2, 0.0
    for case in constructed(mechanism, d, alpha, m):
        added = case.added()
        node = audited_node(added, mechanism, alpha)
        found = node.compare(*node.transcript(added.rows, 1000, Stream(3)))
        largest = max(largest, np.abs(found.ratio).max() / node.log_ratio_bound)
        if mechanism in GAUSSIAN:
            largest = max(largest, found.shift.max() / joint_mu(node.events, m))
    assert 0.98 < largest <= 1 + 1e-9


@pytest.mark.parametrize("mechanism", [Primal(), Sum(), SEALED], ids=str)
def test_replacing_loses_twice_as_much(mechanism):
    """Noise for added rows does not hide that a row was replaced by another."""
    case = constructed(mechanism, 2, 0.2, 1)[0]
    noise = audited_node(case.added(), mechanism, 0.2).releases
    node = audited_node(case, mechanism, 0.2)
    node.releases = noise
    found = node.compare(*node.transcript(case.rows, 500, Stream(3)))
    largest = found.shift.max() if mechanism.algorithm == "sum" else np.abs(found.ratio).max()
    assert 0.39 < largest <= 0.4 * (1 + 1e-9)


def test_pairs_that_are_no_neighbours_are_refused():
    with pytest.raises(DeclarationError, match="null rows in neither data set"):
        replace(worst_cases(1)[0], adjacency="add-remove")
    with pytest.raises(DeclarationError, match="adjacency is 'add'"):
        audit_mechanism(Primal(), 1.0, adjacency="add")


@pytest.mark.parametrize(
    ("mechanism", "d"), [(Primal(), 1), (Dual(), 1), (Sum(), 2), (SEALED, 1)], ids=str
)
def test_draws_show_most_of_what_is_claimed(mechanism, d):
    cases = constructed(mechanism, d, 0.5, 2)[:1]
    found = audit_mechanism(
        mechanism, 0.5, d, draws=20_000, source=Stream(1), cases=cases, adjacency="add-remove"
    )
    assert found.setting["adjacency"] == "add-remove"
    assert not found.refuted
    if found.mu_claimed is None:
        assert 0.75 < found.epsilon_lower <= found.alpha_claimed
    else:
        assert 0.85 < found.mu_lower <= found.mu_claimed == pytest.approx(1.0)


def test_the_command_line_audits_rows_that_are_there_or_not():
    done = dynadp(
        *("audit", "--mechanism", "sum", "--draws", "2000", "--seed", "3"),
        *("--adjacency", "add-remove", "--rows-per-person", "2"),
    )
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "2 rows of one person that are there or not" in text
    assert "section 15 for rows that are added and removed" in text


# --------------------------------------------------------------------------------------------------
# planted mistakes: half of the noise that adding a row needs


@dataclass(frozen=True)
class HalfPrimal(Primal):
    """Delta as if adding a row moved the gradient by C/(2B)."""

    def _after(self, public, alpha, more):
        return super()._after(replace(public, moves=0.5), alpha, more)


@dataclass(frozen=True)
class HalfDual(Dual):
    """zeta as if adding a row moved the noise by 1/2; its own claim is not changed."""

    def noise_for(self, public, alpha):
        c = super().noise_for(public, alpha)
        return c.changed(inner=2 * c.inner)


@pytest.mark.parametrize("mechanism", [HalfPrimal(), HalfDual()], ids=str)
def test_forgotten_factors_of_admm_are_caught(mechanism):
    case = worst_cases(1, 0.5, 2)[0].added()
    found = audit_mechanism(mechanism, 0.5, draws=5000, source=Stream(1), cases=(case,))
    assert found.refuted_exactly


@pytest.mark.parametrize("moment", [False, True])
def test_a_forgotten_factor_of_sums_is_caught(moment):
    """The second moment too: K_x^2, not half of what replacing moves, sqrt(2)/2 K_x^2."""

    def half(self, *, moment, moves=2.0):
        return sqrt(2.0) / 2 * self.moment if moment else moves / 2 * self.gradient

    case = constructed(Sum(), 2, 1.0, 1)[0].added()
    sound = audited_node(case, Sum(moment), 1.0)
    shift = sound.compare(*sound.transcript(case.rows, 5, Stream(1))).shift.max()
    assert 0.99 < shift <= joint_mu(sound.events)
    with patch.object(Resolution, "sensitivity", half):
        wrong = audited_node(case, Sum(moment), 1.0)
        shift = wrong.compare(*wrong.transcript(case.rows, 5, Stream(1))).shift.max()
        assert shift > 1.3 * joint_mu(wrong.events)


COLUMNS = (
    Numeric(name="u", low=0, high=1),
    Numeric(name="v", low=0, high=1, signed=False, encode=("linear", "square"), weight=0.5),
    Numeric(name="w", low=0, high=4, encode=("hats",), knots=(0, 1, 4)),
    Categorical(name="c", values=("x", "y", "z"), weight=2.0),
    Categorical(name="one", values=("yes",)),
)
SCHEMA = Schema(
    columns=COLUMNS, label=Label(name="t", negative=0, positive=1), adjacency="add-remove"
)


def cells(rng, count):
    return {
        "u": rng.choice([0.0, 0.3, 1.0], count),
        "v": rng.choice([0.0, 0.7, 1.0], count),
        "w": rng.choice([0.0, 0.4, 1.0, 2.5, 4.0], count),
        "c": rng.choice(["x", "y", "z", "other"], count),
        "one": rng.choice(["yes", "no"], count),
        "t": rng.integers(0, 2, count),
    }


def test_every_row_lies_within_its_radius_of_the_middle():
    features = SCHEMA.only_features().rows(cells(np.random.default_rng(0), 3000)).toarray()
    starts = np.cumsum([0, *(len(column.features) for column in COLUMNS)])
    for column, low, high in zip(COLUMNS, starts[:-1], starts[1:], strict=True):
        far = np.square(features[:, low:high] - column.middle).sum(axis=1)
        assert far.max() <= column.radius2 * (1 + 1e-12)
        assert far.max() >= 0.99 * column.radius2 or "square" in getattr(column, "encode", ())


@pytest.mark.parametrize("noise", ["gaussian", "l2-laplace"])
def test_a_centring_round_hides_that_a_row_is_there(noise):
    """The row that lies furthest out, in a table of nine others: sums move by D at most."""
    rng, B, alpha = np.random.default_rng(1), 20, 0.4
    base = cells(rng, 9)
    more = {"u": [1.0], "v": [1.0], "w": [4.0], "c": ["x"], "one": ["yes"], "t": [1]}
    both = {name: np.concatenate([base[name], more[name]]) for name in base}
    sums = [feature_sums(SCHEMA, table, declared=B) for table in (base, both)]
    assert [each.rows for each in sums] == [B, B]
    moved = (sums[1].total - sums[0].total)[None, None]
    counts, losses = np.array([float(B)]), np.array([alpha])
    events = centring.private_centre(
        SCHEMA, sums[:1], ["n"], alpha, Stream(1), noise, Unit(adjacency="add-remove")
    ).events
    if noise == "gaussian":
        made = centring._gaussian(SCHEMA, counts, losses)
        shift = sqrt(-2 * made.log_density(moved)[0, 0])
        assert 0.9 * alpha < shift <= joint_mu(events)
    else:
        zeta = centring._laplace(SCHEMA, counts, losses)[0]
        loss = float(zeta[0] * np.linalg.norm(moved) / B)
        assert 0.9 * alpha < loss <= total(events, 0.0).epsilon
    assert {event.adjacency for event in events} == {"add-remove"}
