"""A fitted estimator as a model file (format ``dynadp-model``, see :mod:`dynadp.runs.model`)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import Spread
from dynadp.data import Schema, Target
from dynadp.errors import RecordError
from dynadp.estimators.choices import TargetChoices
from dynadp.problem import Loss, Softmax
from dynadp.runs import Model, ModelNoise

_ARRAYS = ("node_coef_", "node_intercept_")
_FIGURES = ("n_features_in_", "n_iter_")


def to_model(estimator: Any, parameters: Mapping[str, Any]) -> Model:
    """The model of a fitted estimator, with its parameters; what JSON cannot hold by its name."""
    loss, target = estimator.loss, getattr(estimator, "target_", None)
    described = loss.describe() if isinstance(loss, Loss) else {"name": str(loss)}
    described = {"margin": parameters.get("margin"), **described}
    coef, intercept = np.asarray(estimator.coef_), np.asarray(estimator.intercept_)
    if target is not None:
        described = estimator.loss_.describe()
        coef, intercept = scaled(estimator, target)
    elif len(estimator.classes_) > 2 and estimator.privacy_.get("problems") == 1:
        described["name"] = Softmax.name  # which a logistic loss stood for
    fitted = {
        name: _plain(getattr(estimator, name))
        for name in (*_ARRAYS, *_FIGURES)
        if hasattr(estimator, name)
    }
    return Model(
        classes=() if target is not None else tuple(_plain(estimator.classes_)),
        coef=coef,
        intercept=intercept,
        schema=None if estimator.schema is None else estimator.schema_,
        loss=described,
        mechanism=_mechanism(estimator),
        privacy=_plain(estimator.privacy_),
        noise=noise_of(estimator),
        calibration=getattr(estimator, "calibration_", None),
        threshold=getattr(estimator, "threshold_", 0.0),
        histogram=getattr(estimator, "histogram_", None),
        estimator={
            "parameters": {
                name: _plain(value) for name, value in parameters.items() if name != "schema"
            },
            "feature_names_in_": _plain(getattr(estimator, "feature_names_in_", None)),
            **fitted,
            **_counted(estimator),
        },
        target=target,
    )


def noise_in(
    spreads: Sequence[Spread | None], vectors: int, units: Any, *, intercept: bool
) -> ModelNoise | None:
    """Return the standard errors of all vectors, in these units; None where one is not known."""
    known = [part for spread in spreads if spread for part in spread.parts(vectors // len(spreads))]
    return ModelNoise.of(known, intercept, units) if len(known) == vectors else None


def set_noise(estimator: Any, noise: ModelNoise | None) -> None:
    """Set ``coef_se_`` and ``intercept_se_``, as ``coef_`` and ``intercept_``, from those of a
    model; None where they are not known.
    """
    coef: Any = None
    intercept: Any = None
    if noise is not None:
        coef, intercept = noise.coef_se, noise.intercept_se
        if (target := getattr(estimator, "target_", None)) is not None:
            coef, intercept = target.half * coef[0], float(target.half * intercept[0])
    estimator.coef_se_, estimator.intercept_se_ = coef, intercept
    estimator.noise_basis_ = None if noise is None else noise.basis


def noise_of(estimator: Any) -> ModelNoise | None:
    """Return what :func:`set_noise` set."""
    if getattr(estimator, "coef_se_", None) is None:
        return None
    coef, intercept = estimator.coef_se_, estimator.intercept_se_
    if (target := getattr(estimator, "target_", None)) is not None:
        coef, intercept = coef[None] / target.half, np.array([intercept]) / target.half
    return ModelNoise(coef, intercept, estimator.noise_basis_)


def _counted(estimator: Any) -> dict[str, Any]:
    """The schema of the rows whose scores were counted, where features are numbers."""
    schema = getattr(estimator, "counted_", None)
    return {} if schema is None else {"counted": schema.model_dump(mode="json")}


def scaled(estimator: Any, target: Target) -> tuple[Array, Array]:
    """The coefficients of an estimator that answers a number, 1 x d and 1, on the scale of t.

    Without a schema the middle of the target is in its intercept; with one it is not, since the
    intercept is that of a column.
    """
    middle, half = target.middle if estimator.schema is None else 0.0, target.half
    coef, intercept = np.asarray(estimator.coef_), np.atleast_1d(estimator.intercept_)
    return coef[None] / half, (intercept - middle) / half


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
        names = list(model.columns.raw_columns[:-1])
        mechanism = None if model.mechanism == "none" else model.mechanism
        given = {"mechanism": mechanism, "loss": model.loss.get("name", "logistic")}
        shape = "margin" if model.target is None else "width"
        given[shape] = model.loss.get(shape)
        kept = {
            "parameters": given,
            "feature_names_in_": names,
            "n_features_in_": len(names),
        }
    if (model.target is not None) != issubclass(kind._choices, TargetChoices):
        other = "NetworkClassifier" if model.target is None else "NetworkRegressor"
        raise RecordError(f"{path} answers with something else; load it with {other}.load")
    try:
        estimator = kind(**kept["parameters"], schema=model.schema)
        fitted: dict[str, Any] = {name: np.array(kept[name]) for name in _ARRAYS if name in kept}
        fitted |= {name: kept[name] for name in _FIGURES if name in kept}
        names = kept["feature_names_in_"]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{path} is damaged: {type(error).__name__} {error}; restore it from a copy"
        ) from error
    fitted |= {"privacy_": dict(model.privacy)} | _answering(model)
    counted = kept.get("counted")
    fitted["counted_"] = None if counted is None else Schema.model_validate(counted)
    if model.schema is not None:
        fitted["schema_"] = model.schema
    if names is not None:
        fitted["feature_names_in_"] = np.array(names, dtype=object)
    for name, value in fitted.items():
        setattr(estimator, name, value)
    set_noise(estimator, model.noise)
    return estimator


def _answering(model: Model) -> dict[str, Any]:
    """What an estimator answers with."""
    if (target := model.target) is None:
        classes = np.array(model.classes)
        return {
            "classes_": classes,
            "coef_": model.coef,
            "intercept_": model.intercept,
            "calibration_": model.calibration,
            "threshold_": model.threshold,
            "histogram_": model.histogram,
        }
    middle = target.middle if model.schema is None else 0.0
    return {
        "target_": target,
        "loss_": Loss.from_description(model.loss),
        "coef_": target.half * model.coef[0],
        "intercept_": middle + target.half * float(model.intercept[0]),
    }


def _plain(value: Any) -> Any:
    """Return the value where JSON can hold it, else its name."""
    return json.loads(json.dumps(value, default=_listed_or_named))


def _listed_or_named(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
