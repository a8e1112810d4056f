"""What depends on labels, audited: histograms of scores, and rows that weigh by their class."""

import json
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.histogram import private_histogram
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.privacy.units import Unit
from dynadp.problem import integer_rows, objective
from dynadp.problem.labels import check_class_weights
from dynadp.research.audit import (
    Stream,
    audit_mechanism,
    audited_node,
    worst_cases,
    worst_sum_cases,
)
from dynadp.research.audit.bounds import lower_mu
from dynadp.runs.binned import _auc
from support.typed import dynadp

BINS = 4
WEIGHTS = check_class_weights((1.0, 4.0))


def weighing(cases):
    return tuple(replace(case, class_weights=WEIGHTS) for case in cases)


# --------------------------------------------------------------------------------------------------
# histograms of scores


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(
    "mechanism",
    [
        Sum(histogram=BINS),
        Sum(True, histogram=BINS),
        Sealed(honest=3, spares=0, histogram=BINS),
        Sealed(honest=3, spares=2, histogram=BINS),
        Sum(weighed=True, histogram=BINS),
    ],
    ids=str,
)
def test_a_histogram_is_no_further_apart_than_claimed(mechanism, m):
    """Whoever's rows change: all vectors together come up to what is claimed, and not past it."""
    largest, rounds = 0.0, 3 if mechanism.second_moment else 2
    for case in worst_sum_cases(2, m):
        for one in (case, case.added()):
            node = audited_node(one, mechanism, 0.5, rounds)
            claimed = sum((m if not e.weighed else 1) ** 2 * e.mu**2 for e in node.events) ** 0.5
            if node.events[0].node == "node" and len({e.node for e in node.events}) == 1:
                found = node.compare(*node.transcript(one.rows, 6, Stream(1)))
                assert found.shift.max() <= claimed * (1 + 1e-9)
                largest = max(largest, float(found.shift.max()) / claimed)
    assert largest > 0.8


def test_draws_of_histograms_and_a_mutant_that_forgets_the_root():
    """A replaced row leaves one cell and enters another: two cells move."""
    how = {"rounds": 2, "draws": 20_000, "source": Stream(1), "cases": worst_sum_cases(1)[:1]}
    sound = audit_mechanism(Sum(histogram=BINS), 0.8, **how)
    assert not sound.refuted
    assert sound.mu_claimed == pytest.approx(0.8 * np.sqrt(2))
    assert 0.8 * sound.mu_claimed < sound.mu_lower <= sound.mu_claimed
    with patch("dynadp.mechanisms.sums.sqrt", lambda x: 1.0 if x == 2.0 else np.sqrt(x)):
        mutant = audit_mechanism(Sum(histogram=BINS), 0.8, **how)
    assert mutant.refuted_exactly
    assert mutant.mu_lower > mutant.mu_claimed


@pytest.mark.slow
def test_a_sealed_histogram_whose_nodes_collude():
    """The claim is for as many as planned, and a larger one where more collude."""
    how = {"rounds": 2, "draws": 20_000, "source": Stream(1), "cases": worst_sum_cases(1)[:1]}
    mechanism = Sealed(honest=2, spares=0, histogram=BINS)
    assert not audit_mechanism(mechanism, 0.8, nodes=3, **how).refuted
    assert audit_mechanism(mechanism, 0.8, nodes=3, colluding=2, **how).mu_claimed > 0.8 * 1.9


def test_the_command_line_audits_histograms():
    words = "audit --mechanism sum --histogram 4 --rounds 2 --alpha 0.5 --draws 2000 --seed 1"
    done = dynadp(*words.split(), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["mu_claimed"] == pytest.approx(0.5 * np.sqrt(2))
    refused = dynadp(*words.replace("--rounds 2", "--rounds 1").split())
    assert refused.exit_code == 2
    assert "expected 2 or more" in refused.output


@pytest.mark.first(1)
@pytest.mark.parametrize("adjacency", ["replace", "add-remove"])
def test_private_measures_and_a_mutant_that_forgets_the_second_cell(adjacency):
    """The area under the curve, a confusion table and the cells themselves, of a release of its
    own.
    """
    unit, before = Unit(adjacency=adjacency), np.array([[6, 4], [3, 8]])
    after = before + np.array([[-1, 0], [0, 1 if adjacency == "replace" else 0]])

    def measured(counts, seed, mu=2.0, whose=unit):
        out = np.empty((3_000, 7))
        for i in range(len(out)):
            given = {"node": "a", "draws": SeededEntropy(10_000 * seed + i), "unit": whose}
            h = private_histogram(counts, np.array([0.0]), mu, **given).counts
            table = [h[1, 1], h[0, 1]]  # true and false positives at the threshold 0
            out[i] = [*h.ravel(), *table, _auc(h)]
        return out

    claimed = lower_mu(measured(before, 1), measured(after, 2)).mu
    assert 1.5 < claimed <= 2.0
    if adjacency == "replace":  # noise of a release in which one cell moves
        other = Unit(adjacency="add-remove")
        found = lower_mu(*(measured(c, k, whose=other) for c, k in ((before, 3), (after, 4))))
    else:  # noise for half of the row
        found = lower_mu(*(measured(c, k, mu=4.0) for c, k in ((before, 3), (after, 4))))
    assert found.mu > 2.0


# --------------------------------------------------------------------------------------------------
# class weights


@pytest.mark.parametrize(
    "mechanism", [Sum(), Sum(True), Sum(weighed=True), Sealed(honest=3)], ids=str
)
def test_weighed_classes_move_a_sum_no_further(mechanism):
    largest = 0.0
    for case in weighing(worst_sum_cases(3)):
        node = audited_node(case, mechanism, 0.5, 2)
        rows = case.rows[:, [1, 2, 0]], case.other[:, [1, 2, 0]]  # both with the weight 1, too
        for one in (case, replace(case, rows=rows[0], other=rows[1])):
            node = audited_node(one, mechanism, 0.5, 2)
            found = node.compare(*node.transcript(one.rows, 4, Stream(1)))
            claimed = 0.5 * np.sqrt(2 + (mechanism.name == "sealed"))  # a spare attempt is made
            assert found.shift.max() <= claimed
            largest = max(largest, float(found.shift.max()) / claimed)
    assert largest > 0.7


@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=str)
def test_weighed_classes_in_admm(mechanism):
    """And a mutant whose weights are not divided by the largest."""
    cases = weighing(worst_cases(2, 0.8))
    how = {"dimension": 2, "draws": 4_000, "cases": cases}
    sound = audit_mechanism(mechanism, 0.8, source=Stream(1), **how)
    assert not sound.refuted
    assert sound.epsilon_lower < 0.8
    honest = objective.row_weights

    def unscaled(signs, weights):
        return 4 * honest(signs, weights)

    with patch.object(objective, "row_weights", unscaled):
        mutant = audit_mechanism(mechanism, 0.8, source=Stream(1), **how)
    assert mutant.refuted


def test_a_mutant_of_sums_whose_weights_are_not_divided():
    """Slopes are held to the bound whatever weights are: both have to be forgotten."""
    cases = weighing(worst_sum_cases(1)[:1])
    how = {"draws": 20_000, "cases": cases, "source": Stream(1)}
    assert not audit_mechanism(Sum(), 0.8, **how).refuted
    honest = integer_rows.whole_slopes

    def unscaled(loss, margins, resolution, y=None, weights=None):
        return 4 * honest(loss, margins, resolution, y, weights)

    with patch.object(integer_rows, "whole_slopes", unscaled):
        assert audit_mechanism(Sum(), 0.8, **how).refuted_exactly
