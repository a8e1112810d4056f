"""Which cases of tests marked ``diagonal`` or ``first`` the first tier leaves to the second."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any


def left_to_the_second(items: Iterable[Any]) -> Iterator[Any]:
    """Cases beyond the first few of their test, or not needed to see every value of every
    parameter.
    """
    tests = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("slow"):
            tests[item.nodeid.split("[")[0]].append(item)
    for cases in tests.values():
        if few := cases[0].get_closest_marker("first"):
            yield from cases[few.args[0] :]
        elif cases[0].get_closest_marker("diagonal"):
            yield from spare((case, _values(case)) for case in cases)


def _values(case: Any) -> set[Hashable]:
    return {(name, id(value)) for name, value in case.callspec.params.items()}


def spare(cases: Iterable[tuple[Any, set[Hashable]]]) -> list[Any]:
    """Cases without which every value still occurs; kept are first those with most new values."""
    left = list(cases)
    seen: set[Hashable] = set()
    for new in range(max((len(values) for _, values in left), default=0), 0, -1):
        passed = []
        for case, values in left:
            if len(values - seen) < new:
                passed.append((case, values))
            else:
                seen |= values
        left = passed
    return [case for case, _ in left]
