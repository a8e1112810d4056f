"""What every mechanism must keep; a test class for a mechanism inherits this and provides
``mechanism``.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.mechanisms.base import PublicNumbers
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.problem.losses import Logistic

NODES = ("a", "b")
numbers = st.tuples(
    st.integers(1, 10**5),
    st.floats(0.01, 2000),
    st.floats(1e-10, 10),
    st.floats(1e-6, 10),
    st.floats(0.01, 10),
    st.integers(1, 50),
)


def public(B, C, rho, eta, d):
    return PublicNumbers(
        np.array([float(B), 2.0 * B]),
        np.array([1.0, 3.0]),
        d,
        np.full(2, C),
        rho,
        np.array([eta, 2 * eta]),
        np.full((2, 1), 1e-9 * C),
        Logistic(),
    )


class PerturbationContract:
    mechanism = None

    @settings(max_examples=50)
    @given(numbers)
    def test_a_calibration_is_a_function_of_public_numbers(self, given):
        B, C, rho, eta, alpha, d = given
        known, alphas = (
            public(B, C, rho, eta, d),
            np.array([[alpha, 2 * alpha], [alpha / 2, alpha]]),
        )
        first, again = (self.mechanism.noise_for(known, alphas) for _ in range(2))
        assert {"phi", "step", "radius"} < set(vars(first))
        for name, value in vars(first).items():
            np.testing.assert_array_equal(value, getattr(again, name))
            assert value.shape == (2, 2)
            assert np.isfinite(value).all()
            assert (value >= 0).all()
            assert name == "phi" or (value > 0).all()

    @settings(max_examples=50)
    @given(numbers)
    def test_events_never_lose_more_than_alpha(self, given):
        B, C, rho, eta, alpha, d = given
        c = self.mechanism.noise_for(public(B, C, rho, eta, d), np.full((2, 2), alpha))
        for replica in range(2):
            for node in NODES:
                events = [event for event in c.events(NODES, 3, d, replica) if event.node == node]
                assert 0 < sum(event.alpha for event in events) <= alpha * (1 + 1e-9)
                assert all((event.round, event.dimension) == (3, d) for event in events)

    def test_what_is_sent_is_on_the_grid_and_is_not_the_minimiser(self):
        known = public(500, 1.0, 0.01, 0.1, 6)
        c = self.mechanism.noise_for(known, np.ones((2, 2)))
        g = np.random.default_rng(0).normal(size=(2, 2, 6))
        V = c.release(g, SeededEntropy(1), NODES, 1)
        assert (V / c.step[..., None] == np.rint(V / c.step[..., None])).all()
        assert not (g == V).any()
        np.testing.assert_array_equal(V, c.release(g, SeededEntropy(1), NODES, 1))
        assert not np.array_equal(V, c.release(g, SeededEntropy(1), NODES, 2))
