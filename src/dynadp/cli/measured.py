"""Measures as lines of a terminal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dynadp import runs

if TYPE_CHECKING:
    from dynadp.data import Value
    from dynadp.runs import CalibrationBin, Measure, Model

_WIDTH = 96  # of a table of labels and answers; --json has larger ones
_CLASSES = 20


def measure_lines(found: "Mapping[str, Measure]") -> list[str]:
    """One line a measure: its name, value and interval."""
    from dynadp._intervals import written

    names = {**runs.NAMES, **runs.TARGET_NAMES}
    return [
        f"  {names[name]}: {written(one.value)} ({written(one.low)} to {written(one.high)})"
        for name, one in found.items()
    ]


def curve_lines(curve: "Sequence[CalibrationBin]", several: bool = False) -> list[str]:
    """The calibration curve, a line for each bin of probabilities."""
    if not curve:
        return []
    what = "the answer that is given" if several else "the positive label"
    lines = [f"  calibration: rows by probability of {what}, and the share for which it is right:"]
    for one in curve:
        value, low, high = (
            f"{end:.3f}" for end in (one.share.value, one.share.low, one.share.high)
        )
        lines.append(f"    {one.probability:.3f}: {value} ({low} to {high}) of {one.rows:,}")
    return lines


def class_lines(found: "Mapping[Value, Mapping[str, Measure]]") -> list[str]:
    """Measures of each class, a line each, where a terminal holds them."""
    if not 0 < len(found) <= _CLASSES:
        return []
    wide = max(len(str(name)) for name in found)
    lines = ["  by label, against all others:"]
    for name, own in found.items():
        parts = (
            f"{kind.replace('_', ' ')} {one.value:.3f} ({one.low:.3f} to {one.high:.3f})"
            for kind, one in own.items()
            if kind in ("recall", "precision")
        )
        lines.append(f"    {str(name).rjust(wide)}: {', '.join(parts)}")
    return lines


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
