"""Which cases of tests marked ``diagonal`` the first tier leaves to the second."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any


def off_the_diagonal(items: Iterable[Any]) -> Iterator[Any]:
    """Cases that are not needed to see every value of every parameter of their test."""
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("diagonal") and not item.get_closest_marker("slow"):
            values = {(name, id(value)) for name, value in item.callspec.params.items()}
            tests[item.nodeid.split("[")[0]].append((item, values))
    for cases in tests.values():
        yield from spare(cases)


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
