"""One recommendation, from measured points; everything that recommends agrees on one run file."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dynadp.data.datasets.synthetic import census
from dynadp.errors import DeclarationError
from dynadp.planning.designs import PrivacyUtility, design
from dynadp.report.explore.advice import Advisor
from dynadp.report.explore.setting import PublicSetting
from dynadp.research.recommendation import fit_points, recommend
from dynadp.research.tradeoff import fit_loss
from dynadp.research.zones import Zones
from support.run_files import ALPHA, settle
from support.typed import dynadp

U = PrivacyUtility()
# medians of a run of `dynadp reproduce` after 100 rounds, where the exponential's floor misses
# large alpha
DVP = [
    {"alpha": a, "median": m}
    for a, m in zip(
        (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0),
        (15.1, 10.9, 5.1, 2.3, 1.0, 0.67, 0.47, 0.41, 0.377),
        strict=True,
    )
]


def objective(point):
    return float(U(point["mu" if "mu" in point else "alpha"])) - point["median"]


def test_no_measured_point_beats_the_recommended_one():
    fit = fit_loss([p["alpha"] for p in DVP], [p["median"] for p in DVP])
    curve = design(fit)
    assert curve.interior
    assert 0.25 < curve.alpha < 0.4  # what the curve alone would have recommended
    found = recommend(DVP, fit=fit)
    assert found.alpha == 1.0
    assert found.value == max(map(objective, DVP)) == pytest.approx(objective(DVP[-1]))
    assert found.end
    assert found.fitted.alpha == pytest.approx(curve.alpha)
    assert "the fit's own maximum lies at alpha = 0.3" in found.reasons[-1]
    assert "less than the best. The fit is drawn, not recommended" in found.reasons[-1]
    assert found.to_json()["fitted"]["interior"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_measured_the_best_measured_alpha_is_chosen(seed):
    rng = np.random.default_rng(seed)
    points = [
        {"alpha": float(a), "median": float(m)}
        for a, m in zip(rng.uniform(0.01, 2, 7), rng.uniform(0, 1, 7), strict=True)
    ]
    w = PrivacyUtility(*rng.uniform(0.01, 1, 2), *rng.uniform(0, 9, 2))
    found = recommend(points, w, fit=fit_points(points))
    values = {p["alpha"]: float(w(p["alpha"])) - p["median"] for p in points}
    assert found.alpha == max(values, key=values.get)
    assert found.near == ()


def test_uncertainty_names_what_it_cannot_tell_apart():
    points = [
        {"alpha": a, "median": m, "error": e}
        for a, m, e in ((0.1, 0.3, 0.0), (0.2, 0.21, 0.01), (0.4, 0.2, 0.01))
    ]
    found = recommend(points)
    assert found.alpha == 0.2
    assert found.near == (0.4,)
    assert any("alpha = 0.4 cannot be told apart" in reason for reason in found.reasons)


def test_constraints_hold_for_measured_losses():
    assert recommend(DVP, limits=(0.0, 0.5)).alpha == 0.5
    assert recommend(DVP, floor=float(U(0.3))).alpha == 0.3
    points = [{"alpha": 0.1, "median": 0.2}, {"alpha": 0.5, "median": 0.19}]
    assert recommend(points).alpha == 0.1
    assert recommend(points, ceiling=0.195).alpha == 0.5
    with pytest.raises(
        DeclarationError,
        match=r"no measured alpha is left: a loss of at most 0.1 is asked for.*from 0.19",
    ):
        recommend(points, ceiling=0.1)
    with pytest.raises(DeclarationError, match="no alpha was measured"):
        recommend([])


def test_only_what_is_clear_of_the_most_common_answer_is_recommended():
    points = [
        {"alpha": 0.01, "median": 0.24, "error": 0.003},
        {"alpha": 0.5, "median": 0.2, "error": 0.003},
        {"alpha": 0.9, "median": 0.199, "error": 0.003},
    ]
    assert recommend(points).alpha == 0.01  # where nothing is known of the most common answer
    found = recommend(points, blind=0.2401)
    assert found.alpha == 0.5
    assert not found.end
    assert (
        "1 of them is left out: within 2 standard errors, the loss there is that of always "
        in (found.reasons[1])
    )
    for point in points:
        point |= {"low": point["median"] - 0.03, "high": point["median"] + 0.03}
    assert recommend(points, blind=0.2301).alpha == 0.5
    none = recommend(points, blind=0.229)  # the best is within its own interval of it
    assert (none.alpha, none.loss, none.value, none.near) == (None, None, None, ())
    assert none.reasons[0].startswith("nothing is recommended: always giving the same answer")
    assert "a median loss of 0.199, which may be as large as 0.229" in none.reasons[0]
    assert none.to_json()["alpha"] is None


def test_one_lucky_draw_is_not_recommended():
    """Clear of the most common answer alone; not once it is evened with the alphas around it."""
    losses = (0.25, 0.2, 0.26, 0.25)
    points = [
        {"alpha": a, "median": m, "low": m - 0.03, "high": m + 0.03, "error": 0.01}
        for a, m in zip((0.1, 0.2, 0.4, 0.8), losses, strict=True)
    ]
    found = recommend(points, blind=0.24)
    assert Zones.of(points, 0.24, "alpha").useful is None
    assert found.alpha is None
    most = float(re.search(r"may be as large as ([\d.]+)", found.reasons[0])[1])
    assert most >= 0.24  # so the reason is one
    assert recommend(points, blind=0.29).alpha is not None


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(3))
def test_labels_that_no_column_predicts_get_no_recommendation(place, seed):
    """A public file of 100 rows whose labels are drawn with a coin: 50 are measured on."""
    rng = np.random.default_rng(seed)
    head, *rows = Path("public.csv").read_text().splitlines()[:101]
    at = head.split(",").index("income")
    lines = [row.split(",") for row in rows]
    for line in lines:
        line[at] = ("low", "high")[rng.integers(2)]
    Path("public.csv").write_text("\n".join([head, *map(",".join, lines)]) + "\n")
    Path("run.toml").write_text(Path("run.toml").read_text() + PUBLIC)
    typed = dynadp(f"tradeoff run.toml --out sweep --json --draws 6 --seed {seed}")
    assert typed.exit_code == 0, typed.output
    told = json.loads(typed.stdout)
    assert told["test_rows"] == 50
    assert told["mu"] is told["epsilon"] is None
    assert told["recommended"]["reasons"][0].startswith("nothing is recommended")
    again = json.loads(dynadp("design --points sweep/tradeoff.json --json").stdout)
    assert again["mu"] is None
    assert "Nothing is recommended: " in dynadp("design --points sweep/tradeoff.json").output


def test_points_that_do_not_fall_have_no_curve():
    assert fit_points([{"alpha": a, "median": a} for a in (0.1, 0.2, 0.3, 0.4)]) is None
    assert fit_points(DVP[:3]) is None
    assert "no curve" in recommend(DVP[:3]).reasons[-1]
    flat = [{"alpha": a, "median": 0.2 - 1e-6 * a} for a in (0.1, 0.2, 0.3, 0.4)]
    assert "no maximum between the ends" in recommend(flat, fit=fit_points(flat)).reasons[-1]


# ---- one run file
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settle(census(900, seed=4, nodes=3, test_rows=200), seed=1)
    return tmp_path


PUBLIC = '\n[evaluation]\nfile = "public.csv"\npublic = true\n'


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", ["primal", "made rows", "public rows", "given alpha", "sealed"])
def test_tradeoff_explore_and_design_agree_on_one_run_file(place, kind):
    file = Path("run.toml")
    if kind == "public rows":
        file.write_text(file.read_text() + PUBLIC)
    if kind == "primal":
        file.write_text(file.read_text().replace('# mechanism = "sum"', 'mechanism = "primal"'))
    if kind == "sealed":
        sealed = 'mechanism = "sealed"\nhonest = 2\n# mechanism = "sum"'
        file.write_text(file.read_text().replace('# mechanism = "sum"', sealed))
    unit = "alpha" if kind in ("given alpha", "primal") else "mu"
    if kind == "given alpha":
        file.write_text(ALPHA.replace("rounds = 60", "rounds = 4"))
    typed = dynadp("tradeoff run.toml --out sweep --json")
    assert typed.exit_code == 0, typed.output
    told = json.loads(typed.stdout)
    page = Advisor(PublicSetting.of_file(file))
    page.sweep()
    shown = page.recommended()
    assert shown["alpha"] == told[unit]
    assert [p["alpha"] for p in page.points] == [p[unit] for p in told["points"]]
    np.testing.assert_allclose(
        [1 - p["median"] / 100 for p in page.points], [p["median"] for p in told["points"]]
    )
    useful = [p for p in told["points"] if p["high"] < told["blind"]]
    assert len(useful) < len(told["points"])  # the best of all is not, here
    assert bool(useful) == (kind != "given alpha")  # four rounds learn nothing here
    assert (max(useful, key=objective)[unit] if useful else None) == told[unit]
    assert shown.get("total") == told["epsilon"]
    if useful:  # and the command says how to ask for it, in the page's number
        asks = page.for_total(shown["epsilon"])["asks"]
        assert f"a run file asks for it with {asks}" in told["words"]
    again = json.loads(dynadp("design --points sweep/tradeoff.json --json").stdout)
    assert again[unit] == told[unit]
    assert again["measured"]
    assert page.for_total(1.0)["asks"].startswith(
        "privacy.alpha" if kind == "given alpha" else "privacy.epsilon"
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"points": [{"alpha": 0.1}]}',
        '{"points": [{"alpha": -1, "median": 1}]}',
        '{"points": 3}',
    ],
)
def test_a_file_without_points_is_refused(place, content):
    Path("odd.json").write_text(content)
    refused = dynadp("design --points odd.json")
    assert refused.exit_code == 2
    assert "holds no measured points" in refused.output


def test_design_wants_a_curve_or_points(place):
    for line in ("design", "design --loss-fit 1 2 3 --points x.json"):
        assert "one of them, not both" in dynadp(line).output
    assert "cannot read missing.json" in dynadp("design --points missing.json").output
