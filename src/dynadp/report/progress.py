"""Progress of a run from its rounds.jsonl files as they grow: median and range over nodes, round by
round.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dynadp._files import parse_json
from dynadp.consensus import RoundLine
from dynadp.errors import RecordError
from dynadp.report.record_view import RunView

Row = dict[str, Any]
QUANTITIES = ("disagreement", "change")
OF_SUMS = ("apart", "noise")  # of algorithm "sum" alone
MOST = 400  # rounds that a picture shows one by one


class Rounds:
    """Reads files that grow by whole lines.

    Parameters
    ----------
    files
        One for each process that writes.
    count
        How many nodes write: a round is whole when it has the lines of so many.
    nodes
        Names of nodes that may occur.

    Attributes
    ----------
    rows
        For each whole round its number, and ``disagreement`` and ``change`` as median, least and
        largest over nodes; ``apart`` and ``noise`` likewise, in rounds that have them.
    alphas, mus
        For each whole round alpha by node, or mu where noise is Gaussian, where it is protected.
    """

    def __init__(self, files: Sequence[Path], count: int, nodes: Collection[str]) -> None:
        self.files, self.count, self.nodes = tuple(files), count, nodes
        self._forget()

    @classmethod
    def of(cls, view: RunView) -> "Rounds":
        """The rounds of a run, as far as they are there now."""
        files = [home / "rounds.jsonl" for home in view.homes]
        rounds = cls(files, len(view.folders), view.topology.nodes)
        rounds.read()
        return rounds

    def _forget(self) -> None:
        self._at = dict.fromkeys(self.files, 0)
        self._lines = dict.fromkeys(self.files, 0)
        self._open: dict[int, dict[str, RoundLine]] = {}
        self.rows: list[Row] = []
        self.alphas: list[dict[str, float]] = []
        self.mus: list[dict[str, float]] = []

    def read(self) -> None:
        """Read new lines. All files are read again where one of them shrank."""
        there = [file for file in self.files if file.exists()]
        if any(file.stat().st_size < self._at[file] for file in there):
            self._forget()
        for file in there:
            self._take(file)

    def _take(self, file: Path) -> None:
        with open(file, "rb") as lines:
            lines.seek(self._at[file])
            content = lines.read()
        whole = content[: content.rfind(b"\n") + 1]
        for text in whole.splitlines():
            self._lines[file] += 1
            try:
                line = RoundLine.from_json(parse_json(text))
                if line.node not in self.nodes:
                    raise ValueError("a line of a node that is not in the network")
            except ValueError as error:
                raise RecordError(
                    f"{file}, line {self._lines[file]} is not a round's line; the file is damaged"
                ) from error
            self._open.setdefault(line.round, {})[line.node] = line
        self._at[file] += len(whole)
        while len(self._open.get(len(self.rows) + 1, ())) >= self.count:
            self._close(len(self.rows) + 1)

    def _close(self, n: int) -> None:
        lines = self._open.pop(n).values()
        row: Row = {"round": n}
        for name in (*QUANTITIES, *OF_SUMS):
            values = [one for line in lines if (one := getattr(line, name)) is not None]
            if values:
                row[name] = [median(values), min(values), max(values)]
        self.rows.append(row)
        self.alphas.append({line.node: line.alpha for line in lines if line.alpha is not None})
        self.mus.append({line.node: line.mu for line in lines if line.mu is not None})


def thinned(rows: Sequence[Row], most: int = MOST) -> list[Row]:
    """At most so many rows: neighbours are joined, with the median of medians and the whole range;
    the last stays as it is.
    """
    step = -(-len(rows) // most)
    if step <= 1:
        return list(rows)
    whole, last = rows[:-1], rows[-1]
    return [*(_joined(whole[i : i + step]) for i in range(0, len(whole), step)), last]


def _joined(rows: Sequence[Row]) -> Row:
    out: Row = {"round": rows[-1]["round"]}
    for name in (*QUANTITIES, *OF_SUMS):
        if there := [row[name] for row in rows if name in row]:
            middle, low, high = zip(*there, strict=True)
            out[name] = [median(middle), min(low), max(high)]
    return out
