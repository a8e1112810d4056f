"""Who takes part in a sum where nodes may stay away: all who remain agree, by their signatures
(maths.md 17).

A sum is the same at all nodes if they add the letters of one set of members. A node that has
waited long enough for some members' letters proposes to leave them out. It proposes the union of
all that it was shown, again whenever that grows, and decides once everybody outside the set has
signed exactly this set. A node that holds all letters and has proposed nothing has decided for
all. Whoever has decided says so (``held``) and proposes nothing more about this sum; who sees that
follows, unless it proposed to leave that node out. What ``least`` nodes hold is the sum, for
everybody.

A node that was left out follows what the others hold, from their letters, and asks to be taken in
again (``back``). Members name it in their next letters. It is a member from the sum after the
first one that leaves nobody out and whose letters all name it.

All of this is a function of letters, which are kept before they are sent: a node that is started
again finds its proposals and decisions, and goes on from there.
"""

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from logging import getLogger

from dynadp._files import canonical_json
from dynadp.consensus import Absence
from dynadp.engines.ballots import Ballots
from dynadp.engines.exchange import FOR_GOOD, Awaiting, Letters
from dynadp.engines.letters import Kind, Letter
from dynadp.engines.pasts import Past
from dynadp.errors import DeclarationError, LeftBehind, NodeLost

LOG = getLogger("dynadp.node")
_AHEAD = 8  # sums that a node asks for at once while it follows the others
Names = frozenset[str]
Waits = Generator[Awaiting, None, frozenset[str]]


class Overtaken(Exception):
    """The others held the sum before without this node, which went on: it begins again from its
    letters, and follows them.
    """


def least_members(absence: Absence, nodes: int, sealed: int = 0) -> int:
    """Return how many members must remain: more than half, and as many as sealed sums need.

    Two parts of a network that lost each other cannot both go on then.
    """
    half = nodes // 2 + 1
    given = half if absence.least is None else absence.least
    if not half <= given <= nodes:
        raise DeclarationError(
            f"least is {given} of {nodes} nodes; expected a number from {half} to {nodes}: with "
            "half of them or fewer both sides of a cut network could go on, with different models"
        )
    return max(given, sealed)


class Membership:
    """The members of one sum after the other, at one node.

    Parameters
    ----------
    letters
        Sends and keeps this node's letters.
    ballots
        How sets are written down.
    senders
        Whose letters sums are made of; the other members forward them and take the model home.
    least
        Members that must remain, senders among them.
    released
        Returns the last round that this node entered a release of.
    open_to_returns
        Returns whether members may take nodes in again now.

    Attributes
    ----------
    past
        Who takes part in the next sum, and how that came about.
    summed
        Over whom the last sum was, in the network's order.
    """

    def __init__(
        self,
        letters: Letters,
        ballots: Ballots,
        senders: Iterable[str],
        least: int,
        *,
        released: Callable[[], int] = lambda: 0,
        open_to_returns: Callable[[], bool] = lambda: True,
    ) -> None:
        self.letters, self.ballots, self.least = letters, ballots, least
        self.me, self.senders = letters.inbox.rules.me, frozenset(senders)
        self.released, self.open_to_returns = released, open_to_returns
        self.past, self.summed = Past.beginning(ballots.nodes), ballots.nodes
        self._known = dict[tuple[str, Kind, int], Letter | None]()  # of the present sum
        self._before: tuple[int, Past, Names] | None = None  # the sum before, and over whom
        self._settled, self._worried = set[int](), False
        # where the others were when this node began, and whether any of them left it out
        self._front, self._out = self._begun_without()

    @property
    def members(self) -> tuple[str, ...]:
        """Of the next sum, in the network's order."""
        return self.past.members

    @property
    def sending(self) -> tuple[str, ...]:
        """The members whose letters the next sum is made of."""
        return tuple(name for name in self.members if name in self.senders)

    def note(self, kind: Kind, entry: int, n: int) -> bytes:
        """Return for which sum the next letter is made, and who may come back after it: part of
        what its author signs; of a letter that is kept already, what it says.

        Parameters
        ----------
        kind, entry, n
            Which letter, and the round that it is for.
        """
        place = self.ballots.place(self.past)
        if (kept := self.letters.inbox.read(self.me, kind, entry)) is None:
            return place + self.ballots.packed(self._welcome(n))
        if self.ballots.place_of(kept) != place:
            raise LeftBehind(
                f"{self.me} has signed a letter of this sum for other members: it cannot sign a "
                "second one, and its part in this run is over"
            )
        return kept.note

    def begin(self, *, spent: bool) -> None:
        """Note that this node keeps its letters here; one that has spent and finds no such note
        lost them.
        """
        inbox, n = self.letters.inbox, self.ballots.entries
        if inbox.missing("held", n, (self.me,)):
            if spent:
                raise LeftBehind(
                    f"{inbox.path} is new, and this node has sent letters of this run before: what "
                    "it signed about its members is gone, so it cannot go on without risking two "
                    "models. Its part is over; keep that file while a run lasts"
                )
            inbox.letter("held", n, self.ballots.packed(self.members))
            inbox.settle()

    def sends(self, entry: int) -> Generator[Awaiting, None, bool]:
        """Return whether this node releases anything for a sum: not where it is no member, and not
        where others hold it already without this node, which is asked before anything is drawn.
        """
        if self.me not in self.members or self.me not in self.senders:
            return False
        while self._out - self._settled:
            here = self.letters.inbox.here("held", entry)
            found = self._kept(entry) or self._held(self.me, entry) or self._quorum(entry)
            if found is not None:
                return self.me in found
            self._worried = True
            also, before = self._elsewhere(entry), self._before
            held: Kind = "held"
            watched = ((held, entry), *([(held, before[0])] if before else []))
            seen = sum(len(self.letters.inbox.here(*one)) for one in watched)
            self._require_not_overtaken()
            try:
                want = self._says(entry, here)
                yield want._replace(watched=watched, seen=seen, also=also)
            except NodeLost:  # nobody can show it
                self._out = frozenset()
        return True

    def settle(self, kind: Kind, entry: int, *, partial: bool) -> Waits:
        """Wait for the letters of one sum; return who is left out of it, and of the sums after it.

        Parameters
        ----------
        kind, entry
            Which letters: their kind, and the number that they are entered under.
        partial
            Whether those of the members that remain make the sum. Otherwise what was sent is of
            no use where somebody is left out, and need not be here.
        """
        held = self._kept(entry)
        if held is None and self.me in self.members:
            held = self._held(self.me, entry)
            if held is None:
                held = yield from self._agreed(kind, entry, partial)
        elif held is None:
            held = yield from self._followed(kind, entry)
        away = frozenset(self.members) - held
        if partial or not away:
            yield from self._gathered(kind, entry, held)
        self._decided(kind, entry, held)
        return away

    def _agreed(self, kind: Kind, entry: int, partial: bool) -> Waits:
        """Agree with the other members on who the sum is over; return them."""
        inbox, M, watched = self.letters.inbox, frozenset(self.members), self.ballots.about(entry)
        mine, given_up = self._signed(self.me, entry), frozenset[str]()
        while True:
            seen = sum(len(inbox.here(*one)) for one in watched)
            if (held := self._quorum(entry)) is not None:
                return held
            if self._worried:
                self._require_not_overtaken()
            lacking = self._lacking(kind, entry)
            current = mine[-1] if mine else frozenset[str]()
            decided = self._adoptable(entry, current)
            for away in decided:
                if not lacking - away or (away and not partial):
                    return M - away
            if not mine and not lacking:
                return M
            target = current | given_up | self._proposed(entry)
            # a decision whose letters do not come is no use
            decided = [away for away in decided if not (lacking - away) & given_up]
            without = lacking - (decided[0] if decided else target)
            if not decided and target and not partial:
                without = frozenset()
            also = self._elsewhere(entry)
            want = Awaiting(kind, entry, tuple(sorted(without)), watched, seen, also)
            if not without:
                if target != current:
                    self._require_enough(M, target)
                    self._publish("without", self.ballots.number(entry, len(mine)), target)
                    mine.append(target)
                if not (unsigned := self._unsigned(entry, target)):
                    return M - target
                want = Awaiting("held", entry, tuple(sorted(unsigned)), watched, seen, also)
            try:
                if want.missing(inbox):
                    yield want
                    continue
                useless = frozenset(want.authors) - {*inbox.missing(*want[:3])}
            except NodeLost as lost:  # not of all of them, where somebody was revoked
                useless = frozenset(lost.away or want.authors)
            self._worried = True
            # who is silent, or sent what is of no use; a letter may have come meanwhile
            still = self._lacking(kind, entry) if without else self._unsigned(entry, target)
            given_up |= useless & still

    def _followed(self, kind: Kind, entry: int) -> Waits:
        """Wait until ``least`` members say over whom they hold a sum that this node has no part in;
        return them.
        """
        self._ask_back(entry)
        last = max(entry, min(entry + _AHEAD, self._front))  # a round trip brings several sums
        numbers = range(entry, last + 1)
        also = tuple((q, k, n) for n in numbers for k in ("held", kind) for q in self.members)
        while True:
            here = self.letters.inbox.here("held", entry)  # before they are counted
            if (held := self._quorum(entry)) is not None:
                return held
            yield from self._wait(self._says(entry, here)._replace(also=also))

    def _gathered(self, kind: Kind, entry: int, held: Names) -> Generator[Awaiting, None, None]:
        """Wait for the letters that make a sum whose members are known."""
        while lacking := tuple(sorted(self._lacking(kind, entry) & held)):
            want = Awaiting(kind, entry, lacking, late=True)
            here = not want.missing(self.letters.inbox)
            if here and {*lacking} <= self._lacking(kind, entry):
                raise NodeLost(
                    f"{self.me} has letters of {', '.join(lacking)} that were made for other "
                    f"members than the sum. It stops and loses nothing: start it again. {FOR_GOOD}",
                    lacking,
                )
            if not here:
                yield from self._wait(want)

    def _wait(self, want: Awaiting) -> Generator[Awaiting, None, None]:
        """Wait as long as the others may wait for each other, one after the other."""
        for left in reversed(range(len(self.ballots.nodes))):
            try:
                yield want
                return
            except NodeLost:
                if not left:
                    raise

    def _decided(self, kind: Kind, entry: int, held: Names) -> None:
        """Keep and publish a decision: it is the last word of this node on the sum."""
        inbox, ballots = self.letters.inbox, self.ballots
        mine, new = self.me in held, False
        if mine and (new := bool(inbox.missing("held", entry, (self.me,)))):
            self._publish("held", entry, held)
        elif not mine and (new := self._kept(entry) is None):
            self._keep(entry, held)
        back = frozenset[str]()
        if held == {*self.members}:
            letters = (self._read(name, kind, entry) for name in self.sending)
            named = [frozenset() if one is None else ballots.welcomed(one) for one in letters]
            back = frozenset.intersection(*named)
        if new:
            self._log(held, back)
        self.summed = tuple(name for name in self.members if name in held)
        self._before, self._worried = (entry, self.past, held), False
        self.past = self.past.after(entry, held, back)
        self._settled.add(entry)
        self._known.clear()
        for name in self._asking():  # who did not hear of it yet
            number = self.past.left[name][0]
            if (data := inbox.get(name, "back", number)) is not None:
                self.letters.publish(data, "back", number, None if name == self.me else name)

    def _log(self, held: Names, back: Names) -> None:
        """Log who leaves the sums, and who is in them again."""
        if lost := sorted({*self.members} - held):
            LOG.warning("the sums go on without %s", ", ".join(lost))
        if back:
            LOG.info("%s will take part in the sums again", ", ".join(sorted(back)))

    def _keep(self, entry: int, held: Names) -> None:
        """Keep over whom others hold a sum that this node was left out of, before it acts on it."""
        inbox = self.letters.inbox
        inbox.decide(entry, canonical_json({"edges": {}, "held": sorted(held)}))
        inbox.settle()

    def _kept(self, entry: int) -> Names | None:
        content = self.letters.inbox.decision(entry)
        return None if content is None else frozenset(json.loads(content)["held"])

    # ----------------------------------------------------------------------------------------------
    # to be taken in again

    def _ask_back(self, entry: int) -> None:
        """Ask the members to take this node in again, once it knows what they knew at its start."""
        number, mark = self.past.left[self.me]
        if entry < self._front and entry < self.letters.inbox.rules.rounds:
            return
        inbox = self.letters.inbox
        if inbox.missing("back", number, (self.me,)):
            data = inbox.letter("back", number, self.ballots.request(self.released()), mark)
            inbox.settle()
            self.letters.checkpoint("signed")
            self.letters.publish(data, "back", number)

    def _asking(self) -> list[str]:
        """Who asks to come back, as far as this node heard."""
        found, inbox = [], self.letters.inbox
        for name, (number, mark) in self.past.left.items():
            letter = inbox.read(name, "back", number)
            if letter is not None and letter.note == mark:
                found.append(name)
        return found

    def _welcome(self, n: int) -> list[str]:
        """Whom this node takes in again after round n."""
        read, left = self.letters.inbox.read, self.past.left
        asking = ((name, read(name, "back", left[name][0])) for name in self._asking())
        return [
            name
            for name, letter in asking
            if letter is not None and self.ballots.after(letter) <= n and self.open_to_returns()
        ]

    def _begun_without(self) -> tuple[int, frozenset[int]]:
        """Return the last round that others are known to hold, and the sums that some of them held
        without this node.
        """
        inbox, without, front = self.letters.inbox, set[int](), 0
        for letter in inbox.of_kind("held"):
            if letter.author != self.me and letter.round < self.ballots.entries:
                if letter.round <= inbox.rules.rounds:
                    front = max(front, letter.round)
                if self.me not in self.ballots.unpacked(letter.body):
                    without.add(letter.round)
        return front, frozenset(without)

    def _quorum(self, entry: int, past: Past | None = None) -> Names | None:
        """Return over whom ``least`` members hold a sum; None where fewer say the same."""
        past = past or self.past
        held = Counter(
            one for name in past.members if (one := self._held(name, entry, past)) is not None
        )
        return next((one for one, count in held.items() if count >= self.least), None)

    def _require_not_overtaken(self) -> None:
        """Raise where the others held the sum before without this node."""
        if self._before is None:
            return
        entry, past, mine = self._before
        held = self._quorum(entry, past)
        if held is not None and held != mine:
            self._keep(entry, held)
            raise Overtaken

    def _elsewhere(self, entry: int) -> tuple[tuple[str, Kind, int], ...]:
        """What a node asks for that may have been left out: what others hold, now and before."""
        if not self._worried:
            return ()
        entries = [entry, *([self._before[0]] if self._before else [])]
        others = [name for name in self.members if name != self.me]
        return tuple((name, "held", number) for number in entries for name in others)

    def _says(self, entry: int, here: Names) -> Awaiting:
        """What one more member says about over whom it holds a sum, beside those that are here."""
        unheard = tuple(sorted({*self.members} - here - {self.me}))
        if not unheard:
            raise NodeLost(
                f"{self.me} cannot follow the others: fewer than {self.least} of them say the same "
                f"about who takes part. It stops and loses nothing: start it again. {FOR_GOOD}"
            )
        return Awaiting("held", entry, unheard, (("held", entry),), len(here), late=True)

    # ----------------------------------------------------------------------------------------------
    # letters about one sum

    def _publish(self, kind: Kind, n: int, names: Iterable[str]) -> None:
        place, packed = self.ballots.place(self.past), self.ballots.packed(names)
        data = self.letters.inbox.letter(kind, n, packed, place)
        self.letters.inbox.settle()  # what was signed is never unknown here
        self.letters.checkpoint("signed")
        self.letters.publish(data, kind, n)

    def _lacking(self, kind: Kind, entry: int) -> Names:
        """Members whose letters are not here, or were made for another sum."""
        lacking = set[str]()
        for name in self.sending:
            if name == self.me:
                continue
            if self._made(self._read(name, kind, entry), self.past) is None:
                lacking.add(name)
        return frozenset(lacking)

    def _adoptable(self, entry: int, current: frozenset[str]) -> list[frozenset[str]]:
        """Whom others left out, of whom this node proposed to leave out none."""
        found = list[frozenset[str]]()
        for name in self.members:
            if name == self.me or name in current:
                continue
            held = self._held(name, entry)
            if held is None or self.me not in held:
                continue
            if self._enough(held):
                found.append(frozenset(self.members) - held)
        return found

    def _proposed(self, entry: int) -> frozenset[str]:
        """The union of all that members propose, as far as it does not name this node."""
        sets = (one for name in self.members for one in self._signed(name, entry))
        everybody = frozenset(self.members)
        return frozenset().union(*(one for one in sets if self.me not in one and one < everybody))

    def _unsigned(self, entry: int, target: frozenset[str]) -> frozenset[str]:
        """Who remains, and has not signed exactly this set."""
        return frozenset(
            name
            for name in self.members
            if name not in target and target not in self._signed(name, entry)
        )

    def _require_enough(self, members: frozenset[str], away: frozenset[str]) -> None:
        """Raise where too few would remain: nothing is signed, and nothing is lost."""
        left = members - away
        if self._enough(left):
            return
        raise NodeLost(
            f"{self.me} would go on without {', '.join(sorted(away))}, with {len(left)} of "
            f"{len(self.ballots.nodes)} nodes; the run needs {self.least}. Either they are away, "
            "or the network is cut and the other part goes on. This node stops and loses nothing: "
            f"see to them and to the links, then start it again. {FOR_GOOD}",
            tuple(sorted(away)),
        )

    def _enough(self, left: frozenset[str]) -> bool:
        return len(left) >= self.least and bool(left & self.senders)

    def _held(self, author: str, entry: int, past: Past | None = None) -> Names | None:
        letter = self._made(self._read(author, "held", entry), past or self.past)
        return None if letter is None else self.ballots.unpacked(letter.body)

    def _signed(self, author: str, entry: int) -> list[Names]:
        """All sets that a node proposed to leave out, in their order."""
        found = list[Names]()
        for kind, n in self.ballots.about(entry)[1:]:
            letter = self._made(self._read(author, kind, n), self.past)
            if letter is not None:
                found.append(self.ballots.unpacked(letter.body))
        return found

    def _made(self, letter: Letter | None, past: Past) -> Letter | None:
        """Return a letter if it is about the sum after this past: of another line of memberships it
        is none.
        """
        if letter is None or self.ballots.place_of(letter) == self.ballots.place(past):
            return letter
        self._worried = True
        return None

    def _read(self, author: str, kind: Kind, n: int) -> Letter | None:
        """Return a letter; it is read and checked once."""
        key, inbox = (author, kind, n), self.letters.inbox
        if key not in self._known and author in inbox.here(kind, n):
            self._known[key] = inbox.read(author, kind, n)
        return self._known.get(key)
