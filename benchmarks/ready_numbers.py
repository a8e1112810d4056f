"""Features given as numbers: what a bound on each row, a private centre, and bounds for each column
are worth, beside the schema with the same bounds.

    python -m benchmarks.ready_numbers

Made rows of seven numbers of unlike scale, heavy tails on both sides among them, 12 in 100 of them
positive. All fits are of one total, over five alike nodes; AUC on 20,000 rows, mean of the draws.
"""

import argparse

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dynadp import Label, NetworkClassifier, Numeric, Schema

NAMES = ("age", "balance", "seconds", "calls", "days", "before", "rate")
LOW = np.array([18.0, -10_000.0, 0.0, 1.0, -1.0, 0.0, 0.0])
HIGH = np.array([100.0, 50_000.0, 3_000.0, 30.0, 1_000.0, 20.0, 6.0])


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows and labels."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.gamma(16, 2.6, count), 18, 95)
    rich = rng.normal(size=count)
    seconds, calls = rng.exponential(260, count), 1 + rng.geometric(0.4, count)
    days = np.where(rng.random(count) < 0.8, -1, rng.integers(1, 400, count))
    before = np.where(days > 0, 1 + rng.poisson(2, count), 0)
    rate = rng.choice([0.7, 1.2, 4.1, 4.9], count) + rng.normal(0, 0.05, count)
    score = -2.6 + 1.08 * (np.log1p(seconds) - 5.1) + 0.12 * rich - 0.12 * (calls - 2)
    score += 0.35 * before - 0.35 * (rate - 3) + 0.01 * (age - 41)
    X = np.column_stack([age, np.sinh(1.5 * rich) * 900 + 400, seconds, calls, days, before, rate])
    return X, (rng.random(count) < expit(score)).astype(int)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args()
    (X, y), (test, truth) = rows(20_000, 0), rows(20_000, 1)
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    print(f"{'pooled, no privacy':44}{roc_auc_score(truth, plain.decision_function(test)):.3f}")
    unit, test_unit = ((part - LOW) / (HIGH - LOW) for part in (X, test))
    label = Label(name="y", negative=0, positive=1)

    def columns(**more: object) -> Schema:
        triples = zip(NAMES, LOW, HIGH, strict=True)
        made = [Numeric(name=name, low=low, high=high) for name, low, high in triples]
        if more:
            made[1:3] = [
                Numeric(name="balance", low=-1e4, high=5e4, transform="signed_log"),
                Numeric(name="seconds", low=0, high=3000, transform="log1p"),
            ]
        return Schema(columns=made, label=label)

    table, test_table = ({n: p[:, j] for j, n in enumerate(NAMES)} for p in (X, test))
    root = 7**0.5
    ways = (
        ("data_norm, raw, nothing centred", X, test, {"data_norm": 6e4, "centre": None}),
        ("data_norm, raw", X, test, {"data_norm": 6e4}),
        (
            "data_norm, in [0, 1], nothing centred",
            unit,
            test_unit,
            {"data_norm": root, "centre": None},
        ),
        ("data_norm, in [0, 1]", unit, test_unit, {"data_norm": root}),
        ("bounds, nothing centred", X, test, {"bounds": (LOW, HIGH), "centre": None}),
        ("bounds", X, test, {"bounds": (LOW, HIGH)}),
        ("schema with these bounds", table, test_table, {"schema": columns()}),
        ("schema, heavy tails on log scales", table, test_table, {"schema": columns(logs=True)}),
    )
    for words, part, other, how in ways:
        bounded = how if "schema" in how else {**how, "classes": [0, 1]}
        found = [
            roc_auc_score(
                truth,
                NetworkClassifier(epsilon=given.epsilon, delta=1e-6, random_state=seed, **bounded)
                .fit(part, y)
                .decision_function(other),
            )
            for seed in range(given.draws)
        ]
        print(f"{words:44}{np.mean(found):.3f} +- {np.std(found, ddof=1):.3f}", flush=True)


if __name__ == "__main__":
    main()
