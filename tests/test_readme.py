"""What the README shows works as shown."""

import re
import shlex
from pathlib import Path

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
