"""A kind of event that ``dynadp.privacy`` has never heard of, added by one file: this one.

Gaussian noise has no finite alpha, an exact privacy profile and the Rényi curve rho A.
"""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from math import inf, sqrt
from typing import ClassVar

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from numpy.testing import assert_allclose
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dynadp.errors import BudgetRefused, DeclarationError
from dynadp.privacy import (
    Cap,
    L2Laplace,
    Ledger,
    LedgerSummary,
    LossDistribution,
    calibrate,
    distribution_of,
    from_json,
    register_event,
    total,
)
from dynadp.privacy import events as kinds
from dynadp.privacy.events import to_json

STAMP = {"who": "tests", "at": "2026-03-01T12:00:00+00:00"}
DELTA = 1e-5


@register_event
@dataclass(frozen=True)
class Gaussian:
    """N(0, sigma^2) noise on a vector of sensitivity Delta: rho = Delta^2/(2 sigma^2)."""

    node: str
    round: int
    rho: float
    seeded: bool = False
    kind: ClassVar[str] = "test-gaussian"
    alpha: ClassVar[float] = inf
    per_row: ClassVar[bool] = True


@dataclass(frozen=True)
class GaussianLoss(LossDistribution):
    """The loss is N(rho, 2 rho)."""

    rho: float
    alpha: ClassVar[float] = inf

    @property
    def spread(self):
        return sqrt(2 * self.rho)

    def hockey_stick(self, s):
        mu = self.spread
        return np.exp(log_ndtr(mu / 2 - s / mu)) - np.exp(s + log_ndtr(-mu / 2 - s / mu))

    def renyi(self, orders):
        return self.rho * np.array(orders)


@distribution_of.register(Gaussian)
def _(event, rows=1):
    return GaussianLoss(event.rho * rows**2) if 0 < event.rho < 1e6 else None


@register_event
@dataclass(frozen=True)
class Priceless(Gaussian):
    """Registered for ledgers, with a distribution that knows no price for it."""

    kind: ClassVar[str] = "test-priceless"


@distribution_of.register(Priceless)
def _(event, rows=1):
    return None


def plan(rho, rounds, node="north"):
    return [Gaussian(node, n, rho) for n in range(1, rounds + 1)]


def true_epsilon(rho, delta):
    profile = GaussianPrivacyLoss(standard_deviation=1 / sqrt(2 * rho)).get_delta_for_epsilon
    return brentq(lambda epsilon: profile(epsilon) / delta - 1, 0, 10)


def test_its_profile_is_that_of_the_accounting_library():
    s = np.linspace(0, 3, 20)
    known = GaussianPrivacyLoss(standard_deviation=1 / sqrt(2 * 0.1)).get_delta_for_epsilon(s)
    assert_allclose(GaussianLoss(0.1).hockey_stick(s), known, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize(("rho", "rounds"), [(0.02, 20), (0.3, 1), (1e-4, 100)])
def test_its_total_is_exact_by_the_loss_distribution(rho, rounds):
    found = total(plan(rho, rounds), DELTA)
    truth = true_epsilon(rho * rounds, DELTA)
    assert found.method == "loss distribution"
    assert truth <= found.epsilon <= 1.01 * truth
    assert (found.epsilon_sum, found.epsilon_pure, found.alpha) == (inf, inf, inf)
    assert found.to_json()["alpha"] is None
    assert total(plan(rho, rounds), DELTA, rows=2).epsilon > found.epsilon
    assert total(plan(rho, rounds), 0.0).epsilon == inf


def test_its_total_by_the_renyi_curve():
    """At a delta below what floating point composes, the Rényi curve is all there is."""
    found = total(plan(0.02, 20), 1e-13)
    assert found.method == "renyi"
    assert true_epsilon(0.4, 1e-13) < found.epsilon < 1.2 * true_epsilon(0.4, 1e-13)


def test_it_composes_with_other_kinds():
    laplace = [L2Laplace("north", n, "primal", 0.2, 50) for n in range(1, 11)]
    both = total(plan(0.02, 10) + laplace, DELTA)
    alone = total(plan(0.02, 10), DELTA).epsilon, total(laplace, DELTA).epsilon
    assert max(alone) < both.epsilon < sum(alone)


def test_a_total_is_turned_into_its_noise():
    rho = calibrate(lambda scale: plan(scale, 20), 1.0, DELTA)
    assert 0.99 < true_epsilon(20 * rho, DELTA) <= 1.0


def test_a_cap_admits_it_by_its_renyi_loss():
    cap = Cap.of(1.0, DELTA)
    assert cap.admits([], plan(1e-3, 10)) == "renyi"
    assert cap.admits(plan(1e-3, 10), plan(10.0, 1)) is None
    fits = cap.affordable(plan(1e-3, 10), plan(1e-3, 1))
    assert cap.admits(plan(1e-3, 10), plan(1e-3, fits)) == "renyi"
    assert cap.admits(plan(1e-3, 10), plan(1e-3, fits + 1)) is None
    assert Cap.of(1.0, 0.0).affordable([], plan(1e-3, 1)) == 0


def test_a_ledger_takes_it_and_is_read_again(tmp_path):
    path = tmp_path / "north.sqlite"
    with Ledger.create(path, "north", **STAMP) as ledger:
        ledger.set_cap(Cap.of(1.0, DELTA), **STAMP)
        assert ledger.reserve("run", plan(1e-3, 10), dataset="rows", **STAMP) == "renyi"
        ledger.spend("run", 1, plan(1e-3, 1), b"a vector", **STAMP)
        with pytest.raises(BudgetRefused, match="do not fit under the cap"):
            ledger.reserve("too much", plan(10.0, 1), dataset="rows", **STAMP)
        head = ledger.head
    with Ledger.open(path) as again:
        assert again.verify(head) == []
        assert again.reserved("run") == plan(1e-3, 10)
        assert again.spent() == plan(1e-3, 1)
        assert again.message("run", 1) == b"a vector"
        again.spend("run", 2, [Gaussian("north", 2, 1e-3)], b"another", **STAMP)
        summary = LedgerSummary.of(again)
    assert summary.runs["run"].rounds_spent == 2
    assert summary.room.measure == "renyi"
    assert 0 < summary.room.spent < summary.room.counted < summary.room.limit
    assert 0 < summary.lost <= 1.0
    shown = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert shown["cap"]["sum"] is None
    assert shown["runs"][0]["alpha_spent"] is None


def test_the_view_of_a_ledger_has_no_sum_for_it_and_says_why(tmp_path):
    path = tmp_path / "north.sqlite"
    known, new = L2Laplace("north", 1, "primal", 1e-3, 5), Gaussian("north", 1, 1e-3)
    with Ledger.create(path, "north", **STAMP) as ledger:
        ledger.set_cap(Cap.of(1.0, DELTA), **STAMP)
        for run, events in {"known": [known], "both": [known, new], "new": [new]}.items():
            ledger.reserve(run, events, dataset="rows", **STAMP)
            ledger.spend(run, 1, events, b"a vector", **STAMP)
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT run, alpha, unknown FROM spends ORDER BY id").fetchall()
    (_, alpha, nothing), *others = found
    assert (alpha, nothing) == (1e-3, None)
    for _, alpha, reason in others:
        assert alpha is None
        assert "ledger show" in reason


@pytest.mark.parametrize("event", [Priceless("north", 1, 0.1), Gaussian("north", 1, -0.1)])
def test_without_a_distribution_it_costs_infinity(tmp_path, event):
    assert total([event], DELTA).epsilon == inf
    assert Cap.of(1.0, DELTA).admits([], [event]) is None
    with Ledger.create(tmp_path / "north.sqlite", "north", **STAMP) as ledger:
        ledger.set_cap(Cap.of(1.0, DELTA), **STAMP)
        with pytest.raises(BudgetRefused, match="has no known cost"):
            ledger.reserve("run", [event], dataset="rows", **STAMP)


def test_a_kind_has_one_class():
    with pytest.raises(DeclarationError, match="'dual' is registered already"):

        @register_event
        @dataclass(frozen=True)
        class Another(Gaussian):
            kind: ClassVar[str] = "dual"


def test_an_installed_package_is_asked_for_kinds_that_are_not_known(monkeypatch):
    class Later(Gaussian):
        kind: ClassVar[str] = "test-later"

    class Module:
        def load(self):
            register_event(Later)

    content = {**to_json(Gaussian("north", 1, 0.1)), "kind": "test-later"}
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    with pytest.raises(DeclarationError, match="import the module that registers it"):
        from_json(content)
    monkeypatch.setattr(kinds, "entry_points", lambda group: [Module()] * (group != ""))
    assert from_json(content) == Later("north", 1, 0.1)
