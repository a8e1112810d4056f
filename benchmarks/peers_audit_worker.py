"""Run by benchmarks/peers_audit.py with the interpreter that has diffprivlib: many fits of one data
set.

    python peers_audit_worker.py DATA.npz FITS.npy

Writes one row for each fit: the coefficients, and the intercept where one is fitted. Needs
diffprivlib and a scikit-learn that it supports, and nothing of dynadp.
"""

import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression


def main(source, target):
    data = np.load(source)
    warnings.simplefilter("ignore")  # that a fit did not converge
    random = np.random.RandomState(int(data["seed"]))
    settings = {
        "epsilon": float(data["epsilon"]),
        "data_norm": float(data["data_norm"]),
        "C": float(data["C"]),
        "fit_intercept": bool(data["intercept"]),
        "random_state": random,
    }
    fits = []
    for _ in range(int(data["count"])):
        model = LogisticRegression(**settings).fit(data["X"], data["y"])
        fits.append([*model.coef_[0], *(model.intercept_ if settings["fit_intercept"] else ())])
    np.save(target, np.array(fits))


if __name__ == "__main__":
    main(*sys.argv[1:])
