"""alpha_p(n): how much each node spends in each round, from public values, before round 1."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.errors import DeclarationError

Rule = Callable[[str, int, int], float]  # node, round (from 1), rounds -> alpha


@dataclass(frozen=True)
class Schedule:
    """alpha_p(n) for n = 1..T, by a rule of public values.

    Attributes
    ----------
    rule
        Gives alpha from a node's name, a round and the number of rounds.
    description
        For the run record.
    """

    rule: Rule
    description: Mapping[str, Any]

    def table(self, nodes: Sequence[str], rounds: int) -> Array:
        """alpha_p(n), P x T, each finite and above 0."""
        try:
            values = np.array(
                [[float(self.rule(p, n, rounds)) for n in range(1, rounds + 1)] for p in nodes]
            )
        except DeclarationError:
            raise
        except (TypeError, ValueError) as error:
            raise DeclarationError(
                f"the schedule {dict(self.description)} gave something that is no number: {error}"
            ) from error
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            p, n = (int(i) for i in np.argwhere(bad)[0])
            raise DeclarationError(
                f"alpha of node {nodes[p]!r} in round {n + 1} is {values[p, n]!r}; expected a "
                f"finite number above 0"
            )
        return values


def constant(alpha: float) -> Schedule:
    """alpha_p(n) = alpha."""
    return Schedule(_Constant(alpha), {"name": "constant", "alpha": alpha})


def geometric(first: float, ratio: float) -> Schedule:
    """alpha_p(n) = first ratio^(n-1)."""
    description = {"name": "geometric", "first": first, "ratio": ratio}
    return Schedule(_Geometric(first, ratio), description)


def linear(first: float, last: float) -> Schedule:
    """alpha_p(n) on the line from first (n = 1) to last (n = T)."""
    return Schedule(_Linear(first, last), {"name": "linear", "first": first, "last": last})


def per_node(table: Mapping[str, float | Sequence[float]]) -> Schedule:
    """alpha_p(n) from a table: a number for each node, or one for each of its rounds."""
    rows = {
        str(node): [values] if isinstance(values, int | float) else list(values)
        for node, values in table.items()
    }
    return Schedule(_PerNode(rows), {"name": "per_node", "table": rows})


def from_file(path: str | Path) -> Schedule:
    """alpha_p(n) from a JSON file: an object with a number, or a list with one number a round, for
    each node.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclarationError(f"cannot read the schedule {path}: {error.strerror}") from error
    except ValueError as error:
        raise DeclarationError(f"the schedule {path} is not JSON: {error}") from error
    good = isinstance(content, dict) and all(
        isinstance(v, int | float)
        or (isinstance(v, list) and all(isinstance(a, int | float) for a in v))
        for v in content.values()
    )
    if not good:
        raise DeclarationError(
            f"the schedule {path} must be a JSON object: node -> a number, or a list of one "
            f"number a round"
        )
    return per_node(content)


def by_rule(rule: Rule) -> Schedule:
    """alpha_p(n) from any function of public values: node, n, T -> alpha."""
    return Schedule(rule, {"name": "rule", "function": getattr(rule, "__qualname__", repr(rule))})


# rules are values: plans are compared, and travel to other processes


@dataclass(frozen=True)
class _Constant:
    alpha: float

    def __call__(self, node: str, n: int, T: int) -> float:
        return self.alpha


@dataclass(frozen=True)
class _Geometric:
    first: float
    ratio: float

    def __call__(self, node: str, n: int, T: int) -> float:
        return self.first * self.ratio ** (n - 1)


@dataclass(frozen=True)
class _Linear:
    first: float
    last: float

    def __call__(self, node: str, n: int, T: int) -> float:
        return self.first + (self.last - self.first) * ((n - 1) / (T - 1) if T > 1 else 0.0)


@dataclass(frozen=True)
class _PerNode:
    rows: Mapping[str, Sequence[float]]

    def __call__(self, node: str, n: int, T: int) -> float:
        if node not in self.rows:
            raise DeclarationError(
                f"the schedule has no entry for node {node!r}; it has "
                f"{', '.join(sorted(self.rows)) or 'none'}"
            )
        row = self.rows[node]
        if len(row) not in (1, T):
            raise DeclarationError(
                f"the schedule of node {node!r} has {len(row)} numbers; expected 1 or one for "
                f"each of {T} rounds"
            )
        return row[0] if len(row) == 1 else row[n - 1]
