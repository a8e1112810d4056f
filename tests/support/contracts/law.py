"""What every law of a privacy loss must keep; a test class inherits this and provides
``make(alpha)``.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp.privacy.distributions import Pure, dots

ORDERS = (1.01, 1.5, 2.0, 5.0, 20.0, 300.0)
alphas = st.floats(1e-3, 20)


class LawContract:
    def make(self, alpha):
        raise NotImplementedError

    @given(alphas)
    def test_its_loss_never_passes_alpha(self, alpha):
        law = self.make(alpha)
        assert law.alpha == pytest.approx(alpha)
        assert law.hockey_stick(np.array([law.alpha, 1.5 * law.alpha])).tolist() == [0, 0]
        assert (law.renyi(ORDERS) <= law.alpha).all()
        assert (law.renyi(ORDERS) > 0).all()

    @given(alphas)
    def test_it_is_no_worse_than_randomised_response(self, alpha):
        law = self.make(alpha)
        s = np.linspace(0, law.alpha, 30)
        assert (law.hockey_stick(s) <= Pure(law.alpha).hockey_stick(s) * (1 + 1e-7)).all()
        assert (
            law.renyi(ORDERS) <= Pure(law.alpha).renyi(ORDERS) * (1 + 1e-2)
        ).all()  # its grid rounds up

    @given(alphas)
    def test_its_curve_is_one_of_a_pair_of_laws(self, alpha):
        """delta falls and is convex in e^s, from 1 - e^s far below to 0."""
        s, delta = dots(self.make(alpha), alpha / 40, 41)
        slope = np.diff(delta) / np.diff(np.exp(s))
        assert (np.diff(delta) <= 1e-15).all()
        assert (np.diff(slope) >= -1e-6).all()
        assert delta[0] == pytest.approx(-np.expm1(s[0]))
        assert delta[-1] == 0

    @given(alphas)
    def test_renyi_grows_with_the_order(self, alpha):
        assert (np.diff(self.make(alpha).renyi(ORDERS)) >= -1e-12).all()

    @given(alphas, st.floats(1.001, 3))
    def test_more_alpha_is_worse(self, alpha, factor):
        small, large = self.make(alpha), self.make(alpha * factor)
        s = np.linspace(0, 0.99 * alpha, 20)
        assert (small.hockey_stick(s) <= large.hockey_stick(s) * (1 + 1e-7)).all()
        orders = ORDERS[
            :-1
        ]  # at very high ones what is charged for the far tail rules, and depends on the grid
        assert (small.renyi(orders) <= large.renyi(orders) * (1 + 1e-3)).all()
