"""A model of what a run has released so far: for a run that was stopped early.

It is a function of released messages alone, so it costs nothing: those that a node's folder holds
as letters, or those that the ledgers of a run in one process hold.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import (
    SealedSum,
    SumPath,
    SumRounds,
    WeighedSum,
    decoded,
    enough_of,
)
from dynadp.data import Schema
from dynadp.errors import RecordError
from dynadp.mechanisms import (
    NoisyHistogram,
    centre_of,
    centred,
    mechanism_named,
    possible_mean,
    sealed_centring,
)
from dynadp.planning import Consortium, Plan, spread_of
from dynadp.privacy import per_node
from dynadp.problem import EVEN, Loss, Regularizer
from dynadp.runs.folder import load_run
from dynadp.runs.model import Model
from dynadp.runs.record import RunRecord
from dynadp.runs.released import Held, Sums, released, settled

NAME = "partial-model.json"


def partial_model(
    folder: str | Path, ledgers: Sequence[str | Path] = (), until: int | None = None
) -> Model:
    """Return the mean over the last half of the rounds that were released, of the messages that are
    here; of the common point in algorithm "sum".

    Parameters
    ----------
    folder
        A run folder: of a node on a network, or of a run in one process.
    ledgers
        Of a run in one process, where they are not found by the names in the record.
    until
        The last round that counts; all by default.
    """
    plan, held = released_messages(folder, ledgers)
    return model_of(folder, load_run(folder), plan, held, until)


def released_messages(folder: str | Path, ledgers: Sequence[str | Path] = ()) -> tuple[Plan, Held]:
    """Return the plan of a run, and the messages of its nodes that are here, by node and round."""
    folder = Path(folder)
    record = load_run(folder)
    if record.planned is None or record.declared_schema is None or record.dimension is None:
        raise RecordError(
            f"{folder} is of a run without noise, or of a version that recorded too little; run it "
            "again to get a model"
        )
    return plan_of(record), released(folder, record, ledgers)


def model_of(
    folder: str | Path, record: RunRecord, plan: Plan, held: Held, until: int | None = None
) -> Model:
    """Return the model of these messages, up to a round."""
    schema, last = record.declared_schema, until or plan.rounds
    assert schema is not None
    held = {  # spare attempts have numbers beyond the last round
        node: {n: v for n, v in own.items() if n <= last or n > plan.rounds}
        for node, own in held.items()
    }
    sums = settled(Path(folder), record, plan)
    if plan.centrings:
        schema = (_sealed_centre if plan.sealing else _centre)(plan, schema, held, sums)
    spread = None
    if plan.algorithm == "sum":
        vector, rounds, path, histogram = _point(plan, held, sums)
        spread = spread_of(plan, path)
        members = [node for node in sums.members if node in plan.release_plan.nodes]
    else:
        vector, rounds, members = _mean(held)
        histogram = None
    model = Model.of(
        vector, schema, plan, seeded=record.simulation, spread=spread, histogram=histogram
    )
    part = {"rounds": rounds, "planned": plan.rounds, "members": list(members)}
    return replace(model, partial=part)


def plan_of(record: RunRecord) -> Plan:
    """Return the plan of a record, bound to its consortium."""
    given, planned = record.plan, record.planned
    assert planned is not None
    assert record.dimension is not None
    nodes, steps = record.topology.nodes, given.get("steps") or {}
    most = max(planned.alphas.values(), key=sum)
    made = Plan.of(
        loss=Loss.from_description(given["loss"]),
        regularizer=Regularizer.from_description(given["regularizer"]),
        **{name: given[name] for name in ("C", "weights", "rho")},
        eta=None if steps else given["eta"],
        **{k: tuple(v) if isinstance(v, list) else v for k, v in steps.items()},
        mechanism=mechanism_named(planned.mechanism, **planned.parameters),
        class_weights=tuple(given.get("class_weights", EVEN)),
        positives=given.get("positives"),
        schedule=per_node(
            # a node that sends nothing is recorded with zeros, and a schedule has none
            {node: list(own if any(own) else most) for node, own in planned.alphas.items()}
        ),
        centring=tuple(planned.centrings.values()),
        delta=planned.delta,
        unit=planned.unit,
        rounds=planned.rounds,
        output=given["output"],
    )
    counts = tuple(record.rows[node] for node in nodes)
    known = record.dimension, record.features or 0, record.classes
    those = Consortium(record.topology, counts, *known)
    return made.on(those)


def _centre(plan: Plan, schema: Schema, held: Held, sums: Sums) -> Schema:
    found = sums.open(held, 0)
    if found is None:
        raise RecordError("the centring round is not complete here: no model yet")
    those = [plan.bound.nodes.index(name) for name in found]
    counts, losses = ([of[p] for p in those] for of in (plan.bound.counts, plan.centrings))
    released = np.array(list(found.values()))
    noise = plan.mechanism.noise
    made = centre_of(schema, counts, released, list(found), losses, noise, seeded=False)
    return made.applied(schema)


def _sealed_centre(plan: Plan, schema: Schema, held: Held, sums: Sums) -> Schema:
    assert plan.sealing is not None
    counts = np.array(plan.bound.counts, dtype=float)
    noise = sealed_centring(schema, counts, np.array(plan.centrings), plan.sealing)
    total = sums.sealed(held, 0, lambda words: decoded(words, noise))
    if total is None:
        raise RecordError("the sealed centring round is not complete here: no model yet")
    return centred(schema, possible_mean(schema, total[0] / sums.rows))


def _point(plan: Plan, held: Held, sums: Sums) -> tuple[Array, int, SumPath, NoisyHistogram | None]:
    """Return the mean of the common point over the last half of the steps, the rounds, what they
    leave to say how far noise moved it, and the histogram of its scores where that is here.
    """
    releases, steps = plan.release_plan, plan.steps
    assert steps is not None
    start = np.zeros((1, plan.bound.vectors * plan.bound.dimension))
    given = releases.noises, steps, start, plan.rows, 1, plan.settings.row_weight
    rounds, path, members = SumRounds(None, *given), list[Array](), sums.settled.members
    for n in range(1, plan.rounds + 1):
        total = _total(plan, held, sums, n)
        if total is None:
            break
        members = sums.members
        rounds.rows = sums.rows
        rounds.members = [releases.nodes.index(name) for name in members if name in releases.nodes]
        rounds.release()
        before = rounds.state
        rounds.receive(total)
        if rounds.state.z is not before.z:  # rounds of moments and histograms move nothing
            path.append(rounds.state.z[0])
    if not path:
        raise RecordError("no round of all nodes is here: there is nothing to make a model of")
    sums.settled.members = members  # of the last that is here
    averaged = [t >= len(path) // 2 for t in range(len(path))]
    left = replace(rounds.path, averaged=averaged)
    mean = np.mean(path[len(path) // 2 :], axis=0)
    return mean, rounds.n, left, rounds.histogram()


def _total(plan: Plan, held: Held, sums: Sums, n: int) -> Array | None:
    """Return the sum of a round, as far as it is here."""
    if plan.sealing:
        add = SealedSum(plan.release_plan.noises)
        return sums.sealed(held, n, lambda words: add(n, words))
    found = sums.open(held, n)
    if found is None:
        return None
    assert plan.steps is not None
    weights = [plan.steps.node_weights[plan.bound.nodes.index(name)] for name in found]
    return WeighedSum(weights)(n, np.array(list(found.values()))[:, None])


def _mean(held: Held) -> tuple[Array, int, list[str]]:
    """Return the mean over the last half of the rounds, the rounds, and whose messages they are:
    of those that have the last round and enough of this half, as many rounds and nodes as there
    are.
    """

    def members(last: int) -> dict[str, Array]:
        half, found = range(last // 2 + 1, last + 1), {}
        for node, own in held.items():
            there = [own[n] for n in half if n in own]
            if last in own and enough_of(len(there), len(half)):
                found[node] = np.mean(there, axis=0)
        return found

    most = max(n for own in held.values() for n in own)
    last = max(range(1, most + 1), key=lambda n: (n * len(members(n)), n))
    means = members(last)
    if not means:
        raise RecordError(
            "no node has half of any rounds here: there is nothing to make a model of"
        )
    return np.mean(list(means.values()), axis=0), last, sorted(means)
