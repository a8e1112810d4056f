"""alpha_p(n): what each node spends in each round, decided before round 1 from public values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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

    rule: Rule = field(compare=False)
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
    return Schedule(partial(_linear, alpha, alpha), {"name": "constant", "alpha": alpha})


def geometric(first: float, ratio: float) -> Schedule:
    """alpha_p(n) = first ratio^(n-1)."""
    described = {"name": "geometric", "first": first, "ratio": ratio}
    return Schedule(partial(_geometric, first, ratio), described)


def linear(first: float, last: float) -> Schedule:
    """alpha_p(n) on the line from first (n = 1) to last (n = T)."""
    return Schedule(partial(_linear, first, last), {"name": "linear", "first": first, "last": last})


def per_node(table: Mapping[str, float | Sequence[float]]) -> Schedule:
    """alpha_p(n) from a table: a number for each node, or one for each of its rounds."""
    rows = {
        str(node): [values] if isinstance(values, int | float) else list(values)
        for node, values in table.items()
    }
    return Schedule(partial(_from_table, rows), {"name": "per_node", "table": rows})


def per_round(alphas: Sequence[float]) -> Schedule:
    """alpha_p(n) from a list: one number for each round, the same at all nodes."""
    values = [float(alpha) for alpha in alphas]
    return Schedule(partial(_from_list, values), {"name": "per_round", "alphas": values})


def _geometric(first: float, ratio: float, node: str, n: int, T: int) -> float:
    return float(first * ratio ** (n - 1))


def _linear(first: float, last: float, node: str, n: int, T: int) -> float:
    return first + (last - first) * ((n - 1) / (T - 1) if T > 1 else 0.0)


def _from_table(rows: Mapping[str, Sequence[float]], node: str, n: int, T: int) -> float:
    if node not in rows:
        raise DeclarationError(
            f"the schedule has no entry for node {node!r}; it has "
            f"{', '.join(sorted(rows)) or 'none'}"
        )
    row = rows[node]
    if len(row) not in (1, T):
        raise DeclarationError(
            f"the schedule of node {node!r} has {len(row)} numbers; expected 1 or one for each of "
            f"{T} rounds"
        )
    return row[0] if len(row) == 1 else row[n - 1]


def _from_list(values: Sequence[float], node: str, n: int, T: int) -> float:
    if len(values) != T:
        raise DeclarationError(
            f"the schedule has {len(values)} numbers; expected one for each of {T} rounds"
        )
    return values[n - 1]


def by_rule(rule: Rule) -> Schedule:
    """alpha_p(n) from any function of public values: node, n, T -> alpha."""
    return Schedule(rule, {"name": "rule", "function": getattr(rule, "__qualname__", repr(rule))})


NAMED: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "geometric": geometric,
    "linear": linear,
    "per_node": per_node,
    "per_round": per_round,
}


def as_schedule(given: Any, **more: Callable[..., Schedule]) -> Schedule:
    """Make a schedule from what a file or a caller gives.

    A number is the alpha of every round; a list has one number for each round; a table has a number
    or such a list for each node, or a name and the parameters of ``NAMED``, as a schedule's own
    description has. ``more`` are further names.
    """
    if isinstance(given, Schedule):
        return given
    named = NAMED | more
    try:
        if isinstance(given, Mapping) and "name" in given:
            parameters = dict(given)
            schedule = named[parameters.pop("name")](**parameters)
        elif isinstance(given, Mapping):
            schedule = per_node(given)
        elif isinstance(given, Sequence | np.ndarray) and not isinstance(given, str):
            schedule = per_round(given)  # type: ignore[arg-type]
        else:
            schedule = constant(given)
        if all(map(_is_alpha, _numbers(schedule.description))):
            return schedule
    except DeclarationError:
        raise
    except (KeyError, TypeError, ValueError):
        pass
    raise DeclarationError(
        "alpha must be a number above 0, a list of one number a round, a table of numbers or lists "
        f"by node, or a table with one of the names {', '.join(named)} and its parameters"
    )


def _is_alpha(value: Any) -> bool:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and 0 < value < np.inf


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "name":
                yield from _numbers(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _numbers(inner)
    else:
        yield value
