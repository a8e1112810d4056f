"""A commented run file and schema to start from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynadp.errors import DeclarationError
from dynadp.runs.run_file import load_run_file, load_schema

_NAMES = ("schema.toml", "run.toml")


@dataclass(frozen=True)
class Start:
    """What a first run file and its schema declare.

    Attributes
    ----------
    nodes
        Name and file of each node.
    label, negative, positive
        The label column and its two values.
    numeric
        Name, lower and upper public bound of each numeric column.
    categorical
        Name and published values of each categorical column.
    epsilon, delta
        The total.
    seed
        Makes it a SIMULATION, which needs no ledgers.
    classes
        Three or more values of the label, in place of the two.
    """

    nodes: Sequence[tuple[str, str]]
    label: str
    negative: str
    positive: str
    numeric: Sequence[tuple[str, float, float]]
    categorical: Sequence[tuple[str, list[str]]]
    epsilon: float = 1.0
    delta: float = 1e-5
    seed: int | None = None
    classes: Sequence[str] = ()

    def write(self, folder: str | Path) -> None:
        """Write schema.toml and run.toml into a folder; nothing is overwritten."""
        root = Path(folder)
        require_new(root)
        with TemporaryDirectory() as place:  # nothing is left behind where something is wrong
            self._write(Path(place))
            load_schema(Path(place, "schema.toml"))
            load_run_file(Path(place, "run.toml"))
        root.mkdir(parents=True, exist_ok=True)
        self._write(root)

    def _write(self, folder: Path) -> None:
        for name, text in zip(_NAMES, (self.schema_text, self.run_text), strict=True):
            (folder / name).write_text(text, encoding="utf-8")

    @property
    def schema_text(self) -> str:
        """The schema."""
        norm = max(1.0, sqrt(len(self.numeric) + len(self.categorical)))
        if self.classes:
            declared = f"values = {_toml(list(self.classes))}"
        else:
            declared = f"negative = {_toml(self.negative)}\npositive = {_toml(self.positive)}"
        blocks = [_SCHEMA.format(norm=norm, label=_toml(self.label), values=declared)]
        for name, low, high in self.numeric:
            middle = (low + high) / 2
            blocks.append(_NUMERIC.format(name=_toml(name), low=low, high=high, middle=middle))
        for name, values in self.categorical:
            blocks.append(_CATEGORICAL.format(name=_toml(name), values=_toml(values)))
        return "\n".join(blocks)

    @property
    def run_text(self) -> str:
        """The run file."""
        seed = _NO_SEED if self.seed is None else _SEED.format(seed=self.seed)
        blocks = [_RUN.format(seed=seed)]
        for name, file in self.nodes:
            ledger = "" if self.seed is not None else _LEDGER.format(file=_toml(f"{name}.sqlite"))
            blocks.append(_NODE.format(name=_toml(name), file=_toml(file), ledger=ledger))
        blocks.append(_REST.format(epsilon=self.epsilon, delta=self.delta))
        return "\n".join(blocks)


def require_new(folder: str | Path) -> None:
    """Refuse a folder that holds a schema or run file already."""
    for path in (Path(folder) / name for name in _NAMES):
        if path.exists():
            raise DeclarationError(f"{path} exists; nothing is overwritten, choose another folder")


def _toml(value: Any) -> str:
    """A string or a list of strings in TOML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


_SCHEMA = """\
# What is public about the columns, agreed before any row is read. Nothing here may be read off
# the rows: that would leak them. Numbers outside their bounds are clipped. A value that is not
# listed counts as none.
missing_values = ["", "?", "NA"]   # how a missing cell is spelled
norm = {norm:.3g}   # rows longer than this, in units of the scaled columns, are shortened to it

[label]
name = {label}
{values}
"""
_NUMERIC = """\
[[columns]]
kind = "numeric"
name = {name}
low = {low!r}
high = {high!r}
missing = {middle!r}   # a number to put there, or "refuse", or "drop" the row
# transform = "log1p"   # for heavy tails
"""
_CATEGORICAL = """\
[[columns]]
kind = "categorical"
name = {name}
values = {values}
missing = "other"   # counts as none of the values; or "refuse", or "drop" the row
"""
_NO_SEED = "# seed = 1   # would make this a SIMULATION, which protects nobody"
_SEED = "seed = {seed}   # SIMULATION: seeded noise protects nobody. Remove for a real run."
_RUN = """\
# Everything that is decided before the run. Paths are relative to this file.
[run]
name = "first"
{seed}
output = "network"   # the mean of all released vectors of the last half of the rounds

[data]
schema = "schema.toml"
# instead of one file for each node, one for all, with a column that names the node:
# file = "all.csv"
# node_column = "site"
"""
_LEDGER = "ledger = {file}   # where the node enters what it spends\n"
_NODE = """\
[[nodes]]
name = {name}
file = {file}
{ledger}# epsilon = 0.5   # a total of its own
"""
_REST = """\
[topology]
family = "ring"   # path, star, complete, grid, random_regular, erdos_renyi, small_world
# edges = [["a", "b"]]   # instead of a family

[privacy]
# mechanism = "sum"   # the planner's; or "primal", "dual", "sealed". "none" protects nobody
# honest = 3   # with "sealed": nodes that add their noise and keep their keys; see algorithms.md
epsilon = {epsilon!r}   # the most that anyone with a row at one node can lose; smaller is safer
delta = {delta!r}   # probability that more than epsilon leaks; keep it well below 1/rows

# [training]
# weights = "equal"   # every node weighs the same, as in the paper; otherwise every row does

# [evaluation]
# file = "public.csv"   # accuracy is shown only on rows that are declared public
# public = true
"""
