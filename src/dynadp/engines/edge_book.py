"""Which of a node's edges are on, round by round, in a run that goes on without absent nodes
(maths.md 16).

Each end of an edge gives the other up by itself. What it decides at the end of a round is kept
before the next release, so that a node that is started again comes to the same state. A node that
all its neighbours gave up asks to be taken in again: each of them names the round from which their
edge counts, under a new epoch, and rounds in between are released by nobody.
"""

import json
from collections.abc import Generator, Mapping
from logging import getLogger
from typing import Any

from dynadp._arrays import Array
from dynadp._files import canonical_json
from dynadp.consensus import Journal, Topology
from dynadp.consensus import reachable as reach
from dynadp.engines.exchange import FOR_GOOD, Awaiting, Letters
from dynadp.engines.inbox import Inbox
from dynadp.engines.letters import verify
from dynadp.engines.notes import TRIES, Standing, epoch_of, standings, written
from dynadp.errors import LeftBehind, NodeLost

LOG = getLogger("dynadp.node")
_LEFT = -1  # in place of the next round: there is none
_TRIES = 5  # epochs that a node asks for before it stops
_RETRY = 4  # rounds of a neighbour before it is asked again
_JUMP = 4  # attempts that a neighbour's answer may be ahead

Waiting = Generator[Awaiting, None, None]
Edges = dict[str, Standing]


def edges_kept(inbox: Inbox) -> Edges:
    """Return the edges as this node decided last; none before its first round."""
    content = inbox.last_decision()
    return {} if content is None else standings(content.encode())


def given_up(inbox: Inbox) -> frozenset[str]:
    """Return the neighbours that this node goes on without, as it decided last."""
    return frozenset(j for j, edge in edges_kept(inbox).items() if edge.off)


def require_not_left(inbox: Inbox, journal: Journal, *, lost: bool = False) -> None:
    """Raise LeftBehind again, where this node's part in the run ended with it; what it did not
    spend is given back, if a crash came before that.

    Parameters
    ----------
    inbox, journal
        The node's letters, and what it entered.
    lost
        Whether it has taken part before in sums that go on, and what it signed then is gone: its
        part ends here.
    """
    if lost:
        inbox.decide(0, canonical_json({"edges": {}, "next": _LEFT}))
        inbox.settle()
    content = inbox.last_decision()
    if content is not None and json.loads(content).get("next") == _LEFT:
        journal.close("stopped")
        raise LeftBehind(
            f"{inbox.path} is new, and this node has taken part in this run before: what it signed "
            "about its members is gone, so it cannot go on without risking two models. Its part is "
            "over; keep that file while a run lasts"
            if lost
            else f"{inbox.rules.me} was left behind: the run went on without it, and its part is "
            "over. Take part in a new run"
        )


class EdgeBook:
    """Which of a node's edges are on, round by round.

    Parameters
    ----------
    topology, me, rounds
        The network, the node's name, and T.
    least
        Nodes that must remain.
    letters, journal
        Its letters and its entered messages.

    Attributes
    ----------
    now
        The edges before the next round.
    next
        That round; 0 where it is not known yet.
    lost
        Whether the file of its letters was lost, and it was not taken in again since.
    """

    def __init__(
        self,
        topology: Topology,
        me: str,
        rounds: int,
        least: int,
        letters: Letters,
        journal: Journal,
    ) -> None:
        self.topology, self.me, self.rounds, self.least = topology, me, rounds, least
        self.letters, self.inbox, self.journal = letters, letters.inbox, journal
        index = topology.nodes.index(me)
        self.neighbours = tuple(topology.nodes[j] for j in topology.neighbours(index))
        self.now: Edges = {j: Standing(0, 1) for j in self.neighbours}
        self.next, self.lost = 1, False
        self._index, self._looked = index, False
        self._floor = 0  # epochs up to here were refused
        self._asked: dict[str, int] = {}  # beyond which round of a neighbour to ask it
        self.inbox.excused = self._excused

    @property
    def alone(self) -> bool:
        """Whether no edge is on, or agreed to be on later."""
        return all(edge.off for edge in self.now.values())

    def note(self, **more: Any) -> bytes:
        """Return this node's edges, for a letter."""
        return written({"edges": self.now, **more})

    # ----------------------------------------------------------------------------------------------
    # a round

    def settle(self, n: int, V: Array) -> Waiting:
        """Send the message of round n, wait for those of edges that are on, and decide; or take
        what was decided before.
        """
        if not self._looked and self.inbox.decision(n) is None:
            self._looked = True
            self._find_lost(n)
        if (kept := self.inbox.decision(n)) is not None:
            self._take(kept)
            return
        on = tuple(j for j in self.neighbours if self.now[j].on(n))
        again = bool(self.inbox.missing("message", n, on))
        self.letters.send("message", n, V, self.note(), again=again)
        gone, lost = yield from self._await(n, on)
        self.letters.checkpoint("received")
        here = [j for j in on if j not in gone and not self.inbox.missing("message", n, [j])]
        said = {j: self._said(j, n) for j in here}
        after = {j: self._after(j, n, said.get(j)) for j in self.neighbours}
        answers = self._answers(n, after)
        self._require_enough(n, after, said, lost)
        self._keep(n, after)
        self.letters.checkpoint("decided")
        for epoch, answer in answers.items():
            self.letters.send("welcome", epoch, None, written(answer))
        self._ask_again(n)

    def _await(
        self, n: int, on: tuple[str, ...]
    ) -> Generator[Awaiting, None, tuple[set[str], NodeLost | None]]:
        """Return who is given up, and the error that the engine gave up with."""
        gone, lost = set[str](), None
        while waiting := tuple(j for j in self.inbox.awaited("message", n, on) if j not in gone):
            try:
                yield Awaiting("message", n, waiting)
            except NodeLost as error:
                lost = error
                gone |= {*error.away} & {*self.inbox.missing("message", n, waiting)}
        return gone, lost

    def _after(self, j: str, n: int, said: Mapping[str, Standing] | None) -> Standing:
        """The edge after round n, by what its other end said."""
        edge = self.now[j]
        if edge.on(n):
            if said is not None and said[self.me] == edge:
                return edge
            known = edge.epoch if said is None else max(edge.epoch, said[self.me].epoch)
            self._asked[j] = self._last_round(j)
            return Standing(known, 0)
        if not edge.off:
            return edge
        last = self._last_round(j)
        for epoch in reversed(self.inbox.rounds_of(self.me, "join")):
            if epoch <= edge.epoch:
                break
            start = json.loads(self.inbox.note(j, "welcome", epoch) or b"{}").get("from", 0)
            if not start and last:
                theirs = self._said(j, last)[self.me]
                start = theirs.start if theirs.epoch == epoch else 0
            if start > n:
                return Standing(epoch, start)
        return edge

    def _answers(self, n: int, after: Edges) -> dict[int, dict[str, int]]:
        """Answer who asks to be taken in, by the epoch that it asks for; enters it in ``after``."""
        answers: dict[int, dict[str, int]] = {}
        P, nodes = len(self.topology), self.topology.nodes
        for j in self.neighbours:
            epoch = max(self.inbox.rounds_of(j, "join"), default=0)
            if not epoch or epoch % P != nodes.index(j):
                continue
            if not self.inbox.missing("welcome", epoch, [self.me]):
                continue  # answered
            ask = json.loads(self.inbox.note(j, "join", epoch))
            if epoch <= after[j].epoch:
                answers[epoch] = {"above": after[j].epoch}
                continue
            # of two that run, the one whose name comes first decides
            if not ask["back"] and (not after[j].off or self.me > j):
                continue
            start = max(n, ask["after"], self._last_round(j)) + (2 if ask["back"] else 3)
            if start > self.rounds:
                after[j], answers[epoch] = Standing(after[j].epoch, 0), {"from": 0}
            else:
                after[j], answers[epoch] = Standing(epoch, start), {"from": start}
        return answers

    def _require_enough(
        self,
        n: int,
        after: Edges,
        said: Mapping[str, Mapping[str, Standing]],
        lost: NodeLost | None,
    ) -> None:
        """Stop, resumable and with nothing decided, where fewer than ``least`` nodes may be left.

        A node counts as gone when its edge to this node, or to a neighbour whose message is here,
        is off and it sent this node nothing of this round. Those that cannot be reached without
        the gone ones count as gone too. What is further away counts as there.
        """
        if not any(after[j].off and not self.now[j].off for j in self.neighbours):
            return
        off = [j for j, edge in after.items() if edge.off]
        off += [k for edges in said.values() for k, edge in edges.items() if edge.off]
        silent = {k for k in off if k != self.me and self._last_round(k) < n}
        cut = {(self.me, j) for j in self.neighbours if after[j].off}
        nodes = self.topology.nodes
        left = reach(
            self.me,
            [
                (nodes[u], nodes[v])
                for u, v in self.topology.edges
                if not silent & {nodes[u], nodes[v]}
                and not cut & {(nodes[u], nodes[v]), (nodes[v], nodes[u])}
            ],
        )
        if len(left) >= self.least:
            return
        # those who go on without this node may take it in again
        alone = all(edge.off for edge in after.values())
        if alone and any(self._last_round(j) >= n for j in self.neighbours):
            return
        if alone and any(self._excused("message", n, j) for j in self.neighbours):
            return
        gone = [j for j, edge in after.items() if edge.off]
        raise NodeLost(
            f"{self.me} stops in round {n}: without {', '.join(gone)} it can count on "
            f"{len(left)} of the {self.least} nodes that must remain (network.least). It loses "
            f"nothing: see to the others, then start this node again. {FOR_GOOD}"
            + (f". {lost}" if lost else ""),
            tuple(gone),
        )

    def _keep(self, n: int, after: Edges, then: int | None = None) -> None:
        """Make a decision durable, then act on it."""
        before, rest = self.now, self.rounds - n
        lost = [j for j, edge in after.items() if edge.off and not before[j].off]
        back = [j for j, edge in after.items() if before[j].off and not edge.off]
        if lost and rest:
            LOG.warning("goes on after round %d without %s", n, ", ".join(lost))
        if back:
            LOG.info("takes messages of %s again", ", ".join(back))
        self.now, self.lost = after, False
        self.next = (0 if self.alone else n + 1) if then is None else then
        self.inbox.decide(n, canonical_json({"edges": self.now, "next": self.next}))
        self.inbox.given_up = frozenset(j for j, edge in after.items() if edge.off)

    def _take(self, kept: str) -> None:
        """Take a decision up again; answers that were not sent yet are made again."""
        before, content = self.now, json.loads(kept)
        self.now, self.next = standings(kept.encode()), content["next"]
        self.lost = "lost" in content
        self.inbox.given_up = frozenset(j for j, edge in self.now.items() if edge.off)
        P, nodes = len(self.topology), self.topology.nodes
        for j, edge in self.now.items():
            if edge.start > before[j].start and edge.epoch % P == nodes.index(j) and edge.epoch:
                answer = written({"from": edge.start})
                self.letters.send("welcome", edge.epoch, None, answer, again=False)

    def _find_lost(self, n: int) -> None:
        """Give up all edges where messages were entered whose decisions are gone: the letters were
        lost, and what was decided cannot be known.
        """
        entered = [k for k in range(n, self.rounds + 1) if self.journal.sent(k) is not None]
        if len(entered) < 2:
            return
        off = {j: list(Standing(edge.epoch, 0)) for j, edge in self.now.items()}
        following = dict(zip(entered, [*entered[1:], 0], strict=True))
        for k in reversed(entered):  # the first one last: cut short, all this is done again
            content = {"edges": off, "next": following[k], "lost": True}
            self.inbox.decide(k, canonical_json(content))

    # ----------------------------------------------------------------------------------------------
    # to be taken in again

    def come_back(self, n: int) -> Waiting:
        """Ask the neighbours to take this node in again after its last round n; sets ``next``.

        Raises
        ------
        LeftBehind
            Where nobody does: the run went on without this node, or is over.
        """
        if self.next == 0:
            for _ in range(_TRIES):
                epoch = self._new_epoch(n, back=True)
                if not epoch:
                    break
                note = written({"after": n, "back": True})
                self.letters.send("join", epoch, None, note)
                yield from self._await_answers(epoch)
                found = self._welcomes(epoch)
                starts = {j: a["from"] for j, a in found.items() if a.get("from", 0) > n}
                if starts:
                    after = {
                        j: Standing(epoch, starts[j]) if j in starts else self.now[j]
                        for j in self.neighbours
                    }
                    self._keep(n, after, min(starts.values()))
                    return
                if self.lost and not found:
                    raise NodeLost(
                        f"{self.me} lost its letters and asks to be taken in again, but no "
                        "neighbour answers. Start it again when they are there",
                        self.neighbours,
                    )
                if not any("above" in a or a["from"] for a in found.values()):
                    break  # silence, or the run is over there
                above = [a["above"] for a in found.values() if "above" in a]
                self._floor = max([epoch, *(e for e in above if e < self._near(epoch))])
            self._keep(n, self.now, _LEFT)
        if self.next == _LEFT:
            self.journal.close("stopped")
            raise LeftBehind(
                f"{self.me} was left behind after round {n}: its neighbours went on without it and "
                "none of them takes it in again. Its part is over; what it did not spend is given "
                "back to its budget"
            )

    def _await_answers(self, epoch: int) -> Waiting:
        gone = set[str]()
        while waiting := tuple(
            j for j in self.inbox.missing("welcome", epoch, self.neighbours) if j not in gone
        ):
            try:
                yield Awaiting("welcome", epoch, waiting)
            except NodeLost as error:
                gone |= {*error.away}

    def _welcomes(self, epoch: int) -> dict[str, dict[str, int]]:
        missing = self.inbox.missing("welcome", epoch, self.neighbours)
        return {
            j: json.loads(self.inbox.note(j, "welcome", epoch))
            for j in self.neighbours
            if j not in missing
        }

    def _new_epoch(self, n: int, *, back: bool) -> int:
        """Return the smallest epoch of this node's own that is above all that it knows; or one that
        it asked for after round n and got no answer to.
        """
        asked = self.inbox.rounds_of(self.me, "join")
        wanted = {"after": n, "back": back}
        if (
            asked
            and asked[-1] > self._floor
            and not self._welcomes(asked[-1])
            and json.loads(self.inbox.note(self.me, "join", asked[-1])) == wanted
        ):
            return asked[-1]
        base = max([0, self._floor, *asked])
        base = max([base, *(e.epoch for e in self.now.values() if e.epoch < self._near(base))])
        epochs = (
            epoch_of(k, n, back, self._index, len(self.topology), self.rounds)
            for k in range(TRIES - 1)
        )
        return next((epoch for epoch in epochs if epoch > base), 0)

    def _near(self, epoch: int) -> int:
        """The epoch that an honest neighbour's is below: a hostile one could use all of them up."""
        return epoch + epoch_of(_JUMP, 0, False, 0, len(self.topology), self.rounds)

    def _ask_again(self, n: int) -> None:
        """Ask a neighbour whose edge is off and who runs; of two the one whose name comes later."""
        wanted = False
        for j, edge in self.now.items():
            if edge.off and self.me > j and n < self.rounds:
                last = self._last_round(j)
                if last > self._asked.setdefault(j, last):
                    wanted, self._asked[j] = True, last + _RETRY
        if wanted and (epoch := self._new_epoch(n, back=False)):
            note = written({"after": n, "back": False})
            self.letters.send("join", epoch, None, note)

    # ----------------------------------------------------------------------------------------------
    # what others said

    def _excused(self, kind: str, n: int, author: str) -> bool:
        """Whether a message of round n will not count any more: a later one of its author says that
        the edge is off, or the author asks to be taken in again.
        """
        if kind != "message" or n == 0 or author not in self.now:
            return False
        asks = max(self.inbox.rounds_of(author, "join"), default=0)
        if (
            asks > self.now[author].epoch
            and self.inbox.missing("welcome", asks, [self.me])
            and json.loads(self.inbox.note(author, "join", asks))["back"]
        ):
            return True
        last = self._last_round(author)
        if last <= n:
            return False
        start = self._said(author, last)[self.me].start
        return start == 0 or start > n

    def _last_round(self, j: str) -> int:
        """Return the latest round of which there is a message of j; 0 for none."""
        data = self.inbox.last(j)
        return 0 if data is None else verify(data, self.inbox.rules.keys).round

    def _said(self, j: str, n: int) -> Edges:
        """Return the edges as j's message of round n has them."""
        return standings(self.inbox.note(j, "message", n))
