"""Differentially private machine learning over a network: consensus ADMM among nodes that keep their rows.

What is listed here is the public interface; each name is imported when it is first used.
"""

from importlib import import_module
from logging import NullHandler, getLogger
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from dynadp.columns import Categorical, Numeric
    from dynadp.data import Label, Schema, Shard
    from dynadp.datasets import Dataset, adult, adult_schema, census, partition
    from dynadp.errors import DynadpError
    from dynadp.estimators import NetworkClassifier
    from dynadp.jobs import Job
    from dynadp.losses import HuberHinge, Logistic, Loss, SmoothedHinge
    from dynadp.noise import Keyed, System
    from dynadp.perturbation import Dual, NoPerturbation, Perturbation, Primal
    from dynadp.planner import Plan, plan
    from dynadp.privacy.accountant import Total, network, person, totals
    from dynadp.privacy.accountant import total as account
    from dynadp.privacy.calibration import affordable_rounds, calibrate
    from dynadp.privacy.events import DualPerturbation, L2Laplace
    from dynadp.privacy.filter import Cap
    from dynadp.privacy.ledger import Ledger
    from dynadp.privacy.schedule import Schedule
    from dynadp.record import Model, load_model
    from dynadp.regularizers import Regularizer, SmoothElasticNet, SquaredL2
    from dynadp.runtime.acceleration import Acceleration
    from dynadp.runtime.books import Books
    from dynadp.runtime.simulation import Run, simulate
    from dynadp.topology import Topology
    from dynadp.training import Trained, train

_HOME = {
    "columns": ("Categorical", "Numeric"),
    "data": ("Label", "Schema", "Shard"),
    "datasets": ("Dataset", "adult", "adult_schema", "census", "partition"),
    "errors": ("DynadpError",),
    "estimators": ("NetworkClassifier",),
    "jobs": ("Job",),
    "losses": ("HuberHinge", "Logistic", "Loss", "SmoothedHinge"),
    "noise": ("Keyed", "System"),
    "perturbation": ("Dual", "NoPerturbation", "Perturbation", "Primal"),
    "planner": ("Plan", "plan"),
    "privacy.accountant": ("Total", "network", "person", "totals"),
    "privacy.calibration": ("affordable_rounds", "calibrate"),
    "privacy.events": ("DualPerturbation", "L2Laplace"),
    "privacy.filter": ("Cap",),
    "privacy.ledger": ("Ledger",),
    "privacy.schedule": ("Schedule",),
    "record": ("Model", "load_model"),
    "regularizers": ("Regularizer", "SmoothElasticNet", "SquaredL2"),
    "runtime.acceleration": ("Acceleration",),
    "runtime.books": ("Books",),
    "runtime.simulation": ("Run", "simulate"),
    "topology": ("Topology",),
    "training": ("Trained", "train"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names} | {"account": "privacy.accountant"}

__all__ = [*sorted(_MODULE), "__version__"]

getLogger("dynadp").addHandler(NullHandler())  # silent, unless a program asks for it


def __getattr__(name: str) -> Any:
    if name == "__version__":  # reading it takes longer than all the rest
        return import_module("importlib.metadata").version("dynadp")
    if name not in _MODULE:
        raise AttributeError(f"module 'dynadp' has no attribute {name!r}")
    try:
        found = getattr(import_module(f"dynadp.{_MODULE[name]}"), "total" if name == "account" else name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ModuleNotFoundError(f"{name} needs scikit-learn: pip install 'dynadp[sklearn]'", name=error.name) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
