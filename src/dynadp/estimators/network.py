"""What the network's estimators have in common: scikit-learn's manners, one fit over all nodes in
one process, ledgers, and what a fit cost.
"""

import re
import secrets
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dynadp._arrays import Array
from dynadp.consensus import Acceleration, Output, Topology
from dynadp.data import Schema, Shard, no_query, norms, person_codes, sum_features
from dynadp.engines import LedgerJournal, Run, forgetting, run_masks
from dynadp.errors import DataError, DeclarationError
from dynadp.estimators import saved
from dynadp.estimators.choices import Choices
from dynadp.estimators.fit_rows import FitRows, take_rows
from dynadp.estimators.inputs import (
    assign_nodes,
    bound_features,
    concatenate,
    entropy_of,
    require_places,
    require_rows_at,
)
from dynadp.estimators.one_vs_rest import solve, spent
from dynadp.estimators.ready import ReadyNumbers
from dynadp.mechanisms import Mechanism
from dynadp.planning import Consortium, Plan, spread_of, start_of
from dynadp.privacy import ADD_REMOVE, Event, Unit, worst_node
from dynadp.runs import Coefficient, Model, centring_round, load_model, open_ledgers

_NO_WEIGHTS = (
    "sample_weight is refused: a row weighs C_p/B_p by design, which bounds what replacing it can "
    "change; leave it out, or "
    "repeat rows (a person then has several: see rows= in dynadp.privacy.accountant)"
)


class NetworkEstimator(BaseEstimator):  # type: ignore[misc]
    """A fit over a network of nodes; what is answered is a subclass's.

    A subclass has the parameters of :class:`~dynadp.estimators.classifier.NetworkClassifier` as far
    as they are about network, privacy and rows.
    """

    _choices: ClassVar[type[Choices]] = Choices
    _answers_are: ClassVar[Mapping[str, Any]] = {}  # further arguments of scikit-learn's check

    @abstractmethod
    def _check_answers(self, y: NDArray[Any]) -> None:
        """Refuse y that is of another kind."""

    def _in_units(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the answers of shards as they would be given with rows."""
        return y

    @abstractmethod
    def _answers(self, y: NDArray[Any]) -> tuple[NDArray[Any], int, Mapping[str, str]]:
        """What stands for each answer, how many classes there are (0 for numbers), and where they,
        or their bounds, come from, in words for ``privacy_``.
        """

    def _label_values(self) -> list[Any]:
        """All label values; none for numbers."""
        return []

    def _ready_numbers(self, X: Any, adjacency: str) -> ReadyNumbers | None:
        """How features that are given as numbers are bounded and centred; None where they are only
        divided by their bound.
        """
        return None

    def _learn_probabilities(
        self, runs: Sequence[Run], chosen: Choices, plan: Plan, counted: Schema | None
    ) -> None:
        """Keep what a histogram of scores says that was released; of numbers there is none.

        ``counted`` is the schema of the rows whose scores it has, where the estimator's features
        are numbers.
        """

    @abstractmethod
    def _keep(self, coef: Array, intercept: Array) -> None:
        """Keep each node's vectors, P x K x d and P x K, and the model that is their mean."""

    @abstractmethod
    def _named_loss(self) -> Mapping[str, Any]:
        """The loss as parameters that JSON can hold; none where it has no such name."""

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
            Labels, or numbers.
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
        self._choices(self).check(parts, shards)
        if parts:
            X, y, nodes = concatenate(X, self.topology)
            y = self._in_units(y) if shards else y
        X, y, nodes, numbers = self._validated(X, y, nodes, people)
        codes, classes, words = self._answers(y)
        chosen = self._choices(self, limited=numbers is not None)
        self.topology_, rows = self._placed(X, codes, nodes, numbers, chosen.unit)
        counts, secret = np.bincount(rows.owner, minlength=len(self.topology_)), chosen.unit.added
        if secret:
            counts = chosen.declared_counts(self.topology_.nodes)
            rows = rows.first_at_nodes(counts)
        several = classes > 2
        labels = self._label_values()
        weights = chosen.weights(labels)
        # one model of all classes weighs rows alike
        together = several and not weights and self.mechanism is not None
        together = together and chosen.algorithm == "sum"
        problems = classes if several and not together else 1
        planned = classes if together or not classes else 2
        centring, ready = schema is not None and schema.centre is None, None
        if schema is None and not shards:
            ready = self._ready_numbers(rows.X, chosen.unit.adjacency)
        if ready is not None:
            schema, centring = ready.schema, ready.centred
            rows = rows.bounded(ready.table(rows.X))
        if schema is None:
            intercept = self.fit_intercept and not shards
            width = self.n_features_in_ + intercept
        else:
            intercept, width = bool(schema.intercept), schema.dimension
            # a bad cell must not be found when part of the budget is spent
            features = schema.only_features().rows(rows.X)
        made_of = None if schema is None else schema.feature_count
        self.plan_ = chosen.plan(
            counts, self.topology_, width, problems, planned, labels, made_of, centring
        )
        if rows.people is None and self.plan_ and self.plan_.release_plan.weighed:
            raise DeclarationError(
                "the rows of each person are to be weighed together, and nothing says whose they "
                "are: give people=, or leave weighed out"
            )
        if problems > 1 and self.plan_ and self.plan_.release_plan.final:
            raise DeclarationError(
                f"a final release beside epsilon is planned once, and {problems} classes are "
                f"{problems} problems, each with its own; give {self._choices.each[0]}, or leave "
                "final_release out"
            )
        one = chosen.part(self.plan_, problems, planned, labels)
        draws = entropy_of(self.random_state)
        units = np.ones(width)
        start = start_of(self.start, (1, classes if several else 1, width))[0]
        events: tuple[Event, ...] = ()
        sealed = schema is not None and self.plan_ is not None and self.plan_.sealing
        masks = run_masks(self.plan_, draws) if sealed and self.plan_ else None
        with self._ledgers() as journal, forgetting(masks, None):
            if journal and self.plan_:
                journal.reserve([replace(e, seeded=draws.seeded) for e in self.plan_.events])
            if schema is not None:
                if self.plan_ and self.plan_.centrings:
                    bare = schema
                    centre = centring_round(
                        self.plan_,
                        bare,
                        lambda p: sum_features(features[rows.owner == p]).counted(bare, counts[p]),
                        draws,
                        journal,
                        masks,
                    )
                    schema, events = centre.applied(schema), centre.events
                rows = rows.bounded(schema.rows(rows.X))
                if ready is None:
                    self.schema_ = schema
            elif not shards:
                norm = self.data_norm
                if norm is None:
                    norm = float(norms(rows.X).max()) or 1.0
                X, units = bound_features(rows.X, norm, intercept)
                rows = rows.bounded(X)
            runs = solve(
                rows.filled(counts) if secret else rows,
                classes,
                self.topology_,
                plan=one,
                together=together,
                start=start / units
                if ready is None or schema is None
                else ready.vectors(start, schema),
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
        output: Output = "last" if runs[0].releases.final else "tail"
        vectors = [run.models(output)[:, 0] for run in runs]
        shape = len(self.topology_), classes if several else 1, -1
        f = np.stack(vectors, axis=1).reshape(shape) * units
        along = None
        if ready is not None and schema is not None:
            self._keep(*ready.coefficients(f, schema))
            along = ready.map(schema)
        else:
            constant = f[..., -1] if intercept else np.zeros(f.shape[:2])
            self._keep(f[..., :-1] if intercept else f, constant)
        those = Consortium(self.topology_, tuple(counts), width, classes=planned)
        bound = one.on(those)
        spreads = [
            spread_of(bound, run.path, node=None, output=output, releases=run.releases, along=along)
            for run in runs
        ]
        ends = intercept or along is not None
        scale = units if along is None else 1.0
        saved.set_noise(self, saved.noise_in(spreads, shape[1], scale, intercept=ends))
        self.n_iter_ = max(len(run.rounds) for run in runs)
        self._learn_probabilities(runs, chosen, one, None if ready is None else schema)
        known = shards or schema is not None or self.data_norm is not None
        centred = "none" if schema is None or schema.centre is None else "declared"
        words = {**words, "centre": "private" if events else centred}
        self.privacy_ = self._privacy(
            [*events, *spent(runs)], chosen.mechanism, problems, words, known
        )
        return self

    def save(self, path: str | Path) -> None:
        """Write the fitted model as JSON (format ``dynadp-model``, version 2)."""
        check_is_fitted(self)
        self._model().save(path)

    def _model(self) -> Model:
        return saved.to_model(self, {**self.get_params(deep=False), **self._named_loss()})

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the features that ``coef_`` belongs to.

        Parameters
        ----------
        input_features
            Ignored; here because scikit-learn's users may give it.
        """
        check_is_fitted(self)
        return np.array(self._model().feature_names, dtype=object)

    def coefficients(self) -> tuple[Coefficient, ...]:
        """What an answer gains with a unit of each feature, in the users' units
        (:meth:`~dynadp.runs.model.Model.coefficients`).
        """
        check_is_fitted(self)
        return self._model().coefficients()

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
            X, y = unquoted(validate_data, self, X, y, **how, **self._answers_are)
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
        self._check_answers(y)
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
        words: Mapping[str, str],
        known: bool,
    ) -> dict[str, Any]:
        """What was spent, in numbers and words."""
        mechanism = self.plan_.mechanism if self.plan_ else mechanism
        rests = {
            "rounds": self.n_iter_,
            "problems": problems,
            "mechanism": None if mechanism is None else mechanism.name,
            **words,
            "bounds": "declared" if known else "data_norm was read off the rows",
        }
        if mechanism is None:
            statement = "No privacy: without a mechanism messages are exact and reveal rows."
            figures = {**dict.fromkeys(("epsilon", "delta", "alpha", "mu")), "protected": False}
        else:
            total = worst_node(events, self.delta or 0.0)
            statement = total.guarantee
            if problems > 1:
                statement += (
                    f" All {problems} problems, one class against the rest each, are in this total."
                )
            written = total.to_json()
            whose = ("rows", "silos", "adjacency", "limited")
            names = ("epsilon", "delta", "alpha", "protected", "honest", *whose)
            figures = {name: written[name] for name in names}
            mus = [mu for event in events if (mu := getattr(event, "mu", None)) is not None]
            figures["mu"] = max(mus, default=None)
        return {**figures, "statement": statement, **rests}


def unquoted(check: Any, *given: Any, **how: Any) -> Any:
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
