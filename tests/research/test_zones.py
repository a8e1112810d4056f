"""Losses evened so that they fall, and the zones of the total."""

import numpy as np
import pytest

from dynadp.research.zones import GAIN, Zones, evened, is_useful, upper_loss


def points(medians, errors=None, wide=0.01):
    errors = errors or [0.0] * len(medians)
    return [
        {"epsilon": 0.1 * 2**i, "median": m, "low": m - wide, "high": m + wide, "error": e}
        for i, (m, e) in enumerate(zip(medians, errors, strict=True))
    ]


def test_losses_that_fall_stay_as_they_are():
    given = points([0.4, 0.3, 0.21, 0.2])
    for one, other in zip(evened(given), given, strict=True):
        assert one == pytest.approx(other, abs=1e-12)
    assert evened([]) == []


def test_losses_that_rise_by_chance_are_pooled_by_their_errors():
    found = evened(points([0.4, 0.2, 0.23, 0.1], [0.01, 0.01, 0.02, 0.01]))
    pooled = (0.2 / 0.01**2 + 0.23 / 0.02**2) / (1 / 0.01**2 + 1 / 0.02**2)
    assert [one["median"] for one in found] == pytest.approx([0.4, pooled, pooled, 0.1])
    assert found[1]["high"] == pytest.approx(pooled + 0.01)


@pytest.mark.parametrize("seed", range(10))
def test_evened_losses_fall_and_no_falling_ones_are_nearer(seed):
    rng = np.random.default_rng(seed)
    given = points(rng.uniform(0, 1, 8).tolist(), rng.uniform(0.01, 0.1, 8).tolist())
    found = evened(given)
    values = np.array([one["median"] for one in found])
    assert (np.diff(values) <= 1e-12).all()
    assert all(one["low"] <= one["median"] <= one["high"] for one in found)

    def away(losses):
        return sum(
            ((x - p["median"]) / p["error"]) ** 2 for x, p in zip(losses, given, strict=True)
        )

    for _ in range(200):
        other = np.sort(rng.uniform(0, 1, 8))[::-1]
        assert away(values) <= away(other) + 1e-9
        mixed = values + rng.uniform(0, 0.1) * (other - values)  # falling, and near
        assert away(values) <= away(mixed) + 1e-9


def test_a_loss_is_of_use_where_its_whole_interval_is_below():
    one = {"median": 0.2, "high": 0.24, "error": 0.001}
    assert upper_loss(one) == 0.24
    assert is_useful(one, None)
    assert is_useful(one, 0.2401)
    assert not is_useful(one, 0.24)
    assert upper_loss({"median": 0.2, "error": 0.01}) == pytest.approx(0.22)


def test_zones_lie_between_measured_totals():
    given = points([0.25, 0.245, 0.22, 0.2, 0.197, 0.196])
    zones = Zones.of(given, 0.25)
    assert zones.useful == pytest.approx(0.4)
    assert zones.enough == pytest.approx(0.8)  # 0.2 is within GAIN of 0.196
    assert GAIN == 0.005
    assert Zones.of(given, 0.2).useful is None
    assert Zones.of(given, 0.2069).useful == pytest.approx(3.2)
    assert Zones.of(given, 0.2069).enough == pytest.approx(3.2)  # never before it is of use
    assert Zones.of(given, None).useful == pytest.approx(0.1)
