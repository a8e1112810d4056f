"""Plans from a total and public numbers alone."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.consensus.topology import Topology
from dynadp.errors import DeclarationError
from dynadp.planning import planner
from dynadp.planning.parts import Consortium
from dynadp.planning.planner import Constants
from dynadp.planning.sums import gaussian_mu
from dynadp.privacy.accountant import by_node, worst_node
from dynadp.privacy.statements import upper_bound

RING = Topology.family("ring", 5)
plan = partial(planner.plan, algorithm="admm")  # tests/consensus/test_sums.py has the other one


@settings(max_examples=12)
@given(
    st.sampled_from(["primal", "dual"]),
    st.floats(0.05, 20),
    st.sampled_from([1e-8, 1e-5, 1e-3]),
    st.integers(2, 300),
    st.booleans(),
    st.sampled_from(["ring", "star", "complete"]),
)
def test_a_plan_costs_at_most_its_total(mechanism, epsilon, delta, d, centring, family):
    counts = [100, 2000, 350, 999, 100]
    found = plan(
        counts,
        Topology.family(family, 5),
        d,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        centring=centring,
    )
    assert worst_node(found.events, delta) == found.total
    assert 0.99 * epsilon <= found.total.epsilon <= epsilon
    assert len(found.centrings) == (5 if centring else 0)
    assert len([e for e in found.events if e.round == 0]) == (5 if centring else 0)
    assert {e.node for e in found.events} == set("01234")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_its_penalty_is_the_stated_one(epsilon):
    found = plan([6000] * 5, RING, 117, epsilon=epsilon, delta=1e-5, mechanism="primal")
    rho, eta = found.settings.rho, found.settings.eta
    q = rho + 2 * eta * 2
    k, ridge = Constants().pull, Constants().ridge
    assert q == pytest.approx(k * 20 / (6000 * gaussian_mu(epsilon, 1e-5) * np.sqrt(5)))
    assert rho == pytest.approx(ridge * q)
    noise = (
        2 / (6000 * q) * np.sqrt(118) / found.alpha
    )  # of a released coordinate: Delta sqrt(d + 1)/alpha
    assert noise == pytest.approx(2 * np.sqrt(5 / 20) / k, rel=0.1)
    spent = {e.round: e.alpha**2 / e.dimension for e in found.events if e.node == "0"}
    assert spent[0] / sum(spent.values()) == pytest.approx(0.1)


def test_unequal_nodes_are_judged_by_their_noise():
    how = {"epsilon": 1.0, "delta": 1e-5, "weights": "equal", "mechanism": "primal"}
    even, mixed = (
        plan([100] * 5, RING, 10, **how),
        plan([100, 100, 100, 100, 10**6], RING, 10, **how),
    )
    assert mixed.settings.eta / even.settings.eta == pytest.approx(np.sqrt(0.8), rel=1e-3)


def test_where_rows_weigh_the_same_only_their_mean_number_counts():
    even, mixed = (
        plan(counts, RING, 10, epsilon=1.0, delta=1e-5, mechanism="primal")
        for counts in ([100] * 5, [20, 5, 175, 280, 20])
    )
    many, few = mixed.settings, even.settings
    assert (many.weights, many.C) == ("rows", 1.0)
    assert (many.eta, many.rho, *mixed.alphas) == pytest.approx((few.eta, few.rho, *even.alphas))
    with pytest.raises(DeclarationError, match="weights is 'votes'; expected 'rows'"):
        plan([100] * 5, RING, 10, epsilon=1.0, delta=1e-5, mechanism="primal", weights="votes")


@pytest.mark.parametrize(
    ("counts", "weights", "named"),
    [
        ([100] * 5, "rows", []),
        ([100, 100, 100, 100, 60], "rows", []),
        ([100, 100, 100, 100, 30], "rows", ["4"]),
        ([20, 8000, 8000, 8000, 20], "rows", ["0", "4"]),
        ([20, 8000, 8000, 8000, 8000], "equal", ["0"]),
        ([4000, 8000, 8000, 8000, 8000], "equal", ["0"]),
        ([6000, 8000, 8000, 8000, 8000], "equal", []),
        ([7], "rows", []),
    ],
)
def test_nodes_that_bring_more_noise_than_signal_are_named(counts, weights, named):
    """Signal over noise of the sum is the sum of C_p over the root of the sum of their noises'
    squares, by hand here.
    """
    nodes = Topology.family("ring", len(counts))
    said = [
        r
        for r in plan(
            counts, nodes, 10, epsilon=1.0, delta=1e-5, mechanism="primal", weights=weights
        ).reasons
        if "more noise than" in r
    ]
    assert bool(said) == bool(named)
    for name in named:
        assert f"{name!r}" in said[0]
    B = np.array(counts, dtype=float)
    signal, noise = (B, np.ones(len(B))) if weights == "rows" else (np.ones(len(B)), 1 / B**2)
    ratio = signal.sum() / np.sqrt(noise.sum())
    for p, name in enumerate(nodes.nodes):
        rest = np.arange(len(B)) != p
        better = rest.any() and signal[rest].sum() / np.sqrt(noise[rest].sum()) > ratio
        assert better == (name in named)


def test_one_node_alone():
    found = plan([500], Topology.family("ring", 1), 10, epsilon=1.0, delta=1e-5, mechanism="primal")
    assert found.total.epsilon <= 1


def test_dual_nodes_that_differ_each_stay_within_the_total():
    found = plan(
        [200, 4000, 900, 900, 50],
        Topology.family("star", 5),
        30,
        epsilon=1.0,
        delta=1e-5,
        mechanism="dual",
    )
    assert len(set(found.alphas)) == 4  # by rows and degree
    assert all(0.99 <= t.epsilon <= 1 for t in by_node(found.events, 1e-5).values())


@pytest.mark.parametrize("mechanism", ["primal", "dual"])
def test_every_node_may_have_its_own_total(mechanism):
    asked = {"0": 0.5, "1": 1.0, "2": 4.0, "3": 1.0, "4": 1.0}
    found = plan([600] * 5, RING, 20, epsilon=asked, delta=1e-5, mechanism=mechanism)
    for node, total in by_node(found.events, 1e-5).items():
        assert 0.99 * asked[node] <= total.epsilon <= asked[node]
    assert found.total.epsilon == pytest.approx(4.0, rel=0.01)
    assert found.alphas[1] == found.alphas[3]
    table = found.table()
    assert table.shape == (5, 1, found.rounds)
    assert table[:, 0, 0].tolist() == table[:, 0, -1].tolist() == list(found.alphas)
    assert "epsilon between 0.5 and 4" in " ".join(found.reasons)


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.1, 0.0325), (0.5, 0.142), (1.0, 0.268), (2.0, 0.502), (8.0, 1.67)]
)
def test_gaussian_equivalents(epsilon, mu):
    assert gaussian_mu(epsilon, 1e-5) == pytest.approx(mu, rel=0.01)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-4, 1e-9), (300.0, 1e-12), (1e-3, 0.3)])
def test_gaussian_equivalents_of_odd_totals(epsilon, delta):
    from scipy.stats import norm

    mu = gaussian_mu(epsilon, delta)
    found = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
    assert found == pytest.approx(delta, rel=1e-6)


def test_choices_are_explained():
    words = " ".join(plan([600] * 5, RING, 20, epsilon=0.5, delta=1e-6, mechanism="primal").reasons)
    for part in (
        "primal perturbation",
        "20 rounds",
        "epsilon = 0.5, delta = 1e-06",
        "centring round",
        "margin",
        "costs no privacy",
    ):
        assert part in words
    assert "no centring round" in " ".join(
        plan(
            [600] * 5, RING, 20, epsilon=0.5, delta=1e-6, mechanism="primal", centring=False
        ).reasons
    )


def test_no_alpha_is_told_as_less_than_it_is():
    for epsilon in np.geomspace(0.1, 8, 12).tolist():
        found = plan([600] * 5, RING, 20, epsilon=epsilon, delta=1e-6, mechanism="primal")
        words = " ".join(found.reasons)
        assert f"with the same alpha = {upper_bound(found.alpha)}:" in words
        assert f"a centring round with alpha = {upper_bound(max(found.centrings))}," in words


def test_other_constants():
    found = plan(
        [600] * 5,
        RING,
        20,
        epsilon=0.5,
        delta=1e-6,
        mechanism="primal",
        constants=Constants(rounds=7, margin=0.0),
    )
    assert (found.rounds, found.settings.loss.margin, len({e.round for e in found.events})) == (
        7,
        0.0,
        8,
    )


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"delta": 0.0}, "delta is 0"),
        ({"delta": 2.0}, "delta is 2.0"),
        ({"mechanism": "magic"}, "mechanism is 'magic'"),
        ({"epsilon": {"0": 1.0}}, r"epsilon is given for \['0'\]"),
        ({"counts": [600] * 4}, "the number of rows of each of 5 nodes"),
        ({"counts": [600, 600, 600, 600, 0]}, "the number of rows of each of 5 nodes"),
    ],
)
def test_mistakes_are_named(changes, wrong):
    given = {
        "counts": [600] * 5,
        "topology": RING,
        "dimension": 20,
        "epsilon": 1.0,
        "delta": 1e-5,
        "mechanism": "primal",
    } | changes
    with pytest.raises(DeclarationError, match=wrong):
        plan(**given)


def test_dual_nodes_of_a_star_with_equal_rows_differ_by_degree():
    found = plan(
        [500] * 6, Topology.family("star", 6), 30, epsilon=1.0, delta=1e-5, mechanism="dual"
    )
    assert len(set(found.alphas)) == 2
    assert all(0.99 <= t.epsilon <= 1 for t in by_node(found.events, 1e-5).values())


def test_one_column_is_not_centred_away():
    assert plan([500] * 5, RING, 1, epsilon=1.0, delta=1e-5, mechanism="primal").centrings == ()
    assert (
        plan([500] * 5, RING, 1, epsilon=1.0, delta=1e-5, mechanism="primal", features=1)
        .events[0]
        .dimension
        == 1
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(1000.0, 1e-5), (0.01, 0.5), (1e-6, 1e-5)])
def test_odd_totals_have_plans(epsilon, delta):
    assert (
        plan([500] * 5, RING, 30, epsilon=epsilon, delta=delta, mechanism="primal").total.epsilon
        <= epsilon
    )


def test_a_delta_that_would_allow_a_row_to_be_given_away_is_called_large():
    for delta, large in ((1e-5, False), (1 / 301, False), (1 / 300, True), (0.2, True)):
        words = " ".join(
            plan(
                [900, 300, 900],
                Topology.family("ring", 3),
                20,
                epsilon=1.0,
                delta=delta,
                mechanism="primal",
            ).reasons
        )
        assert ("DELTA IS LARGE" in words) is large


def test_a_plan_is_for_its_nodes_in_their_order():
    names = ("a", "b", "c")
    counts, totals = (100, 2000, 300), {"a": 1.0, "b": 2.0, "c": 4.0}
    ring = Topology.family("ring", 3)
    made = plan(counts, ring.named(names), 5, epsilon=totals, delta=1e-5, mechanism="primal")
    assert made.on(made.bound) == made
    turned = Consortium(ring.named(names[::-1]), counts[::-1], 5, 4)
    with pytest.raises(DeclarationError, match="in another order; plan again"):
        made.on(turned)
