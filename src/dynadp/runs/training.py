"""A private run from raw rows to a model: plan, centre, train, in one process that holds all nodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array
from dynadp.consensus import Journal, Topology
from dynadp.data import NodeRows, Schema
from dynadp.engines import RoundProgress, Run, simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Centring, Draws, SystemEntropy, centre_of, private_centre
from dynadp.planning import Plan, check_plan, plan, releases_of
from dynadp.privacy import Event, Total, by_node, worst_node
from dynadp.problem import Weights
from dynadp.runs.folder import Model

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

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that was spent."""
        return (self.centring.events if self.centring else ()) + self.run.events()

    @property
    def total(self) -> Total:
        """What that costs anybody with a row at one node, at the plan's delta."""
        return worst_node(self.events, self.plan.total.delta)

    def model(self) -> Model:
        """The classifier, the same at every node."""
        vector = self.run.models(self.plan.output)[0, 0]
        return Model.of(
            vector,
            self.schema,
            self.plan.loss.describe(),
            self.plan.mechanism.name,
            self.total.to_json(),
        )


def train(
    schema: Schema,
    tables: Mapping[str, Any],
    topology: Topology,
    *,
    epsilon: float | Mapping[str, float],
    delta: float,
    mechanism: str = "primal",
    weights: Weights = "rows",
    start: ArrayLike | None = None,
    draws: Draws | None = None,
    chosen: Plan | None = None,
    device: str = "cpu",
    journal: Journal | None = None,
    on_round: Callable[[RoundProgress, Array], None] | None = None,
) -> Trained:
    """Train one classifier that costs nobody with a row at one node more than (epsilon, delta).

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
    epsilon, delta
        The total; epsilon may differ from node to node.
    mechanism
        ``primal`` or ``dual``.
    weights
        ``rows``: every row of the network weighs the same. ``equal``: every node does, as in the
        paper.
    start
        A public vector to begin with, d numbers.
    draws
        Where noise comes from; by default the operating system's entropy. Seeded draws protect
        nobody.
    chosen
        A plan to follow instead of the planner's, for this network, these counts and this total.
    device
        ``cpu`` or ``cuda``, as for :func:`~dynadp.engines.simulation.simulate`.
    books
        The nodes' ledgers; the whole plan is reserved before anything is computed from rows.
    on_round
        As for :func:`~dynadp.engines.simulation.simulate`.
    """
    nodes, draws = topology.nodes, draws or SystemEntropy()
    if set(tables) != set(nodes):
        raise DeclarationError(
            f"rows are given for nodes {sorted(tables)}, the network has "
            f"{sorted(nodes)}; expected the same"
        )
    rows = {p: NodeRows.of(schema, tables[p], p, seal=journal is not None) for p in nodes}
    counts = [rows[p].count for p in nodes]
    features = schema.feature_count
    if chosen is None:
        chosen = plan(
            counts,
            topology,
            schema.dimension,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            centring=schema.centre is None,
            features=features,
            weights=weights,
        )
    check_plan(chosen, counts, topology, schema.dimension, features)
    # refused before anything is spent
    releases_of(chosen, counts, topology, schema.dimension, start)
    for node, found in by_node(chosen.events, delta).items():
        most = epsilon[node] if isinstance(epsilon, Mapping) else epsilon
        if found.epsilon > most:
            raise DeclarationError(
                f"the plan costs node {node!r} epsilon = {found.epsilon:g} at delta = {delta:g}, "
                f"more than the given total "
                f"{most:g}; plan again with that total"
            )
    _LOG.info("plan: %s", "; ".join(chosen.reasons))
    if journal and not journal.begun:
        for p in nodes:  # a bad cell must not be found when part of the budget is spent
            rows[p].check()
    if journal:
        journal.reserve([replace(event, seeded=draws.seeded) for event in chosen.events])
        for p in nodes:
            rows[p].require_same(journal.seal(p))
    centring = None
    if chosen.centring is not None:
        centring = _centre(schema, rows, counts, nodes, chosen.centrings, draws, journal)
        schema = centring.applied(schema)
    run = simulate(
        [rows[p].shard(schema) for p in nodes],
        topology,
        loss=chosen.loss,
        regularizer=chosen.regularizer,
        C=chosen.C,
        weights=chosen.weights,
        rho=chosen.rho,
        eta=chosen.eta,
        rounds=chosen.rounds,
        mechanism=chosen.mechanism,
        schedule=chosen.schedule(nodes),
        start=start,
        draws=draws,
        device=device,
        journal=journal,
        on_round=on_round,
    )
    trained = Trained(chosen, schema, centring, run)
    _LOG.info(
        "trained in %d rounds: epsilon = %.4g at delta = %g",
        len(run.rounds),
        trained.total.epsilon,
        delta,
    )
    return trained


def _centre(
    schema: Schema,
    rows: Mapping[str, NodeRows],
    counts: Sequence[int],
    nodes: Sequence[str],
    alphas: Sequence[float],
    draws: Draws,
    journal: Journal | None,
) -> Centring:
    """The centring round, entered before it is used, or as it was entered before."""
    sent = journal.sent(0) if journal else None
    if sent is None:
        made = private_centre(schema, [rows[p].sums for p in nodes], nodes, alphas, draws)
        if journal is None:
            return made
        sent = journal.spend(0, made.events, dict(zip(nodes, made.messages, strict=True)))
    return centre_of(
        schema, counts, np.array([sent[p] for p in nodes]), nodes, alphas, seeded=draws.seeded
    )
