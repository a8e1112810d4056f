"""Few positive rows: 20 alike branches with sealed sums, beside pooled rows and a branch alone.

``python -m benchmarks.imbalance`` prints a table: census rows of which 12 in 100 are positive, five
seeds, and the mean of five draws of the noise for each. All models answer with the threshold of
largest balanced accuracy, found the same way: from probabilities that are calibrated on training
rows, exactly where nothing is private, and from the histogram that the last round released
otherwise.
"""

from collections.abc import Sequence

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from dynadp import Topology, census, train
from dynadp.data import Dataset
from dynadp.mechanisms import Mechanism, Sealed, SeededEntropy, Sum
from dynadp.runs import BALANCED, calibrated, threshold_at, threshold_for

SEEDS, DRAWS, NODES, ROWS, POSITIVES = range(11, 16), 5, 20, 45_000, 0.12
EPSILON, DELTA, HONEST = 1.0, 1e-6, 13
RIDGES = (0.1, 1.0, 10.0)  # scikit-learn's C of models without privacy; the best on test rows


def without_privacy(data: Dataset, rows: slice | np.ndarray) -> tuple[float, float]:
    """AUC and balanced accuracy of logistic regression on some of the training rows, of the best
    ridge: what is compared with is not made small.
    """
    plain = data.schema.model_copy(update={"norm": 1.0, "scaling": "none"})
    X, test = plain.rows(data.train)[rows], plain.rows(data.test)
    y, truth = (plain.labels(table) > 0 for table in (data.train, data.test))
    y, found = y[rows], []
    for ridge in RIDGES:
        model = LogisticRegression(C=ridge, max_iter=5000).fit(X, y)
        scores = model.decision_function(test)
        known = calibrated(model.decision_function(X), ~y * 1.0, y * 1.0, "training rows")
        yes = scores > threshold_at(known, BALANCED)
        found.append((roc_auc_score(truth, scores), balanced_accuracy_score(truth, yes)))
    return tuple(map(max, zip(*found, strict=True)))  # type: ignore[return-value]


def private(
    data: Dataset, mechanism: Mechanism, seed: int, calibration: bool = True, **more: object
) -> tuple[float, float]:
    """The same of one private run; balanced accuracy with the threshold that its histogram gives,
    NaN without one.
    """
    ring = Topology.family("ring", NODES)
    given = {"epsilon": EPSILON, "delta": DELTA, "mechanism": mechanism, **more}
    draws = SeededEntropy(seed)
    model = train(
        data.schema,
        data.tables(ring.nodes),
        ring,
        calibration=calibration,
        draws=draws,
        **given,  # type: ignore[arg-type]
    ).model()
    scores, truth = model.decision(data.test), data.schema.labels(data.test) > 0
    auc = roc_auc_score(truth, scores)
    if not model.gives_probabilities:
        return auc, float("nan")
    yes = scores > threshold_for(model, BALANCED)
    return auc, balanced_accuracy_score(truth, yes)


WAYS: dict[str, dict[str, object]] = {
    "sealed": {"mechanism": Sealed(honest=HONEST)},
    "sealed, without the histogram": {"mechanism": Sealed(honest=HONEST), "calibration": False},
    "sealed, balanced class weights": {
        "mechanism": Sealed(honest=HONEST),
        "class_weight": "balanced",
        "positives": POSITIVES,
    },
    "sums in the open": {"mechanism": Sum()},
}


def main(seeds: Sequence[int] = SEEDS, draws: int = DRAWS) -> dict[str, np.ndarray]:
    """Print the table; return AUC and balanced accuracy of each way and seed."""
    found: dict[str, list[np.ndarray]] = {}
    for seed in seeds:
        data = census(rows=ROWS, nodes=NODES, heterogeneity=0, positives=POSITIVES, seed=seed)
        results = {
            "pooled rows, no privacy": without_privacy(data, slice(None)),
            "a branch alone, no privacy": without_privacy(data, data.node == 0),
        }
        for way, how in WAYS.items():
            each = [private(data, seed=k, **how) for k in range(draws)]  # type: ignore[arg-type]
            results[way] = tuple(np.mean(each, axis=0))
        for way, numbers in results.items():
            found.setdefault(way, []).append(np.array(numbers))
    print("| | AUC, by seed | mean | balanced accuracy, by seed | mean |")
    print("|---|---|---|---|---|")
    for way, each in found.items():
        columns = []
        for values in np.array(each).T:
            columns.append(" ".join(f"{v:.4f}" for v in values))
            columns.append(f"{values.mean():.4f}")
        print("| " + " | ".join([way, *columns]) + " |", flush=True)
    return {way: np.array(each) for way, each in found.items()}


if __name__ == "__main__":
    main()
