"""What the page says in one place and in another: zones, words, the recommendation, rounds."""

import html
import re

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dynadp.consensus.topology import Topology
from dynadp.mechanisms.sealed import Sealed
from dynadp.report.explore.advice import Advisor
from dynadp.report.explore.app import Explorer
from dynadp.report.explore.setting import PublicSetting, digits
from dynadp.report.explore.watch import Watch
from support.page_client import TOKEN, Client
from support.run_folders import NODES

TOTALS = (0.05, 0.2, 1.0, 3.0, 10.0)


def advisor(**given):
    ring = Topology.family("ring", 3).named(NODES)
    return Advisor(PublicSetting("small", ring, (200, 300, 700), 8, 7, **given))


@pytest.fixture
def swept():
    found = advisor()
    found.baselines = {"without privacy": 84.5, "always the most common answer": 76.0}
    found.source, found.rows, found.done = "census rows made here (synthetic)", 250, True
    return found


@pytest.mark.parametrize("seed", range(30))
def test_zones_words_and_recommendation_never_differ(swept, seed):
    """However measured totals scatter, what is called useless in one place is so in all."""
    rng = np.random.default_rng(seed)
    swept.points = [
        {
            "epsilon": e,
            "alpha": e / 2.5,
            "median": m,
            "low": m - lower,
            "high": m + 2,
            "error": error,
        }
        for e, m, lower, error in zip(
            TOTALS,
            rng.uniform(70, 82, 5),
            rng.uniform(0, 4, 5),
            rng.uniform(0.1, 1, 5),
            strict=True,
        )
    ]
    useful, best = swept.zones().useful, swept.recommended()
    none = "not clearly better than always giving the same answer"
    for epsilon in np.geomspace(0.05, 10, 25):
        words = swept.for_total(digits(epsilon))["words"]
        assert (none in words) == (useful is None or digits(epsilon) < useful)
    if useful is None:
        assert best["alpha"] is None
        low = float(re.search(r"that was tried \(([\d.]+)", best["none"])[1])
        assert low <= 76.0  # the reason given is a reason
    elif best["alpha"] is not None:
        assert best["epsilon"] >= useful
        assert none not in swept.for_total(best["epsilon"])["words"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, r"mu = ([\d.]+) in each of 20 rounds and ([\d.]+) in the centring round"),
        (
            {"calibration": True},
            r"mu = ([\d.]+) in each of rounds 1 to 20, ([\d.]+) in round 21 and ([\d.]+) in the "
            "centring round",
        ),
        (
            {"mechanism": Sealed(honest=2)},
            r"mu = ([\d.]+) in each of 20 rounds, ([\d.]+) in the centring round and ([\d.]+) in 1 "
            "spare attempt",
        ),
    ],
)
def test_each_round_is_given_its_own_loss(given, wanted):
    """What is written of the rounds is what they cost: not the largest of one for each of all."""
    advice = advisor(**given)
    answer = advice.for_total(1.0)
    found = re.fullmatch(wanted, answer["each"])
    losses = [float(loss) for loss in found.groups()]
    times = [20, *[1] * (len(losses) - 1)]
    whole = sum(n * mu**2 for n, mu in zip(times, losses, strict=True)) ** 0.5
    released = [e.mu for e in advice.planned(1.0).events if e.node == "north"]
    assert whole == pytest.approx(sum(mu**2 for mu in released) ** 0.5, rel=1e-3)
    assert answer["total"] == pytest.approx(gaussian_epsilon(whole), rel=2e-3)
    text = html.unescape(Client(Explorer(advice, Watch(None))).get(f"/{TOKEN}/?epsilon=1").text)
    assert f"The plan costs epsilon = {answer['cost']}: {answer['each']}. A run file" in text


def gaussian_epsilon(mu, delta=1e-5):
    """The epsilon with Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) = delta (Balle and Wang)."""

    def over(e):
        return norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta

    return brentq(over, 1e-6, 50)
