"""Versions of the wire: which one two nodes take, and who has to upgrade where there is none."""

import itertools

import pytest

from dynadp.engines.zenoh.wire import SPOKEN, common, notice, refusal, spoken_by
from dynadp.errors import Rejected

RANGES = [(low, high) for low in range(1, 6) for high in range(low, 6)]


@pytest.mark.parametrize(("mine", "theirs"), list(itertools.product(RANGES, RANGES)))
def test_two_nodes_take_the_highest_that_both_speak(mine, theirs):
    both = set(range(mine[0], mine[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
    assert common(mine, theirs) == common(theirs, mine) == max(both, default=None)


@pytest.mark.parametrize(
    ("mine", "theirs"), [pair for pair in itertools.product(RANGES, RANGES) if not common(*pair)]
)
def test_both_name_the_one_that_is_behind(mine, theirs):
    behind = "south" if theirs[1] < mine[1] else "north"
    needed = max(mine[0], theirs[0])
    words = f"{behind} has to upgrade dynadp to a release that speaks version {needed}"
    assert words in refusal("north", mine, "south", theirs)
    assert words in refusal("south", theirs, "north", mine)


def test_a_greeting_that_says_nothing_is_of_the_first_version():
    assert spoken_by({"config": {}}) == (1, 1)
    assert spoken_by({"wire": [2, 7]}) == (2, 7)
    assert common(SPOKEN, (1, 1)) is None
    assert "version 2 of the wire: whoever has none has to upgrade" in notice(SPOKEN)


@pytest.mark.parametrize(
    "said", [None, 2, "2", [], [2], [2, 3, 4], [3, 2], [0, 2], [2, 2**16], [2.0, 3.0], [True, 2]]
)
def test_rubbish_is_refused(said):
    with pytest.raises(Rejected, match="wire versions are no range"):
        spoken_by({"wire": said})
