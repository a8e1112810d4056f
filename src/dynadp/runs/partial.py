"""A model of what a run has released so far: for a run that was stopped early.

It is a function of released messages alone, so it costs nothing: those that a node's folder holds
as letters, or those that the ledgers of a run in one process hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import SealedSum, SumPath, SumRounds, WeighedSum, decoded
from dynadp.data import Schema
from dynadp.engines import FolderJournal, released_letters
from dynadp.errors import DynadpError, RecordError, SumSpoiled
from dynadp.mechanisms import (
    NoisyHistogram,
    centre_of,
    centred,
    mechanism_named,
    possible_mean,
    sealed_centring,
)
from dynadp.planning import Consortium, Plan, spread_of
from dynadp.privacy import Ledger, per_node
from dynadp.problem import EVEN, Loss, Regularizer
from dynadp.runs.folder import load_run
from dynadp.runs.identities import public_key
from dynadp.runs.model import Model
from dynadp.runs.own_letters import post_offices
from dynadp.runs.record import RunRecord

NAME = "partial-model.json"
Held = dict[str, dict[int, Array]]  # vectors of a node, by round


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
    return model_of(load_run(folder), plan, held, until)


def released_messages(folder: str | Path, ledgers: Sequence[str | Path] = ()) -> tuple[Plan, Held]:
    """Return the plan of a run, and the messages of its nodes that are here, by node and round."""
    folder = Path(folder)
    record = load_run(folder)
    if record.planned is None or record.declared_schema is None or record.dimension is None:
        raise RecordError(
            f"{folder} is of a run without noise, or of a version that recorded too little; run it "
            "again to get a model"
        )
    return plan_of(record), _held(folder, record, ledgers)


def model_of(record: RunRecord, plan: Plan, held: Held, until: int | None = None) -> Model:
    """Return the model of these messages, up to a round."""
    schema, last = record.declared_schema, until or plan.rounds
    assert schema is not None
    held = {  # spare attempts have numbers beyond the last round
        node: {n: v for n, v in own.items() if n <= last or n > plan.rounds}
        for node, own in held.items()
    }
    sealed = plan.sealing is not None
    if plan.centrings:
        schema = _sealed_centre(plan, schema, held) if sealed else _centre(plan, schema, held)
    spread = None
    if plan.algorithm == "sum":
        vector, rounds, path, histogram = _point(plan, held)
        spread = spread_of(plan, path)
        members = list(plan.release_plan.nodes)
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
    made = Plan.of(
        loss=Loss.from_description(given["loss"]),
        regularizer=Regularizer.from_description(given["regularizer"]),
        **{name: given[name] for name in ("C", "weights", "rho")},
        eta=None if steps else given["eta"],
        **{k: tuple(v) if isinstance(v, list) else v for k, v in steps.items()},
        mechanism=mechanism_named(planned.mechanism, **planned.parameters),
        class_weights=tuple(given.get("class_weights", EVEN)),
        positives=given.get("positives"),
        schedule=per_node({node: list(own) for node, own in planned.alphas.items()}),
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


def _held(folder: Path, record: RunRecord, ledgers: Sequence[str | Path]) -> Held:
    """Return the messages that are here."""
    if record.kind == "network":
        sections = (record.file or {}).get("nodes", ())
        keys = {one["name"]: public_key(one["key"]) for one in sections if one.get("key")}
        found: Held = {}
        for office in post_offices(folder):
            for letter in released_letters(office, keys):
                if letter.config.hex() == record.config_hash:
                    found.setdefault(letter.author, {})[letter.round] = letter.values
    elif (folder / "messages").is_dir():
        found = _simulated(folder / "messages", record)
    else:
        found = _entered(record, _ledgers(folder, record, ledgers))
    if not any(n > 0 for own in found.values() for n in own):
        raise RecordError(
            f"{folder}: no round was released, so there is nothing to make a model of"
        )
    return found


def _simulated(place: Path, record: RunRecord) -> Held:
    assert record.planned is not None
    nodes = [node for node, own in record.planned.alphas.items() if any(own)]
    journal, found = FolderJournal(place, nodes), dict[str, dict[int, Array]]()
    for n in range(record.planned.rounds + 1):
        for node, vector in (journal.sent(n) or {}).items():
            found.setdefault(node, {})[n] = vector
    return found


def _entered(record: RunRecord, ledgers: Mapping[str, Path]) -> Held:
    found: Held = {}
    for node, path in ledgers.items():
        with Ledger.open(path, read_only=True) as ledger:
            for n in ledger.rounds(record.run_id):
                content = ledger.message(record.run_id, n)
                if content:
                    vector = np.frombuffer(content, "<f8").astype(float)
                    found.setdefault(node, {})[n] = vector
    return found


def _ledgers(folder: Path, record: RunRecord, given: Sequence[str | Path]) -> dict[str, Path]:
    """Return the ledgers that hold this run: those given, or found by name near the folder."""
    places = [Path.cwd(), *folder.resolve().parents[:3]]
    names = [str(node.get("ledger")) for node in (record.file or {}).get("nodes", [])]
    tried = [*map(Path, given), *(place / name for place in places for name in names)]
    found: dict[str, Path] = {}
    for path in tried:
        try:
            if path.is_file():
                with Ledger.open(path, read_only=True) as ledger:
                    if record.run_id in ledger.state().runs:
                        found.setdefault(ledger.node, path)
        except DynadpError:
            continue
    assert record.planned is not None
    senders = {node for node, own in record.planned.alphas.items() if any(own)}
    if missing := senders - set(found):
        raise RecordError(
            f"no ledger with this run was found for {', '.join(sorted(missing))}; name them with "
            "--ledger FILE"
        )
    return found


def _centre(plan: Plan, schema: Schema, held: Held) -> Schema:
    names = [plan.bound.nodes[p] for p in plan.senders]
    if missing := [name for name in names if 0 not in held.get(name, {})]:
        raise RecordError(f"the centring round of {', '.join(missing)} is not here: no model yet")
    released = np.array([held[name][0] for name in names])
    counts = [plan.bound.counts[p] for p in plan.senders]
    losses = [plan.centrings[p] for p in plan.senders]
    made = centre_of(schema, counts, released, names, losses, plan.mechanism.noise, seeded=False)
    return made.applied(schema)


def _sealed_centre(plan: Plan, schema: Schema, held: Held) -> Schema:
    assert plan.sealing is not None
    counts = np.array(plan.bound.counts, dtype=float)
    noise = sealed_centring(schema, counts, np.array(plan.centrings), plan.sealing)
    total = _opened(plan, held, 0, lambda words: decoded(words, noise))
    if total is None:
        raise RecordError("the sealed centring round is not complete here: no model yet")
    return centred(schema, possible_mean(schema, total[0] / plan.rows))


def _opened(plan: Plan, held: Held, n: int, decode: Any) -> Any:
    """Return a sealed sum, of its first attempt or of a spare one; None where letters are missing.

    Attempts that gave no sum are taken out, as the next ones are of later rounds.
    """
    nodes, spares = plan.release_plan.nodes, len(plan.release_plan.spares)
    for entry in (n, *range(plan.rounds + 1, plan.rounds + spares + 1)):
        try:
            letters = [held.get(node, {})[entry] for node in nodes]
            words = np.array(letters)[:, None].view(np.uint64)
            found = decode(words)
        except (SumSpoiled, ValueError):
            continue
        except KeyError:
            if entry == n:
                return None
            continue
        if entry > plan.rounds:
            for node in nodes:
                del held[node][entry]
        return found
    return None


def _point(plan: Plan, held: Held) -> tuple[Array, int, SumPath, NoisyHistogram | None]:
    """Return the mean of the common point over the last half of the steps, the rounds, what they
    leave to say how far noise moved it, and the histogram of its scores where that is here.
    """
    releases, steps = plan.release_plan, plan.steps
    assert steps is not None
    start = np.zeros((1, plan.bound.vectors * plan.bound.dimension))
    given = releases.noises, steps, start, plan.rows, 1, plan.settings.row_weight
    rounds, path = SumRounds(None, *given), list[Array]()
    weigh = WeighedSum([steps.node_weights[p] for p in plan.senders])
    for n in range(1, plan.rounds + 1):
        if plan.sealing:
            add = SealedSum(releases.noises)
            total = _opened(plan, held, n, lambda words, n=n, add=add: add(n, words))
        elif all(n in held.get(node, {}) for node in releases.nodes):
            total = weigh(n, np.array([held[node][n] for node in releases.nodes])[:, None])
        else:
            total = None
        if total is None:
            break
        rounds.release()
        before = rounds.state
        rounds.receive(total)
        if rounds.state.z is not before.z:  # rounds of moments and histograms move nothing
            path.append(rounds.state.z[0])
    if not path:
        raise RecordError("no round of all nodes is here: there is nothing to make a model of")
    averaged = [t >= len(path) // 2 for t in range(len(path))]
    left = replace(rounds.path, averaged=averaged)
    mean = np.mean(path[len(path) // 2 :], axis=0)
    return mean, rounds.n, left, rounds.histogram()


def _mean(held: Held) -> tuple[Array, int, list[str]]:
    """Return the mean over the last half of the rounds, the rounds, and whose messages they are:
    of those that have all of these rounds, as many rounds and nodes as there are.
    """

    def members(last: int) -> list[str]:
        half = range(last // 2 + 1, last + 1)
        return [node for node, own in held.items() if all(n in own for n in half)]

    most = max(n for own in held.values() for n in own)
    last = max(range(1, most + 1), key=lambda n: (n * len(members(n)), n))
    those = sorted(members(last))
    half = range(last // 2 + 1, last + 1)
    return np.mean([held[node][n] for node in those for n in half], axis=0), last, those
