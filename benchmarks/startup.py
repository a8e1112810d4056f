"""Time to start: commands, and what a node imports, beside a bare interpreter; a node until its
first greeting.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Figure, Report, compare, main, table
from benchmarks.network import ONE_THREAD, make
from dynadp.runs import prepare_trial

WORKER = Path(__file__).with_name("startup_worker.py")
ADMM = 'mechanism = "primal"\nalpha = 0.1'
SUM = 'mechanism = "sum"\nepsilon = 1.0'

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
    starts = {name: greeting(how) for name, how in (("sum", SUM), ("ADMM", ADMM))}
    figures += [
        Figure("processor time of a node until it greets, sum", starts["sum"], "s", below=0.6),
        Figure("processor time of a node until it greets, ADMM", starts["ADMM"], "s"),
    ]
    return Report(
        "startup",
        figures,
        table(("command", "time over a bare interpreter"), rows),
        {"ratios": rows, "greeting": starts},
    )


def greeting(how: str) -> float:
    """Processor seconds of `dynadp node` until its first greeting, 60 rows of 104 numbers: the
    least of five.
    """
    with tempfile.TemporaryDirectory() as name:
        file = make(Path(name), 105)
        text = file.read_text().replace(ADMM, how)
        if how == SUM:  # whose planner chooses the rest
            text = text.replace("rounds = 60\nrho = 1e-3\neta = 0.05", "")
        file.write_text(text)
        node = prepare_trial(str(file), Path(name) / "net", 60.0)[0]
        line = [sys.executable, str(WORKER), str(node)]
        return min(
            float(subprocess.check_output(line, env={**os.environ, **ONE_THREAD})) for _ in range(5)
        )


if __name__ == "__main__":
    main(run)
