"""A fitted estimator as a model file (format ``dynadp-model``, see :mod:`dynadp.runs.model`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dynadp.errors import RecordError
from dynadp.problem import Loss
from dynadp.runs import Model

_ARRAYS = ("node_coef_", "node_intercept_")
_FIGURES = ("n_features_in_", "n_iter_")


def to_model(estimator: Any, parameters: Mapping[str, Any]) -> Model:
    """The model of a fitted estimator, with its parameters; what JSON cannot hold by its name."""
    loss = estimator.loss
    described = loss.describe() if isinstance(loss, Loss) else {"name": str(loss)}
    fitted = {
        name: _plain(getattr(estimator, name))
        for name in (*_ARRAYS, *_FIGURES)
        if hasattr(estimator, name)
    }
    return Model(
        classes=tuple(_plain(estimator.classes_)),
        coef=np.asarray(estimator.coef_),
        intercept=np.asarray(estimator.intercept_),
        schema=None if estimator.schema is None else estimator.schema_,
        loss={"margin": parameters["margin"], **described},
        mechanism=_mechanism(estimator),
        privacy=_plain(estimator.privacy_),
        calibration=estimator.calibration_,
        threshold=estimator.threshold_,
        histogram=estimator.histogram_,
        estimator={
            "parameters": {
                name: _plain(value) for name, value in parameters.items() if name != "schema"
            },
            "feature_names_in_": _plain(getattr(estimator, "feature_names_in_", None)),
            **fitted,
        },
    )


def _mechanism(estimator: Any) -> str:
    """The name of the mechanism that was used, the planner's where it chose."""
    given = estimator.mechanism
    used = estimator.privacy_.get("mechanism", getattr(given, "name", given))
    return used or "none"


def from_model(model: Model, kind: type[Any], path: Path) -> Any:
    """An estimator of this kind that answers as the model in this file does.

    The model of a run has no parameters of an estimator, and no vectors of single nodes: these
    stay at their defaults, and unset.
    """
    kept = model.estimator
    if kept is None:
        names = [column.name for column in model.columns.columns]
        mechanism = None if model.mechanism == "none" else model.mechanism
        given = {"mechanism": mechanism, "loss": model.loss.get("name", "logistic")}
        given["margin"] = model.loss.get("margin")
        kept = {
            "parameters": given,
            "feature_names_in_": names,
            "n_features_in_": len(names),
        }
    try:
        estimator = kind(**kept["parameters"], schema=model.schema)
        fitted: dict[str, Any] = {name: np.array(kept[name]) for name in _ARRAYS if name in kept}
        fitted |= {name: kept[name] for name in _FIGURES if name in kept}
        names = kept["feature_names_in_"]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{path} is damaged: {type(error).__name__} {error}; restore it from a copy"
        ) from error
    fitted |= {
        "classes_": np.array(model.classes),
        "coef_": model.coef,
        "intercept_": model.intercept,
        "privacy_": dict(model.privacy),
        "calibration_": model.calibration,
        "threshold_": model.threshold,
        "histogram_": model.histogram,
    }
    if model.schema is not None:
        fitted["schema_"] = model.schema
    if names is not None:
        fitted["feature_names_in_"] = np.array(names, dtype=object)
    for name, value in fitted.items():
        setattr(estimator, name, value)
    return estimator


def _plain(value: Any) -> Any:
    """Return the value where JSON can hold it, else its name."""
    return json.loads(json.dumps(value, default=_listed_or_named))


def _listed_or_named(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
