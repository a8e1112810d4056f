"""Seeded results that must not change unnoticed. Remake on purpose with: PYTHONPATH=tests python
tests/project/test_golden.py
"""

import json
from pathlib import Path

import numpy as np
import pytest

from dynadp import Plan, Topology, census, simulate, train
from dynadp.consensus.acceleration import Acceleration
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from support import flat_simulate

GOLDEN = Path(__file__).parents[1] / "golden" / "runs.json"
DATA, RING = census(900, seed=11, nodes=3, heterogeneity=0.5), Topology.family("ring", 3)
TABLES = DATA.tables(RING.nodes)


def planned(mechanism):
    trained = train(
        DATA.schema,
        TABLES,
        RING,
        epsilon=2.0,
        delta=1e-5,
        mechanism=mechanism,
        draws=SeededEntropy(7),
    )
    return {
        "epsilon": trained.total.epsilon,
        "alpha": trained.plan.alpha,
        "V": trained.run.V[:, 0, :6].tolist(),
    }


def given(mechanism):
    common = {"rho": 1e-3, "eta": 0.02, "rounds": 5, "schedule": 0.5, "draws": SeededEntropy(7)}
    return {
        "V": flat_simulate(DATA.shards(), RING, mechanism=mechanism, **common).V[:, 0, :6].tolist()
    }


def exact():
    end = simulate(
        DATA.shards(), RING, Plan.of(rho=1e-3, rounds=500), acceleration=Acceleration(distance=1e-8)
    )
    return {"V": end.V[:, 0, :6].tolist()}


RUNS = {
    "planned primal": lambda: planned("primal"),
    "planned dual": lambda: planned("dual"),
    "primal as printed": lambda: given(Primal(augment="iterate")),
    "dual with the paper's split": lambda: given(Dual(split="paper")),
    "no privacy": exact,
}


@pytest.mark.parametrize("name", RUNS)
def test_seeded_results_stay(name):
    expected, found = json.loads(GOLDEN.read_text())[name], RUNS[name]()
    assert set(found) == set(expected)
    for key, value in found.items():
        # messages lie on a grid, so they agree to the bit; without a mechanism they are certified
        # to 1e-8
        tolerance = 1e-7 if name == "no privacy" else 1e-9
        np.testing.assert_allclose(value, expected[key], rtol=tolerance, atol=tolerance)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: run() for name, run in RUNS.items()}, indent=1) + "\n")
