"""The constants of algorithm "sum", found again on census rows.

Only N = n mu/kappa counts for equal nodes, so one node with the total that gives this N stands for
any network; for sealed sums this is checked. Every candidate sees the same rows, centres and seeds
as the rule; differences are means over these pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import exp, log, sqrt

import numpy as np
from scipy.optimize import brentq

from benchmarks.census_runs import errors
from benchmarks.measure import Figure, Report, main, table
from dynadp.consensus.topology import Topology
from dynadp.data.columns import Categorical
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan
from dynadp.planning.sums import SumConstants, gaussian_mu

DELTA, ROWS, SAMPLES, REPLICAS = 1e-5, 20_000, 3, 8
HONEST = {20: 13, 200: 132}  # of so many nodes, where sums are sealed
SIGNALS = (60.0, 150.0, 400.0, 1000.0, 3000.0, 10_000.0, 40_000.0)
PLAIN = {
    "rounds": (10, 40, 80),
    "pull": (0.35, 0.5, 1.0, 1.4),
    "momentum": (0.0, 0.75),
    "centring": (0.0, 0.05, 0.2),
    "margin": (2.0, 4.0),
}
MOMENT = {
    "moment_rounds": (8, 16, 24),
    "moment_pull": (0.25, 0.7),
    "curvature": (0.05, 0.1, 0.125, 0.25),
    "moment": (0.02, 0.1, 0.2),
    "centring": (0.0, 0.05, 0.2),
    "margin": (2.0, 4.0),
}
SWITCH = (1000.0, 2000.0, 3000.0, 4000.0, 6000.0, 10_000.0)  # N around which a second moment pays


@dataclass(frozen=True)
class Cell:
    """Rows in one place, or sealed at several nodes, of 51 columns or of 101, and the total that
    gives them this N.
    """

    N: float
    wide: bool
    nodes: int = 1

    @property
    def epsilon(self) -> float:
        """gaussian_mu(epsilon) = N/rows, times sqrt(P/h) where sums are sealed."""
        mu = self.N / ROWS * sqrt(self.nodes / HONEST.get(self.nodes, 1))
        return exp(brentq(lambda e: gaussian_mu(exp(e), DELTA) - mu, log(1e-5), log(100)))


def run() -> Report:
    """Test error of the rule by N, and how much other constants would change it."""
    chosen = SumConstants()
    cells = [Cell(N, wide=True) for N in SIGNALS]
    below = [cell for cell in cells if chosen.moment_from > cell.N]
    above = [cell for cell in cells if chosen.moment_from <= cell.N]
    text, details, regrets = "", [], dict.fromkeys(cells, 0.0)
    for moment, part, candidates in ((False, below, PLAIN), (True, above, MOMENT)):
        rows = [("the rule: median error, %", *(_median(cell, chosen, moment) for cell in part))]
        for name, values in candidates.items():
            for value in values:
                if value == getattr(chosen, name):
                    continue
                other = replace(chosen, **{name: value})
                found = {cell: _difference(cell, other, chosen, moment) for cell in part}
                rows.append((f"{name} {value:g}", *(_shown(*found[cell]) for cell in part)))
                details += _details(name, value, found)
                for cell, (gain, _) in found.items():
                    regrets[cell] = max(regrets[cell], -gain)
        what = "With" if moment else "Without"
        text += f"{what} a second moment: difference in points (standard error).\n\n"
        text += table(("", *map(_name, part)), rows) + "\n\n"
    rows = []
    for wide in (False, True):
        for N in SWITCH:
            cell = Cell(N, wide)
            found = _difference(cell, chosen, chosen, True, against=False)
            rows.append((_name(cell), _median(cell, chosen, False), _shown(*found)))
            details += _details("second moment", 1.0, {cell: found})
    text += "Where a second moment pays: its error less that without.\n\n"
    text += table(("N", "without: median error, %", "with, difference"), rows)
    alike, of_sealed = sealed(chosen)
    text += (
        "\n\nSealed sums, 51 columns: error less that of one node of the same N; and that with a "
    )
    text += "second moment less that without.\n\n"
    networks = [f"{nodes} nodes, {honest} honest" for nodes, honest in HONEST.items()]
    header = [name + more for name in networks for more in ("", ", second moment")]
    text += table(("N", *header), alike)
    details += of_sealed
    figures = [
        Figure(
            "median regret against the best candidate",
            float(np.median([*regrets.values()])),
            "points",
        ),
        Figure("largest regret", max(regrets.values()), "points"),
    ]
    return Report("sum_study", figures, text, {"differences": details})


def sealed(chosen: SumConstants) -> tuple[list[tuple[str, ...]], list[dict]]:
    """Whether N alone counts for sealed sums too, and from which N a second moment pays."""
    rows, details = [], []
    for N in (150.0, 400.0, *SWITCH):
        shown = []
        for nodes in HONEST:
            one, cell = Cell(N, wide=False), Cell(N, wide=False, nodes=nodes)
            moment = chosen.moment_from <= N
            pairs = errors_of(cell, chosen, moment) - errors_of(one, chosen, moment)
            apart = float(pairs.mean()), float(pairs.std(ddof=1)) / sqrt(len(pairs))
            paid = _difference(cell, chosen, chosen, True, against=False)
            shown += [_shown(*apart), _shown(*paid) if SWITCH[0] <= N else ""]
            details += _details(f"sealed, {nodes} nodes", 0.0, {cell: apart})
            details += _details(f"sealed, {nodes} nodes, second moment", 1.0, {cell: paid})
        rows.append((f"{N:g}", *shown))
        print(rows[-1], flush=True)
    return rows, details


def _name(cell: Cell) -> str:
    return f"N = {cell.N:g}" + (", 101 columns" if cell.wide else "")


def _median(cell: Cell, constants: SumConstants, moment: bool) -> str:
    return f"{np.median(errors_of(cell, constants, moment)):.2f}"


def _shown(mean: float, error: float) -> str:
    return f"{mean:+.2f} ({error:.2f})"


def _difference(
    cell: Cell,
    constants: SumConstants,
    chosen: SumConstants,
    moment: bool,
    against: bool | None = None,
) -> tuple[float, float]:
    """Mean and standard error over pairs of draws, in points."""
    other = moment if against is None else against
    pairs = errors_of(cell, constants, moment) - errors_of(cell, chosen, other)
    return float(pairs.mean()), float(pairs.std(ddof=1)) / sqrt(len(pairs))


def _details(name: str, value: float, found: Mapping[Cell, tuple[float, float]]) -> list[dict]:
    return [
        {"constant": name, "value": value, "N": c.N, "wide": c.wide, "mean": mean, "error": error}
        for c, (mean, error) in found.items()
    ]


@lru_cache
def rows_of(wide: bool, seed: int) -> Dataset:
    """Census rows; wide ones have a column more, trade by status, which tells nothing new."""
    data = census(ROWS, seed=seed, nodes=1, test_rows=20_000)
    if not wide:
        return data
    columns, names = data.schema.columns, ("trade", "status")
    trades, states = (
        next(c.values for c in columns if isinstance(c, Categorical) and c.name == name)
        for name in names
    )
    both = Categorical(name="both", values=tuple(f"{t} {s}" for t in trades for s in states))
    train, test = (
        {
            **rows,
            "both": np.array([f"{t} {s}" for t, s in zip(*(rows[n] for n in names), strict=True)]),
        }
        for rows in (data.train, data.test)
    )
    schema = data.schema.model_copy(update={"columns": (*columns, both)})
    return replace(data, schema=schema, train=train, test=test)


@cache
def errors_of(cell: Cell, constants: SumConstants, moment: bool) -> np.ndarray:
    """Test error in % of each draw: fresh rows, centre and noise."""
    found = []
    for seed in range(SAMPLES):
        data, parts = rows_of(cell.wide, seed), np.array_split(np.arange(ROWS), cell.nodes)
        mechanism = Sum(second_moment=moment)
        if cell.nodes > 1:
            mechanism = Sealed(second_moment=moment, honest=HONEST[cell.nodes], spares=0)
        chosen = plan(
            [len(part) for part in parts],
            Topology.family("ring", cell.nodes),
            data.schema.dimension,
            epsilon=cell.epsilon,
            delta=DELTA,
            mechanism=mechanism,
            centring=constants.centring > 0,
            features=data.schema.feature_count,
            constants=constants,
        )
        found.append(errors(data, parts, chosen, [seed], REPLICAS))
    return 100 * np.concatenate(found)


if __name__ == "__main__":
    main(run)
