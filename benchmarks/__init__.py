"""Speed and growth, each figure a ratio measured side by side in one run; ``python -m benchmarks``
runs all of them.

Benchmarks are the modules with a function ``run``: consensus, dask_glm_admm, sweep, storage,
penalty and growth. Each prints its figures beside their targets and writes ``results/NAME.json``.
The others serve them: measure (clock, tables), machine, pooled (reference optimum), census_runs,
growth_chart, budget_chart, and the scripts that run in a process of their own (``*_worker.py``).

Adult is looked for as :func:`dynadp.data.datasets.uci.adult` says: set ``DYNADP_DATA``. Every
contestant runs with the better of one BLAS thread and all cores. Where other work keeps the cores
busy, BLAS threads that wait for each other can cost a hundredfold; then set
``DYNADP_BENCH_THREADS=1`` (dynadp's own worker threads are not touched by it). Nothing here fails
on a slow machine: figures stand beside their targets and the reader judges.
"""
