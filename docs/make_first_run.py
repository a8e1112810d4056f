"""Make docs/first-run.md by typing its commands: python docs/make_first_run.py

What stands in the page is what the commands printed, in a folder of their own, with the rows that
the first of them makes.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "first-run.md"
TEXT = """# A first run on your own rows

This page takes you from nothing to predictions on your own files, with commands typed in a terminal. It is made by `python docs/make_first_run.py`, which types the commands and keeps what they print. On a machine with two cores everything below takes about half a minute, most of it the demo and its pictures; installing takes as long as your package index does.

## Install, and look at the demo

```console
$ pip install 'dynadp[report,data]'        # in a checkout: pip install -e '.[report,data]'
$ dynadp demo --mechanism primal
```

## Your rows

Any CSV or Parquet file will do. Here three clinics have one each; they are made by this line, so that you can follow:

```console
$ python clinics.py
```

## Say what is public

Bounds and values come from what is known about the quantities, never from the rows. `dynadp init` asks for what is missing when it is run in a terminal; here everything is given.

```console
$ dynadp init study --node north=../north.csv --node south=../south.csv --node west=../west.csv --label income --negative low --positive high --numeric age:17:90 --numeric schooling:0:20 --numeric hours:0:99 --categorical status=married,never-married,divorced,widowed,separated --categorical trade=clerical,craft,farming,management,machines,professional,sales,service,support,transport
$ cat study/run.toml
```

## What may be spent

Each node has a ledger with a cap over all its runs. Without one, nothing is released:

```console
$ dynadp check study/run.toml
$ dynadp ledger cap --run study/run.toml --epsilon 1.2 --delta 1e-5
$ dynadp check study/run.toml --max-epsilon
```

`--max-epsilon` finds the largest total that all ledgers would admit for this run. The cap is above the run's ε on purpose: a run that takes the whole cap is the last one, and if it ends early a part of the cap is lost with it; smaller runs share it. Epsilons of several runs do not simply add up, so ask the ledger what fits:

```console
$ dynadp ledger left study/north.sqlite --epsilon 0.3
```

## Train, predict

```console
$ dynadp train study/run.toml
$ dynadp predict runs/first new.csv | head -4
$ dynadp evaluate runs/first new.csv
$ dynadp evaluate runs/first new.csv --public
```

Accuracy on private rows is a release too, and is charged: `dynadp evaluate ... --ledger FILE --alpha A`. The cap left room for that.

Ctrl-C during training leaves a run that `dynadp train study/run.toml --resume` finishes. A second run would spend more than the cap, so it is refused, with an exit code of its own:

```console
$ dynadp train study/run.toml --out runs/second
$ dynadp ledger show study/north.sqlite
```

Exit codes: 0 done, 1 failure, 2 usage or configuration, 3 budget refused, 4 a neighbour stayed away, 5 ledger damaged, 130 interrupted. Tab completion: `eval "$(_DYNADP_COMPLETE=bash_source dynadp)"` (or `zsh_source`, `fish_source`).
"""
CLINICS = """import csv
from dynadp import census
data = census(rows=9_000, seed=1, nodes=3, heterogeneity=0.5)
def write(name, rows):
    with open(name, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values()))
for clinic, rows in data.tables(("north", "south", "west")).items():
    write(f"{clinic}.csv", rows)
write("new.csv", data.test)  # published rows, to try the model on
"""


def typed(command: str, folder: Path) -> str:
    """What a command prints, and its exit code where it is not 0."""
    where = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "XDG_STATE_HOME": str(folder / ".state"),
    }
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | where,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout + (f"[exit code {done.returncode}]\n" if done.returncode else "")


def page(folder: Path) -> str:
    """The text with what its commands print."""
    (folder / "clinics.py").write_text(CLINICS)
    out = []
    for line in TEXT.splitlines():
        out.append(line)
        if line.startswith("$ ") and not line.startswith("$ pip"):
            out += [
                shown.rstrip()
                for shown in typed(line[2:].partition("   #")[0], folder).splitlines()
            ]
        if line == "$ python clinics.py":
            out[-1:] = ["$ cat clinics.py", *CLINICS.splitlines(), line]
    return re.sub(r"[ \t]+\n", "\n", "\n".join(out) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        PAGE.write_text(page(Path(place)), encoding="utf-8")
