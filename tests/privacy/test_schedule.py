import json
import pickle

import numpy as np
import pytest

from dynadp.errors import DeclarationError
from dynadp.privacy import events
from dynadp.privacy.events import DualPerturbation, L2Laplace
from dynadp.privacy.schedules import (
    Schedule,
    by_rule,
    constant,
    geometric,
    linear,
    per_node,
)

NODES = ("a", "b")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (constant(0.5), [[0.5, 0.5, 0.5]] * 2),
        (geometric(1.0, 0.5), [[1.0, 0.5, 0.25]] * 2),
        (linear(1.0, 2.0), [[1.0, 1.5, 2.0]] * 2),
        (per_node({"a": 1.0, "b": [1.0, 2.0, 3.0]}), [[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]]),
        (
            by_rule(lambda node, n, T: n / T if node == "a" else 1),
            [[1 / 3, 2 / 3, 1.0], [1.0, 1.0, 1.0]],
        ),
    ],
)
def test_tables(schedule, expected):
    np.testing.assert_allclose(schedule.table(NODES, 3), expected)
    json.dumps(dict(schedule.description))


@pytest.mark.parametrize(
    "schedule",
    [constant(0.5), geometric(1.0, 0.5), linear(1.0, 2.0), per_node({"a": 1.0, "b": [1.0, 2.0]})],
)
def test_a_schedule_travels_to_another_process(schedule):
    there = pickle.loads(pickle.dumps(schedule))
    np.testing.assert_array_equal(there.table(NODES, 2), schedule.table(NODES, 2))
    assert there == schedule
    assert there != constant(0.7)


def test_one_round_of_a_line_is_its_beginning():
    np.testing.assert_array_equal(linear(1.0, 2.0).table(NODES, 1), [[1.0], [1.0]])


@pytest.mark.parametrize(
    ("schedule", "match"),
    [
        (
            constant(0.0),
            "alpha of node 'a' in round 1 is .*0.0.*; expected a finite number above 0",
        ),
        (constant(-1.0), "above 0"),
        (constant(float("nan")), "above 0"),
        (constant(float("inf")), "above 0"),
        (linear(1.0, -1.0), "in round 2"),
        (geometric(1e300, 1e300), "in round 2"),
        (per_node({"a": 1.0}), "no entry for node 'b'; it has a"),
        (per_node({"a": 1.0, "b": [1.0]}), None),
        (
            per_node({"a": 1.0, "b": [1.0, 2.0, 3.0]}),
            "has 3 numbers; expected 1, or 2|has 3 numbers; expected 1 or one",
        ),
        (by_rule(lambda node, n, T: "much"), "no number"),
        (by_rule(lambda node, n, T: None), "no number"),
    ],
)
def test_values_are_checked(schedule, match):
    if match is None:
        assert schedule.table(NODES, 2).shape == (2, 2)
        return
    with np.errstate(over="ignore"), pytest.raises(DeclarationError, match=match):
        schedule.table(NODES, 2)


def test_a_schedule_of_ones_own():
    assert Schedule(lambda node, n, T: 1.0, {"name": "mine"}).table(("x",), 2).tolist() == [
        [1.0, 1.0]
    ]


EVENTS = [L2Laplace("a", 3, "primal", 0.5, 7), DualPerturbation("b", 1, 0.1, 0.8, 7)]


@pytest.mark.parametrize("event", EVENTS)
def test_events_survive_json(event):
    assert events.from_json(json.loads(json.dumps(events.to_json(event)))) == event


def test_a_dual_event_loses_both_shares():
    assert EVENTS[1].alpha == pytest.approx(0.9)


@pytest.mark.parametrize(
    "content", [{}, {"kind": "gaussian"}, {"kind": "dual"}, {"kind": "l2-laplace", "sigma": 1}]
)
def test_an_unknown_event_is_an_error_never_free(content):
    with pytest.raises(DeclarationError, match="event"):
        events.from_json(content)
