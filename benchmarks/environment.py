"""Peers that need an environment of their own: made once under results/, or named by a variable."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import RESULTS

PATIENCE = 600.0  # seconds before an installation or a process is given up


def interpreter(module: str, packages: tuple[str, ...], variable: str) -> Path | str:
    """The interpreter that can import a module, or why there is none.

    Parameters
    ----------
    module
        What it must be able to import.
    packages
        What to install for that.
    variable
        The environment variable that may name an interpreter which has it.
    """
    given = os.environ.get(variable)
    home = RESULTS / f"{module}-env"
    python = Path(given) if given else home / "bin" / "python"
    try:
        if not (given or python.exists()):
            subprocess.run([sys.executable, "-m", "venv", home], check=True, capture_output=True)
        there = (
            subprocess.run(
                [python, "-c", f"import {module}"], capture_output=True, check=False
            ).returncode
            == 0
        )
        if not (there or given):
            install = [python, "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(install, check=True, capture_output=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        return (
            f"Left out: {module} could not be installed ({type(error).__name__}); {variable} may "
            f"name where it is."
        )
    return python if there or not given else f"Left out: {given} cannot import {module}."
