"""Runs beside each other as one page: a file that needs no script and no network."""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from dynadp._files import write_whole
from dynadp.errors import DeclarationError
from dynadp.report.comparison import ComparedRun, Comparison
from dynadp.report.page import STATIC, environment

WIDTH = 240  # of a picture, its units


@dataclass(frozen=True)
class Mark:
    """A number with its interval, as it is drawn.

    Attributes
    ----------
    value, low, high
        The number and its 95% interval.
    at, start, end
        Where they are drawn, from 0 to ``WIDTH``.
    """

    value: float
    low: float
    high: float
    at: float
    start: float
    end: float


def marks(runs: tuple[ComparedRun, ...], name: str) -> list[Mark | None]:
    """Return a measure of each run on one common scale; None where a run has none."""
    found = [run.measures.get(name) for run in runs]
    ends = [end for one in found if one for end in one]
    low, high = min(ends), max(ends)
    room = (high - low) * 0.05 or 0.5
    low, high = low - room, high + room

    def at(value: float) -> float:
        return round(WIDTH * (value - low) / (high - low), 1)

    return [None if one is None else Mark(*one, *map(at, one)) for one in found]


def overlaps(found: list[Mark | None]) -> bool:
    """Whether every two intervals have a point in common: then no difference is shown."""
    known = [one for one in found if one]
    return max(one.low for one in known) <= min(one.high for one in known)


def comparison_page(comparison: Comparison) -> str:
    """Return the page."""
    measured = {name: marks(comparison.runs, name) for name in comparison.measures}
    page: str = (
        environment()
        .get_template("compare.html")
        .render(
            runs=comparison.runs,
            differences=comparison.differences,
            measured=measured,
            overlaps={name: overlaps(found) for name, found in measured.items()},
            notes=dict.fromkeys(run.accuracy.note for run in comparison.runs),
            interval=comparison.interval,
            width=WIDTH,
            style=(STATIC / "style.css").read_text(encoding="utf-8"),
            made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            version=version("dynadp"),
        )
    )
    return page


def write_comparison(comparison: Comparison, out: str | Path) -> Path:
    """Write the page; returns where."""
    page, out = comparison_page(comparison), Path(out)
    if not out.parent.is_dir():
        raise DeclarationError(f"{out.parent} is not a folder; choose another place with --html")
    write_whole(out, page)
    return out
