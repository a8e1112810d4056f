"""Six silos as real processes, of which one leaves for good and one leaves and returns: what those
who remain find, and what it costs them. ``benchmarks/leaving.py`` has twenty.
"""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PATIENCE = 20.0


@pytest.fixture
def trial(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.leaving import trial

    return lambda way, seed, pace=None: trial(way, 6, 1, 1, seed, PATIENCE, pace)


def stayed(found):
    return [name for name in found.releases if name not in (*found.gone, *found.back)]


def test_without_noise_they_find_the_optimum_of_those_who_are_there(trial):
    found = trial("exact", 0)
    assert found.far < 1e-6
    (gone,), (back,) = found.gone, found.back
    assert found.releases[gone] < found.rounds
    assert found.releases[gone] < found.releases[back] < found.rounds  # nothing for what it missed
    assert {found.releases[name] for name in stayed(found)} == {found.rounds}


def test_with_noise_they_are_as_accurate_as_if_who_left_had_never_been_there(trial):
    found = trial("noisy", 0, 4.0)
    (gone,), (back,) = found.gone, found.back
    averaged, late = found.rounds // 2, found.releases[back] - found.back[back]
    assert found.members == 4 + (2 * min(late, averaged) >= averaged)  # the rest is too little
    assert found.releases[gone] < found.releases[back] < found.rounds + 1  # with the centring one
    assert {found.releases[name] for name in stayed(found)} == {found.rounds + 1}
    assert min(found.others) - 0.01 <= found.error <= max(found.others) + 0.01


def test_sealed_sums_cost_one_attempt_more_for_each_loss(trial):
    found = trial("sealed", 0)
    rounds, (gone,), (back,) = found.rounds + 1, found.gone, found.back  # with the centring one
    assert found.members in (4, 5)  # whether the one that returned was in time for the last sum
    again = found.spares[stayed(found)[0]] - 2  # taken in, and too slow: it is lost once more
    assert again in (0, 1)
    for name in stayed(found):
        assert found.spares[name] == 2 + again
        assert found.releases[name] == rounds + 2 + again
    assert found.releases[gone] < rounds
    assert found.releases[back] - found.spares[back] <= rounds
    assert found.spares[back] <= 1  # of the one that was lost before
    assert min(found.others) - 0.01 <= found.error <= max(found.others) + 0.01
