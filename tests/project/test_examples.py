"""Every example runs, from anywhere, and says something."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "choosing_epsilon": "error on made rows",
    "hospitals_parquet": "second: refused",
    "own_loss": "refused:",
    "pipeline": "This costs anybody with a row at one node at most epsilon",
    "quickstart": "would guess right",
    "unequal_budgets": "careful: asked for at most 0.5",
}


def test_all_are_known():
    assert [path.stem for path in EXAMPLES] == sorted(SAYS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert SAYS[path.stem] in result.stdout
    assert list(tmp_path.iterdir()) == []
