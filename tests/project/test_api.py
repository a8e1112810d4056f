"""The public names, pinned; and that they cost nothing until they are used."""

import subprocess
import sys

import pytest

import dynadp

NAMES = [
    "Bins",
    "Cap",
    "Categorical",
    "Classes",
    "Cross",
    "Date",
    "DynadpError",
    "Fourier",
    "Hashed",
    "Label",
    "Ledger",
    "Model",
    "NetworkClassifier",
    "NetworkRegressor",
    "Numeric",
    "Plan",
    "Schema",
    "Target",
    "Topology",
    "Vector",
    "__version__",
    "adult",
    "census",
    "load_model",
    "plan",
    "simulate",
    "train",
]


def test_public_names():
    assert sorted(dynadp.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(dynadp, name) is not None
    assert set(NAMES) <= set(dir(dynadp))
    with pytest.raises(AttributeError, match="attribute magic"):
        _ = dynadp.magic


def fresh(code):
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_importing_the_package_or_the_command_line_is_light():
    names = "numpy scipy sklearn networkx altair duckdb pandas dp_accounting pydantic rich"
    heavy = repr(tuple(names.split()))
    code = f"import sys, dynadp{{}}; print([m for m in {heavy} if m in sys.modules])"
    assert fresh(code.format("")) == "[]\n"
    assert fresh(code.format(", dynadp.cli")) == "[]\n"


def test_a_node_does_without_what_takes_long_to_import():
    heavy = "('networkx', 'scipy.stats', 'scipy.optimize', 'dp_accounting', 'rich', 'wsgiref')"
    code = "import sys; from dynadp import Topology; from dynadp.runs import SiloRun\n"
    made = "Topology.family('ring', 5), Topology.from_edges([('a', 'b')], ['a', 'b'])\n"
    assert fresh(f"{code}{made}print([m for m in {heavy} if m in sys.modules])") == "[]\n"


@pytest.mark.parametrize(
    "module",
    ["planning.planner", "report.record_view", "report.budgets", "runs.local", "engines.node"],
)
def test_who_needs_no_engine_imports_none(module):
    """Rooms are entered by lazy doors, which import-linter does not see through."""
    extras = ("zenoh", "ray", "altair", "sklearn", "mlflow", "cryptography", "click")
    found = f"[m for m in {extras} if m in sys.modules]"
    assert fresh(f"import sys, dynadp.{module}; print({found})") == "[]\n"


def test_the_log_tells_public_numbers_and_is_silent_unless_asked(caplog):
    code = (
        "from dynadp import *; import numpy as np\n"
        "d = census(300, nodes=3); ring = Topology.family('ring', 3)\n"
        "go = lambda: train(d.schema, d.tables(ring.nodes), ring, epsilon=1.0, delta=1e-5)\n"
        "go(); print('asked'); import logging, sys\n"
        "logging.basicConfig(level='INFO', stream=sys.stdout); go()"
    )
    silent, loud = fresh(code).split("asked\n")
    assert silent == ""
    assert "INFO:dynadp:plan: no mechanism was named" in loud
    assert "INFO:dynadp:trained in 20 rounds: epsilon = 0.99" in loud


def test_the_estimator_says_which_extra_it_needs():
    asked = "try: from dynadp import NetworkClassifier\nexcept ImportError as error: print(error)"
    code = f"import sys; sys.modules['sklearn'] = None\n{asked}"
    assert fresh(code) == "NetworkClassifier needs scikit-learn: pip install 'dynadp[sklearn]'\n"
