"""Measures as lines of a terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dynadp import runs

if TYPE_CHECKING:
    from dynadp.runs import Measure, Model

_WIDTH = 96  # of a table of labels and answers; --json has larger ones


def measure_lines(found: "Mapping[str, Measure]") -> list[str]:
    """One line a measure: its name, value and interval."""
    from dynadp._intervals import written

    names = {**runs.NAMES, **runs.TARGET_NAMES}
    return [
        f"  {names[name]}: {written(one.value)} ({written(one.low)} to {written(one.high)})"
        for name, one in found.items()
    ]


def table_lines(model: "Model", table: Any) -> list[str]:
    """Numbers of rows, a line for each label and a column for each answer, where a line holds all;
    noisy ones below 0 as 0.
    """
    names = list(model.columns.label.classes)
    if isinstance(table, Mapping):
        no, yes = ("true_negative", "false_positive"), ("false_negative", "true_positive")
        cells = [[table[name] for name in own] for own in (no, yes)]
    else:
        order = [model.classes.index(name) for name in names]
        cells = [[table[i][j] for j in order] for i in order]
    shown = [[f"{max(cell, 0):,.0f}" for cell in own] for own in cells]
    lines = [["", *map(str, names)], *([str(n), *own] for n, own in zip(names, shown, strict=True))]
    wide = max(len(cell) for line in lines for cell in line)
    if (wide + 2) * len(lines) > _WIDTH:
        return []
    head = "  rows by label, one below the other, and answer:"
    return [head, *("  " + "".join(cell.rjust(wide + 2) for cell in line) for line in lines)]
