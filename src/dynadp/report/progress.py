"""The lines of a run's rounds.jsonl files as they grow, made small: median and range over nodes,
round by round.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dynadp.errors import RecordError

Row = dict[str, Any]
MOST = 400  # rounds that a picture shows one by one


class Rounds:
    """Follows files that grow by whole lines.

    Parameters
    ----------
    files
        One for each process that writes.
    nodes
        How many lines a whole round has, over all files.
    """

    def __init__(self, files: Sequence[Path], nodes: int) -> None:
        self.files, self.nodes = tuple(files), nodes
        self._forget()

    def _forget(self) -> None:
        self._at = dict.fromkeys(self.files, 0)
        self._lines = dict.fromkeys(self.files, 0)
        self._open: dict[int, list[tuple[float, float]]] = {}
        self.rows: list[Row] = []

    def read(self) -> bool:
        """Take up new lines; whether a whole round came. A file that shrank is told again from its
        beginning.
        """
        before = len(self.rows)
        if any(size < self._at[file] for file in self.files if (size := _size(file)) is not None):
            self._forget()
        for file in self.files:
            self._take(file)
        return len(self.rows) != before

    def _take(self, file: Path) -> None:
        try:
            with open(file, "rb") as lines:
                lines.seek(self._at[file])
                content = lines.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._lines[file] += 1
            try:
                told = json.loads(line)
                self._enter(int(told["round"]), float(told["disagreement"]), float(told["change"]))
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(
                    f"{file}, line {self._lines[file]} is not a round's line; the file is damaged"
                ) from error
        self._at[file] += len(whole)

    def _enter(self, n: int, disagreement: float, change: float) -> None:
        seen = self._open.setdefault(n, [])
        seen.append((disagreement, change))
        while len(self._open.get(len(self.rows) + 1, ())) >= self.nodes:
            n = len(self.rows) + 1
            apart, moved = zip(*self._open.pop(n), strict=True)
            self.rows.append({"round": n, "disagreement": _spread(apart), "change": _spread(moved)})


def thinned(rows: Sequence[Row], most: int = MOST) -> list[Row]:
    """At most so many rows: neighbours are joined, with the median of medians and the whole range;
    the last stays as it is.
    """
    step = -(-len(rows) // most)
    if step <= 1:
        return list(rows)
    joined = [_joined(rows[i : i + step]) for i in range(0, len(rows) - 1, step)]
    return (
        [*joined, rows[-1]]
        if joined[-1]["round"] != rows[-1]["round"]
        else [*joined[:-1], rows[-1]]
    )


def _joined(rows: Sequence[Row]) -> Row:
    out: Row = {"round": rows[-1]["round"]}
    for name in ("disagreement", "change"):
        middle, low, high = zip(*(row[name] for row in rows), strict=True)
        out[name] = [median(middle), min(low), max(high)]
    return out


def _spread(values: Sequence[float]) -> list[float]:
    return [median(values), min(values), max(values)]


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None
