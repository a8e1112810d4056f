"""Clock, figures and tables for the benchmarks."""

import json
import os
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.machine import machine

RESULTS = Path(__file__).parent / "results"
REPEATS = 5
THREADS = tuple(
    int(n) for n in os.environ.get("DYNADP_BENCH_THREADS", f"1,{os.cpu_count() or 1}").split(",")
)
PAUSE = (
    0.1  # seconds before each timing: idle BLAS threads of the contestant before spin for a while
)


@dataclass(frozen=True)
class Figure:
    """One number with its target: ``at_least`` or ``below``, or neither where there is nothing to
    reach.
    """

    what: str
    value: float
    unit: str = "x"
    at_least: float | None = None
    below: float | None = None

    @property
    def target(self) -> str:
        """The target in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:g} {self.unit}"
        return f"below {self.below:g} {self.unit}" if self.below is not None else ""

    @property
    def met(self) -> str:
        """Yes, no, or nothing where there is no target."""
        if not self.target:
            return ""
        return (
            "yes"
            if self.value >= (self.at_least or 0) and self.value < (self.below or float("inf"))
            else "NO"
        )


@dataclass(frozen=True)
class Report:
    """What a benchmark found: figures with targets, text to print, and all numbers for the JSON
    file.
    """

    name: str
    figures: list[Figure]
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat, the number of BLAS and OpenMP threads, and what the last repeat
    returned.
    """

    seconds: list[float]
    threads: int
    result: Any = field(repr=False)

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.seconds)

    def describe(self) -> dict[str, Any]:
        """For the JSON file."""
        return {"seconds": self.seconds, "threads": self.threads}


def clock(work: Callable[[], Any], threads: int, pause: float = PAUSE) -> tuple[float, Any]:
    """Seconds of one call with so many BLAS and OpenMP threads, and what it returned."""
    with threadpool_limits(threads):
        time.sleep(pause)
        start = time.perf_counter()
        result = work()
        return time.perf_counter() - start, result


def better_threads(work: Callable[[], Any], pause: float = PAUSE) -> int:
    """One thread or all cores, whichever is faster for this contestant: small products often lose
    by sharing.
    """
    return (
        min(THREADS, key=lambda threads: clock(work, threads, pause)[0])
        if len(THREADS) > 1
        else THREADS[0]
    )


def compare(
    contestants: Mapping[str, Callable[[], Any]],
    pilots: Mapping[str, Callable[[], Any]] | None = None,
    pause: float = PAUSE,
) -> dict[str, Timing]:
    """Time all contestants in turn (A B A B ...), each with the number of threads that suits it.

    Warm-up and the choice of threads use ``pilots``, shorter jobs of the same kind, where they are
    given.
    """
    for pilot in (pilots or contestants).values():
        clock(pilot, THREADS[0], pause)
    threads = {
        name: better_threads(pilot, pause) for name, pilot in (pilots or contestants).items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    last: dict[str, Any] = {}
    for _ in range(REPEATS):
        for name, contestant in contestants.items():
            elapsed, last[name] = clock(contestant, threads[name], pause)
            seconds[name].append(elapsed)
    return {name: Timing(seconds[name], threads[name], last[name]) for name in contestants}


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table with aligned columns; floats in three digits."""
    cells = [list(header), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return "\n".join(
        [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]
    )


def _cell(cell: Any) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def figures_table(figures: Iterable[Figure]) -> str:
    """The figures beside their targets."""
    rows = ((f.what, f"{f.value:.3g} {f.unit}", f.target, f.met) for f in figures)
    return table(("figure", "measured", "target", "met"), rows)


def perform(run: Callable[[], Report], day: str) -> Report:
    """Run a benchmark, print its report and write results/NAME.json."""
    with threadpool_limits(max(THREADS)):
        report = run()
        facts = machine(day)
    print(f"\n## {report.name}\n\n{report.text}", flush=True)
    if report.figures:
        print(f"\n{figures_table(report.figures)}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    figures = [
        {**asdict(figure), "target": figure.target, "met": figure.met} for figure in report.figures
    ]
    content = {"name": report.name, "machine": facts, "figures": figures, **report.details}
    (RESULTS / f"{report.name}.json").write_text(
        json.dumps(content, indent=1, default=float) + "\n"
    )
    return report


def arguments(description: str) -> str:
    """The date to write into the results: ``--date``, or today."""
    parser = ArgumentParser(description=description)
    parser.add_argument(
        "--date", default=date.today().isoformat(), help="date to write into the results"
    )
    return str(parser.parse_args().date)


def main(run: Callable[[], Report]) -> None:
    """Run one benchmark from the command line."""
    perform(run, arguments(str(run.__doc__)))
