"""model.json, version 2: a linear classifier with its schema, however it was trained.

One format for runs and estimators. ``coef`` holds one vector for two classes, and one for each of
more. Models of version 1 (``dynadp-model``, ``dynadp-estimator``) are read too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dynadp._arrays import Array, row_products
from dynadp._files import read_file, write_whole
from dynadp.consensus import Spread
from dynadp.data import Label, Schema, Table, Target, Value
from dynadp.errors import DataError, RecordError
from dynadp.mechanisms import NoisyHistogram
from dynadp.planning import Plan
from dynadp.problem import Softmax
from dynadp.problem import probabilities as softmax
from dynadp.runs.calibration import Calibration, calibration_of
from dynadp.runs.coefficients import Coefficient, ModelNoise, coefficients_of

FORMAT, VERSION = "dynadp-model", 2
OLD_ESTIMATOR = "dynadp-estimator"
EXACT: Mapping[str, Any] = {  # the guarantee of Algorithm 1
    "protected": False,
    "statement": "Algorithm 1 sends exact vectors: nothing is protected.",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """Scores F x, and the class of the largest: of two classes the second where its score is above
    0. Of a target the number that the score stands for, within its public bounds.

    Attributes
    ----------
    classes
        Label values; of two, the negative one first, but sorted where an estimator was saved. None
        where a number is answered.
    coef
        One coefficient for each feature, without the intercept: 1 x features, or classes x
        features.
    intercept
        Coefficient of the schema's intercept column, 0 where it has none; without a schema, what
        is added to the score. One for each vector.
    schema
        How raw rows become bounded ones; None for a model of ready features.
    loss, mechanism, privacy
        How it was trained and what that cost, as in the run's record.
    calibration
        How scores become probabilities; None where nobody found out.
    estimator
        What only :class:`~dynadp.estimators.classifier.NetworkClassifier` needs; None in a run.
    threshold
        Of two classes: scores above it are answered with the second.
    histogram
        What the run released of the model's scores, over all nodes; None without such a round.
    partial
        Of a run that was stopped early: the rounds that it is made of, how many were planned, and
        whose messages; None for a whole run.
    members
        The nodes that were there in the end, where some stayed away; empty for all.
    noise
        How far the noise for privacy may have moved ``coef`` and ``intercept``; None where that is
        not known, or where there was none.
    target
        The number that is answered, with its public bounds; None where classes are.
    """

    classes: tuple[Value, ...]
    coef: Array = field(repr=False)
    intercept: Array
    schema: Schema | None = field(repr=False)
    loss: Mapping[str, Any]
    mechanism: str
    privacy: Mapping[str, Any] = field(repr=False)
    calibration: Calibration | None = None
    estimator: Mapping[str, Any] | None = field(default=None, repr=False)
    partial: Mapping[str, Any] | None = None
    members: tuple[str, ...] = ()
    noise: ModelNoise | None = field(default=None, repr=False)
    threshold: float = 0.0
    histogram: NoisyHistogram | None = field(default=None, repr=False)
    target: Target | None = None

    @classmethod
    def of(
        cls,
        f: Array,
        schema: Schema,
        plan: Plan,
        *,
        seeded: bool = False,
        members: tuple[str, ...] = (),
        spread: Spread | None = None,
        histogram: NoisyHistogram | None = None,
    ) -> "Model":
        """Return the model of a released vector, after the whole plan was carried out.

        Parameters
        ----------
        f
            d numbers, the intercept last; of several classes one after the other.
        schema
            With the private centre, where there was a centring round.
        plan
            Bound to its consortium.
        seeded
            Whether noise came from a seed: then nobody is protected.
        members
            The nodes that were there in the end; empty for all.
        spread
            Of f over the noise; None where it is not known.
        histogram
            What the last round released of scores: probabilities follow from it, unless noise
            drowns the rows of a label.
        """
        privacy = EXACT
        if plan.protection:
            total = replace(plan.total, protected=plan.total.protected and not seeded)
            privacy = {**total.to_json(), "statement": total.guarantee}
        F = f.reshape(-1, schema.dimension)
        coef, intercept = (F[:, :-1], F[:, -1]) if schema.intercept else (F, np.zeros(len(F)))
        return cls(
            classes=schema.label.classes,
            coef=np.array(coef),
            intercept=np.array(intercept, dtype=float),
            schema=schema,
            loss=plan.settings.loss.describe(),
            mechanism=plan.mechanism.name,
            privacy=privacy,
            members=members,
            noise=None
            if spread is None
            else ModelNoise.of(spread.parts(len(F)), bool(schema.intercept)),
            histogram=histogram,
            calibration=None if histogram is None else calibration_of(histogram),
            target=schema.label if isinstance(schema.label, Target) else None,
        )

    @property
    def columns(self) -> Schema:
        """The schema.

        Raises
        ------
        DataError
            If the model was fitted on ready features, so that it has none.
        """
        if self.schema is None:
            raise DataError(
                "this model was fitted on ready features and has no schema for raw columns; load "
                "it with NetworkClassifier.load and give predict() a matrix"
            )
        return self.schema

    def decision(self, table: Table) -> Array:
        """The score of every raw row, n numbers for two classes; n x classes for more.

        A row's score does not depend on the rows beside it, to the last bit: private rows are
        counted by their scores (maths.md 4).
        """
        schema, F = self.columns, self.coef
        if schema.intercept:
            F = np.column_stack([F, self.intercept])
        scores = row_products(schema.rows(table), F)
        return scores[:, 0] if len(F) == 1 else scores

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Of the features that ``coef`` belongs to."""
        if self.schema is not None:
            return self.schema.features[: self.coef.shape[1]]
        given = (self.estimator or {}).get("feature_names_in_")
        return tuple(given or (f"x{i}" for i in range(self.coef.shape[1])))

    def coefficients(self) -> tuple[Coefficient, ...]:
        """What a score gains with a unit of each feature, in the users' units, with standard errors
        from the noise for privacy where they are known.
        """
        given = self.schema, self.feature_names, self.classes
        return coefficients_of(*given, self.coef, self.intercept, self.noise, self.target)

    def answers(self, scores: Array) -> NDArray[Any]:
        """The label value for every row of scores; one exactly at the threshold is negative. Of a
        target the number.
        """
        if self.target is not None:
            return self.target.within(scores)
        values = np.array(self.classes)
        return np.asarray(
            values[
                (scores > self.threshold).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
            ]
        )

    @property
    def turned(self) -> bool:
        """Whether scores speak for the schema's negative label, as a saved estimator's do where the
        positive one is first in order.
        """
        label = None if self.schema is None else self.schema.label
        return isinstance(label, Label) and self.classes[0] == label.positive

    @property
    def gives_probabilities(self) -> bool:
        """Whether scores can be turned into probabilities."""
        J = len(self.classes)
        return self.probabilities(np.zeros(1) if J == 2 else np.zeros((1, J))) is not None

    def probabilities(self, scores: Array) -> Array | None:
        """P(second class) for each score of two classes: by the calibration, or 1/(1 + e^-score)
        where the loss is logistic without a margin; None where scores are no log-odds.

        Of several classes learned as one model, P of each: the softmax of scores, or of scores
        times the calibration's slope. Without a calibration these tend to be too sure where
        epsilon is small.
        """
        if scores.ndim > 1:
            slope = 1.0 if self.calibration is None else self.calibration.slope
            return softmax(slope * scores) if self.loss.get("name") == Softmax.name else None
        by_score = self.log_odds
        return None if by_score is None else np.asarray(expit(by_score[0] * scores + by_score[1]))

    @property
    def log_odds(self) -> tuple[float, float] | None:
        """a and b of the log-odds a score + b of the second class; None where nobody knows them."""
        if self.calibration is not None:
            return self.calibration.slope, self.calibration.offset
        plain = self.loss.get("name") == "logistic" and not self.loss.get("margin")
        if self.loss.get("margin") is None and self.estimator is not None:  # the planner's, not 0
            plain = plain and self.estimator.get("parameters", {}).get("epsilon") is None
        return (1.0, 0.0) if plain and len(self.classes) == 2 else None

    def predict(self, table: Table) -> NDArray[Any]:
        """The label value of every raw row."""
        return self.answers(self.decision(table))

    def to_json(self) -> dict[str, Any]:
        """The content of model.json."""
        schema = self.schema
        return {
            "format": FORMAT,
            "version": VERSION,
            "classes": list(self.classes),
            "coef": self.coef.tolist(),
            "intercept": self.intercept.tolist(),
            "features": None if schema is None else list(self.feature_names),
            "schema": None if schema is None else schema.model_dump(mode="json"),
            "schema_hash": None if schema is None else schema.digest(),
            "loss": dict(self.loss),
            "mechanism": self.mechanism,
            "privacy": dict(self.privacy),
            **({} if self.calibration is None else {"calibration": asdict(self.calibration)}),
            **({} if self.estimator is None else {"estimator": self.estimator}),
            **({} if self.partial is None else {"partial": dict(self.partial)}),
            **({"members": list(self.members)} if self.members else {}),
            **({} if self.noise is None else {"noise": self.noise.to_json()}),
            **({"threshold": self.threshold} if self.threshold else {}),
            **({} if self.histogram is None else {"histogram": self.histogram.to_json()}),
            **({} if self.target is None else {"target": self.target.model_dump(mode="json")}),
        }

    def save(self, path: str | Path) -> None:
        """Write model.json."""
        write_whole(Path(path), json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")


def load_model(path: str | Path) -> Model:
    """Read a model file, or the model of a run folder; of this version or an older one."""
    path = Path(path)
    path = path / "model.json" if path.is_dir() else path
    content = read_file(path, (FORMAT, OLD_ESTIMATOR), VERSION)
    try:
        if content["format"] == OLD_ESTIMATOR:
            content = _from_estimator(content)
        elif content["version"] == 1:
            content |= {"coef": [content["coef"]], "intercept": [content["intercept"]]}
        schema = None if content["schema"] is None else Schema.model_validate(content["schema"])
        model = Model(
            classes=tuple(content["classes"]),
            coef=np.array(content["coef"], dtype=float),
            intercept=np.array(content["intercept"], dtype=float),
            schema=schema,
            loss=content["loss"],
            mechanism=content["mechanism"],
            privacy=content["privacy"],
            calibration=_calibration(content.get("calibration")),
            estimator=content.get("estimator"),
            partial=content.get("partial"),
            members=tuple(map(str, content.get("members", ()))),
            noise=ModelNoise.from_json(content["noise"]) if content.get("noise") else None,
            threshold=float(content.get("threshold", 0.0)),
            histogram=_histogram(content.get("histogram")),
            target=None if "target" not in content else Target.model_validate(content["target"]),
        )
        _check(model, content["schema_hash"], path)
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RecordError(
            f"{path} is damaged: {type(error).__name__}; restore it from a copy"
        ) from error
    return model


def _calibration(content: Mapping[str, Any] | None) -> Calibration | None:
    return None if content is None else Calibration(**content)


def _histogram(content: Mapping[str, Any] | None) -> NoisyHistogram | None:
    return None if content is None else NoisyHistogram.from_json(content)


def _check(model: Model, schema_hash: str | None, path: Path) -> None:
    schema, vectors = model.schema, 1 if len(model.classes) == 2 else len(model.classes)
    width = model.coef.shape[1]
    if model.target is not None:
        vectors = 1
        if model.classes or (schema is not None and schema.label != model.target):
            raise RecordError(
                f"{path}: its target is not that of its schema; the file was changed by hand or is "
                "damaged"
            )
    elif len(set(model.classes)) < max(len(model.classes), 2):
        raise ValueError("two classes or more are expected, all different")
    if schema is not None and schema.digest() != schema_hash:
        raise RecordError(
            f"{path}: the schema does not match its hash; the file was changed by hand or is "
            f"damaged"
        )
    if schema is not None:
        width = schema.dimension - bool(schema.intercept)
        if model.estimator is None and model.classes != schema.label.classes:
            raise RecordError(
                f"{path}: its classes are not those of its schema; the file was changed by hand "
                f"or is damaged"
            )
    elif model.estimator is not None:
        width = model.estimator["n_features_in_"]
    finite = np.isfinite(model.coef).all() and np.isfinite(model.intercept).all()
    if model.coef.shape != (vectors, width) or model.intercept.shape != (vectors,) or not finite:
        each = "" if vectors == 1 else f" for each of {vectors} classes"
        raise RecordError(
            f"{path}: expected {width} finite coefficients, one a feature{each}, and an intercept"
        )

    if model.noise is not None:
        se = model.noise.coef_se, model.noise.intercept_se
        alike = se[0].shape == model.coef.shape and se[1].shape == model.intercept.shape
        if not alike or not all(np.isfinite(one).all() and (one >= 0).all() for one in se):
            raise RecordError(
                f"{path}: expected one standard error, 0 or more, for each coefficient; the file "
                "was changed by hand or is damaged"
            )


def _from_estimator(content: Mapping[str, Any]) -> dict[str, Any]:
    """A ``dynadp-estimator`` of version 1 as a model of version 2."""
    schema, parameters = content["schema"], content["parameters"]
    kept = ("node_coef_", "node_intercept_", "n_features_in_", "n_iter_")
    return {
        "classes": content["classes_"],
        "coef": content["coef_"],
        "intercept": content["intercept_"],
        "schema": schema,
        "schema_hash": None if schema is None else Schema.model_validate(schema).digest(),
        "loss": {"name": parameters["loss"], "margin": parameters["margin"]},
        "mechanism": parameters["mechanism"] or "none",
        "privacy": content["privacy_"],
        "estimator": {
            "parameters": parameters,
            "feature_names_in_": content["features"],
            **{name: content[name] for name in kept},
        },
    }
