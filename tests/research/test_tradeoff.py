"""Privacy-accuracy design: formulas, all stationary points, constraints, fits; and the commands
that use them.
"""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.errors import DeclarationError
from dynadp.planning.designs import (
    AccuracyLoss,
    PrivacyUtility,
    design,
    design_table,
    designed,
    schedule_from,
    stationary_points,
)
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import total
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.inverse import dual, gaussian, primal
from dynadp.privacy.statements import upper_bound
from dynadp.report.explore.setting import PublicSetting
from dynadp.research.experiments import compare_schedules, plan_for_total, schedule_shapes
from dynadp.research.tradeoff import fit_loss
from dynadp.runs.local import LocalRun
from support.run_files import ALPHA, settle
from support.typed import answer, dynadp

PAPER = PrivacyUtility()
ALPHAS = np.array([0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0])


def objective(c, w, a):
    """Once more, naively."""
    return w[0] * math.log(w[1] / (w[2] * a + w[3] * a**2)) - (c[0] * math.exp(-c[1] * a) + c[2])


# --------------------------------------------------------------------------------------------------
# functions


def test_both_functions_are_the_papers():
    assert AccuracyLoss(0.2, 25, 0.35)(0.1) == pytest.approx(0.2 * math.exp(-2.5) + 0.35)
    assert PAPER(0.3) == pytest.approx(0.02 * math.log(6 / (9 * 0.3 + 0.09)))
    assert (np.diff(PAPER(ALPHAS)) < 0).all()


@pytest.mark.parametrize(("c", "alpha"), [((0.2, 25, 0.35), 0.1422), ((20, 20, 0.1), 0.4533)])
def test_the_papers_constants_have_the_known_interior_maximum(c, alpha):
    found = design(AccuracyLoss(*c))
    assert found.interior
    assert found.end_wins is None
    assert found.alpha == pytest.approx(alpha, abs=5e-5)
    assert found.best == found.alpha
    assert found.value == pytest.approx(objective(c, (0.02, 6, 9, 1), found.alpha))


def test_c6_does_not_move_the_design():
    assert design(AccuracyLoss(0.2, 25, 0.0)).alpha == design(AccuracyLoss(0.2, 25, 7.0)).alpha


# --------------------------------------------------------------------------------------------------
# stationary points

POSITIVE = {"allow_nan": False, "allow_infinity": False}
EXPONENTS = st.floats(-4, 4, **POSITIVE).map(lambda t: 10.0**t)
SHAPES = st.sampled_from(
    [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (9.0, 1.0), (1.0, 1e3), (1e-6, 1.0), (1e3, 1e-3)]
)


@given(c4=EXPONENTS, c5=EXPONENTS, w1=EXPONENTS, w34=SHAPES)
def test_no_stationary_point_is_missed(c4, c5, w1, w34):
    """Signs of the derivative on a dense grid over 14 decades: as many changes as points, each
    where a point is.
    """
    c, w = AccuracyLoss(c4, c5, 0.0), PrivacyUtility(w1, 1.0, *w34)
    points = stationary_points(c, w)
    grid = np.geomspace(1e-10 / c5, 1e3 / c5, 20_000)
    w3, w4 = w34
    slope = c4 * c5 * np.exp(-c5 * grid) - w1 * (w3 + 2 * w4 * grid) / (w3 * grid + w4 * grid**2)
    changes = np.flatnonzero(np.sign(slope[:-1]) != np.sign(slope[1:]))
    inside = [p for p in points if grid[0] < p < grid[-1]]
    if len(inside) != len(changes):  # two points may lie within one step of the grid
        assert len(points) == 2
        assert points[1] / points[0] < grid[1] / grid[0]
        return
    for p, i in zip(inside, changes, strict=True):
        assert grid[i] * (1 - 1e-9) <= p <= grid[i + 1] * (1 + 1e-9)


@given(
    c4=EXPONENTS,
    c5=EXPONENTS,
    w1=EXPONENTS,
    w34=SHAPES,
    low=st.floats(0.001, 0.4),
    width=st.floats(0.01, 5),
)
def test_best_is_the_best_of_a_dense_grid(c4, c5, w1, w34, low, width):
    c, w = AccuracyLoss(c4, c5, 0.5), PrivacyUtility(w1, 6.0, *w34)
    found = design(c, w, low, low + width)
    grid = np.linspace(low, low + width, 4001)
    values = w(grid) - c(grid)
    scale = np.abs(values).max() + c4
    assert float(w(found.best) - c(found.best)) >= values.max() - 1e-12 * scale
    assert low <= found.best <= low + width
    assert (found.end_wins is None) == (found.interior and found.best == found.alpha)


def test_an_end_can_win_and_says_so():
    found = design(AccuracyLoss(0.2, 25, 0.0), low=1e-9)
    assert found.interior
    assert found.alpha == pytest.approx(0.1422, abs=1e-4)
    assert found.best == 1e-9
    assert "lower end" in found.end_wins
    assert "without bound" in found.end_wins
    upper = design(AccuracyLoss(5.0, 0.5, 0.0))
    assert not upper.interior
    assert upper.alpha == upper.best == 1.0
    assert "upper end" in upper.end_wins
    flat = design(AccuracyLoss(0.0, 1.0, 0.0))
    assert flat.stationary == ()
    assert flat.alpha == 0.01
    assert "no interior maximum" in flat.end_wins


# --------------------------------------------------------------------------------------------------
# constraints


def test_constraints_cut_the_range_exactly():
    c = AccuracyLoss(0.2, 25, 0.35)
    tight = design(c, ceiling=0.351)
    assert tight.low == pytest.approx(math.log(0.2 / 0.001) / 25)
    assert tight.alpha == tight.low
    assert c(tight.alpha) == pytest.approx(0.351)
    floored = design(c, floor=0.05)
    assert PAPER(floored.high) == pytest.approx(0.05)
    assert floored.alpha == floored.high
    linear = design(c, PrivacyUtility(0.02, 6, 9, 0), floor=0.05)
    assert linear.high == pytest.approx(6 * math.exp(-2.5) / 9)
    assert design(c, ceiling=9.0, floor=-9.0).alpha == design(c).alpha
    assert design(AccuracyLoss(0.0, 1.0, 0.3), ceiling=0.3).alpha == 0.01


@pytest.mark.parametrize(
    "limits",
    [{"ceiling": 0.35}, {"ceiling": 0.1}, {"ceiling": 0.3501, "floor": 0.05}, {"floor": 9.0}],
)
def test_impossible_constraints_are_refused_with_their_bounds(limits):
    with pytest.raises(DeclarationError, match="no alpha is left"):
        design(AccuracyLoss(0.2, 25, 0.35), **limits)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: design(AccuracyLoss(-1.0, 2, 0)), "falls with alpha"),
        (lambda: design(AccuracyLoss(1.0, 0, 0)), "falls with alpha"),
        (lambda: design(AccuracyLoss(1.0, 2, 0), low=0.0), "0 < low < high"),
        (lambda: design(AccuracyLoss(1.0, 2, 0), low=2.0), "0 < low < high"),
        (lambda: design(AccuracyLoss(1.0, 2, 0), ceiling=math.nan), "expected finite numbers"),
        (lambda: design(AccuracyLoss(1.0, 2, 0.5), ceiling=0.4), "stays above c6 = 0.5"),
        (lambda: PrivacyUtility(0.0, 6, 9, 1), "w1, w2 > 0"),
        (lambda: PrivacyUtility(1.0, 6, 0, 0), "not both 0"),
        (lambda: PrivacyUtility(1.0, math.inf, 1, 0), "w1, w2 > 0"),
        (lambda: design_table([1.0, 2.0]), "expected ... x 3"),
        (lambda: fit_loss([0.1, 0.2, 0.3], [1, 2, 3]), "at least four"),
        (lambda: fit_loss([0.1, 0.2, 0.3, 0.4], [1, 2, 3, math.nan]), "finite"),
        (lambda: fit_loss([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 3], [1, 1, 1, 0]), "sigma above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(DeclarationError, match=words):
        make()


def test_a_design_for_each_node_and_round():
    c = np.broadcast_to([0.2, 25, 0.35], (2, 3, 3)).copy()
    c[1, :, 0] = [0.1, 0.2, 0.4]
    w = [[[0.02, 6, 9, 1]] * 3, [[0.01, 6, 9, 1]] * 3]
    found = design_table(c, w)
    assert found.shape == (2, 3)
    for p, n in np.ndindex(2, 3):
        assert found[p, n] == design(AccuracyLoss(*c[p, n]), PrivacyUtility(*w[p][n])).alpha
    assert design_table((0.2, 25, 0.35)).shape == ()
    by_node = designed({"a": c[0], "b": c[1]}).table(("a", "b"), 3)
    np.testing.assert_array_equal(by_node, design_table(c))
    by_round = designed(c[1]).table(("a", "b"), 3)
    np.testing.assert_array_equal(by_round, np.tile(design_table(c[1]), (2, 1)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": [20, 20, 0.3], "low": 2.0}, "0 < low < high"),
        ({"loss": [20, -1, 0.3]}, "c5 > 0"),
        ({"loss": [20, 20]}, "expected ... x 3"),
        ({"loss": [20, 20, 0.3], "most": 1.0}, "constant, .*, designed and its parameters"),
        ({}, "designed and its parameters"),
    ],
)
def test_a_designed_schedule_is_checked(given, words):
    with pytest.raises(DeclarationError, match=words):
        schedule_from({"name": "designed", **given})


# --------------------------------------------------------------------------------------------------
# fits


def test_exact_points_give_exact_constants():
    fit = fit_loss(ALPHAS, AccuracyLoss(0.2, 25, 0.35)(ALPHAS))
    assert (fit.c4, fit.c5, fit.c6) == pytest.approx((0.2, 25, 0.35), rel=1e-6)
    assert fit.r2 == pytest.approx(1.0)
    assert max(fit.errors) < 1e-6


@pytest.mark.parametrize("weighted", [False, True])
def test_constants_and_errors_agree_with_another_solver(weighted):
    rng = np.random.default_rng(3)
    sigma = 0.004 * (1 + 3 * (ALPHAS < 0.05)) if weighted else np.full_like(ALPHAS, 0.004)
    y = AccuracyLoss(0.2, 25, 0.35)(ALPHAS) + sigma * rng.normal(size=len(ALPHAS))
    fit = fit_loss(ALPHAS, y, sigma if weighted else None)
    found, cov = curve_fit(
        lambda a, c4, c5, c6: c4 * np.exp(-c5 * a) + c6, ALPHAS, y, (0.1, 10, 0.1), sigma=sigma
    )
    assert (fit.c4, fit.c5, fit.c6) == pytest.approx(tuple(found), rel=1e-4)
    assert fit.errors == pytest.approx(tuple(np.sqrt(np.diag(cov))), rel=1e-3)


def test_standard_errors_are_what_repetition_shows():
    """A parametric bootstrap: the spread of refitted constants, within a fifth of the mean standard
    error.
    """
    rng = np.random.default_rng(4)
    alphas = np.tile(ALPHAS, 4)
    exact = AccuracyLoss(0.2, 25, 0.35)(alphas)
    fits = [fit_loss(alphas, exact + 0.004 * rng.normal(size=len(alphas))) for _ in range(120)]
    spread = np.std([(f.c4, f.c5, f.c6) for f in fits], axis=0)
    claimed = np.sqrt(np.mean(np.square([f.errors for f in fits]), axis=0))
    np.testing.assert_allclose(spread, claimed, rtol=0.2)


def test_points_that_determine_nothing_have_infinite_errors():
    fit = fit_loss(ALPHAS, np.full(len(ALPHAS), 0.4))
    assert fit.errors == (math.inf,) * 3
    assert fit.c6 + fit.c4 * math.exp(-fit.c5 * 0.5) == pytest.approx(0.4)
    assert fit.to_json()["errors"] == [None] * 3
    line = fit_loss(ALPHAS, 1 - 0.5 * ALPHAS)  # the limit of ever smaller c5
    assert line.r2 > 0.9999
    assert AccuracyLoss(1, 2, 3).to_json()["errors"] is None


# --------------------------------------------------------------------------------------------------
# sweeps, schedules


@pytest.fixture(scope="module")
def data():
    return census(1200, seed=4, nodes=3)


def test_schedules_share_a_total_and_keep_their_shape():
    counts, pair = [4000, 4000], Topology.family("path", 2)
    made = plan(counts, pair, 20, epsilon=1.0, delta=1e-5, mechanism="primal", centring=False)
    planned = replace(made, rounds=6)
    for name, shape in schedule_shapes(6).items():
        alphas = plan_for_total(planned, counts, pair, 20, 1.0, 1e-5, shape).table()[0, 0]
        np.testing.assert_allclose(alphas / alphas[-1], shape / shape[-1])
        spent = total(
            [L2Laplace("n", i, "primal", a, 20) for i, a in enumerate(alphas)], 1e-5
        ).epsilon
        assert 0.998 <= spent <= 1.0, name
    assert list(np.diff(schedule_shapes(5)["growing"])) == [1] * 4
    assert list(np.diff(schedule_shapes(5)["shrinking"])) == [-1] * 4


@pytest.mark.slow
def test_constant_alpha_is_best_with_averaging():
    rows = compare_schedules(census(10_000, nodes=5), Topology.family("ring", 5), 1.0, 1e-5, 12, 0)
    error = {row["schedule"]: row["network"]["median"] for row in rows}
    assert min(error, key=error.get) == "constant"
    assert error["all in the end"] > error["constant"] + 0.05


# --------------------------------------------------------------------------------------------------
# commands


def test_design_prints_json_and_words():
    design = "design --loss-fit 0.2 25 0.35 --utility 0.02 6 9 1"
    found = answer(f"{design} --json")
    assert found["alpha"] == pytest.approx(0.1422, abs=5e-5)
    assert found["total"] is None
    alpha = math.log(200) / 25
    run = "--rounds 10 --dimension 20 --delta 1e-5 --mechanism"
    events = {
        "primal": ("", primal(alpha, 20, 10)),
        "dual": ("--jacobian-share 0.01", dual(alpha, 20, 10, 0.01)),
    }
    for mechanism, (share, spent) in events.items():
        words = dynadp(f"{design} --ceiling 0.351 {run} {mechanism} {share}").stdout
        assert "needs alpha >= 0.2119" in words
        assert (
            f"10 rounds of {mechanism} perturbation cost epsilon = "
            f"{upper_bound(total(spent, 1e-5).epsilon)} at" in words
        )
    assert "dual perturbation needs a Jacobian share" in dynadp(f"{design} {run} dual").output
    assert "an interior maximum of the curve, not measured" in dynadp(design).stdout


@pytest.fixture
def place(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settle(data, seed=1)
    return tmp_path


def test_a_run_file_asks_for_the_designed_alpha(place):
    text = ALPHA.replace(
        "alpha = 0.5", 'alpha = { name = "designed", loss = [20, 20, 0.3], high = 0.5 }'
    ).replace("rounds = 60", "rounds = 3")
    (place / "designed.toml").write_text(text)
    alpha = design(AccuracyLoss(20, 20, 0.3), high=0.5).alpha
    run = LocalRun.load("designed.toml")
    assert run.plan().alphas == (alpha, alpha)
    made = run.run(place / "out", who="ada", created="2026-03-01T12:00:00+00:00")
    losses = [event.alpha for event in run.plan().events if event.node == "north"]
    assert made.epsilon == run.plan().total.epsilon
    assert sum(losses) == pytest.approx(3 * alpha)


@pytest.mark.slow
def test_tradeoff_recommends_from_census_rows_and_from_public_ones(place):
    text = (place / "run.toml").read_text()
    assert "# mechanism =" in text
    (place / "run.toml").write_text(text.replace('# mechanism = "sum"', 'mechanism = "primal"'))
    text = dynadp("tradeoff run.toml --draws 3").stdout
    (row,) = re.findall(r"^ *(\S+) .* recommended *$", text, re.MULTILINE)
    assert f"\nRecommended: epsilon = {row}. It costs epsilon = " in text
    made = json.loads((place / "first-tradeoff" / "tradeoff.json").read_text())
    assert made["simulation"]
    assert "synthetic" in made["source"]
    assert 0.01 <= made["alpha"] <= 1
    columns = json.loads(dynadp("check run.toml --json").stdout)["columns"]
    assert made["dimension"] == columns
    assert f"to the run's {columns} columns" in made["source"]
    planned = PublicSetting.of_file(place / "run.toml").plan(
        next(p["epsilon"] for p in made["points"] if p["alpha"] == made["alpha"])
    )
    rounds = total(primal(made["alpha"], columns, made["rounds"]), 1e-5).epsilon
    assert made["epsilon"] == planned.total.epsilon > rounds  # the centring round is charged too
    assert (place / "first-tradeoff" / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    assert (place / "first-tradeoff" / "tradeoff.svg").read_text().startswith("<svg")
    with open("run.toml", "a") as file:
        file.write('\n[evaluation]\nfile = "public.csv"\npublic = true\n')
    texts = []
    for out in ("a", "b"):
        text = dynadp(f"tradeoff run.toml --out {out} --draws 3").stdout
        texts.append(text.replace(f"Picture: {out}", ""))
    assert texts[0] == texts[1]
    setting = PublicSetting.of_file(place / "run.toml")
    for public in (setting, replace(setting, public=None)):
        assert (
            public.rows().counts == setting.counts
        )  # as many as the run has, so that noise is the same
    assert "public.csv, which the run file declares public" in texts[0]
    assert "SIMULATION" in texts[0]
    assert (place / "a/tradeoff.json").read_bytes() == (place / "b/tradeoff.json").read_bytes()


def test_with_gaussian_noise_it_is_mu_in_words_keys_and_pictures(place):
    made = answer("tradeoff run.toml --json --draws 2")  # the planner chooses sums
    assert "alpha" not in made
    assert "alpha" not in made["recommended"]
    assert all("alpha" not in point for point in made["points"])
    assert not any("alpha" in words for words in made["words"])
    assert any(words.startswith("9 values of mu from") for words in made["words"])
    spent = gaussian(made["mu"], made["rounds"], made["dimension"])
    assert made["epsilon"] > total(spent, 1e-5).epsilon  # the centring round is charged too
    drawn = (place / "first-tradeoff" / "tradeoff.svg").read_text()
    assert "against mu" in drawn
    assert "alpha" not in drawn
    again = answer("design --points first-tradeoff/tradeoff.json --json")
    assert again["mu"] == made["mu"]
    priced = "--mechanism primal --rounds 2 --dimension 9 --delta 1e-5"
    refused = dynadp(f"design --points first-tradeoff/tradeoff.json {priced}")
    assert (refused.exit_code, "dynadp account --mechanism gaussian" in refused.output) == (2, True)


def test_a_given_mu_keeps_its_rounds_and_finds_the_pull_of_each_total(place):
    text = (place / "run.toml").read_text().replace("epsilon = 2.0 ", "mu = 0.05 ")
    (place / "mu.toml").write_text(text + '[training]\nalgorithm = "sum"\nrounds = 5\n')
    setting = PublicSetting.of_file(place / "mu.toml")
    small, large = setting.plan(0.5), setting.plan(5.0)
    assert (small.rounds, large.rounds) == (5, 5)
    assert small.alpha * small.steps.pull == pytest.approx(large.alpha * large.steps.pull)
    own = setting.plan(setting.epsilon)
    trained = LocalRun.load("mu.toml").plan()
    assert own.steps.pull == pytest.approx(trained.steps.pull, rel=1e-3)
    assert answer("tradeoff mu.toml --out m --json --draws 2")["rounds"] == 5


def test_a_sweep_of_sealed_sums_says_whose_honesty_it_rests_on(place):
    """Of a total, and of mu with its own rounds."""
    text = (place / "run.toml").read_text()
    sealed = 'mechanism = "sealed"\nhonest = 2\n# mechanism = "sum"'
    (place / "sealed.toml").write_text(text.replace('# mechanism = "sum"', sealed))
    found = answer("tradeoff sealed.toml --draws 2 --out sweep --json")
    assert found["honest"] == 2
    words = " ".join(found["words"])
    assert "as long as 2 of 3 nodes are honest, whoever looks not among them" in words
    assert "no masks: the noise of the sum over all nodes is drawn at once" in words
    assert "sealed sums, pull = " in words
    given = text.replace('# mechanism = "sum"', sealed).replace("epsilon = 2.0 ", "mu = 0.05 ")
    (place / "mu.toml").write_text(given + "[training]\nrounds = 5\n")
    found = answer("tradeoff mu.toml --draws 2 --out mu --json")
    assert (found["rounds"], found["honest"]) == (5, 2)


def test_tradeoff_pads_narrow_census_rows_to_the_runs_width(place):
    wide = (
        place / "schema.toml"
    ).read_text() + '\n[[columns]]\nkind = "categorical"\nname = "region"\n'
    values = ", ".join(f'"region-{i:02d}"' for i in range(80))
    (place / "schema.toml").write_text(wide + f"values = [{values}]\n")
    source = answer("tradeoff run.toml --json --draws 2")["source"]
    columns = json.loads(dynadp("check run.toml --json").stdout)["columns"]
    assert f"padded to the run's {columns} columns" in source


def test_tradeoff_keeps_a_given_alphas_constants_and_refuses_what_protects_nothing(place):
    (place / "alpha.toml").write_text(ALPHA.replace("rounds = 60", "rounds = 5"))
    found = answer("tradeoff alpha.toml --out c --json --draws 2")
    assert found["rounds"] == 5
    assert any("eta = 0.05" in words for words in found["words"])
    (place / "none.toml").write_text(
        ALPHA.replace('"dual"', '"none"').replace("alpha = 0.5\ndelta = 1e-5\n", "")
    )
    refused = dynadp("tradeoff none.toml --out d")
    assert (refused.exit_code, "no alpha to choose" in refused.output) == (2, True)
