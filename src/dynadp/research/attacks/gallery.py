"""Every attack on Algorithm 1 and on private runs, on census rows that are made here."""

from collections.abc import Callable
from typing import Any

from dynadp.data import census
from dynadp.mechanisms import mechanism_named
from dynadp.research.attacks.inference import membership
from dynadp.research.attacks.reconstruction import reconstruct, small_node

# alpha of a round; of sums mu, so that 20 rounds cost about what those of primal do
CASES = (
    ("none", None),
    ("dual", 0.1),
    ("dual", 1.0),
    ("primal", 0.1),
    ("primal", 1.0),
    ("sum", 0.014),
    ("sum", 0.14),
)


def run_gallery(
    seed: int = 0,
    runs: int = 1000,
    rows: int = 20,
    on_case: Callable[[str, float | None], None] = lambda mechanism, alpha: None,
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
        Called with the mechanism and alpha of each case before it is attacked.
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
    for name, alpha in CASES:
        on_case(name, alpha)
        attacked = (None if alpha is None else mechanism_named(name)), alpha
        recovered = reconstruct(data, population, *attacked, rows=rows, seed=seed)
        result["reconstruction"].append(recovered.to_json())
        recovered = small_node(few, population, *attacked, seed=seed)
        result["small_node"].append(recovered.to_json())
        both = membership(data.shards(), *attacked, runs=runs, seed=seed)
        result["membership"] += [one.to_json() for one in both.values()]
    return result
