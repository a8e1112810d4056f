"""Runs beside each other."""

import json
import shlex

import pytest

from dynadp._intervals import NOISY, ONE
from dynadp.errors import DeclarationError
from dynadp.report.accuracy import Accuracy
from dynadp.report.comparison import ComparedRun, Comparison, compare
from dynadp.report.comparison_page import Mark, comparison_page, overlaps
from dynadp.runs.folder import load_run
from support.run_folders import make_job
from support.typed import dynadp


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three seeded runs of one file, which differ in their total."""
    home = tmp_path_factory.mktemp("three")
    make_job(home, seed=3, public=True)
    folders = [home / "runs" / f"eps-{epsilon}" for epsilon in (0.5, 1, 4)]
    for folder in folders:
        epsilon = folder.name.removeprefix("eps-")
        line = f"train {home}/run.toml --epsilon {epsilon} --out {folder}"
        result = dynadp(*shlex.split(line))
        assert result.exit_code == 0, result.output
    return folders


def test_three_runs_that_differ_in_one_setting_name_that_one(three):
    found = compare(three)
    assert found.differences == {"privacy.epsilon": [0.5, 1.0, 4.0]}
    assert [run.label for run in found.runs] == ["eps-0.5", "eps-1", "eps-4"]
    for run, folder in zip(found.runs, three, strict=True):
        assert run.epsilon == pytest.approx(load_run(folder).planned.total["epsilon"])
        assert not run.protected
        assert {"accuracy", "area under the ROC curve"} <= set(run.measures)
        value, low, high = run.measures["accuracy"]
        assert low < value < high
    lines = dynadp("compare", *three).output.splitlines()
    assert lines[0] == "3 runs, which differ in 1 setting"
    assert lines[1] == "privacy.epsilon"
    assert lines[2].split() == ["eps-0.5", "0.5"]
    assert any(
        line.startswith("  eps-4    SIMULATION, protects nobody; epsilon = ") for line in lines
    )


def test_runs_with_other_columns_nodes_and_mechanism(three, private, sealed):
    found = compare([private, sealed])
    names = {name for name in found.differences if not name.endswith(".file")}
    assert names == {"privacy.mechanism.name", "privacy.mechanism.honest"}
    assert found.differences["privacy.mechanism.honest"] == [None, 2]
    assert (
        f"  {private.parents[1].name}/runs/{private.name}"
        in dynadp("compare", private, sealed).output
    )
    others = compare([three[0], private]).differences
    assert {"seed", "run.seed"} & set(others)
    assert "evaluation.file" in others
    shown = json.loads(dynadp("compare", private, sealed, "--json").stdout)
    assert [one["protected"] for one in shown["runs"]] == [True, True]
    assert [one["measures"] for one in shown["runs"]] == [{}, {}]
    words = dynadp("compare", private, sealed).output
    assert "Not measured: on private rows it would itself be a release" in words


def test_the_same_run_twice(three, tmp_path):
    assert compare([three[0], three[0].parent / "eps-1"]).differences
    with pytest.raises(DeclarationError, match="named twice"):
        compare([three[0], three[0]])
    with pytest.raises(DeclarationError, match="1 run was given"):
        compare(three[:1])
    assert dynadp("compare", three[0], tmp_path).exit_code == 2


def test_the_page_names_exactly_that_setting(three, private, tmp_path):
    out = tmp_path / "compare.html"
    result = dynadp("compare", *three, "--html", out)
    assert result.exit_code == 0, result.output
    assert f"Page: {out}" in result.output
    page = out.read_text()
    assert "They differ in one setting: <strong>privacy.epsilon</strong>." in page
    assert page.count('class="differs"') == 1
    settings, _, rest = page.partition('id="h-cost"')
    assert "privacy.delta" not in settings
    for run in compare(three).runs:
        value, low, high = run.measures["accuracy"]
        assert f"{value:.4f}</td><td>{low:.4f} to {high:.4f}</td>" in rest
        assert run.cost in rest
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    other = tmp_path / "other.html"
    assert dynadp("compare", three[0], private, "--html", other).exit_code == 0
    page = other.read_text()
    assert "no difference below has one cause" in page
    assert "not measured" in page
    assert json.loads(dynadp("compare", *three, "--html", out, "--json").stdout)["page"] == str(out)
    gone = dynadp("compare", *three, "--html", tmp_path / "no" / "c.html")
    assert (gone.exit_code, "is not a folder" in gone.output) == (2, True)


def test_what_intervals_are_for_is_said():
    """A released histogram is of private rows, and has noise of its own."""
    known = {"settings": {}, "epsilon": 1.0, "delta": 1e-5, "protected": True, "finished": True}
    public = ComparedRun("a", **known, accuracy=Accuracy(note="public.csv", accuracy=0.8))
    noisy = Accuracy(note="private rows", accuracy=0.8, interval=NOISY)
    released = ComparedRun("b", **known, accuracy=noisy)
    one, both = Comparison((public, public)), Comparison((public, released))
    assert f"measures, each with a {ONE}" in list(one.lines())
    assert f"measures, each with a {ONE}, and for the noise where" in "\n".join(both.lines())
    for comparison in (one, both):
        assert comparison.interval in comparison_page(comparison)


def test_intervals_without_a_common_point_are_not_called_equal():
    near, far = Mark(0.5, 0.4, 0.6, 0, 0, 0), Mark(0.9, 0.8, 0.95, 0, 0, 0)
    between = Mark(0.7, 0.55, 0.85, 0, 0, 0)
    assert overlaps([near, None, between])
    assert overlaps([between, far])
    assert not overlaps([near, between, far])  # pairwise neighbours meet, and the ends do not
