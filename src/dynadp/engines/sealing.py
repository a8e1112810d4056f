"""What a process and a node share of sealed sums: whom keys are for, and the centring round."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from dynadp._arrays import Array
from dynadp._files import digest
from dynadp.consensus import Journal, Masks, Messages, decoded
from dynadp.data import Schema
from dynadp.engines.letters import run_id
from dynadp.errors import LeftBehind, SumSpoiled
from dynadp.mechanisms import Draws, possible_mean, sealed_centring
from dynadp.planning import Plan
from dynadp.privacy import Event


def purpose_of(plan: Plan, journal: Journal | None) -> tuple[str, str]:
    """Return what the keys of a run are for: hashes of its nodes, in order, with their rows and how
    many of them are honest; and of its name.
    """
    nodes, counts = list(plan.bound.nodes), list(plan.bound.counts)
    run = journal.run if journal else Journal.run
    return digest([nodes, counts, plan.mechanism.describe()]), run_id(run).hex()


@contextmanager
def forgetting(masks: Masks | None, journal: Journal | None) -> Iterator[None]:
    """Forget a process's keys of a run, however it ends, and close a run that spoiled letters
    ended, or that goes on without this node: what it did not spend is free again.
    """
    try:
        yield
    except (SumSpoiled, LeftBehind):
        if journal:
            journal.close("stopped")
        raise
    finally:
        if masks:
            masks.forget()


class CentringAttempts:
    """One attempt after the other at the sum of all nodes' features.

    Parameters
    ----------
    plan, schema
        Bound to its consortium, with a centring round; without a centre yet.
    masks
        Of the run.
    here
        The positions of the nodes that send from here.
    seeded
        Whether noise comes from a seed.

    Attributes
    ----------
    entry
        Under which number the present attempt is entered.
    spent
        The events of all attempts so far.
    """

    def __init__(
        self, plan: Plan, schema: Schema, masks: Masks, here: Sequence[int], *, seeded: bool
    ) -> None:
        assert plan.sealing is not None
        self.plan, self.schema, self.masks, self.seeded = plan, schema, masks, seeded
        self.here, self.nodes = list(here), [plan.bound.nodes[p] for p in here]
        counts = np.array(plan.bound.counts, dtype=float)
        self._first = sealed_centring(schema, counts, np.array(plan.centrings), plan.sealing)
        self._noise, self.entry = self._first, 0
        for spare in range(1, len(plan.release_plan.spares) + 1):  # refused before any is drawn
            plan.release_plan.spare(0, self._first, spare)
        self.spent: list[Event] = list(self.events)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the present attempt costs the nodes here."""
        if self.entry:
            planned = self.plan.release_plan.events_of(self.entry, seeded=self.seeded)
        else:
            planned = tuple(event for event in self.plan.events if event.round == 0)
        return tuple(replace(e, seeded=self.seeded) for e in planned if e.node in self.nodes)

    def letters(self, totals: Array, draws: Draws) -> Messages:
        """Make the letters of the nodes here from their sums of features, P x f."""
        noise = self._noise.each(lambda numbers: numbers[self.here])
        k = noise.sealable(totals[:, None], draws, self.nodes, self.entry)[:, 0]
        words = self.masks.sealed(k, self.nodes, 0, self.entry)
        return dict(zip(self.nodes, words.view(np.float64), strict=True))  # the same 64 bits

    def again(self) -> None:
        """Begin the next attempt: new noise, new masks, one of the spare ones."""
        self.masks.spares += 1
        releases = self.plan.release_plan
        self.entry, self._noise = releases.spare(0, self._first, self.masks.spares)
        self.spent += self.events

    def centre(self, words: Array | None, rows: float | None = None) -> Array | None:
        """Return the centre from the letters of all nodes, P x 1 x f; None where they give no sum,
        and the next attempt begins. ``rows`` are those that count, by default of all nodes.
        """
        try:
            if words is None:
                raise SumSpoiled("letters of one sealed sum have different lengths")
            total = decoded(words.view(np.uint64), self._first)[0]
        except SumSpoiled:
            self.again()
            return None
        self.masks.follow(0, total)
        return possible_mean(self.schema, total / (rows or self.plan.rows))
