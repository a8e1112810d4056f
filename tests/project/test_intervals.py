"""Intervals of shares: Wilson's formula, and coverage by simulation with a fixed seed."""

import math

import numpy as np
import pytest

from dynadp._intervals import Z, quantile_band, standard_error, wilson
from dynadp.errors import DeclarationError


def test_wilson_solves_its_equation():
    """Both ends are the shares t whose normal test at 95% just admits p: |p - t| = z sqrt(t (1 -
    t)/n).
    """
    for p, n in ((0.9, 50), (0.5, 7), (0.03, 400)):
        for end in wilson(p, n):
            assert abs(p - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / n))
    assert wilson(0.0, 20)[0] == 0.0
    assert wilson(1.0, 20)[1] == 1.0
    assert wilson(1.0, 20)[0] < 0.9  # twenty right answers of twenty prove no certainty


@pytest.mark.parametrize(("share", "rows"), [(0.5, 0), (-0.1, 10), (1.1, 10), (math.nan, 10)])
def test_what_is_no_share_of_rows_is_refused(share, rows):
    with pytest.raises(DeclarationError, match="expected a number in"):
        wilson(share, rows)


def test_bands_are_quantiles_and_those_of_shares_are_wider():
    assert quantile_band(np.arange(11.0)) == {"median": 5.0, "low": 1.0, "high": 9.0}
    shares = np.linspace(0.88, 0.91, 12)
    plain, honest = quantile_band(shares), quantile_band(shares, 50)
    assert honest["median"] == plain["median"]
    assert honest["low"] == wilson(plain["low"], 50)[0] < 0.8  # 88 to 91 in 100, on 50 rows
    assert honest["high"] == wilson(plain["high"], 50)[1] > 0.95
    assert (quantile_band([0.9], 50)["low"], quantile_band([0.9], 50)["high"]) == wilson(0.9, 50)


@pytest.mark.parametrize("rows", [30, 50, 300])
def test_one_share_is_covered_95_times_in_100(rows):
    rng = np.random.default_rng(5)
    truths = rng.uniform(0.6, 0.98, 4000)
    seen = rng.binomial(rows, truths) / rows
    ends = np.array([wilson(share, rows) for share in seen])
    assert np.mean((ends[:, 0] <= truths) & (truths <= ends[:, 1])) >= 0.94


@pytest.mark.parametrize(("rows", "spread"), [(50, 0.02), (50, 0.0), (1000, 0.02)])
def test_several_draws_on_the_same_rows_cover_8_of_10_further_runs(rows, spread):
    """Runs err on the same hard rows: row i is right where its hardness is below the run's true
    accuracy.
    """
    rng = np.random.default_rng(6)
    hits, bare = [], []
    for _ in range(400):
        hardness, truths = rng.random(rows), np.clip(rng.normal(0.9, spread, 12), 0, 1)
        shares = (hardness[:, None] < truths).mean(axis=0)
        further = np.clip(rng.normal(0.9, spread, 50), 0, 1)
        for found, out in ((quantile_band(shares, rows), hits), (quantile_band(shares), bare)):
            out.append(np.mean((found["low"] <= further) & (further <= found["high"])))
    assert np.mean(hits) >= 0.8
    if rows == 50:
        assert np.mean(bare) < 0.6  # the spread over draws alone misses what the rows hide


def test_the_standard_error_of_a_median_is_what_repetition_shows():
    rng = np.random.default_rng(7)
    medians, claimed = [], []
    for _ in range(600):
        draws = rng.normal(0.2, 0.03, 25)
        medians.append(np.median(draws))
        claimed.append(standard_error(draws))
    assert np.mean(claimed) == pytest.approx(np.std(medians), rel=0.1)
    assert standard_error([0.2]) == 0.0
    assert standard_error([0.2], 100) == pytest.approx(0.04, rel=0.05)
    assert standard_error([0.2, 0.22], 100) > standard_error([0.2, 0.22])
