"""Every attack on Algorithm 1 and on private runs, on census rows that are made here."""

from collections.abc import Callable
from typing import Any

from dynadp.data import census
from dynadp.mechanisms import mechanism_named
from dynadp.research.attacks.inference import membership
from dynadp.research.attacks.reconstruction import reconstruct, small_node
from dynadp.research.attacks.setting import Setting

# alpha of a round; of sums mu, so that 20 rounds cost about what those of primal do. Sealed sums
# are seen by one node that colludes, as planned, and by all others.
CASES: tuple[tuple[str, float | None, str | None], ...] = (
    ("none", None, None),
    ("dual", 0.1, None),
    ("dual", 1.0, None),
    ("primal", 0.1, None),
    ("primal", 1.0, None),
    ("sum", 0.014, None),
    ("sum", 0.14, None),
    ("sealed", 0.014, "sum"),
    ("sealed", 0.14, "sum"),
    ("sealed", 0.014, "node"),
    ("sealed", 0.14, "node"),
)
HONEST: dict[str, Any] = {"honest": 2, "spares": 0}  # of the three nodes


def run_gallery(
    seed: int = 0,
    runs: int = 1000,
    rows: int = 20,
    on_case: Callable[[str, float | None, str | None], None] = lambda *case: None,
) -> dict[str, Any]:
    """Run all attacks in all cases; a SIMULATION, as JSON.

    Parameters
    ----------
    seed
        Of rows and noise.
    runs
        How many runs membership inference sees with a row, and how many without.
    rows
        How many rows are sought by reconstruction.
    on_case
        Called before each case is attacked, with its mechanism, its alpha, and what is seen of
        sealed sums.
    """
    data, few = census(300, seed=seed, nodes=3), census(15, seed=seed, nodes=3)
    population = census(1000, seed=seed + 1, nodes=1, test_rows=0).train
    result: dict[str, Any] = {
        "version": 1,
        "simulation": True,
        "source": "census rows made here (synthetic)",
        "seed": seed,
        "nodes": 3,
        "rows_a_node": 100,
        "rows_of_small_node": 5,
        "reconstruction": [],
        "small_node": [],
        "membership": [],
    }
    for name, alpha, seen in CASES:
        on_case(name, alpha, seen)
        given = HONEST if seen else {}
        attacked = (None if alpha is None else mechanism_named(name, **given)), alpha
        how: dict[str, Any] = {"seed": seed, "setting": Setting(sealed_view=seen or "sum")}
        recovered = reconstruct(data, population, *attacked, rows=rows, **how)
        result["reconstruction"].append(recovered.to_json())
        recovered = small_node(few, population, *attacked, **how)
        result["small_node"].append(recovered.to_json())
        both = membership(data.shards(), *attacked, runs=runs, **how)
        result["membership"] += [one.to_json() for one in both.values()]
    return result
