"""What the README shows works as shown."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynadp.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_python_examples_run(capsys):
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
    assert "would guess right" in capsys.readouterr().out


def test_command_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^\$ dynadp (.*)$", README, re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        result = CliRunner().invoke(main, shlex.split(line, comments=True))
        assert result.exit_code == 0, result.output
        if line.startswith("account"):
            first = result.output.splitlines()[:3]
            assert "\n".join(first) in README


@pytest.mark.slow
def test_the_first_run_is_still_as_the_page_shows(tmp_path):
    """Same commands, same exit codes, and the same sentences but for times, hashes and noise."""
    import make_first_run

    made, shown = make_first_run.page(tmp_path), make_first_run.PAGE.read_text(encoding="utf-8")
    for text in (made, shown):
        assert text.count("[exit code 2]") == 2
        assert text.count("[exit code 3]") == 1
        assert "[exit code 1]" not in text

    def essence(text):
        text = re.sub(r"[0-9a-f]{64}|\d{4}-\d\d-\d\dT[^ ]*|demo-\d{8}-\d{6}|[0-9a-f]{8}(?= )", "X", text)
        return re.sub(r"[\d.]+%|-?\d+\.\d+|[━┏┓┃┡┩╇┳│└┘┴─]|\s+", " ", text).split()

    commands = [line for line in shown.splitlines() if line.startswith("$ ")]
    assert [line for line in made.splitlines() if line.startswith("$ ")] == commands
    assert abs(len(essence(made)) - len(essence(shown))) < 60
