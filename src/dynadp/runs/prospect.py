"""What a silo's part in a run would be, before anything is spent or sent."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from dynadp.data import Seal
from dynadp.engines import least_of, now
from dynadp.errors import NotApproved, RecordError
from dynadp.privacy import Collusion, LedgerSummary, Total, by_node
from dynadp.runs.headroom import find_headroom
from dynadp.runs.identities import key_fingerprint
from dynadp.runs.last_run import described, terms_before
from dynadp.runs.ledgers import open_readable
from dynadp.runs.preparation import check_people, check_rows
from dynadp.runs.silo import SiloRun


@dataclass(frozen=True)
class Recipient:
    """Somebody who gets this silo's messages.

    Attributes
    ----------
    name, fingerprint, endpoint
        Who, by the public key of the run file, and where; None where it dials itself.
    direct
        Whether it is a neighbour; to others neighbours hand messages on.
    """

    name: str
    fingerprint: str
    endpoint: str | None
    direct: bool


@dataclass(frozen=True)
class LedgerProspect:
    """What the ledger says of the run.

    Attributes
    ----------
    cap
        epsilon and delta over all runs; None without one.
    lost
        epsilon of all that was released so far.
    spent, planned
        Messages of this run that were released already, and all of them.
    begun
        Whether this run is reserved already.
    admitted
        Whether the run may begin, or go on, or is finished.
    left_now, left_after
        Shares of the cap, by the measure that leaves more.
    next_run
        The largest epsilon of a run after this one; None where none fits.
    advice
        What would help where it is refused.
    """

    cap: tuple[float, float] | None
    lost: float | None
    spent: int
    planned: int
    begun: bool
    admitted: bool
    left_now: float
    left_after: float
    next_run: float | None
    advice: str = ""


@dataclass(frozen=True)
class Prospect:
    """What a silo would release in a run, to whom, at what cost; no value of a row is in it.

    Attributes
    ----------
    run, node, config
        Which run, seen from which silo; the hash that all silos agree on.
    simulation
        Whether noise is seeded, and nothing is spent.
    rows, at_most
        How many rows were checked; whether that is a declared number that stands for a secret one.
    mechanism, exchange, dimension
        How messages are protected, who gets them, and how many numbers each has.
    rounds, centring, spares
        Rounds, whether one before them centres the rows, and spare attempts.
    recipients, relay
        Who gets messages, and through whom.
    scale, each
        ``alpha`` or ``mu``, and the largest of one round at this silo.
    own, total
        What the run costs people of this silo, and at the silo where it costs most.
    collusion
        What is lost where more silos collude than planned.
    silos, least, patience
        How many silos the run has, and how many must remain where it goes on without some: all of
        them where it waits; seconds that it waits for a silent one.
    ledger
        What the ledger says; None in a SIMULATION.
    changed
        What is different since the last run, in lines.
    certificate_ends, certificate_days
        When this silo's certificate ends.
    approval, approved, consent
        The file of the approval that is needed, if one is; whether it approves exactly this; and
        who signed it, or why it does not hold, in words.
    """

    run: str
    node: str
    config: str
    simulation: bool
    rows: int
    at_most: bool
    mechanism: str
    exchange: str
    dimension: int
    rounds: int
    centring: bool
    spares: int
    recipients: tuple[Recipient, ...]
    relay: str | None
    scale: str
    each: float
    own: Total | None
    total: Total
    collusion: tuple[Collusion, ...]
    silos: int
    least: int
    patience: float
    ledger: LedgerProspect | None
    changed: tuple[str, ...]
    certificate_ends: datetime
    certificate_days: int
    approval: str | None
    approved: bool | None
    consent: str

    @property
    def messages(self) -> int:
        """How many messages the silo may send, at most; 0 where it sends nothing."""
        return 0 if self.own is None else self.rounds + self.centring + self.spares

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        whole = asdict(self)
        own = None if self.own is None else self.own.to_json()
        return whole | {
            "own": own,
            "total": self.total.to_json(),
            "collusion": [point.to_json() for point in self.collusion],
            "certificate_ends": self.certificate_ends.isoformat(),
            "messages": self.messages,
        }


def prospect_of(silo: SiloRun) -> Prospect:
    """Return what a silo's part in its run would be.

    All rows are checked. Nothing is entered, and nobody is connected.
    """
    plan, me, file = silo.plan, silo.node.node, silo.file
    record = silo.record(now())
    events = [event for event in plan.events if event.node == me]
    check_rows([silo.rows], "rows")
    check_people([silo.rows], events)
    keys = {section.name: str(section.key) for section in file.nodes}
    endpoints = {section.name: section.endpoint for section in file.nodes}
    neighbours = silo.part.neighbours
    approved, consent = _consent(silo)
    index = silo.part.index
    described_plan = plan.to_json()
    return Prospect(
        run=record.name,
        node=me,
        config=record.config_hash,
        simulation=record.simulation,
        rows=record.rows[me],
        at_most=silo.schema.hides_counts,
        mechanism=plan.mechanism.name,
        exchange=plan.mechanism.exchange,
        dimension=plan.bound.dimension,
        rounds=plan.rounds,
        centring=bool(plan.centrings),
        spares=len({e.round for e in events if getattr(e, "purpose", "") == "spare"}),
        recipients=tuple(
            Recipient(name, key_fingerprint(keys[name]), endpoints[name], name in neighbours)
            for name in silo.recipients
        ),
        relay=file.network.relay,
        scale="mu" if described_plan["noise"] == "gaussian" else "alpha",
        each=plan.alphas[index],
        own=by_node(events, plan.delta)[me] if events else None,
        total=plan.total,
        collusion=plan.collusion,
        silos=len(file.nodes),
        least=least_of(plan, silo.absence),
        patience=silo.absence.patience,
        ledger=None if silo.ledger is None else _ledger(silo, record.run_id, events),
        changed=_changed(silo, record.run_id),
        certificate_ends=silo.identity.expires,
        certificate_days=(silo.identity.expires - datetime.now(UTC)).days,
        approval=None if approved is None else str(silo.approval),
        approved=approved,
        consent=consent,
    )


def _changed(silo: SiloRun, run: str) -> tuple[str, ...]:
    """What is different since the last run; that it cannot be told stops nobody."""
    try:
        before = None if silo.ledger is None else terms_before(silo.ledger, run)
    except RecordError as error:
        return (f"not known: {error}",)
    return tuple(described(before, silo.terms))


def _consent(silo: SiloRun) -> tuple[bool | None, str]:
    """Whether the approval that NODE.toml asks for holds, and in words; None where none is."""
    if silo.node.consent is None:
        return None, ""
    try:
        found = silo.approved()
    except (NotApproved, RecordError) as error:
        return False, str(error)
    return True, f"approved by {found.by} on {found.at}, in {silo.approval}"


def _ledger(silo: SiloRun, run: str, events: list[Any]) -> LedgerProspect:
    """Return what the ledger says; rows that changed since the run began are refused."""
    assert silo.ledger is not None
    with open_readable(silo.ledger) as ledger:
        summary = LedgerSummary.of(ledger)
    known = summary.runs.get(run)
    seal = Seal.beside(silo.ledger, run, known is not None and bool(known.spent))
    seal.compare(silo.rows.digest, silo.node.node)
    if known is None:
        admitted = not events or summary.admits(events) is not None
        after = summary.with_plan(run, events) if events else summary
    else:
        admitted, after = known.closed != "stopped", summary
    cap, room, room_after = summary.cap, summary.room, after.room
    return LedgerProspect(
        cap=None if cap is None else (cap.epsilon, cap.delta),
        lost=summary.lost,
        spent=0 if known is None else len(known.spent),
        planned=len({event.round for event in events}),
        begun=known is not None,
        admitted=admitted,
        left_now=room.left if room else 0.0,
        left_after=room_after.left if room_after else 0.0,
        next_run=find_headroom(after).epsilon if admitted else None,
        advice="" if admitted else _CLOSED if known is not None else summary.advice(),
    )


_CLOSED = "the run is closed in it: to run again, change the run's name"
