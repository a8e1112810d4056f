"""What a neighbour sees of a row: without noise, with a budget, and by guessing alone.

The attacks are those of the gallery, on messages of runs over census rows that are made here. Three
nodes stand in a ring, so that each hears everything that the two others send.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dynadp.consensus import Topology
from dynadp.data import census
from dynadp.mechanisms import mechanism_named
from dynadp.privacy import calibrate
from dynadp.research.attacks.inference import Membership, membership
from dynadp.research.attacks.reconstruction import Reconstruction, reconstruct
from dynadp.research.attacks.setting import DELTA, Setting
from dynadp.research.attacks.transcript import planned

NODES, ROUNDS = 3, 20
OF_SEALED: dict[str, Any] = {"honest": 2, "spares": 0}  # of the three nodes


@dataclass(frozen=True)
class Look:
    """What a neighbour makes of the messages that it hears; it knows all other rows of the node.

    Attributes
    ----------
    epsilon, delta
        The budget that noise was drawn for.
    plain, noisy
        Rows that were sought without noise, and with the budget; each has what guessing gives.
    certain, asked
        Answers to whether a row or its opposite was in the data, without noise and with the budget.
    seed
        Of rows and noise.
    """

    epsilon: float
    delta: float
    plain: Reconstruction = field(repr=False)
    noisy: Reconstruction = field(repr=False)
    certain: Membership = field(repr=False)
    asked: Membership = field(repr=False)
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return all numbers; a SIMULATION."""
        return {
            "version": 1,
            "simulation": True,
            "source": "census rows made here (synthetic)",
            "epsilon": self.epsilon,
            "delta": self.delta,
            "seed": self.seed,
            "plain": self.plain.to_json(),
            "noisy": self.noisy.to_json(),
            "certain": self.certain.to_json(),
            "asked": self.asked.to_json(),
        }


def look(
    epsilon: float,
    mechanism: str = "sum",
    *,
    rounds: int = ROUNDS,
    rows: int = 100,
    runs: int = 1000,
    seed: int = 0,
    on_part: Callable[[str], None] = lambda part: None,
) -> Look:
    """Attack runs without noise, and runs whose rounds together cost (epsilon, DELTA).

    Parameters
    ----------
    epsilon
        The total of the run that is attacked.
    mechanism
        By name; of sealed sums the neighbour colludes, as planned, and sees the sum of the others.
    rounds
        How many it has.
    rows
        How many rows are sought, each in a run of its own; at most 100.
    runs
        How many runs hold the row that is asked about, and as many its opposite.
    seed
        Of rows and noise.
    on_part
        Called with what is done next.
    """
    ring = Setting(topology=Topology.family("ring", NODES), rounds=rounds)
    data = census(100 * NODES, seed=seed, nodes=NODES)
    population = census(1000, seed=seed + 1, nodes=1, test_rows=0).train
    shards = data.shards()
    made = mechanism_named(mechanism, **(OF_SEALED if mechanism == "sealed" else {}))
    on_part("calibrating noise")
    alpha = calibrate(lambda scale: planned(shards, made, scale, ring).events, epsilon, DELTA)
    how: dict[str, Any] = {"setting": ring, "seed": seed}
    on_part("rows without noise")
    plain = reconstruct(data, population, None, rows=rows, **how)
    on_part("rows with the budget")
    noisy = reconstruct(data, population, made, alpha, rows=rows, **how)
    on_part("membership")
    certain = membership(shards, None, runs=runs, **how)["neighbour"]
    asked = membership(shards, made, alpha, runs=runs, **how)["neighbour"]
    return Look(epsilon, DELTA, plain, noisy, certain, asked, seed)
