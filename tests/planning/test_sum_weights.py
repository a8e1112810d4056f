"""Whose sums count in algorithm "sum", and what a planner takes by itself (maths.md 12)."""

import numpy as np
import pytest

from dynadp.consensus.topology import Topology
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import Constants, plan
from dynadp.planning.sums import SumConstants, signal, weigh_nodes

GIVEN = {"epsilon": 1.0, "delta": 1e-5}


def test_no_other_weights_have_more_signal():
    rng = np.random.default_rng(0)
    B, mu = rng.uniform(800, 4000, 12), rng.uniform(0.2, 0.4, 12)
    best = signal(B, mu, np.array(weigh_nodes(B, mu)))
    assert best == pytest.approx(np.sqrt(np.sum((B * mu) ** 2)))
    assert all(signal(B, mu, rng.uniform(0, 1, 12)) < best for _ in range(200))
    assert signal(B, mu, np.ones(12)) < 0.95 * best


def test_nodes_that_bring_next_to_nothing_send_nothing():
    B, mu = np.array([8000.0, 6000, 5000, 20, 400]), np.full(5, 0.2)
    w = weigh_nodes(B, mu)
    assert [each == 0 for each in w] == [False, False, False, True, True]
    whole = np.sqrt(np.sum((B * mu) ** 2))
    assert signal(B, mu, np.array(w)) > 0.995 * whole
    assert weigh_nodes([100] * 200, [0.1] * 200) == (1.0,) * 200


def test_equal_nodes_weigh_the_same_and_are_warned():
    given = [4000, 4000, 20], Topology.family("ring", 3), 10
    made = plan(*given, **GIVEN, weights="equal")
    w = np.array(made.steps.node_weights)
    assert w * np.array(given[0]) == pytest.approx(np.full(3, np.mean(given[0])))
    assert any("'2' brings more noise than signal" in why for why in made.reasons)
    by_rows = plan(*given, **GIVEN)
    assert by_rows.steps.node_weights == (1.0, 1.0, 0.0)
    assert any("'2' sends nothing and spends nothing" in why for why in by_rows.reasons)
    assert not any("more noise than signal" in why for why in by_rows.reasons)


def test_a_planner_takes_sums_when_nothing_is_said():
    ring = Topology.family("ring", 3)
    made = plan([500] * 3, ring, 10, **GIVEN)
    assert isinstance(made.mechanism, Sum)
    assert (
        made.table().tolist()
        == plan([500] * 3, ring, 10, **GIVEN, mechanism="sum").table().tolist()
    )
    assert "never clearly less accurate than ADMM" in made.reasons[0]
    fewer = plan([500] * 3, ring, 10, **GIVEN, constants=SumConstants(rounds=7))
    assert fewer.rounds == 7
    admm = plan([500] * 3, ring, 10, **GIVEN, mechanism="primal", constants=Constants(rounds=7))
    assert admm.rounds == 7
    assert admm.steps is None
