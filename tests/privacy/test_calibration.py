"""The inverse of the accountant: never less privacy than asked, and hardly more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.errors import DeclarationError
from dynadp.privacy.accountant import total, worst_node
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.inverse import affordable_rounds, calibrate, dual, primal
from dynadp.privacy.schedules import geometric, linear


@settings(max_examples=20)
@given(
    st.booleans(),
    st.floats(0.01, 30),
    st.sampled_from([1e-9, 1e-5, 1e-2]),
    st.sampled_from([1, 2, 30, 105]),
    st.integers(1, 200),
)
def test_there_and_back_from_below(kind, epsilon, delta, d, rounds):
    def plan(alpha):
        return primal(alpha, d, rounds) if kind else dual(alpha, d, rounds, 0.01)

    alpha = calibrate(plan, epsilon, delta)
    assert 0.995 * epsilon <= total(plan(alpha), delta).epsilon <= epsilon
    assert total(plan(alpha * 1.01), delta).epsilon > epsilon * 0.999


def test_without_delta_the_sum_is_what_fits():
    alpha = calibrate(lambda a: primal(a, 105, 10), 1.0, 0.0)
    assert 0.0999 <= alpha <= 0.1


@pytest.mark.parametrize("shape", [geometric(1.0, 0.9), linear(0.2, 1.0)])
def test_any_shape_of_schedule(shape):
    weights = shape.table(["p"], 20)[0]

    def plan(scale):
        return [L2Laplace("p", n, "primal", float(scale * w), 40) for n, w in enumerate(weights, 1)]

    scale = calibrate(plan, 2.0, 1e-5)
    assert 1.99 <= total(plan(scale), 1e-5).epsilon <= 2.0


def test_the_worst_node_counts():
    def plan(alpha):
        return primal(alpha, 20, 10, "a") + primal(2 * alpha, 20, 10, "b")

    alpha = calibrate(plan, 1.0, 1e-5)
    assert worst_node(plan(alpha), 1e-5).epsilon <= 1.0
    assert calibrate(lambda a: primal(a, 20, 10), 1.0, 1e-5) == pytest.approx(2 * alpha, rel=3e-3)


def test_persons_with_several_rows_get_less_each():
    one, three = (calibrate(lambda a: primal(a, 20, 10), 1.0, 1e-5, rows=m) for m in (1, 3))
    assert three == pytest.approx(one / 3, rel=3e-3)


def test_a_plan_that_cannot_fit_is_refused():
    with pytest.raises(DeclarationError, match="no scale"):
        calibrate(lambda a: [object()], 1.0, 1e-5)


@pytest.mark.parametrize("epsilon", [0, -1.0, float("inf"), float("nan"), "one"])
def test_a_bad_epsilon_is_refused(epsilon):
    with pytest.raises(DeclarationError, match="epsilon is"):
        calibrate(lambda a: primal(a, 3, 2), epsilon, 1e-5)


def test_how_many_rounds_fit():
    rounds = affordable_rounds(lambda n: primal(0.1, 105, n), 1.0, 1e-5)
    assert (
        total(primal(0.1, 105, rounds), 1e-5).epsilon
        <= 1.0
        < total(primal(0.1, 105, rounds + 1), 1e-5).epsilon
    )
    assert affordable_rounds(lambda n: primal(3.0, 1, n), 1.0, 1e-5) == 0
    assert affordable_rounds(lambda n: primal(1e-6, 1, n), 1.0, 1e-5, most=50) == 50
    assert affordable_rounds(lambda n: primal(0.25, 1, n), 1.0, 0.0) == 4


@pytest.mark.parametrize(
    ("plan", "epsilon", "delta"),
    [
        (lambda a: primal(a, 105, 10), 1000.0, 1e-5),
        (lambda a: dual(a, 105, 10, 0.01), 100.0, 1e-5),
        (lambda a: primal(a, 105, 10), 1.0, 0.9),
        (lambda a: primal(a, 10**6, 1), 1e-3, 1e-5),
    ],
)
def test_odd_totals(plan, epsilon, delta):
    """Where the first scales cost nothing at all, and where numbers are huge."""
    alpha = calibrate(plan, epsilon, delta)
    assert 0.99 * epsilon <= worst_node(plan(alpha), delta).epsilon <= epsilon


def test_a_part_that_does_not_scale_is_refused():
    with pytest.raises(DeclarationError, match="no scale"):
        calibrate(
            lambda a: [L2Laplace("node", 0, "centring", 5.0, 1), *primal(a, 1, 10)], 1.0, 1e-5
        )
