"""A private run from raw rows to a model, in one process that holds all nodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynadp import _require
from dynadp._cards import card
from dynadp.consensus import Journal, Masks, RoundProgress, Topology
from dynadp.data import FeatureSums, NodeRows, Schema
from dynadp.engines import CentringAttempts, Run, forgetting, run_masks, simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import (
    Centring,
    Draws,
    Mechanism,
    NoisyHistogram,
    SystemEntropy,
    centre_of,
    private_centre,
)
from dynadp.planning import (
    Consortium,
    Plan,
    class_weights_of,
    require_promise,
    require_two_classes,
    require_unit,
    spread_of,
    unit_of,
)
from dynadp.planning import plan as make_plan
from dynadp.privacy import Event, Total, upper_bound, worst_node
from dynadp.problem import Weights
from dynadp.runs.model import Model
from dynadp.runs.preparation import reserve

_LOG = getLogger("dynadp")


@dataclass(frozen=True)
class Trained:
    """A private run and what it cost.

    Attributes
    ----------
    plan
        What was decided before any row was read.
    schema
        The schema with the private centre, which the model needs.
    centring
        The centring round, where there was one.
    run
        The rounds.
    """

    plan: Plan
    schema: Schema = field(repr=False)
    centring: Centring | None = field(repr=False)
    run: Run = field(repr=False)

    def _repr_html_(self) -> str:
        """The card of a notebook."""
        total = self.total
        facts = {
            "nodes": len(self.run.topology),
            "rounds": len(self.run.rounds),
            "mechanism": self.plan.mechanism.name,
            "epsilon": f"{upper_bound(total.epsilon)} at delta = {total.delta:g}",
        }
        return card("Trained over a network", facts, [total.guarantee])

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that was spent; all spare attempts at sealed sums, taken or not."""
        centring = self.centring.events if self.centring else ()
        return tuple(event for event in centring if event.round == 0) + self.run.events()

    @property
    def total(self) -> Total:
        """What that costs anybody of the plan's unit, at the plan's delta."""
        return worst_node(self.events, self.plan.delta)

    def model(self) -> Model:
        """The classifier, the same at every node."""
        vector = self.run.models(self.plan.output)[0, 0]
        spread = spread_of(self.plan, self.run.path, releases=self.run.releases)
        return Model.of(
            vector,
            self.schema,
            self.plan,
            seeded=self.run.seeded,
            spread=spread,
            histogram=self.histogram,
        )

    @property
    def histogram(self) -> NoisyHistogram | None:
        """What the last round released of the model's scores; None without such a round."""
        return self.run.histograms[0] if self.run.histograms else None


def train(
    schema: Schema,
    tables: Mapping[str, Any],
    topology: Topology,
    plan: Plan | None = None,
    *,
    epsilon: float | Mapping[str, float] | None = None,
    delta: float | None = None,
    mechanism: str | Mechanism | None = None,
    algorithm: str | None = None,
    weights: Weights = "rows",
    calibration: bool = False,
    class_weight: Mapping[Any, float] | str | None = None,
    positives: float | None = None,
    rows: int | Mapping[str, int] | None = None,
    start: ArrayLike | None = None,
    draws: Draws | None = None,
    device: str = "cpu",
    journal: Journal | None = None,
    on_round: Callable[[RoundProgress], None] | None = None,
) -> Trained:
    """Train one classifier that costs nobody more than (epsilon, delta): nobody with a row at one
    node, or with as many rows as the schema declares.

    Parameters
    ----------
    schema
        Public declarations for the columns; without a centre, one is found privately within the
        budget.
    tables
        Raw rows of each node: a file, a frame or columns by name, anything that
        :func:`~dynadp.data.readers.source` reads, or :class:`~dynadp.data.node_rows.NodeRows`.
    topology
        The network, with the same nodes.
    plan
        What to do; by default the planner's plan for ``epsilon`` and ``delta``. It is bound to the
        numbers of rows that are there.
    epsilon, delta
        The total, where no plan is given; epsilon may differ from node to node.
    mechanism, algorithm, weights
        As for :func:`~dynadp.planning.planner.plan`, where no plan is given.
    calibration
        Whether the last round of sums releases a histogram of the model's scores by label, within
        the total: probabilities, thresholds and measures follow from it.
    class_weight
        A number for each label value, or ``balanced``, which needs ``positives``.
    positives
        The declared share of rows with the positive label, known without these rows.
    rows
        The declared number of rows of each node, or one for all; needed where the schema keeps the
        number of rows secret, and compared with the rows that are there otherwise.
    start
        A public vector to begin with, d numbers; of several classes one after the other.
    draws
        Where noise comes from; by default the operating system's entropy. Seeded draws protect
        nobody.
    device
        ``cpu`` or ``cuda``, as for :func:`~dynadp.engines.simulation.simulate`.
    journal
        The nodes' ledgers; the whole plan is reserved before anything is computed from rows.
    on_round
        As for :func:`~dynadp.engines.simulation.simulate`.
    """
    nodes, draws = topology.nodes, draws or SystemEntropy()
    if set(tables) != set(nodes):
        raise DeclarationError(
            f"rows are given for nodes {sorted(tables)}, the network has {sorted(nodes)}; expected "
            f"the same"
        )
    if (plan is None) == (epsilon is None) or (plan is None) == (delta is None):
        raise DeclarationError(
            "give a plan, or a total: epsilon and delta, from which one is made; not both"
        )
    declared = declared_rows(rows, nodes)
    held = {
        p: NodeRows.of(schema, tables[p], p, declared=declared.get(p), seal=journal is not None)
        for p in nodes
    }
    counts = [own.count for own in held.values()]
    features = schema.feature_count
    if calibration or (plan is not None and plan.releases_histogram):
        require_two_classes(schema, "calibration")
    if plan is None:
        assert epsilon is not None
        assert delta is not None
        plan = make_plan(
            counts,
            topology,
            schema.dimension,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            algorithm=algorithm,
            centring=schema.centre is None,
            features=features,
            weights=weights,
            unit=unit_of(schema),
            calibration=calibration,
            class_weights=class_weights_of(class_weight, schema.label.classes, positives),
            positives=positives,
            classes=schema.classes,
        )
    elif calibration or class_weight is not None or positives is not None:
        raise DeclarationError(
            "a plan says by itself whether there is a histogram and what labels weigh; leave out "
            "calibration, class_weight and positives, or the plan"
        )
    plan = plan.on(Consortium(topology, tuple(counts), schema.dimension, features, schema.classes))
    protection = plan.protection
    if protection is None:
        raise DeclarationError(
            "the plan has no protection, so messages would reveal rows; simulate it instead"
        )
    require_unit(plan, schema)
    require_promise(plan)
    plan.releases(start=start)  # refused before anything is spent
    if plan.release_plan.weighed:
        for own in held.values():
            own.require_people()
    _LOG.info("plan: %s", "; ".join(plan.reasons))
    if journal:
        planned = [replace(event, seeded=draws.seeded) for event in plan.events]
        reserve(journal, held.values(), planned)
        for p, own in held.items():
            own.require_same(journal.seal(p))
    centring = None
    masks = run_masks(plan, draws, journal) if plan.sealing else None
    with forgetting(masks, journal):
        if protection.centring:
            centring = centring_round(
                plan, schema, lambda p: held[nodes[p]].sums, draws, journal, masks
            )
            schema = centring.applied(schema)
        run = simulate(
            [own.shard(schema) for own in held.values()],
            topology,
            plan,
            start=start,
            draws=draws,
            device=device,
            journal=journal,
            masks=masks,
            on_round=on_round,
            overwrite=True,  # nobody else has these shards
        )
    trained = Trained(plan, schema, centring, run)
    _LOG.info(
        "trained in %d rounds: epsilon = %.4g at delta = %g",
        len(run.rounds),
        trained.total.epsilon,
        plan.delta,
    )
    return trained


def declared_rows(rows: int | Mapping[str, int] | None, nodes: Sequence[str]) -> dict[str, int]:
    """Return the declared number of rows of each node; empty where none is declared."""
    if rows is None:
        return {}
    given = dict(rows) if isinstance(rows, Mapping) else dict.fromkeys(nodes, rows)
    if set(given) != set(nodes):
        raise DeclarationError(
            f"rows are declared for nodes {sorted(given)}; expected one number for each of "
            f"{sorted(nodes)}, or one for all"
        )
    for node, number in given.items():
        _require.whole(f"rows of {node}", number)
    return given


def centring_round(
    plan: Plan,
    schema: Schema,
    sums: Callable[[int], FeatureSums],
    draws: Draws,
    journal: Journal | None = None,
    masks: Masks | None = None,
) -> Centring:
    """Release the means of the features of all nodes that send, entered before they are used; of
    sealed sums, one sum over all nodes.

    Where they were entered before, those are taken again.

    Parameters
    ----------
    plan
        Bound to its consortium, with a centring round.
    schema, draws
        As for :func:`~dynadp.mechanisms.centring.private_centre`.
    sums
        The feature sums of the node at a position.
    journal
        Where the whole plan is reserved; None where nothing is entered.
    masks
        Of sealed sums; None in the open.
    """
    if masks is not None:
        return _sealed_centring(plan, schema, sums, draws, journal, masks)
    those, noise, unit = plan.senders, plan.mechanism.noise, plan.unit
    names = [plan.bound.nodes[p] for p in those]
    losses = [plan.centrings[p] for p in those]
    sent = journal.sent(0) if journal else None
    if sent is None:
        made = private_centre(schema, [sums(p) for p in those], names, losses, draws, noise, unit)
        if journal is None:
            return made
        sent = journal.spend(0, made.events, dict(zip(names, made.messages, strict=True)))
    counts, released = [plan.bound.counts[p] for p in those], np.array([sent[p] for p in names])
    seeded = draws.seeded
    return centre_of(schema, counts, released, names, losses, noise, seeded=seeded, unit=unit)


def _sealed_centring(
    plan: Plan,
    schema: Schema,
    sums: Callable[[int], FeatureSums],
    draws: Draws,
    journal: Journal | None,
    masks: Masks,
) -> Centring:
    """Release the sum of all nodes' features: sum 0 of the run, in as many attempts as it takes."""
    nodes = plan.bound.nodes
    attempts = CentringAttempts(plan, schema, masks, range(len(nodes)), seeded=draws.seeded)
    while True:
        sent = journal.sent(attempts.entry) if journal else None
        if sent is None:
            totals = np.array([sums(p).total for p in range(len(nodes))])
            sent = attempts.letters(totals, draws)
            if journal:
                sent = journal.spend(attempts.entry, attempts.events, sent)
        words = np.array([sent[p] for p in nodes])[:, None]
        centre = attempts.centre(words)
        if centre is not None:
            letters, spent = words[:, 0].view(np.uint64), tuple(attempts.spent)
            return Centring(letters, centre, spent, draws.seeded)
