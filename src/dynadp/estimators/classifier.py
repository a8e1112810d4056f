"""x -> sign(coef . x + intercept): the network's classifier with scikit-learn's manners, in one
process with all nodes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dynadp._arrays import Array
from dynadp.data import Schema, no_query
from dynadp.engines import Run
from dynadp.errors import DeclarationError
from dynadp.estimators.choices import Choices
from dynadp.estimators.inputs import encode_classes
from dynadp.estimators.network import NetworkEstimator, unquoted
from dynadp.estimators.ready import PRIVATE, ReadyNumbers
from dynadp.mechanisms import Mechanism
from dynadp.planning import Constants, Plan
from dynadp.problem import Logistic, Loss, Softmax, Weights, probabilities
from dynadp.runs import calibration_of

_NO_PROBABILITIES = (
    "predict_proba: scores of this loss are no log-odds, because it has a margin or is not "
    "logistic, so there are no "
    "probabilities; use decision_function to rank rows and predict for labels, or fit with "
    "calibration=True (two classes and sums) or with loss='logistic', margin=0.0"
)
_DROWNED = (
    "predict_proba: noise drowns the rows of a label in the histogram of scores that was released "
    "for probabilities, so there are none; use decision_function, or fit with more rows or a "
    "larger epsilon"
)


def _is_softmax(estimator: "NetworkClassifier") -> bool:
    """Whether it was fitted as one model of several classes."""
    several = len(getattr(estimator, "classes_", ())) > 2
    fitted = getattr(estimator, "privacy_", {}).get("problems") == 1
    return several and (fitted or estimator.loss == Softmax.name)


def _has_probabilities(estimator: "NetworkClassifier") -> bool:
    if (words := _without_probabilities(estimator)) is not None:
        raise AttributeError(words)
    return True


def _without_probabilities(estimator: "NetworkClassifier") -> str | None:
    """Why there is no predict_proba; None where there is one, or will be after a fit."""
    if _is_softmax(estimator):
        return None
    loss, margin = estimator.loss, estimator.margin
    if margin is None and estimator.epsilon is not None:
        margin = Constants().margin
    if not loss.margin if isinstance(loss, Logistic) else loss == "logistic" and not margin:
        return None
    if vars(estimator).get("calibration_") is not None:
        return None
    if vars(estimator).get("histogram_") is not None:
        return _DROWNED
    if "classes_" in vars(estimator) or not estimator.calibration:
        return _NO_PROBABILITIES
    return None


class NetworkClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
    """min over f of sum_p (C_p/B_p) sum_i L(y_i f.z_i) + rho R(f), at P nodes that exchange
    messages: a linear classifier.

    z = s (x/data_norm - m, k), s such that ||z|| = 1: m is the mean of x/data_norm, released once
    within the total as a schema's centre is, and k = 0.3 the intercept. With ``bounds`` each column
    is scaled to [-1, 1] in place of x/data_norm, and k = 1. Where nothing is centred (sparse rows,
    no epsilon, no intercept, ``centre=None``) z = (x/data_norm, 1)/sqrt(2), or x/data_norm without
    an intercept, and only a row beyond ``data_norm`` is scaled, down to norm 1. Scaling a whole row
    leaves every sign of f.z (and which of several is largest) as it is, so ``coef_`` and
    ``intercept_`` are f in the units of X, ``decision_function`` is ``X @ coef_.T + intercept_``
    for every row, and ``predict`` is its sign. The intercept is regularised like the rest.

    More than two classes are one model of all of them by algorithm sum (softmax; maths.md 20).
    Otherwise, and with ``class_weight``, they are K problems, one against the rest, one after the
    other within the one total.

    Parameters
    ----------
    epsilon, delta
        The total that nobody with a row at one node, or with as many rows as declared, may lose
        more of in a fit (epsilon: a number, or node -> number); the planner decides C, rho, eta and
        alpha. With ``alpha``, delta is where the total is stated; None there means 0.
    alpha
        Instead of epsilon: how much each release may lose. A number, one for each round, a number
        or such a list by node, or a :class:`~dynadp.privacy.schedules.Schedule`.
    rounds
        T of each problem; the planner's by default, required with ``alpha``, at most 1,000 without
        a mechanism.
    mu
        Instead of alpha, where noise is Gaussian: mu of each release.
    mechanism
        ``sum``, ``sealed``, ``primal``, ``dual``, another one's name, a
        :class:`~dynadp.mechanisms.base.Mechanism`, or None for Algorithm 1 to a certified optimum:
        no noise, and messages reveal rows. ``auto`` is the planner's choice; with ``alpha`` or a
        regularizer, which the other algorithm lacks, ``primal``; with ``mu``, ``sum``.
    honest
        Of sealed sums: how many of the nodes add their noise and keep their keys, whoever looks not
        among them. In one process this declares how the nodes would stand to each other.
    algorithm
        ``admm`` or ``sum``, where the mechanism is ``auto``; None leaves it open.
    topology
        A family's name, a :class:`~dynadp.consensus.topology.Topology` or a networkx graph.
    nodes
        P, where rows are split evenly over a named family: row i goes to node i mod P.
    loss, margin
        ``logistic``, ``smoothed_hinge``, ``huber_hinge`` or the name of a loss of your own, with
        this margin; or a :class:`~dynadp.problem.losses.Loss`. None is the loss's own margin
        (logistic: 0), and with epsilon the planner's, 3; only the logistic loss with margin 0 has
        ``predict_proba``.
    regularizer
        R; ||f||^2/2 by default.
    C, rho, eta
        The paper's; with epsilon they must be left alone.
    weights
        ``rows``: every row weighs the same, C_p = C B_p/mean(B). ``equal``: every node does, C_p =
        C, as in the paper.
    tol
        Without a mechanism: the certified distance from the optimum, as a share of its norm.
    data_norm
        Public bound on ||x||; a longer row is shortened to it. Without a mechanism the longest row
        stands in for it.
    bounds
        Instead, where columns differ in scale: (low, high), each a public number or one for every
        column. Numbers beyond them are clipped in ``fit`` and extrapolated elsewhere.
    centre
        What is subtracted from numbers: ``private``, their mean, released within epsilon; None for
        nothing; or a public vector in the units of X. A schema has its own.
    schema
        Instead: public declarations for raw columns. X is then a frame or mapping of them,
        ``coef_`` belongs to the schema's features and ``intercept_`` to its intercept column, and
        with epsilon they are centred privately.
    fit_intercept
        Whether to append the constant; a schema says so itself.
    classes
        The label values, declared; else those of y (a schema's: the label's two), and ``privacy_``
        says so.
    ledger
        Where every fit is charged, as a run of its own: a folder with NODE.sqlite for each node, or
        node -> file. Clones keep it, so a search is charged fit by fit; give the search
        ``error_score="raise"`` to hear of a refusal.
    rows_per_person, silos_per_person
        The total is that of a person with up to so many rows at a node, at up to so many nodes; a
        schema says so itself. With ``people`` in ``fit``, or a schema's person, further rows
        are left out; otherwise both are declared bounds, which nothing can enforce.
    adjacency, rows
        ``add-remove``: the total is about rows that are there or not, and how many a node has stays
        secret; a schema says so itself. ``rows`` then declares a public number for each node, or
        one for all, which is at least as large: null rows fill up what is missing, and rows beyond
        are left out. ``fit`` needs ``nodes``, and a topology that names them, or one node.
    calibration
        Whether sums release a histogram of the model's scores by label in a round of their own,
        within the total: ``predict_proba`` and thresholds by cost follow from it. It costs a tenth
        of the budget. By default they do where the planner makes the plan, there are two classes,
        and rows are so many that they stand out from the histogram's noise (a quarter of them, or
        the declared share of either class); ``predict_proba`` is there after such a fit. True asks
        for it whatever the rows, False leaves it out.
    class_weight, positives
        What rows of each class weigh, a number for each value of ``classes_``, or ``balanced`` for
        two, which needs ``positives``: the declared share of ``classes_[1]``, known without these
        rows. Of several classes the rest of each problem weighs as its classes do on average.
    threshold, cost
        ``predict`` answers with ``classes_[1]`` above this score; ``balanced`` for the largest
        balanced accuracy; or ``cost``, what wrong answers cost as (false positive, false negative),
        from which the threshold follows by probabilities. By default 0.
    start
        Public V(0) in the units of ``coef_``, the intercept last; one for all problems or one for
        each.
    random_state
        None: noise from the operating system. A seed makes the fit a SIMULATION that protects
        nobody.

    Attributes
    ----------
    coef_, intercept_
        The model, 1 x d and 1, or one row for each class.
    coef_se_, intercept_se_
        How far the noise for privacy may have moved them: standard errors that leave out the
        sampling of rows; ``noise_basis_`` says ``first order`` or ``bound`` (maths.md 22). None
        where that is not known.
    node_coef_, node_intercept_
        Each node's own, P x (1 or classes) x d: its last vector, or the mean of its messages over
        the last half of the rounds. Their mean is the model.
    classes_
        Label values, sorted; scores speak for the second of two.
    privacy_
        What the fit cost (the node that loses most) and what that rests on, as JSON: epsilon,
        delta, alpha or mu of the costliest round, protected, honest (of sealed sums, how many of
        how many nodes must be), rows and silos (whose loss it is), statement, rounds, problems,
        mechanism, classes, bounds.
    plan_
        The planner's choices and reasons for all problems together; None without epsilon.
    calibration_, histogram_
        How scores become probabilities, and the released histogram that it follows from; None
        without.
    threshold_
        Of two classes, the second is answered above this score.
    n_iter_
        Rounds of the longest problem.
    topology_
        The network.
    schema_
        The schema with its private centre, where one was given.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> X, y = np.random.default_rng(0).uniform(-1, 1, (500, 2)), np.repeat(["no", "yes"], 250)
    >>> X[:, 0] += np.where(y == "yes", 1, -1)
    >>> total = {"epsilon": 2.0, "delta": 1e-5}
    >>> declared = {"data_norm": 2.5, "classes": ["no", "yes"]}
    >>> model = NetworkClassifier(**total, **declared, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), model.privacy_["protected"]
    (True, False)
    """

    def __init__(
        self,
        *,
        epsilon: float | Mapping[str, float] | None = None,
        delta: float | None = None,
        alpha: Any = None,
        mu: Any = None,
        rounds: int | None = None,
        mechanism: str | Mechanism | None = "auto",
        honest: int | None = None,
        algorithm: str | None = None,
        topology: Any = "ring",
        nodes: int = 5,
        loss: str | Loss = "logistic",
        margin: float | None = None,
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
        classes: ArrayLike | None = None,
        ledger: str | Path | Mapping[str, str | Path] | None = None,
        rows_per_person: int = 1,
        silos_per_person: int = 1,
        adjacency: str = "replace",
        rows: int | Mapping[str, int] | None = None,
        calibration: bool | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        positives: float | None = None,
        threshold: float | str | None = None,
        cost: tuple[float, float] | None = None,
        start: ArrayLike | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.alpha = alpha
        self.mu = mu
        self.rounds = rounds
        self.mechanism = mechanism
        self.honest = honest
        self.algorithm = algorithm
        self.topology = topology
        self.nodes = nodes
        self.loss = loss
        self.margin = margin
        self.regularizer = regularizer
        self.C = C
        self.rho = rho
        self.eta = eta
        self.weights = weights
        self.tol = tol
        self.data_norm = data_norm
        self.bounds = bounds
        self.centre = centre
        self.schema = schema
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.ledger = ledger
        self.rows_per_person = rows_per_person
        self.silos_per_person = silos_per_person
        self.adjacency = adjacency
        self.rows = rows
        self.calibration = calibration
        self.class_weight = class_weight
        self.positives = positives
        self.threshold = threshold
        self.cost = cost
        self.start = start
        self.random_state = random_state

    def _check_answers(self, y: NDArray[Any]) -> None:
        if self.schema is not None and self.schema.label.kind == "numbers":
            raise DeclarationError(
                f"the schema declares a target, {self.schema.label.name!r}, which is a number; "
                "NetworkClassifier answers with classes: take NetworkRegressor, or declare a label"
            )
        if len(y):
            check_classification_targets(y)

    def _answers(self, y: NDArray[Any]) -> tuple[NDArray[Any], int, Mapping[str, str]]:
        declared, schema = self.classes, self.schema
        if schema is not None and declared is None:
            declared = list(schema.label.classes)
        self.classes_, codes = encode_classes(y, declared)
        given = "threshold" if self.threshold is not None else "cost"
        if len(self.classes_) > 2 and getattr(self, given) is not None:
            raise DeclarationError(
                f"{given} is {getattr(self, given)!r}, and there are {len(self.classes_)} classes, "
                "of which the one with the largest score is answered; leave it out"
            )
        read = "read off y and treated as public; declare classes= if they are not"
        words = {"classes": read if declared is None else "declared"}
        return codes, len(self.classes_), words

    def _label_values(self) -> list[Any]:
        return list(self.classes_.tolist())

    def _ready_numbers(self, X: Any, adjacency: str) -> ReadyNumbers | None:
        return ReadyNumbers.of(self, X, adjacency)

    def _learn_probabilities(
        self, runs: Sequence[Run], chosen: Choices, plan: Plan, counted: Schema | None
    ) -> None:
        self.histogram_ = next((one for run in runs for one in run.histograms), None)
        self.calibration_ = None if self.histogram_ is None else calibration_of(self.histogram_)
        self.threshold_ = chosen.threshold(plan.settings.loss, self.calibration_)
        self.counted_ = counted

    def _keep(self, coef: Array, intercept: Array) -> None:
        self.node_coef_, self.node_intercept_ = coef, intercept
        self.coef_, self.intercept_ = coef.mean(axis=0), intercept.mean(axis=0)

    def _named_loss(self) -> Mapping[str, Any]:
        if not isinstance(self.loss, Logistic):
            return {}
        return {"loss": "logistic", "margin": self.loss.margin}

    def decision_function(self, X: Any) -> Array:
        """``X @ coef_.T + intercept_`` (with a schema, of its features): n scores for
        ``classes_[1]``, or n x classes.
        """
        check_is_fitted(self)
        no_query(X, "X")
        if self.schema is not None:
            f = (
                np.column_stack([self.coef_, self.intercept_])
                if self.schema_.intercept
                else self.coef_
            )
            scores = np.asarray(self.schema_.rows(X) @ f.T)
        else:
            X = unquoted(validate_data, self, X, reset=False, accept_sparse="csr", dtype=float)
            scores = np.asarray(X @ self.coef_.T + self.intercept_)
        return scores.ravel() if scores.shape[1] == 1 else scores

    def _counted_scores(self, X: Any) -> Array:
        """Scores as a histogram of them counted rows: f.z, z the bounded row. They differ from
        ``decision_function`` by a factor above 0 where whole rows were scaled.
        """
        scores = self.decision_function(X)
        schema: Schema | None = self.counted_
        if schema is None or scores.ndim > 1:
            return scores
        X = unquoted(validate_data, self, X, reset=False, accept_sparse="csr", dtype=float)
        X = X.toarray() if issparse(X) else X
        return scores * ReadyNumbers.scaling(schema, X)

    def predict(self, X: Any) -> NDArray[Any]:
        """classes_[1] where the bounded row's score is above ``threshold_``, else classes_[0]; of
        several the class with the largest.
        """
        scores = self._counted_scores(X)
        return np.asarray(
            self.classes_[
                (scores > self.threshold_).astype(int)
                if scores.ndim == 1
                else scores.argmax(axis=1)
            ]
        )

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """1/(1 + e^-(a score + b)), a and b those of ``calibration_``, or 1 and 0 without one; for
        several classes divided by their sum, or the softmax of scores of one model of all of them.
        Rows beyond data_norm are extrapolated.
        """
        scores = self._counted_scores(X)
        if _is_softmax(self):
            return probabilities(scores)
        if scores.ndim == 1 and self.calibration_ is not None:
            scores = self.calibration_.log_odds(scores)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        shares = np.maximum(expit(scores), np.finfo(float).tiny)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def __getattr__(self, name: str) -> Any:
        """Say why there are no probabilities, where scikit-learn would say only that there are
        none.
        """
        if name == "predict_proba":
            raise AttributeError(_without_probabilities(self) or _NO_PROBABILITIES)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
