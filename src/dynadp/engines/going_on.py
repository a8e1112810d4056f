"""A node's rounds of ADMM, and its model, in a run that goes on without nodes that stay away
(maths.md 16).
"""

import json
from collections.abc import Callable, Generator
from contextlib import suppress

import numpy as np

from dynadp._arrays import Array
from dynadp._files import canonical_json
from dynadp.consensus import EdgeDuals, RoundProgress, Rounds, enough_of
from dynadp.consensus import reachable as reach
from dynadp.engines.edge_book import EdgeBook
from dynadp.engines.exchange import Awaiting
from dynadp.engines.notes import standings
from dynadp.errors import NodeLost


def admm_going_on(
    book: EdgeBook,
    rounds: Rounds,
    output: str,
    on_round: Callable[[RoundProgress], None],
) -> Generator[Awaiting, None, tuple[Array, tuple[str, ...]]]:
    """All rounds, and the model: returns it with the nodes that it is the mean over; none for all.

    Parameters
    ----------
    book
        The node's edges.
    rounds
        Its rounds.
    output
        Which mean becomes the model.
    on_round
        Called after every round.
    """
    inbox, neighbours = book.inbox, book.neighbours
    duals = EdgeDuals([0] * len(neighbours), rounds.solver.eta, rounds.V.shape)
    tails = np.zeros((len(neighbours), 1, rounds.V.shape[-1]))
    counts = np.zeros(len(neighbours), dtype=int)
    while not rounds.over:
        if book.next <= 0:
            yield from book.come_back(rounds.n)
        n, before = book.next, book.now
        rounds.skip_to(n)
        V = rounds.release()
        yield from book.settle(n, V[0, 0])
        used = np.array([before[j].on(n) and book.now[j] == before[j] for j in neighbours])
        heard = np.array(
            [
                [inbox.values(j, "message", n) if on else V[0, 0]]
                for j, on in zip(neighbours, used, strict=True)
            ]
        )
        sums, dropped = duals.receive(V, heard, used)
        progress = rounds.receive(sums, dropped if dropped.any() else None)
        if n > rounds.total // 2:
            tails[used] += heard[used]
            counts += used
        on_round(progress.with_messages(V, rounds.points))
    rounds.finish()
    own, averaged = rounds.mean()[0, 0], rounds.total - rounds.total // 2
    if output == "network":
        return (yield from _network_mean(book, own, rounds.tailed, averaged))
    if output == "last":
        return rounds.V[0, 0], ()
    if output == "tail":
        return own, ()
    chosen = [i for i, k in enumerate(counts) if enough_of(int(k), averaged)]
    vectors = [own, *(tails[i, 0] / counts[i] for i in chosen)]
    members = (book.me, *(neighbours[i] for i in chosen))
    return np.mean(vectors, axis=0), () if len(chosen) == len(neighbours) else members


def _network_mean(
    book: EdgeBook, own: Array, tailed: int, averaged: int
) -> Generator[Awaiting, None, tuple[Array, tuple[str, ...]]]:
    """The mean over the nodes that finished and are connected with this one over edges that both
    ends say are on, as far as they sent at least half of the averaged rounds.
    """
    inbox, T, nodes, me = book.inbox, book.rounds, book.topology.nodes, book.me
    kept = inbox.decision(T + 1)
    if book.lost and inbox.missing("mean", T, [me]):
        with suppress(NodeLost):  # neighbours may hold the one from before the loss
            yield Awaiting("mean", T, (me,))
        if inbox.missing("mean", T, [me]):  # a second one, with another note, would not be believed
            return own, (me,)
    if not book.lost:
        note = book.note(rounds=tailed)
        book.letters.send("mean", T, own, note, again=kept is None)
    if kept is None:
        gone = set[str]()
        while waiting := _unheard(book, gone):
            try:
                yield Awaiting("mean", T, waiting)
            except NodeLost as error:
                gone |= {*error.away} & {*inbox.missing("mean", T, waiting)}
        there = _finished(book, gone)
        inbox.decide(T + 1, canonical_json({"edges": book.now, "members": sorted(there)}))
    else:
        there = set(json.loads(kept)["members"])
    book.letters.checkpoint("received")
    enough = {
        p for p in there if enough_of(json.loads(inbox.note(p, "mean", T))["rounds"], averaged)
    }
    members = tuple(p for p in nodes if p in (enough or there))
    means = [own if p == me else inbox.values(p, "mean", T) for p in members]
    return np.array(means).mean(axis=0), () if len(members) == len(nodes) else members


def _edges_on(book: EdgeBook, gone: set[str]) -> list[tuple[str, str]]:
    """Edges that no mean so far says are off, with an end whose mean is here."""
    inbox, T, nodes = book.inbox, book.rounds, book.topology.nodes
    missing = {*inbox.missing("mean", T, nodes)}
    said = {p: standings(inbox.note(p, "mean", T)) for p in nodes if p not in missing}
    found = []
    for u, v in book.topology.edges:
        ends = (nodes[u], nodes[v])
        known = [said[a][b] for a, b in (ends, ends[::-1]) if a in said]
        if known and not any(edge.off for edge in known) and not gone & {*ends}:
            found.append(ends)
    return found


def _unheard(book: EdgeBook, gone: set[str]) -> tuple[str, ...]:
    return tuple(book.inbox.missing("mean", book.rounds, reach(book.me, _edges_on(book, gone))))


def _finished(book: EdgeBook, gone: set[str]) -> set[str]:
    return reach(book.me, _edges_on(book, gone))
