"""Time to start: commands, and what a node imports, beside a bare interpreter."""

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Figure, Report, compare, main, table

COMMAND = str(Path(sys.executable).with_name("dynadp"))
CONTESTANTS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "dynadp --help": [COMMAND, "--help"],
    "dynadp --version": [COMMAND, "--version"],
    "dynadp account --help": [COMMAND, "account", "--help"],
    "python -c 'import dynadp'": [sys.executable, "-c", "import dynadp"],
    "what a node imports": [sys.executable, "-c", "from dynadp.runs import SiloRun"],
    "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
}


def run() -> Report:
    """Seconds of each, over those of a bare interpreter."""
    times = compare(
        {
            name: lambda line=line: subprocess.run(line, check=True, capture_output=True)
            for name, line in CONTESTANTS.items()
        }
    )
    bare = times["python -c pass"].median
    rows = [(name, time.median / bare) for name, time in times.items()]
    figures = [Figure(f"{name} over a bare interpreter", ratio) for name, ratio in rows[1:5]]
    return Report(
        "startup",
        figures,
        table(("command", "time over a bare interpreter"), rows),
        {"ratios": rows},
    )


if __name__ == "__main__":
    main(run)
