"""A commented run file and schema to start from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dynadp.data import Classes, Column, Label, Numeric, Target
from dynadp.errors import DeclarationError, DynadpError
from dynadp.runs.run_file import load_run_file, load_schema

Answer = Label | Classes | Target
_NAMES = ("schema.toml", "run.toml")


@dataclass(frozen=True)
class NodeFiles:
    """Where rows lie: a file for each node, or one for all with a column that names the node.

    Attributes
    ----------
    nodes
        Name and file of each node; without files where there is one for all.
    shared
        The file for all.
    node_column
        The column of it that names the node of each row.
    """

    nodes: tuple[tuple[str, str], ...]
    shared: str | None = None
    node_column: str | None = None

    def split_by(self, column: str, names: Sequence[str]) -> "NodeFiles":
        """Return the same file, split by this column over these nodes."""
        return NodeFiles(tuple((name, "") for name in names), self.shared, column)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files."""
        return tuple(file for _, file in self.nodes) if self.shared is None else (self.shared,)


@dataclass(frozen=True)
class Start:
    """What a first run file and its schema declare.

    Attributes
    ----------
    nodes
        Where their rows lie.
    answer
        The label with its values, or the target with its bounds.
    columns
        Their declarations.
    epsilon, delta
        The total.
    seed
        Makes it a SIMULATION, which needs no ledgers.
    classes
        Three or more values of the label, in place of the two.
    person, rows_per_person, silos_per_person
        Whose row it is, and how many a person may have; empty where every row is another person's.
    graph
        A family, or pairs of nodes.
    counts
        Numbers of rows that are declared; empty where they are counted.
    honest
        Of sealed sums: how many nodes have to be honest; None for the planner's choice.
    cap
        The epsilon of each node's ledger, for the command that makes it; None where nothing was
        asked.
    """

    nodes: NodeFiles
    answer: Answer
    columns: Sequence[Column]
    epsilon: float = 1.0
    delta: float = 1e-5
    seed: int | None = None
    classes: Sequence[str] = ()
    person: str = ""
    rows_per_person: int = 1
    silos_per_person: int = 1
    graph: str | Sequence[tuple[str, str]] = "ring"
    counts: Mapping[str, int] = field(default_factory=dict)
    honest: int | None = None
    cap: float | None = None

    def write(self, folder: str | Path) -> None:
        """Write schema.toml and run.toml into a folder; nothing is overwritten."""
        root = Path(folder)
        require_new(root)
        self.check()  # nothing is left behind where something is wrong
        root.mkdir(parents=True, exist_ok=True)
        self._write(root)

    def check(self) -> None:
        """Refuse what could not be read again."""
        with TemporaryDirectory() as place:
            self._write(Path(place))
            try:
                load_schema(Path(place, "schema.toml"))
                load_run_file(Path(place, "run.toml"))
            except DynadpError as error:
                raise DeclarationError(str(error).replace(f"{place}/", "")) from None

    @property
    def texts(self) -> dict[str, str]:
        """What is written, by name."""
        return dict(zip(_NAMES, (self.schema_text, self.run_text), strict=True))

    def _write(self, folder: Path) -> None:
        for name, text in self.texts.items():
            (folder / name).write_text(text, encoding="utf-8")

    @property
    def schema_text(self) -> str:
        """The schema."""
        kind = "target" if isinstance(self.answer, Target) else "label"
        told = [f"{name} = {_toml(value)}" for name, value in self.answer.model_dump().items()]
        head = "\n".join([_SCHEMA, f"[{kind}]", *told, ""])
        return "\n".join([head, *map(_block, self.columns)])

    @property
    def run_text(self) -> str:
        """The run file."""
        seed = _NO_SEED if self.seed is None else _SEED.format(seed=self.seed)
        shared, column = map(_toml, (self.nodes.shared, self.nodes.node_column))
        one = _APART if self.nodes.shared is None else _TOGETHER.format(file=shared, column=column)
        blocks = [_RUN.format(seed=seed) + one]
        for name, file in self.nodes.nodes:
            ledger = "" if self.seed is not None else _LEDGER.format(file=_toml(f"{name}.sqlite"))
            own = f"file = {_toml(file)}\n" if self.nodes.shared is None else ""
            rows = (
                f"rows = {self.counts[name]}   # declared, public\n" if name in self.counts else ""
            )
            blocks.append(_NODE.format(name=_toml(name), file=own + rows, ledger=ledger))
        blocks.append(self._graph_text)
        blocks.append(_REST.format(chosen=self._chosen, epsilon=self.epsilon, delta=self.delta))
        return "\n".join(blocks)

    @property
    def _graph_text(self) -> str:
        if isinstance(self.graph, str):
            return _FAMILY.format(family=_toml(self.graph))
        return f"[topology]\nedges = {_pairs(self.graph)}\n"

    @property
    def _chosen(self) -> str:
        """Who is trusted, and whose rows they are."""
        lines = [_PLANNERS]
        if self.honest is not None:
            lines = ['mechanism = "sealed"\n', f"honest = {self.honest}   # nodes, at least\n"]
        if self.person:
            lines.append(f"person = {_toml(self.person)}   # whose row it is; epsilon is hers\n")
            lines.append(f"rows_per_person = {self.rows_per_person}\n")
            if self.silos_per_person > 1:
                lines.append(f"silos_per_person = {self.silos_per_person}\n")
        if isinstance(self.answer, Label) and not self.classes:
            lines.append(_CALIBRATION)
        return "".join(lines)


def _pairs(edges: Sequence[tuple[str, str]]) -> str:
    return "[" + ", ".join(f"[{_toml(a)}, {_toml(b)}]" for a, b in edges) + "]"


def require_new(folder: str | Path) -> None:
    """Refuse a folder that holds a schema or run file already."""
    for path in (Path(folder) / name for name in _NAMES):
        if path.exists():
            raise DeclarationError(f"{path} exists; nothing is overwritten, choose another folder")


def _toml(value: Any) -> str:
    """A number, a day, a string or a list of strings in TOML."""
    if isinstance(value, date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _block(column: Column) -> str:
    """A column as a block of TOML, with what else could be said."""
    lines = ["[[columns]]"]
    for name, value in column.model_dump(exclude_defaults=True).items():
        if name not in ("name", "kind", "missing"):
            lines.append(f"{name} = {_toml(value)}")
    lines[1:1] = [f"kind = {_toml(column.kind)}", f"name = {_toml(column.name)}"]
    missing = getattr(column, "missing", None)
    lines.append(f"missing = {_toml(missing)}   # {_MISSING.get(column.kind, _OR)}")
    if isinstance(column, Numeric) and column.transform == "none":
        lines.append('# transform = "log1p"   # for heavy tails')
    return "\n".join(lines) + "\n"


_OR = 'counts as none of the values; or "refuse", or "drop" the row'
_MISSING = {
    "numeric": 'a number to put there, or "refuse", or "drop" the row',
    "date": 'a day to put there, or "refuse", or "drop" the row',
}
_SCHEMA = """\
# What is public about the columns, agreed before any row is read. Nothing here may be read off
# the rows: that would leak them. Numbers outside their bounds are clipped. A value that is not
# listed counts as none.
missing_values = ["", "?", "NA"]   # how a missing cell is spelled
# norm = 2.0   # of runs that do not centre, or of a number: longer rows are shortened to it
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
"""
_APART = """\
# instead of one file for each node, one for all, with a column that names the node:
# file = "all.csv"
# node_column = "site"
"""
_TOGETHER = """\
file = {file}
node_column = {column}   # its cells are the names of the nodes below, which are public
"""
_LEDGER = "ledger = {file}   # where the node enters what it spends\n"
_NODE = """\
[[nodes]]
name = {name}
{file}{ledger}# epsilon = 0.5   # a total of its own
"""
_FAMILY = """\
[topology]
family = {family}   # path, star, complete, grid, random_regular, erdos_renyi, small_world
# edges = [["a", "b"]]   # instead of a family
"""
_PLANNERS = """\
# mechanism = "sum"   # the planner's; or "primal", "dual", "sealed". "none" protects nobody
# honest = 3   # with "sealed": nodes that add their noise and keep their keys; see algorithms.md
"""
_CALIBRATION = """\
calibration = true   # probabilities, thresholds and measures, for a tenth of the budget
"""
_REST = """\
[privacy]
{chosen}\
epsilon = {epsilon!r}   # the most that anyone with a row at one node can lose; smaller is safer
delta = {delta!r}   # probability that more than epsilon leaks; keep it well below 1/rows

# [training]
# weights = "equal"   # every node weighs the same, as in the paper; otherwise every row does

# [evaluation]
# file = "public.csv"   # accuracy is shown only on rows that are declared public
# public = true
"""
