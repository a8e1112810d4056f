"""Seven classes in one release against one problem for each: python -m benchmarks.classes.

Census rows of seven balanced classes, 10,000 rows over five nodes, seeds 11 to 15; epsilon = 3 at
delta = 1e-5, several draws of the noise; test accuracy in percent. One against the rest is the path
of 0.1.0: ``NetworkClassifier`` with primal perturbation, whose total K problems share.

``--losses`` compares losses of sums over several signals N: slopes that are shortened or not,
margins, and one logistic slope a class, whose length is bounded by sqrt(classes) alone.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.engines.simulation import simulate
from dynadp.estimators import NetworkClassifier
from dynadp.mechanisms.entropy import BatchedDraws, entropy_for
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.parts import Consortium
from dynadp.planning.planner import plan
from dynadp.planning.plans import Plan
from dynadp.planning.sums import SumConstants
from dynadp.problem.losses import Logistic
from dynadp.problem.softmax import Softmax
from dynadp.runs.training import train

CLASSES, ROWS, NODES, EPSILON, DELTA = 7, 10_000, 5, 3.0, 1e-5
SEEDS, DRAWS, HONEST = range(11, 16), 3, 3
RING = Topology.family("ring", NODES)


@dataclass(frozen=True)
class OneAgainstRest(Softmax):
    """sigma_j = s_j L'(s_j f_j), s_j = 1 for the row's class and -1 for others: no longer than the
    root of the number of classes. It has its place here alone.
    """

    margin: float = 3.0
    longest: float = 1.0
    classes: int = CLASSES
    name: ClassVar[str] = "one_against_rest"

    @property
    def slope_bound(self) -> float:
        """sqrt(classes)."""
        return sqrt(self.classes)

    def slopes(self, F: Array, y: Array) -> Array:
        """One logistic slope a class."""
        sign = np.where(np.arange(F.shape[-1]) == y[:, None], 1.0, -1.0)[:, None, :]
        return np.asarray(sign * Logistic(self.margin).slope(sign * F))


def shown(found: Sequence[float]) -> str:
    """Mean in percent, and its standard error."""
    spread = np.std(found, ddof=1) / sqrt(len(found))
    return f"{100 * np.mean(found):.2f} ({100 * spread:.2f})"


def trained(data: Dataset, mechanism: Sum, seed: int) -> float:
    """Accuracy of one model of all classes."""
    made = train(
        data.schema,
        data.tables(RING.nodes),
        RING,
        epsilon=EPSILON,
        delta=DELTA,
        mechanism=mechanism,
        draws=entropy_for(seed),
    )
    return float(np.mean(made.model().predict(data.test) == data.test["group"]))


def separately(data: Dataset, seed: int, **how: Any) -> float:
    """Accuracy of one problem for each class, each against the rest."""
    y = data.train["group"]
    X = {name: cells for name, cells in data.train.items() if name != "group"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = NetworkClassifier(
            delta=DELTA if "epsilon" in how else None,
            topology=RING,
            schema=data.schema,
            random_state=seed,
            **how,
        ).fit(X, y, nodes=np.array(RING.nodes)[data.node])
    return float(model.score(data.test, data.test["group"]))


WAYS: dict[str, Callable[[Dataset, int], float]] = {
    "one against the rest, primal (0.1.0)": lambda data, seed: separately(
        data, seed, epsilon=EPSILON, mechanism="primal"
    ),
    "softmax, sums in the open": lambda data, seed: trained(data, Sum(), seed),
    f"softmax, sealed, {HONEST} of {NODES} honest": lambda data, seed: trained(
        data, Sealed(honest=HONEST), seed
    ),
    f"softmax, sealed, {NODES - 1} of {NODES} honest": lambda data, seed: trained(
        data, Sealed(honest=NODES - 1), seed
    ),
}


def main() -> None:
    sets = {seed: census(ROWS, seed=seed, nodes=NODES, classes=CLASSES) for seed in SEEDS}
    for name, way in WAYS.items():
        found = [way(data, 100 * seed + k) for seed, data in sets.items() for k in range(DRAWS)]
        print(f"{name}: {shown(found)}", flush=True)
    none = [separately(data, 0, mechanism=None, C=300.0) for data in sets.values()]
    print(f"one against the rest without privacy: {shown(none)}")
    best = []
    for data in sets.values():
        plain = data.schema.model_copy(update={"norm": 1.0, "scaling": "none"})
        answers = np.asarray(plain.rows(data.test) @ data.truth.T).argmax(axis=1)
        best.append(float(np.mean(answers == data.schema.labels(data.test))))
    print(f"the truth: {shown(best)}")


def losses() -> None:
    """Test accuracy by loss and N, one node, without a second moment."""
    one = Topology.family("ring", 1)
    named = {
        "softmax, margin 0, as long as it is": Softmax(0.0, sqrt(2.0)),
        "softmax, margin 3, as long as it is": Softmax(3.0, sqrt(2.0)),
        "softmax, margin 0, shortened to 1": Softmax(0.0),
        "softmax, margin 2, shortened to 1": Softmax(2.0),
        "softmax, margin 3, shortened to 1": Softmax(3.0),
        "one slope a class, margin 3": OneAgainstRest(),
    }
    for rows, epsilon in ((10_000, 0.2), (10_000, 1.0), (10_000, 3.0)):
        for name, loss in named.items():
            found = []
            for seed in SEEDS:
                data = census(rows, seed=seed, nodes=1, classes=CLASSES)
                d = data.schema.dimension
                made = plan(
                    [rows],
                    one,
                    d,
                    epsilon=epsilon,
                    delta=DELTA,
                    mechanism=Sum(False),
                    centring=False,
                    constants=SumConstants.of(CLASSES),
                    classes=CLASSES,
                )
                how = {"loss": loss, "rounds": made.rounds, "mechanism": Sum(False)}
                own = Plan.of(**how, schedule=made.protection.schedule, pull=None, momentum=0.5).on(
                    Consortium(one, (rows,), d, classes=CLASSES)
                )
                features = np.asarray(data.schema.only_features().rows(data.train).toarray())
                centre = tuple(features.mean(axis=0))
                schema = data.schema.model_copy(update={"centre": centre})
                run = simulate(
                    [schema.shard(data.train)], one, own, draws=BatchedDraws(seed), replicas=8
                )
                F = run.models()[0].reshape(8, CLASSES, d)
                X, y = schema.rows(data.test), schema.labels(data.test)
                found += [float(np.mean((X @ f.T).argmax(axis=1) == y)) for f in F]
            print(f"epsilon = {epsilon}: {name}: {shown(found)}", flush=True)


if __name__ == "__main__":
    losses() if "--losses" in sys.argv[1:] else main()
