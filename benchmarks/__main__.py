"""All benchmarks, one after the other, and a summary: python -m benchmarks."""

import time

from benchmarks import (
    consensus,
    dask_glm_admm,
    files,
    growth,
    network,
    outputs,
    page,
    penalty,
    private,
    ray_rounds,
    replay,
    storage,
    streamed,
    sums,
    sweep,
)
from benchmarks.measure import arguments, figures_table, perform
from dynadp.errors import DatasetError

ALL = (
    consensus,
    dask_glm_admm,
    sweep,
    private,
    sums,
    files,
    storage,
    penalty,
    outputs,
    network,
    page,
    replay,
    streamed,
    growth,
    ray_rounds,
)


def main() -> None:
    day, start, figures = arguments("Run all benchmarks."), time.perf_counter(), []
    for module in ALL:
        try:
            figures += perform(module.run, day).figures
        except (
            DatasetError
        ) as error:  # Adult is not here and cannot be fetched: the others need none
            print(f"\n## {module.__name__}\n\nleft out: {error}", flush=True)
    print(
        f"\n## All\n\n{figures_table(figures)}\n\n{(time.perf_counter() - start) / 60:.1f} minutes."
    )


if __name__ == "__main__":
    main()
