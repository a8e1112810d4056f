"""A fitted estimator as a JSON file (format ``dynadp-estimator``, version 1): parameters, schema,
vectors and their cost.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dynadp._files import read_file, write_whole
from dynadp.data import Schema
from dynadp.errors import RecordError
from dynadp.runs import VERSION

FORMAT = "dynadp-estimator"
_ARRAYS = ("classes_", "coef_", "intercept_", "node_coef_", "node_intercept_")
_FIGURES = ("n_features_in_", "n_iter_", "privacy_")


def write(path: Path, model: Any, parameters: Mapping[str, Any]) -> None:
    """Write what a fitted model knows, and the parameters that JSON can hold; others by their
    names.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "parameters": {
            name: _plain(value) for name, value in parameters.items() if name != "schema"
        },
        "schema": None if model.schema is None else model.schema_.model_dump(mode="json"),
        "features": _plain(getattr(model, "feature_names_in_", None)),
        **{name: _plain(getattr(model, name)) for name in (*_ARRAYS, *_FIGURES)},
    }
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read(path: Path, kind: type[Any]) -> Any:
    """A model of this kind as it was written, its shapes checked."""
    content = read_file(path, FORMAT)
    try:
        schema = None if content["schema"] is None else Schema.model_validate(content["schema"])
        model = kind(**content["parameters"], schema=schema)
        fitted = {name: np.array(content[name]) for name in _ARRAYS} | {
            name: content[name] for name in _FIGURES
        }
        fitted |= {} if schema is None else {"schema_": schema}
        names = content["features"]
        fitted |= {} if names is None else {"feature_names_in_": np.array(names, dtype=object)}
        for name, value in fitted.items():
            setattr(model, name, value)
        rows = 1 if len(model.classes_) == 2 else len(model.classes_)
        width = model.n_features_in_ if schema is None else schema.feature_count
        sound = model.coef_.shape == (rows, width) and model.intercept_.shape == (rows,)
        sound = sound and bool(
            np.isfinite(model.coef_).all() and np.isfinite(model.intercept_).all()
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{path} is damaged: {type(error).__name__} {error}; restore it from a copy"
        ) from error
    if not sound:
        raise RecordError(
            f"{path} is damaged: expected {rows} x {width} finite coefficients; restore it from a "
            f"copy"
        )
    return model


def _plain(value: Any) -> Any:
    """The value where JSON can hold it, else its name."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(cell) for name, cell in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(cell) for cell in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
