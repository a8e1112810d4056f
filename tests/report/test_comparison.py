"""Runs beside each other."""

import json
import shlex

import pytest

from dynadp.errors import DeclarationError
from dynadp.report.comparison import compare
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
    assert "Not measured: accuracy on private rows is private" in words


def test_the_same_run_twice(three, tmp_path):
    assert compare([three[0], three[0].parent / "eps-1"]).differences
    with pytest.raises(DeclarationError, match="named twice"):
        compare([three[0], three[0]])
    with pytest.raises(DeclarationError, match="1 run was given"):
        compare(three[:1])
    assert dynadp("compare", three[0], tmp_path).exit_code == 2
