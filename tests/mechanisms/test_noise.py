"""Draws, the law of l2-Laplace vectors, and the grid of messages."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from randomgen.wrapper import UserBitGenerator
from scipy import stats

from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import BatchedDraws, OrderedDraws, SeededEntropy, SystemEntropy
from dynadp.mechanisms.sampling import grid_step, l2_laplace, to_grid

KEYS = st.tuples(
    st.integers(0, 2**70),
    st.text(max_size=5),
    st.text(max_size=5),
    st.integers(0, 2**32),
    st.integers(0, 2**32),
)
KEY = (7, "dual", "north", 3, 2)


def draw(key, count=8):
    return SeededEntropy(key[0]).generator(*key[1:]).standard_normal(count)


def blocks(key, count):
    return SeededEntropy(key[0]).generator(*key[1:]).bit_generator.random_raw(count)


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
    assert blocks(KEY, 3).tolist() == [
        4447511611304981513,
        9011264724363198653,
        12939377256001164817,
    ]


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
    streams = [
        blocks((1, "dual", node, n, k), 2000) for node in "ab" for n in range(5) for k in range(5)
    ]
    assert len(np.unique(np.concatenate(streams))) == 50 * 2000


def test_neighbouring_streams_are_uncorrelated_standard_normals():
    draws = np.array([draw((1, "dual", "a", n, k), 4000) for n in range(4) for k in range(4)])
    np.testing.assert_allclose(np.corrcoef(draws), np.eye(16), atol=0.07)
    assert abs(draws.mean()) < 0.02
    assert abs(draws.std() - 1) < 0.02


def test_stacked_vectors_are_the_single_ones():
    nodes = ("north", "east", "south")
    stacked = l2_laplace(SeededEntropy(7), "dual", nodes, 3, 4, 5)
    assert stacked.shape == (3, 4, 5)
    for p, node in enumerate(nodes):
        np.testing.assert_array_equal(
            l2_laplace(SeededEntropy(7), "dual", (node,), 3, 4, 5)[0], stacked[p]
        )
        np.testing.assert_array_equal(
            l2_laplace(SeededEntropy(7), "dual", (node,), 3, 2, 5)[0], stacked[p, :2]
        )


@pytest.mark.parametrize("seed", [-1, 1.0, "1", True, None])
def test_seed_must_be_a_whole_number(seed):
    with pytest.raises(DeclarationError, match=r"the seed is .*; expected a whole number from 0"):
        SeededEntropy(seed)


@pytest.mark.parametrize(("round_", "replica"), [(-1, 0), (0, -1)])
def test_round_and_replica_are_not_negative(round_, replica):
    with pytest.raises(
        DeclarationError,
        match=f"round is {round_} and replica is {replica}; expected numbers from 0",
    ):
        SeededEntropy(1).generator("dual", "north", round_, replica)


# --------------------------------------------------------------------------------------------------
# l2-Laplace vectors

SOURCES = [SeededEntropy(11), SystemEntropy()]
EVERY_SOURCE = {
    "keyed": SeededEntropy(11),
    "system": SystemEntropy(),
    "in turn": OrderedDraws(np.random.default_rng(2), True),
    "sweep": BatchedDraws(4),
}
SURE = (
    1e-6  # a true law fails a test at this level once in a million; system draws differ every time
)


@pytest.mark.parametrize("draws", SOURCES, ids=["keyed", "system"])
@pytest.mark.parametrize("d", [1, 2, 7, 105])
def test_radius_is_gamma_and_direction_uniform(draws, d):
    e = l2_laplace(draws, "primal", tuple("abcd"), 1, 1500, d).reshape(-1, d)
    radius = np.linalg.norm(e, axis=1)
    assert stats.kstest(radius, stats.gamma(d).cdf).pvalue > SURE
    if d > 1:
        assert stats.kstest(radius, stats.expon.cdf).pvalue < 1e-9  # the naive radius
        cosine = e[:, 0] / radius
        assert (
            stats.kstest((1 + cosine) / 2, stats.beta((d - 1) / 2, (d - 1) / 2).cdf).pvalue > SURE
        )
    else:
        assert stats.kstest(e[:, 0], stats.laplace.cdf).pvalue > SURE
    assert abs(stats.spearmanr(radius, e[:, 0]).statistic) < 6 / np.sqrt(len(e))


@pytest.mark.parametrize("draws", EVERY_SOURCE.values(), ids=EVERY_SOURCE)
def test_one_dimension_is_laplace_noise_from_every_source(draws):
    e = l2_laplace(draws, "primal", tuple("abcd"), 2, 4000, 1).ravel()
    assert stats.kstest(e, stats.laplace.cdf).pvalue > SURE
    assert stats.kstest(np.abs(e), stats.expon.cdf).pvalue > SURE


class Extreme:
    """A source whose bits are the rarest: the normal draw inside a Gamma is as large, or as small,
    as it can be.

    NumPy's ziggurat has its tail in box 0, r + x with x = -ln(1 - U)/r, accepted where 2 ln(1/(1 -
    U')) > x^2; U' at most 1 - 2^-53 leaves r + sqrt(106 ln 2) = 12.22. Then U = 0 accepts any
    candidate (Marsaglia, Tsang 2000)."""

    seeded = True

    def __init__(self, dimension, sign=0):
        edge, most = 3.6541528853610088, 2**64 - 1
        tail = int(-np.expm1(-edge * np.sqrt(106 * np.log(2))) * 2**53) - 1 << 11
        usual = (1 << 49) | 2  # a normal number near 0, from box 2, at once
        extreme = (most & ~0xFF & ~(1 << 17)) | sign << 17
        self.words = [usual] * dimension + [extreme, tail, most, 0, most]

    def generator(self, purpose, node, round_, replica=0):
        words = chain(self.words, map(int, np.random.PCG64(1).random_raw(100)))
        return np.random.Generator(UserBitGenerator(lambda state: next(words), 64))


LARGEST = {
    1: 119.66,
    2: 119.66,
    3: 113.87,
    10: 119.24,
    105: 286.15,
    10_000: 11_272.5,
}  # as maths.md 7 has them


@pytest.mark.parametrize("d", LARGEST)
def test_the_largest_radius_is_far_out(d):
    """Drawn by NumPy itself from extreme bits; in one dimension its exponential law would end at
    44.4.
    """
    found = np.linalg.norm(l2_laplace(Extreme(d), "primal", ("a",), 1, 1, d))
    assert found == pytest.approx(LARGEST[d], rel=1e-4)
    assert stats.gamma(d).sf(found) < 1.2e-34
    if d == 1:
        assert found > 44.44


@pytest.mark.parametrize(("d", "least"), [(105, 22.802), (10_000, 8826.4)])
def test_the_smallest_radius_is_as_rare(d, least):
    found = np.linalg.norm(l2_laplace(Extreme(d, sign=1), "primal", ("a",), 1, 1, d))
    assert found == pytest.approx(least, rel=1e-4)
    assert stats.gamma(d).cdf(found) < 1.2e-34


@pytest.mark.parametrize("draws", SOURCES, ids=["keyed", "system"])
def test_likelihood_ratio_of_a_shift_has_the_predicted_law(draws):
    """maths.md 5: loss = sqrt(r^2 - 2 r alpha w + alpha^2) - r, r ~ Gamma(d), (1 + w)/2 ~
    Beta((d-1)/2, (d-1)/2).
    """
    d, alpha = 5, 0.8
    e = l2_laplace(draws, "primal", ("a",), 1, 6000, d)[0]
    shift = alpha * np.eye(d)[2]
    loss = np.linalg.norm(e - shift, axis=1) - np.linalg.norm(e, axis=1)
    rng = np.random.default_rng(0)
    r, w = rng.gamma(d, size=200_000), 2 * rng.beta((d - 1) / 2, (d - 1) / 2, 200_000) - 1
    predicted = np.sqrt(r**2 - 2 * r * alpha * w + alpha**2) - r
    assert stats.ks_2samp(loss, predicted).pvalue > SURE
    assert np.abs(loss).max() <= alpha


@pytest.mark.parametrize("draws", SOURCES, ids=["keyed", "system"])
def test_rounds_nodes_replicas_and_purposes_are_independent(draws):
    vectors = [
        l2_laplace(draws, purpose, ("a", "b"), n, 2, 2000).reshape(4, -1)
        for purpose in ("dual", "slack")
        for n in (1, 2)
    ]
    together = np.concatenate(vectors)
    np.testing.assert_allclose(np.corrcoef(together), np.eye(16), atol=0.15)


def test_system_draws_never_come_twice():
    seen = [l2_laplace(SystemEntropy(), "dual", ("a",), 1, 1, 3).tobytes() for _ in range(200)]
    assert len(set(seen)) == 200
    assert not SystemEntropy.seeded
    assert SeededEntropy.seeded


# --------------------------------------------------------------------------------------------------
# the public grid


def test_step_is_a_power_of_two_just_below_a_thousandth():
    for scale in (1e-9, 0.3, 1.0, 7e5):
        step = float(grid_step(np.array(scale)))
        assert np.log2(step) % 1 == 0
        assert 0.5e-3 * scale < step <= 1e-3 * scale


@given(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), st.integers(-40, 10))
def test_messages_lie_on_the_grid_and_in_the_ball(values, exponent):
    step, radius = np.array(2.0**exponent), np.array(2.0 ** (exponent + 30))
    v = to_grid(np.array(values), step, radius)
    assert (v / step == np.rint(v / step)).all()
    assert np.linalg.norm(v) <= radius + step * 2
    near = np.array(values)
    if np.linalg.norm(near) <= radius:
        assert np.abs(v - near).max() <= step / 2


def low_bits(x, noise, step):
    """Does the message have bits that only one of the inputs can have? (The low-order-bit attack of
    Mironov, 2012.)
    """
    y = x + noise
    return to_grid(y[:, None], np.full(len(y), step), np.full(len(y), 1e6))[:, 0] if step else y


def test_low_order_bits_tell_neighbours_apart_without_the_grid_and_not_with_it():
    """x = 0 leaves the noise's full mantissa; x = 1 leaves multiples of 2^-53 at least wherever the
    sum stays below 2.
    """
    rng = np.random.default_rng(3)
    noise = rng.laplace(size=4000) * 1e-3
    shares = {}
    for step in (0.0, 2.0**-20):
        fine = [np.mean(np.abs(low_bits(x, noise, step)) % 2.0**-53 != 0) for x in (0.0, 1.0)]
        shares[step] = fine
    assert shares[0.0][0] > 0.9
    assert shares[0.0][1] == 0.0  # one look at a low bit tells which input it was
    assert shares[2.0**-20] == [0.0, 0.0]
