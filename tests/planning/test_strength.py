"""N, on which accuracy depends: the planner's own number, from public numbers alone."""

import re

import pytest

from dynadp.consensus.topology import Topology
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import Constants, plan
from dynadp.planning.strength import strength_of
from dynadp.privacy.units import Unit

COUNTS = (400, 900, 2000)
RING = Topology.family("ring", 3)


@pytest.mark.parametrize("unit", [Unit(), Unit(3), Unit(2, 2), Unit(adjacency="add-remove")])
@pytest.mark.parametrize("mechanism", [None, Sealed(honest=2)])
def test_it_is_the_number_that_the_planner_names(mechanism, unit):
    given = {"epsilon": 0.8, "delta": 1e-5, "mechanism": mechanism, "unit": unit}
    planned = plan(COUNTS, RING, 7, **given)
    (said,) = filter(
        None, (re.match(r"signal over noise is N = ([\d.e+]+):", why) for why in planned.reasons)
    )
    assert strength_of(COUNTS, **given) == pytest.approx(float(said[1]), rel=1e-3)


def test_the_pull_of_admm_follows_from_it():
    given = {"epsilon": 0.8, "delta": 1e-5, "mechanism": "primal", "unit": Unit(2)}
    planned, rules = plan(COUNTS, RING, 7, **given), Constants()
    pull = planned.settings.rho / rules.ridge
    assert rules.pull * rules.rounds / pull == pytest.approx(strength_of(COUNTS, **given))


def test_what_makes_rows_clearer():
    given = {"epsilon": 1.0, "delta": 1e-5}
    one = strength_of(COUNTS, **given)
    assert strength_of([2 * b for b in COUNTS], **given) == pytest.approx(2 * one)
    assert strength_of(COUNTS, **given, unit=Unit(2)) == pytest.approx(one / 2)
    assert strength_of([*COUNTS, 1000], **given) > one > strength_of(COUNTS[:2], **given)
    assert strength_of(COUNTS, epsilon=1.0, delta=1e-6) < one
    fewer, more = (strength_of(COUNTS, **given, mechanism=Sealed(honest=h)) for h in (1, 2))
    assert more == pytest.approx(2**0.5 * fewer)
