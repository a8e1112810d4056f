from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from dynadp.errors import DeclarationError, LossError
from dynadp.problem.losses import HuberHinge, Logistic, Loss, SmoothedHinge, check_loss
from dynadp.problem.residual_losses import Huber, LogisticCosh, PseudoHuber, ResidualLoss
from support.contracts.loss import LossContract
from support.reference import losses as reference_losses


class TestLogistic(LossContract):
    loss = Logistic()


class TestMarginLogistic(LossContract):
    loss = Logistic(margin=3.0)


class TestHuberHinge(LossContract):
    loss = HuberHinge()


class TestWideHuberHinge(LossContract):
    loss = HuberHinge(width=2.0, margin=3.0)


class TestSmoothedHinge(LossContract):
    loss = SmoothedHinge(width=0.1)


class TestPseudoHuber(LossContract):
    loss = PseudoHuber()


class TestSharpPseudoHuber(LossContract):
    loss = PseudoHuber(0.01)


class TestLogisticCosh(LossContract):
    loss = LogisticCosh()


class TestWideLogisticCosh(LossContract):
    loss = LogisticCosh(2.0)


class TestHuber(LossContract):
    loss = Huber(0.153)  # kinks where no test looks


class TestWideHuber(LossContract):
    loss = Huber(3.0)


RESIDUAL = [PseudoHuber(0.3), LogisticCosh(0.2), Huber(0.5)]


@pytest.mark.parametrize(
    "loss", [Logistic(), Logistic(3.0), HuberHinge(0.3), SmoothedHinge(0.2, 2.0), *RESIDUAL]
)
def test_agrees_with_formulas_written_again(loss):
    z = np.concatenate([np.linspace(-40, 40, 4001), [-1e6, 1e6]])
    expected = reference_losses(**{k: v for k, v in loss.describe().items() if k != "c1"})
    for ours, theirs in zip((loss.value, loss.slope, loss.curvature), expected, strict=True):
        np.testing.assert_allclose(ours(z), theirs(z), rtol=1e-12, atol=1e-14)


def test_constants_of_the_paper():
    assert Logistic().c1 == 0.25
    assert HuberHinge(width=0.5).c1 == 1.0
    assert SmoothedHinge(width=0.5).c1 == 0.5


def test_logistic_slope_is_relatively_exact_in_the_far_tail():
    assert Logistic().slope(np.array([700.0]))[0] == pytest.approx(-np.exp(-700.0), rel=1e-12)


def test_logistic_shows_its_one_parameter():
    assert repr(Logistic(3.0)) == "Logistic(margin=3.0)"


@pytest.mark.parametrize("make", [SmoothedHinge, HuberHinge, PseudoHuber, LogisticCosh, Huber])
@pytest.mark.parametrize("width", [0.0, -1.0, np.nan, np.inf])
def test_width_must_be_positive(make, width):
    with pytest.raises(DeclarationError, match="width"):
        make(width=width)


def test_margin_must_be_finite():
    with pytest.raises(DeclarationError, match="margin is nan"):
        Logistic(margin=np.nan)


@pytest.mark.parametrize(("width", "margin"), [(0.5, -0.5), (0.5, -3.0), (2.0, -2.0)])
def test_a_hinge_that_is_flat_at_zero_is_refused(width, margin):
    """L(0) = 0: the zero vector is optimal whatever the rows say."""
    with pytest.raises(
        DeclarationError, match=r"margin is -.*L\(0\) = 0.*expected a margin above -width"
    ):
        HuberHinge(width, margin)
    check_loss(HuberHinge(width, -0.9 * width))


@dataclass(frozen=True)
class Own(Loss):
    """scale ln(1 + e^-z), with whatever c1 its author declares."""

    scale: float = 1.0
    declared: float = 0.25
    shift: float = 0.0
    name: ClassVar[str] = "own"

    @property
    def c1(self):
        return self.declared

    def value(self, z):
        return self.scale * np.logaddexp(0, -z) + self.shift

    def slope(self, z):
        return Logistic().slope(z) * self.scale

    def curvature(self, z):
        return np.minimum(Logistic().curvature(z) * self.scale, self.declared)


def test_own_loss_with_true_constants_passes():
    check_loss(Own())
    check_loss(Own(scale=0.5, declared=0.125))


class Hidden(Own):
    """Understates L'' in curvature() too, so that only the slopes betray it."""


class Concave(Own):
    def slope(self, z):
        return Logistic().slope(-z)

    def value(self, z):
        return 2e6 - np.logaddexp(0, z)


class Flat(Own):
    """A true loss, but zero for all margins above -2."""

    def _short(self, z):
        return np.clip(-2 - z, 0, 1)

    def value(self, z):
        s = self._short(z)
        return s * s / 2 + np.maximum(-3 - z, 0)

    def slope(self, z):
        return -self._short(z)

    def curvature(self, z):
        return (np.abs(z + 2.5) < 0.5) * 1.0


class Raised(Flat):
    """The same with a constant added."""

    def value(self, z):
        return super().value(z) + 1


class NotANumber(Own):
    def slope(self, z):
        return np.where(z > 40, np.nan, Logistic().slope(z))


class Unrelated(Own):
    def value(self, z):
        return np.logaddexp(0, -2 * z)


class Scalar(Own):
    def value(self, z):
        return np.float64(1.0)


class Negative(Own):
    def curvature(self, z):
        return -Logistic().curvature(z)


class Sharp(Own):
    def curvature(self, z):
        return 2 * Logistic().curvature(z)


@pytest.mark.parametrize(
    ("loss", "bound"),
    [
        (Own(scale=2.0, declared=0.5), r"\|L'\| <= 1"),
        (Hidden(declared=0.2), r"L'' <= c1 = 0.2 \(slope of its slope\)"),
        (Sharp(), r"L'' <= c1 = 0.25 at"),
        (Negative(), r"L'' >= 0"),
        (
            Flat(declared=1.0),
            r"L\(0\) > 0 \(else the zero vector is optimal and nothing can be learnt\) at z = 0",
        ),
        (Raised(declared=1.0), r"L'\(0\) < 0 \(else the zero vector is optimal"),
        (SmoothedHinge(0.5, -30.0), r"L'\(0\) < 0 \(else the zero vector is optimal"),
        (Concave(), "convex"),
        (NotANumber(), "L' is finite"),
        (Unrelated(), r"L' = dL/dz"),
        (Own(shift=-5.0), "L >= 0"),
        (Scalar(), "shape"),
        (Own(declared=0.0), "c1"),
        (Own(declared=np.inf), "c1"),
    ],
)
def test_a_broken_bound_is_named(loss, bound):
    with pytest.raises(LossError, match=bound):
        check_loss(loss)


@pytest.mark.parametrize("loss", RESIDUAL, ids=repr)
def test_losses_of_residuals_are_even_and_small_at_zero(loss):
    r = np.concatenate([np.geomspace(1e-12, 1e6, 200), [0.0]])
    np.testing.assert_array_equal(loss.value(r), loss.value(-r))
    np.testing.assert_array_equal(loss.slope(r), -loss.slope(-r))
    # the squared loss near 0, without cancellation
    near = r[(r > 0) & (r < 1e-5 * loss.width)]
    np.testing.assert_allclose(loss.value(near), near**2 / (2 * loss.width), rtol=1e-9)
    assert loss.at_zero == loss.value(np.ones(1))[0] > loss.value(np.zeros(1))[0] == 0
    assert Logistic(3.0).at_zero == Logistic(3.0).value(np.zeros(1))[0]


@dataclass(frozen=True)
class Squared(ResidualLoss):
    """r^2/2: its slope has no bound."""

    width: float = 1.0
    name: ClassVar[str] = "own squares"

    def value(self, z):
        return z * z / 2

    def slope(self, z):
        return z

    def curvature(self, z):
        return np.ones_like(z)


class Upside(Huber):
    """Falls with the residual's size."""

    name: ClassVar[str] = "upside"

    def value(self, z):
        return 1e6 + self.width - z

    def slope(self, z):
        return -np.ones_like(z)

    def curvature(self, z):
        return np.zeros_like(z)


@pytest.mark.parametrize(
    ("loss", "bound"),
    [
        (Squared(), r"'own squares' breaks \|L'\| <= 1 \(clip the slope, as 'huber' does"),
        (Upside(), r"'upside' breaks L'\(-1\) < 0 < L'\(1\)"),
    ],
)
def test_a_broken_bound_of_a_loss_of_residuals_is_named(loss, bound):
    with pytest.raises(LossError, match=bound):
        check_loss(loss)


@pytest.mark.parametrize("name", ["squared", "squared_error", "mse"])
def test_squares_without_a_bound_are_refused_by_name(name):
    with pytest.raises(DeclarationError, match=r"slope has no bound.*take 'huber'"):
        Loss.named(name)
    assert Loss.named("huber") is Huber
