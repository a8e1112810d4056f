"""Run by benchmarks/budget.py with the interpreter that has diffprivlib: logistic regression on all
rows in one place.

    python diffprivlib_worker.py ROWS.npz

Prints a line of JSON: for each total the median test error over draws, with the C that is best on
the test rows. Needs diffprivlib and a scikit-learn that it supports, and nothing of dynadp.
"""

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression

GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def main(path):
    data = np.load(path)
    warnings.simplefilter("ignore")  # that it did not converge

    def error(epsilon, C, draws):
        errors = []
        for seed in range(draws):
            model = LogisticRegression(
                epsilon=float(epsilon), data_norm=1.0, C=C, random_state=seed, max_iter=200
            )
            model.fit(data["X"], data["y"])
            errors.append(np.mean(model.predict(data["test_X"]) != data["test_y"]))
        return np.median(errors)

    result = []
    for epsilon in data["totals"]:
        best = min(GRID, key=lambda C: error(epsilon, C, 3))
        result.append(float(error(epsilon, best, int(data["draws"]))))
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
