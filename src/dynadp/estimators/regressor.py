"""x -> coef . x + intercept: the network's regressor with scikit-learn's manners, in one process
with all nodes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dynadp._arrays import Array
from dynadp.data import Schema, Target, no_query
from dynadp.engines import Run
from dynadp.errors import DeclarationError
from dynadp.estimators.choices import Choices, TargetChoices
from dynadp.estimators.network import NetworkEstimator, unquoted
from dynadp.estimators.ready import PRIVATE, ReadyNumbers
from dynadp.mechanisms import Mechanism
from dynadp.planning import Plan
from dynadp.problem import Loss, Weights


class NetworkRegressor(RegressorMixin, NetworkEstimator):  # type: ignore[misc]
    """min over f of sum_p (C_p/B_p) sum_i L(f.z_i - t_i) + rho R(f), at P nodes that exchange
    messages: a linear regressor.

    t = (2 y - low - high)/(high - low), y clipped to the public bounds ``target=(low, high)``, and
    z = (x/data_norm - m, k)/max(n, its length), m the mean of x/data_norm, released once within the
    total, and k = 0.3; with ``bounds`` each column is scaled to [-1, 1] in place of x/data_norm,
    and k = 1. n = sqrt(k^2 + D^2/32), D^2 = 4, or 4 for each column with bounds (maths.md 21).
    Where nothing is centred (sparse rows, no epsilon, no intercept, ``centre=None``) z is as by
    :class:`~dynadp.estimators.classifier.NetworkClassifier`. ``coef_`` and ``intercept_`` are in
    the units of X and y. ``predict`` is ``X @ coef_ + intercept_`` within the target's bounds,
    drawn towards the middle of these for rows that are longer than n, as in ``fit``; other rows
    beyond ``data_norm`` or ``bounds`` are extrapolated. The intercept is regularised like the rest.

    Parameters
    ----------
    epsilon, delta, rounds, mechanism, honest, algorithm, topology, nodes
        As of :class:`~dynadp.estimators.classifier.NetworkClassifier`.
    schedule
        Instead of epsilon: how much each release may lose, alpha, or mu where noise is Gaussian,
        given as ``alpha`` is there. (scikit-learn takes a regressor's ``alpha`` for a penalty.)
    loss, width
        ``huber`` (squares with clipped residuals), ``pseudo_huber``, ``logistic_cosh`` or the name
        of a loss of your own, with this width; or a :class:`~dynadp.problem.losses.Loss` of
        residuals. By default ``huber`` in sums and ``pseudo_huber`` in ADMM. It may be given beside
        epsilon. A width is on the scale of t, where bounds are 2 apart.
    regularizer, C, rho, eta, weights, tol, data_norm, bounds, centre, fit_intercept, ledger
        As there.
    schema
        Instead of ``data_norm``, ``bounds`` and ``target``: public declarations for raw columns,
        with a target.
        ``intercept_`` is then the coefficient of its intercept column, and the middle of the target
        is added to scores.
    target
        (low, high): public bounds of y. Without a mechanism the least and the largest y stand in
        for them.
    rows_per_person, silos_per_person, adjacency, rows, random_state
        As there.
    start
        Public V(0): coefficients in the units of X, on the scale of t, the intercept last.

    Attributes
    ----------
    coef_, intercept_
        The model: d numbers and one.
    node_coef_, node_intercept_
        Each node's own, P x d and P.
    target_
        The public bounds of y.
    loss_
        L.
    privacy_, plan_, n_iter_, topology_, schema_, n_features_in_, feature_names_in_
        As of :class:`~dynadp.estimators.classifier.NetworkClassifier`.

    Examples
    --------
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> y = 20 + 5 * X[:, 0]
    >>> total = {"epsilon": 2.0, "delta": 1e-5}
    >>> declared = {"data_norm": 1.5, "target": (10, 30)}
    >>> model = NetworkRegressor(**total, **declared, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), model.privacy_["protected"]
    (True, False)
    """

    _choices: ClassVar[type[Choices]] = TargetChoices
    _answers_are: ClassVar[Mapping[str, Any]] = {"y_numeric": True}

    def __init__(
        self,
        *,
        epsilon: float | Mapping[str, float] | None = None,
        delta: float | None = None,
        schedule: Any = None,
        rounds: int | None = None,
        mechanism: str | Mechanism | None = "auto",
        honest: int | None = None,
        algorithm: str | None = None,
        topology: Any = "ring",
        nodes: int = 5,
        loss: str | Loss | None = None,
        width: float | None = None,
        regularizer: Any = None,
        C: float = 1.0,
        rho: float = 1e-4,
        eta: float | None = None,
        weights: Weights = "rows",
        tol: float = 1e-6,
        data_norm: float | None = None,
        bounds: Any = None,
        centre: Any = PRIVATE,
        schema: Schema | None = None,
        fit_intercept: bool = True,
        target: tuple[float, float] | None = None,
        ledger: str | Path | Mapping[str, str | Path] | None = None,
        rows_per_person: int = 1,
        silos_per_person: int = 1,
        adjacency: str = "replace",
        rows: int | Mapping[str, int] | None = None,
        start: ArrayLike | None = None,
        random_state: Any = None,
    ) -> None:
        given = locals()
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def predict(self, X: Any) -> Array:
        """``X @ coef_ + intercept_`` (with a schema, of its features), within the target's
        bounds.
        """
        check_is_fitted(self)
        no_query(X, "X")
        target: Target = self.target_
        if self.schema is not None:
            ends = [self.intercept_] if self.schema_.intercept else []
            found = self.schema_.rows(X) @ np.append(self.coef_, ends) + target.middle
        else:
            X = unquoted(validate_data, self, X, reset=False, accept_sparse="csr", dtype=float)
            found = X @ self.coef_ + self.intercept_
            if (schema := self.counted_) is not None:
                X = X.toarray() if issparse(X) else X
                share = schema.norm * ReadyNumbers.scaling(schema, X)
                found = target.middle + share * (found - target.middle)
        return np.asarray(np.clip(found, target.low, target.high))

    def _check_answers(self, y: NDArray[Any]) -> None:
        if y.dtype.kind not in "fiu":
            raise ValueError("y holds no numbers; expected the number to predict of each row")

    def _in_units(self, y: NDArray[Any]) -> NDArray[Any]:
        return y if self.target is None else self._declared().within(y)

    def _declared(self) -> Target:
        """The public bounds that are given."""
        try:
            low, high = map(float, self.target)
            return Target(name="y", low=low, high=high)
        except (TypeError, ValueError):
            raise DeclarationError(
                f"target is {self.target!r}; expected (low, high), two finite numbers, low below "
                "high"
            ) from None

    def _answers(self, y: NDArray[Any]) -> tuple[NDArray[Any], int, Mapping[str, str]]:
        words = "declared"
        if self.schema is not None:
            label = self.schema.label
            if not isinstance(label, Target):
                raise DeclarationError(
                    f"the schema's label {label.name!r} has classes; NetworkRegressor predicts a "
                    "number: declare a target with low and high, or take NetworkClassifier"
                )
            self.target_ = label
        elif self.target is not None:
            self.target_ = self._declared()
        else:
            low, high = float(np.min(y)), float(np.max(y))
            words = "read off y, which reveals them; declare target=(low, high)"
            self.target_ = Target(name="y", low=low, high=high if high > low else low + 1.0)
        self.loss_ = TargetChoices(self).loss
        return self.target_.read(np.asarray(y)), 0, {"target": words}

    def _ready_numbers(self, X: Any, adjacency: str) -> ReadyNumbers | None:
        return ReadyNumbers.of(self, X, adjacency, self.target_)

    def _learn_probabilities(
        self, runs: Sequence[Run], chosen: Choices, plan: Plan, counted: Schema | None
    ) -> None:
        self.counted_ = counted

    def _keep(self, coef: Array, intercept: Array) -> None:
        half, middle = self.target_.half, 0.0 if self.schema is not None else self.target_.middle
        self.node_coef_, self.node_intercept_ = half * coef[:, 0], middle + half * intercept[:, 0]
        self.coef_ = self.node_coef_.mean(axis=0)
        self.intercept_ = float(self.node_intercept_.mean())

    def _named_loss(self) -> Mapping[str, Any]:
        known = self.loss_.registry.get(self.loss_.name)
        if not isinstance(self.loss, Loss) or known is not type(self.loss_):
            return {}
        return {"loss": self.loss_.name, "width": getattr(self.loss_, "width", None)}
