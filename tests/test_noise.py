"""Seeded draws: a pure function of their key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp.errors import DeclarationError
from dynadp.noise import Keyed

KEYS = st.tuples(st.integers(0, 2**70), st.text(max_size=5), st.text(max_size=5), st.integers(0, 2**32), st.integers(0, 2**32))
KEY = (7, "dual", "north", 3, 2)


def draw(key, count=8):
    return Keyed(key[0]).generator(*key[1:]).standard_normal(count)


def blocks(key, count):
    return Keyed(key[0]).generator(*key[1:]).bit_generator.random_raw(count)


@given(KEYS)
def test_draws_are_a_function_of_the_key(key):
    assert draw(key).tobytes() == draw(key).tobytes()


@given(st.lists(KEYS, min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_order_of_asking_does_not_matter_and_no_two_keys_agree(keys, random):
    first = {key: draw(key).tobytes() for key in keys}
    random.shuffle(keys)
    assert {key: draw(key).tobytes() for key in keys} == first
    assert len(set(first.values())) == len(keys)


def test_known_draws_stay_as_they_are():
    assert blocks(KEY, 3).tolist() == [4447511611304981513, 9011264724363198653, 12939377256001164817]


@pytest.mark.parametrize(
    "other",
    [
        (8, *KEY[1:]),
        (7, "primal", *KEY[2:]),
        (7, "dual", "south", 3, 2),
        (7, "dual", "north", 4, 2),
        (7, "dual", "north", 3, 3),
        (7, "dual", "north", 2, 3),  # swapped
        (7, "north", "dual", 3, 2),
        (7, "dua", "lnorth", 3, 2),  # the same letters
    ],
)
def test_every_part_of_the_key_counts(other):
    assert not np.isin(draw(other, 100), draw(KEY, 100)).any()


def test_streams_do_not_overlap():
    streams = [blocks((1, "dual", node, n, k), 2000) for node in "ab" for n in range(5) for k in range(5)]
    assert len(np.unique(np.concatenate(streams))) == 50 * 2000


def test_neighbouring_streams_are_uncorrelated_standard_normals():
    draws = np.array([draw((1, "dual", "a", n, k), 4000) for n in range(4) for k in range(4)])
    np.testing.assert_allclose(np.corrcoef(draws), np.eye(16), atol=0.07)
    assert abs(draws.mean()) < 0.02
    assert abs(draws.std() - 1) < 0.02


def test_stacked_normals_are_the_single_ones():
    nodes = ("north", "east", "south")
    stacked = Keyed(7).normals("dual", nodes, 3, replicas=4, dimension=5)
    assert stacked.shape == (3, 4, 5)
    for p, node in enumerate(nodes):
        np.testing.assert_array_equal(Keyed(7).normals("dual", (node,), 3, 4, 5)[0], stacked[p])
        for k in range(4):
            np.testing.assert_array_equal(draw((7, "dual", node, 3, k), 5), stacked[p, k])


@pytest.mark.parametrize("seed", [-1, 1.0, "1", True, None])
def test_seed_must_be_a_whole_number(seed):
    with pytest.raises(DeclarationError, match=r"the seed is .*; expected a whole number, 0 or above"):
        Keyed(seed)


@pytest.mark.parametrize(("round_", "replica"), [(-1, 0), (0, -1)])
def test_round_and_replica_are_not_negative(round_, replica):
    with pytest.raises(DeclarationError, match=f"round is {round_} and replica is {replica}; expected numbers from 0"):
        Keyed(1).generator("dual", "north", round_, replica)
