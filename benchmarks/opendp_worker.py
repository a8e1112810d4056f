"""Run by benchmarks/sums.py with the interpreter that has OpenDP: its discrete Gaussian on vectors.

    python opendp_worker.py SCALE SIZE REPEATS

Prints a line of JSON: seconds of each call, the first left out, and the standard deviation over the
scale of what was drawn. Needs opendp, and nothing of dynadp.
"""

import json
import sys
import time
from statistics import fmean

import opendp.prelude as dp


def main(scale, size, repeats):
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    noise, zeros, seconds = dp.m.make_gaussian(*space, scale=scale), [0] * size, []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        drawn = noise(zeros)
        seconds.append(time.perf_counter() - start)
    spread = fmean((k / scale) ** 2 for k in drawn) ** 0.5
    print(json.dumps({"seconds": seconds[1:], "spread": spread}))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
