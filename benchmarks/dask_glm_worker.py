"""Run by benchmarks/dask_glm_admm.py with the interpreter that has dask-glm: ADMM over row blocks,
timed.

    python dask_glm_worker.py ROWS.npz curve SCHEDULER PENALTY SECONDS    gap after each iteration,
    until 1e-6 or time is up python dask_glm_worker.py ROWS.npz clock SCHEDULER PENALTY ITERATIONS
    one warm run of exactly so many, timed

Prints one line of JSON. Needs dask-glm and nothing of dynadp.
"""

import contextlib
import json
import sys
import time

import dask
import dask.array as da
import numpy as np
from dask_glm.algorithms import admm
from dask_glm.regularizers import L2


class Watched(L2):
    """The squared norm, whose proximal step (one an iteration, of 106 numbers) looks at the gap and
    at the clock.
    """

    def __init__(self, gap, target, seconds):
        self.gap, self.target, self.seconds, self.own, self.curve = gap, target, seconds, 0.0, []
        self.start = time.perf_counter()

    def proximal_operator(self, beta, t):
        """z, after noting the time and the gap."""
        z = super().proximal_operator(beta, t)
        now = time.perf_counter()
        self.curve.append((now - self.start - self.own, self.gap(z)))
        self.own += time.perf_counter() - now  # looking is not counted
        if self.curve[-1][1] <= self.target or now - self.start > self.seconds:
            raise StopIteration
        return z


def main(path, mode, scheduler, penalty, amount):
    data = np.load(path)
    X, y, least, ridge = data["X"], data["y"], float(data["least"]), float(data["ridge"])
    blocks = tuple(int(n) for n in data["blocks"])
    signed = X * (2 * y - 1)[:, None]

    def gap(z):
        return float((np.logaddexp(0, -(signed @ z)).sum() + 0.5 * ridge * z @ z - least) / least)

    def solve(regularizer, iterations):
        # lamduh multiplies ||z||^2/2 next to the sum of the row losses; no tolerance ends the run
        # early; no standardising.
        settings = {
            "lamduh": ridge,
            "rho": penalty,
            "abstol": 0.0,
            "reltol": 0.0,
            "normalize": False,
        }
        return admm(dX, dy, regularizer=regularizer, max_iter=iterations, **settings)

    dask.config.set(scheduler=scheduler)
    dX, dy = da.from_array(X, chunks=(blocks, X.shape[1])), da.from_array(y, chunks=(blocks,))
    solve("l2", 1)
    if mode == "curve":
        watched = Watched(gap, float(data["target"]), amount)
        with contextlib.suppress(StopIteration):
            solve(watched, 10_000)
        print(json.dumps({"curve": watched.curve}))
    else:
        start = time.perf_counter()
        z = solve("l2", int(amount))
        print(json.dumps({"seconds": time.perf_counter() - start, "gap": gap(z)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
