"""Small demonstrations of errors in the paper that no other test shows (docs/errata.md)."""

import numpy as np
import pytest
from scipy.optimize import minimize

RNG = np.random.default_rng(7)


def two_nodes(slopes, noise, rho, eta):
    """f_1(t) of two nodes with linear losses under Algorithm 2 (or 1, without noise), in one
    dimension.
    """
    f, lam, path = np.zeros(2), np.zeros(2), []
    for e in noise:
        f = (-slopes - e - 2 * lam + eta * (f + f[::-1])) / (rho + 2 * eta)
        lam = lam + eta / 2 * (f - f[::-1])
        path.append(f[0])
    return np.array(path)


def test_the_marginal_reading_of_definition_1_fails_from_round_3():
    """Far out, ln p(f_1(t))/p'(f_1(t)) is its shift over the scale of its heaviest noise: up to 1.5
    alpha at t = 3.
    """
    rounds, rho, eta = 4, 1.0, 1000.0
    shift = two_nodes(
        np.array([2.0, 0.0]), np.zeros((rounds, 2)), rho, eta
    )  # the slope moves by 2 when a row is replaced
    carried = []
    for place in np.ndindex(rounds, 2):
        unit = np.zeros((rounds, 2))
        unit[place] = 1.0
        carried.append(two_nodes(np.zeros(2), unit, rho, eta))
    heaviest = np.abs(carried).max(0) * 2  # e has the scale 2/alpha, in units of 1/alpha
    np.testing.assert_allclose(np.abs(shift) / heaviest, [1, 1, 1.5, 2], rtol=1e-3)


def test_what_is_left_of_the_newest_own_noise():
    """In 2 lam - eta sum(own + V_j) the own noise e_p cancels with V; f leaves eta N e_p, and f - e
    leaves 2 eta N e_p.
    """
    eta, N, d = 0.7, 3, 4
    f, e = RNG.normal(size=(2, d))
    others = RNG.normal(size=(N, d))

    def pull(own, noise):
        V = f + noise
        lam = eta / 2 * (N * V - others.sum(0))
        return 2 * lam - eta * (N * own(V, noise) + others.sum(0))

    for own, left in ((lambda V, e: V, 0), (lambda V, e: f, 1), (lambda V, e: f - e, 2)):
        np.testing.assert_allclose(
            pull(own, e) - pull(own, np.zeros(d)), left * eta * N * e, atol=1e-12
        )


def test_the_sign_of_z_prim():
    """eta sum ||f - (f_p - e_p + V_j)/2||^2 exceeds the noiseless sum by + eta sum((f - (f_p +
    f_j)/2).e_pj + ||e_pj||^2/4).
    """
    eta, d, N = 0.7, 4, 3
    f, fp, ep = RNG.normal(size=(3, d))
    fj, ej = RNG.normal(size=(2, N, d))
    noisy = eta * ((f - (fp - ep + fj + ej) / 2) ** 2).sum()
    clean = eta * ((f - (fp + fj) / 2) ** 2).sum()
    both = ep - ej
    added = eta * (((f - (fp + fj) / 2) * both).sum() + (both**2).sum() / 4)
    assert noisy - clean == pytest.approx(added)
    assert noisy - clean != pytest.approx(-added)


def test_the_noise_enters_lam_as_half_of_what_enters_the_objective():
    """mu = lam + (C/(2B)) e gives 2 mu.f = 2 lam.f + (C/B) e.f; the text's mu = lam + e would give
    2 e.f.
    """
    C, B = 5.0, 20
    lam, e, f = RNG.normal(size=(3, 4))
    assert 2 * (lam + C / (2 * B) * e) @ f - 2 * lam @ f == pytest.approx(C / B * e @ f)
    assert 2 * (lam + e) @ f - 2 * lam @ f != pytest.approx(C / B * e @ f)


def test_replacing_a_row_changes_the_determinant_by_one_factor():
    """det H(D)/det H(D') <= 1 + c1/(a Lam), attained; the paper squares it."""
    a, Lam, c1 = 10.0, 0.5, 0.25
    u, v = np.eye(2)
    attained = np.linalg.det(Lam * np.eye(2) + c1 / a * np.outer(u, u)) / np.linalg.det(
        Lam * np.eye(2)
    )
    assert attained == pytest.approx(1 + c1 / (a * Lam))
    for L2, other in RNG.uniform(0, c1, size=(100, 2)):
        M = Lam * np.eye(2) + np.cov(RNG.normal(size=(2, 5)))
        ratio = np.linalg.det(M + L2 / a * np.outer(u, u)) / np.linalg.det(
            M + other / a * np.outer(v, v)
        )
        assert ratio <= 1 + c1 / (a * Lam)


def test_hamming_distance_must_count_labels():
    """Two data sets with the same x and one other label: no distance by x alone, yet the minimisers
    differ.
    """
    x = np.array([[1.0], [0.5]])
    found = [
        minimize(lambda f, y=y: np.logaddexp(0, -y * (x @ f)).sum() + f @ f / 2, np.zeros(1)).x[0]
        for y in (np.array([1.0, 1.0]), np.array([-1.0, 1.0]))
    ]
    assert abs(found[0] - found[1]) > 0.3


def test_the_other_half_of_an_edge_multiplier_points_to_its_own_end():
    """At w = (f_p + f_j)/2, lam_a += eta (f_p - w) and lam_b += eta (w - f_j) move together; as
    printed, w - f_p, they part.
    """
    eta, fp, fj = 0.7, 2.0, -1.0
    w = (fp + fj) / 2
    assert eta * (fp - w) == pytest.approx(eta * (w - fj))
    assert eta * (fp - w) == pytest.approx(-eta * (w - fp))


def test_the_utility_of_privacy_falls_with_alpha():
    """Assumption 6 prints it growing."""
    from dynadp.planning.designs import PrivacyUtility

    alphas = np.geomspace(1e-3, 10, 50)
    assert (np.diff(PrivacyUtility(0.02, 6.0, 9.0, 1.0)(alphas)) < 0).all()
