"""x -> sign(coef . x + intercept): the network's classifier with scikit-learn's manners, in one
process with all nodes.
"""

import re
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dynadp._arrays import Array
from dynadp.consensus import Acceleration, Topology
from dynadp.data import Schema, Shard, no_query, norms, person_codes, sum_features
from dynadp.engines import LedgerJournal, forgetting, run_masks
from dynadp.errors import DataError, DeclarationError
from dynadp.estimators import saved
from dynadp.estimators.choices import Choices
from dynadp.estimators.fit_rows import FitRows, take_rows
from dynadp.estimators.inputs import (
    assign_nodes,
    bound_features,
    concatenate,
    encode_classes,
    entropy_of,
    require_places,
    require_rows_at,
)
from dynadp.estimators.one_vs_rest import solve, spent
from dynadp.mechanisms import Mechanism
from dynadp.planning import Constants, start_of
from dynadp.privacy import ADD_REMOVE, Event, Unit, worst_node
from dynadp.problem import Logistic, Loss, Weights
from dynadp.runs import calibration_of, centring_round, load_model, open_ledgers

_NO_WEIGHTS = (
    "sample_weight is refused: a row weighs C_p/B_p by design, which bounds what replacing it can "
    "change; leave it out, or "
    "repeat rows (a person then has several: see rows= in dynadp.privacy.accountant)"
)


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


def _has_probabilities(estimator: "NetworkClassifier") -> bool:
    if (words := _without_probabilities(estimator)) is not None:
        raise AttributeError(words)
    return True


def _without_probabilities(estimator: "NetworkClassifier") -> str | None:
    """Why there is no predict_proba; None where there is one, or will be after a fit."""
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


class NetworkClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """min over f of sum_p (C_p/B_p) sum_i L(y_i f.z_i) + rho R(f), at P nodes that exchange
    messages: a linear classifier.

    z = (x/data_norm, 1)/sqrt(2), or x/data_norm without an intercept: a row within ``data_norm``
    has norm at most 1, and a longer one is scaled down to norm 1, intercept and all. That leaves
    every sign of f.z (and which of several is largest) as it is, so ``coef_`` and ``intercept_``
    are f in the units of X, ``decision_function`` is ``X @ coef_.T + intercept_`` for every row,
    and ``predict`` is its sign. The intercept is regularised like the rest.

    More than two classes are K problems, one against the rest, one after the other within the one
    total.

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
        Public bound on ||x||. Without a mechanism the longest row stands in for it.
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
        schema says so itself. With ``people`` in :meth:`fit`, or a schema's person, further rows
        are left out; otherwise both are declared bounds, which nothing can enforce.
    adjacency, rows
        ``add-remove``: the total is about rows that are there or not, and how many a node has stays
        secret; a schema says so itself. ``rows`` then declares a public number for each node, or
        one for all, which is at least as large: null rows fill up what is missing, and rows beyond
        are left out. :meth:`fit` needs ``nodes``, and a topology that names them, or one node.
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.schema is None
        tags.input_tags.string = tags.input_tags.categorical = self.schema is not None
        tags.non_deterministic = self.mechanism is not None and self.random_state is None
        return tags

    def fit(
        self,
        X: Any,
        y: Any = None,
        nodes: ArrayLike | None = None,
        people: ArrayLike | None = None,
        **other: Any,
    ) -> Self:
        """Train over the network; with a ledger the whole plan is reserved before anything is
        computed from rows.

        Where it fails, or is refused, the estimator stays as it was.

        Parameters
        ----------
        X
            n x d numbers, dense or sparse; a frame or mapping with a schema; or, without y, a list
            with one (X, y) or :class:`~dynadp.data.shard.Shard` a node. Shards are bounded rows
            already: no norm and no intercept is added.
        y
            Labels.
        nodes
            The node of each row; by default rows are split evenly, or people are.
        people
            Whose row each is; a schema names a column of X instead. Of each person the first rows
            stay, as many as declared.
        **other
            Nothing: sample_weight is refused.
        """
        if other.pop("sample_weight", None) is not None:
            raise ValueError(_NO_WEIGHTS)
        if other:
            raise TypeError(
                f"fit() got unexpected arguments {', '.join(sorted(other))}; expected X, y, nodes "
                f"and people"
            )
        before = vars(self).copy()
        try:
            return self._fit(X, y, nodes, people)
        except BaseException:
            self.__dict__ = before
            raise

    def _fit(self, X: Any, y: Any, nodes: ArrayLike | None, people: ArrayLike | None) -> Self:
        parts = (
            y is None
            and isinstance(X, list)
            and bool(X)
            and all(isinstance(part, Shard | tuple) for part in X)
        )
        shards, schema = parts and isinstance(X[0], Shard), self.schema
        Choices(self).check(parts, shards)
        if parts:
            X, y, nodes = concatenate(X, self.topology)
        X, y, nodes, numbers = self._validated(X, y, nodes, people)
        declared = self.classes
        if schema is not None and declared is None:
            if schema.label.kind == "numbers":
                raise DeclarationError(
                    f"the schema declares a target, {schema.label.name!r}, which is a number; "
                    "NetworkClassifier answers with classes: declare a label"
                )
            declared = list(schema.label.classes)
        self.classes_, codes = encode_classes(y, declared)
        chosen = Choices(self, limited=numbers is not None)
        self.topology_, rows = self._placed(X, codes, nodes, numbers, chosen.unit)
        counts, secret = np.bincount(rows.owner, minlength=len(self.topology_)), chosen.unit.added
        if secret:
            counts = chosen.declared_counts(self.topology_.nodes)
            rows = rows.first_at_nodes(counts)
        problems = 1 if len(self.classes_) == 2 else len(self.classes_)
        if schema is None:
            intercept = self.fit_intercept and not shards
            width = self.n_features_in_ + intercept
        else:
            intercept, width = bool(schema.intercept), schema.dimension
            # a bad cell must not be found when part of the budget is spent
            features = schema.only_features().rows(rows.X)
        self.plan_ = chosen.plan(counts, self.topology_, width, problems, self.classes_.tolist())
        if rows.people is None and self.plan_ and self.plan_.release_plan.weighed:
            raise DeclarationError(
                "the rows of each person are to be weighed together, and nothing says whose they "
                "are: give people=, or leave weighed out"
            )
        if problems > 1 and self.plan_ and self.plan_.release_plan.final:
            raise DeclarationError(
                f"a final release beside epsilon is planned once, and {problems} classes are "
                f"{problems} problems, each with its own; give alpha, or leave final_release out"
            )
        one = chosen.part(self.plan_, problems, self.classes_.tolist())
        weights, draws = chosen.weights(self.classes_.tolist()), entropy_of(self.random_state)
        units = np.ones(width)
        start = start_of(self.start, (1, problems, width))[0]
        events: tuple[Event, ...] = ()
        sealed = schema is not None and self.plan_ is not None and self.plan_.sealing
        masks = run_masks(self.plan_, draws) if sealed and self.plan_ else None
        with self._ledgers() as journal, forgetting(masks, None):
            if journal and self.plan_:
                journal.reserve([replace(e, seeded=draws.seeded) for e in self.plan_.events])
            if schema is not None:
                self.schema_ = schema
                if self.plan_ and self.plan_.centrings:
                    centring = centring_round(
                        self.plan_,
                        schema,
                        lambda p: sum_features(features[rows.owner == p]).counted(
                            schema, counts[p]
                        ),
                        draws,
                        journal,
                        masks,
                    )
                    self.schema_, events = centring.applied(schema), centring.events
                rows = rows.bounded(self.schema_.rows(rows.X))
            elif not shards:
                norm = self.data_norm
                if norm is None:
                    norm = float(norms(rows.X).max()) or 1.0
                X, units = bound_features(rows.X, norm, intercept)
                rows = rows.bounded(X)
            runs = solve(
                rows.filled(counts) if secret else rows,
                len(self.classes_),
                self.topology_,
                plan=one,
                start=start / units,
                weights=weights,
                draws=draws,
                journal=journal,
                masks=masks if problems == 1 else None,  # each of several has keys of its own
                acceleration=Acceleration(distance=self.tol) if self.mechanism is None else None,
            )
        if self.mechanism is None and not all(run.stopped for run in runs):
            text = (
                f"the optimum is not certified to tol={self.tol:g} within the rounds; raise "
                f"rounds, tol or rho"
            )
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        vectors = [run.models("last" if run.releases.final else "tail")[:, 0] for run in runs]
        f = np.stack(vectors, axis=1) * units  # P x K x d
        if intercept:
            self.node_coef_, self.node_intercept_ = f[..., :-1], f[..., -1]
        else:
            self.node_coef_, self.node_intercept_ = f, np.zeros(f.shape[:2])
        self.coef_ = self.node_coef_.mean(axis=0)
        self.intercept_ = self.node_intercept_.mean(axis=0)
        self.n_iter_ = max(len(run.rounds) for run in runs)
        self.histogram_ = next((one for run in runs for one in run.histograms), None)
        self.calibration_ = None if self.histogram_ is None else calibration_of(self.histogram_)
        self.threshold_ = chosen.threshold(one.settings.loss, self.calibration_)
        known = shards or schema is not None or self.data_norm is not None
        self.privacy_ = self._privacy(
            [*events, *spent(runs)], chosen.mechanism, problems, declared is not None, known
        )
        return self

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
            X = _unquoted(validate_data, self, X, reset=False, accept_sparse="csr", dtype=float)
            scores = np.asarray(X @ self.coef_.T + self.intercept_)
        return scores.ravel() if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """classes_[1] where the score is above ``threshold_``, else classes_[0]; of several the
        class with the largest.
        """
        scores = self.decision_function(X)
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
        several classes divided by their sum. Rows beyond data_norm are extrapolated.
        """
        scores = self.decision_function(X)
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

    def save(self, path: str | Path) -> None:
        """Write the fitted model as JSON (format ``dynadp-model``, version 2)."""
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if isinstance(self.loss, Logistic):
            parameters.update(loss="logistic", margin=self.loss.margin)
        saved.to_model(self, parameters).save(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved model, or the model of a run, ready to predict.

        Parameters that JSON cannot hold (a graph, a schedule, a loss of your own) come back as
        their names; set them before fitting again. ``plan_`` and ``topology_`` are not saved.
        """
        model: Self = saved.from_model(load_model(path), cls, Path(path))
        return model

    def _placed(
        self,
        X: Any,
        codes: NDArray[np.intp],
        nodes: ArrayLike | None,
        people: NDArray[np.int64] | None,
        unit: Unit,
    ) -> tuple[Topology, FitRows]:
        """The network, and the rows at its nodes: of each person as many as declared."""
        if unit.added:
            require_places(self.topology, self.nodes, nodes)
        network, owner = assign_nodes(
            self.topology, self.nodes, len(codes), nodes, empty=unit.added
        )
        if people is None:
            if unit.rows > 1 and nodes is None and len(network) > 1:
                raise DeclarationError(
                    f"rows_per_person is {unit.rows}, and rows would be split over {len(network)} "
                    "nodes, those of one person too: say whose they are (people=), or where they "
                    "are (nodes=)"
                )
            return network, FitRows(X, codes, owner)
        if nodes is None:
            owner = people % len(network)
        rows = FitRows(X, codes, owner, people).limited(unit.rows, unit.silos)
        if not unit.added:
            require_rows_at(network, rows.owner)
        return network, rows

    def _validated(
        self, X: Any, y: Any, nodes: Any, people: Any
    ) -> tuple[Any, NDArray[Any], Any, Any]:
        """X, y, nodes and people of one length, without the rows that a schema drops."""
        no_query(X, "X")
        if self.schema is not None and self.schema.person is not None:
            if people is not None:
                raise DeclarationError(
                    "people is given, and the schema names a column of X for them; leave out one "
                    "of them"
                )
            people = X[self.schema.person]
        if people is not None:  # numbered before rows are dropped, so that no cell decides a number
            blank = ("",) if self.schema is None else self.schema.missing_values
            people = person_codes(list(people), blank)
        if self.schema is None:
            how = {"accept_sparse": "csr", "dtype": float}
            if self.adjacency == ADD_REMOVE:  # whether there is any row stays secret
                how["ensure_min_samples"] = 0
            X, y = _unquoted(validate_data, self, X, y, **how)
            X = csr_array(X) if issparse(X) else X
        elif y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        else:
            y, kept = column_or_1d(y, warn=True), self.schema.kept(X)
            given_with = (("y", y, "label"), ("nodes", nodes, "node"), ("people", people, "person"))
            for name, given, what in given_with:
                if given is not None and len(given) != len(kept):
                    raise DataError(
                        f"{name} has length {len(given)}, X has {len(kept)} rows; expected the "
                        f"{what} of each row"
                    )
            names = self.schema.raw_columns[:-1]
            self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
            nodes = None if nodes is None else np.asarray(nodes)[kept]
            people = None if people is None else people[kept]
            X, y = take_rows({name: X[name] for name in names}, kept), y[kept]
        if len(y):
            check_classification_targets(y)
        if people is not None and people.shape != (len(y),):
            raise DataError(
                f"people has length {len(people)}, X has {len(y)} rows; expected the person of "
                "each row"
            )
        return X, y, nodes, people

    @contextmanager
    def _ledgers(self) -> Iterator[LedgerJournal | None]:
        """Open the nodes' ledgers for a fit; None without.

        A fit that fails cannot go on: what it reserved and did not spend is free again.
        """
        if self.ledger is None:
            yield None
            return
        nodes, who = self.topology_.nodes, type(self).__name__
        given = self.ledger
        if not isinstance(given, Mapping):
            given = {p: Path(given, f"{p}.sqlite") for p in nodes}
        if missing := sorted(set(nodes) - set(given)):
            raise DeclarationError(f"no ledger for {', '.join(missing)}; every node needs one")
        paths, run = {p: given[p] for p in nodes}, f"fit-{secrets.token_hex(8)}"
        with ExitStack() as stack:
            dataset = f"rows given to {who}.fit"
            journal = open_ledgers(stack, paths, run, dataset=dataset, who=who)
            try:
                yield journal
            except BaseException:
                if journal.begun:
                    journal.close("stopped")
                raise

    def _privacy(
        self,
        events: Sequence[Event],
        mechanism: Mechanism | None,
        problems: int,
        declared: bool,
        known: bool,
    ) -> dict[str, Any]:
        """What was spent, in numbers and words."""
        mechanism = self.plan_.mechanism if self.plan_ else mechanism
        rests = {
            "rounds": self.n_iter_,
            "problems": problems,
            "mechanism": None if mechanism is None else mechanism.name,
            "classes": "declared"
            if declared
            else "read off y and treated as public; declare classes= if they are not",
            "bounds": "declared" if known else "data_norm was read off the rows",
        }
        if mechanism is None:
            words = "No privacy: without a mechanism messages are exact and reveal rows."
            figures = {**dict.fromkeys(("epsilon", "delta", "alpha", "mu")), "protected": False}
        else:
            total = worst_node(events, self.delta or 0.0)
            words = total.guarantee
            if problems > 1:
                words += (
                    f" All {problems} problems, one class against the rest each, are in this total."
                )
            written = total.to_json()
            whose = ("rows", "silos", "adjacency", "limited")
            names = ("epsilon", "delta", "alpha", "protected", "honest", *whose)
            figures = {name: written[name] for name in names}
            mus = [mu for event in events if (mu := getattr(event, "mu", None)) is not None]
            figures["mu"] = max(mus, default=None)
        return {**figures, "statement": words, **rests}


def _unquoted(check: Any, *given: Any, **how: Any) -> Any:
    """scikit-learn's own checks, whose messages may quote rows, without the quotation."""
    try:
        return check(*given, **how)
    except ValueError as error:
        text = re.sub(
            r"(?s)(?<=instead):\narray=.*(?=\nReshape)|(?<=not supported)\n.*|(?<=to float): .*",
            "",
            str(error),
        )
        raise ValueError(text) from None
