"""The deployment page, followed by the letter with real processes."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from dynadp.runs.model import load_model
from support.deployment import write_rows
from support.networks import DYNADP, ports
from support.pages import commands, matches

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_steps_lead_to_one_model(tmp_path):
    write_rows(tmp_path)
    run_file, node_file, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    keys, background, free = {}, [], ports(2)
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for command in commands(block):
            words = shlex.split(command.text.removeprefix("dynadp "))
            if words[0] == "node":
                text = run_file
                for node, port, shown in zip(keys, free, ("7447", "7448"), strict=True):
                    text = text.replace("ed25519:...", keys[node], 1).replace(
                        f":{shown}", f":{port}"
                    )
                if not (tmp_path / "run.toml").exists():
                    (tmp_path / "run.toml").write_text(text)
                    (tmp_path / "north.toml").write_text(node_file)
                    (tmp_path / "south.toml").write_text(node_file.replace("north", "south"))
            if words[-1] == "&":
                background.append(
                    subprocess.Popen([DYNADP, *words[:-1]], cwd=tmp_path, stdout=subprocess.DEVNULL)
                )
                continue
            done = subprocess.run(
                [DYNADP, *words],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=300,
                env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
            )
            assert done.returncode == command.code, (command, done.stderr)
            printed = done.stdout
            for port, shown in zip(free, ("7447", "7448"), strict=True):
                printed = printed.replace(f":{port}", f":{shown}")
            if command.shown.strip():
                assert matches(command.shown, printed), (command, printed)
            if words[:2] == ["pki", "request"]:
                keys[words[2]] = re.search(r'key = "(ed25519:.*)"', done.stdout)[1]
            if words[0] == "status":
                assert done.stdout.count("round 20 of 20") == 2
    assert [process.wait(timeout=300) for process in background] == [0]
    north, south = load_model(tmp_path / "north-run"), load_model(tmp_path / "south-run")
    assert (north.coef == south.coef).all()
    assert north.privacy["protected"]
