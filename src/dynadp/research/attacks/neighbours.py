"""What a neighbour sees of a row: without noise, with a budget, and by guessing alone.

The attacks are those of the gallery, on messages of runs over census rows that are made here, of
the kind of the run that is looked at: its mechanism, what it answers, whether rows are replaced or
added, and whether it releases a histogram. Three nodes stand in a ring, so that each hears
everything that the two others send.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from dynadp.consensus import Topology
from dynadp.data import Dataset, Kind, RawTable, Target, census
from dynadp.errors import DeclarationError
from dynadp.mechanisms import mechanism_named
from dynadp.planning import BINS
from dynadp.privacy import Unit, calibrate
from dynadp.problem import Logistic, Softmax, default_loss
from dynadp.research.attacks.inference import Membership, membership
from dynadp.research.attacks.reconstruction import Reconstruction, reconstruct
from dynadp.research.attacks.setting import DELTA, Setting
from dynadp.research.attacks.transcript import planned

NODES, ROUNDS, CLASSES = 3, 20, 5
OF_SEALED: dict[str, Any] = {"honest": 2, "spares": 0}  # of the three nodes
Answers = Literal["two values", "several values", "a number"]
KINDS: dict[Answers, Kind] = {
    "two values": "signs",
    "several values": "classes",
    "a number": "numbers",
}


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
        Answers to whether a row or its opposite was in the data, or whether it was there at all;
        without noise and with the budget.
    seed
        Of rows and noise.
    mechanism, answer, adjacency, histogram
        Of which kind the run is.
    """

    epsilon: float
    delta: float
    plain: Reconstruction = field(repr=False)
    noisy: Reconstruction = field(repr=False)
    certain: Membership = field(repr=False)
    asked: Membership = field(repr=False)
    seed: int = 0
    mechanism: str = "sum"
    answer: Answers = "two values"
    adjacency: str = "replace"
    histogram: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return all numbers; a SIMULATION."""
        return {
            "version": 1,
            "simulation": True,
            "source": "census rows made here (synthetic)",
            "epsilon": self.epsilon,
            "delta": self.delta,
            "seed": self.seed,
            "mechanism": self.mechanism,
            "answer": self.answer,
            "adjacency": self.adjacency,
            "histogram": self.histogram,
            "plain": self.plain.to_json(),
            "noisy": self.noisy.to_json(),
            "certain": self.certain.to_json(),
            "asked": self.asked.to_json(),
        }


def look(
    epsilon: float,
    mechanism: str = "sum",
    *,
    answer: Answers = "two values",
    adjacency: str = "replace",
    histogram: bool = False,
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
    answer
        What the run learns: one of two values, one of several, or a number.
    adjacency
        ``replace``: it is asked whether a row or its opposite was in the data. ``add-remove``:
        whether it was there or not.
    histogram
        Whether the last round releases a histogram of scores, of two values.
    rounds
        How many it has.
    rows
        How many rows are sought, each in a run of its own; at most 100.
    runs
        How many runs hold the row that is asked about, and as many its opposite, or none.
    seed
        Of rows and noise.
    on_part
        Called with what is done next.
    """
    if answer not in KINDS:
        raise DeclarationError(f"answer is {answer!r}; expected one of {', '.join(KINDS)}")
    data, population = _made(answer, seed)
    given: dict[str, Any] = OF_SEALED if mechanism == "sealed" else {}
    made = mechanism_named(mechanism, **given, **({"histogram": BINS} if histogram else {}))
    sums, kind = made.algorithm == "sum", KINDS[answer]
    losses = {"signs": Logistic(3.0), "classes": Softmax()}
    loss = losses.get(kind) or default_loss(kind, made.algorithm)
    assert loss is not None
    network, unit = Topology.family("ring", NODES), Unit(adjacency=adjacency)
    ring = Setting(topology=network, rounds=rounds, loss=loss, unit=unit)
    silent = replace(ring, silent=True)
    shards = data.shards()
    on_part("calibrating noise")
    alpha = calibrate(lambda scale: planned(shards, made, scale, ring).events, epsilon, DELTA)
    # Algorithm 1; it has no classes, so of those, and of numbers, the same sums in the open
    bare = (mechanism_named("sum"), alpha) if sums and kind != "signs" else (None, None)
    on_part("rows without noise")
    plain = reconstruct(data, population, *bare, rows=rows, setting=silent, seed=seed)
    on_part("rows with the budget")
    noisy = reconstruct(data, population, made, alpha, rows=rows, setting=ring, seed=seed)
    on_part("membership")
    certain = membership(shards, *bare, runs=runs, setting=silent, seed=seed)["neighbour"]
    asked = membership(shards, made, alpha, runs=runs, setting=ring, seed=seed)["neighbour"]
    of = mechanism, answer, adjacency, histogram
    return Look(epsilon, DELTA, plain, noisy, certain, asked, seed, *of)


def _made(answer: Answers, seed: int) -> tuple[Dataset, RawTable]:
    """Rows of all nodes, and rows of other people. Numbers to predict are whole ones in bounds."""
    many: dict[str, Any] = {"classes": CLASSES} if answer == "several values" else {}
    many |= {"target": answer == "a number"}
    data = census(100 * NODES, seed=seed, nodes=NODES, **many)
    population = census(1000, seed=seed + 1, nodes=1, test_rows=0, **many).train
    label = data.schema.label
    if isinstance(label, Target):
        for table in (data.train, population):
            table[label.name] = np.clip(np.round(table[label.name]), label.low, label.high)
    return data, population
