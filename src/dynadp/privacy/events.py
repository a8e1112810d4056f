"""What a release costs, as data that an accountant can use without knowing how it was made
(maths.md 5).

Every event bounds the privacy loss of one release *given everything released before it*, for data
sets that differ in one row of the node, which is replaced, or added or removed, as the event says.
A mechanism adds a kind of event in its own file: :func:`register_event` gives it a name in ledgers
and records, and :func:`~dynadp.privacy.distributions.distribution_of` its cost.
"""

from dataclasses import dataclass, field
from importlib.metadata import entry_points
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from dynadp import _require
from dynadp._files import parse_json
from dynadp.errors import DeclarationError

REPLACE, ADD_REMOVE = "replace", "add-remove"  # how two neighbouring data sets differ


class Event(Protocol):
    """One release of one node: a frozen dataclass whose fields are plain JSON.

    A kind that must be readable where nobody imports its file, such as by ``dynadp ledger show``,
    names its module in an entry point of the group ``dynadp.events``.

    Attributes
    ----------
    kind
        The name of the kind in ledgers and records.
    node, round
        Whose release, and of which round; round 0 comes before training.
    alpha
        The loss never exceeds it; infinite for a release that is only (epsilon, delta)-DP.
    per_row
        Whether the loss grows with the rows that a person has at the node.
    seeded
        Whether the noise came from a seed: then it protects nobody, and no ledger takes it.
    """

    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def node(self) -> str: ...  # noqa: D102
    @property
    def round(self) -> int: ...  # noqa: D102
    @property
    def alpha(self) -> float: ...  # noqa: D102
    @property
    def per_row(self) -> bool: ...  # noqa: D102
    @property
    def seeded(self) -> bool: ...  # noqa: D102


_KINDS: dict[str, type[Event]] = {}
_Kind = TypeVar("_Kind", bound=type[Event])


def register_event(kind: _Kind) -> _Kind:
    """Register a class of events under its ``kind``, so that ledgers and records can hold it."""
    if _KINDS.setdefault(kind.kind, kind) is not kind:
        raise DeclarationError(
            f"the kind of event {kind.kind!r} is registered already; choose another name"
        )
    return kind


@register_event
@dataclass(frozen=True)
class L2Laplace:
    """A vector of norm at most Delta shifted in l2-Laplace noise of d dimensions with zeta =
    alpha/Delta: alpha-DP.

    Attributes
    ----------
    node, round, alpha, seeded
        As of every :class:`Event`.
    purpose
        ``primal`` (Algorithm 3), ``slack`` (the z of an inexact Algorithm 2), ``centring`` or
        ``evaluation`` (a noisy accuracy).
    dimension
        d.
    rows, silos
        Rows that a person may have at a node, and nodes at which she may have some: for such a
        person the release was planned. The numbers above are for one row of one node.
    adjacency
        ``replace`` or ``add-remove``: what the numbers above say is lost where one row is replaced
        by another, or where one is added or removed.
    limited
        Whether the software left out what a person has beyond these rows.
    """

    node: str
    round: int
    purpose: str
    alpha: float
    dimension: int
    seeded: bool = False
    rows: int = field(default=1, kw_only=True)
    silos: int = field(default=1, kw_only=True)
    adjacency: str = field(default=REPLACE, kw_only=True)
    limited: bool = field(default=False, kw_only=True)
    kind: ClassVar[str] = "l2-laplace"

    @property
    def per_row(self) -> bool:
        """False for the z of an inexact Algorithm 2, which covers the solver, not a row."""
        return self.purpose != "slack"


@register_event
@dataclass(frozen=True)
class DualPerturbation:
    """Algorithm 2: ln(1 + c1/(a (rho + Phi + 2 eta N))) = abar for the Jacobian, ah = 2 zeta for
    the noise: (abar + ah)-DP.

    Attributes
    ----------
    node, round, seeded
        As of every :class:`Event`.
    abar
        The Jacobian's share of the loss, at least 0.
    ah
        The noise's share of the loss, above 0.
    dimension
        d.
    rows, silos, adjacency, limited
        As of :class:`L2Laplace`.
    """

    node: str
    round: int
    abar: float
    ah: float
    dimension: int
    seeded: bool = False
    rows: int = field(default=1, kw_only=True)
    silos: int = field(default=1, kw_only=True)
    adjacency: str = field(default=REPLACE, kw_only=True)
    limited: bool = field(default=False, kw_only=True)
    kind: ClassVar[str] = "dual"
    per_row: ClassVar[bool] = True

    @property
    def alpha(self) -> float:
        """The whole loss, abar + ah."""
        return self.abar + self.ah


@register_event
@dataclass(frozen=True)
class Gaussian:
    """A vector that one row moves by at most Delta, plus Gaussian noise with parameter Delta/mu.

    Attributes
    ----------
    node, round, seeded
        As of every :class:`Event`.
    purpose
        ``gradient``, ``moment``, ``centring`` or ``primal``.
    mu
        Delta over the parameter of the noise.
    dimension
        d.
    distance
        Total variation between the noise and a rounded normal, at most; 0 for a normal one.
    weighed
        Whether the rows of a person are weighed, so that together they move the vector no further
        than one row may: her loss does not grow with them.
    rows, silos, adjacency, limited
        As of :class:`L2Laplace`.
    """

    node: str
    round: int
    purpose: str
    mu: float
    dimension: int
    distance: float = 0.0
    seeded: bool = False
    rows: int = field(default=1, kw_only=True)
    silos: int = field(default=1, kw_only=True)
    adjacency: str = field(default=REPLACE, kw_only=True)
    limited: bool = field(default=False, kw_only=True)
    weighed: bool = field(default=False, kw_only=True)
    kind: ClassVar[str] = "gaussian"

    @property
    def per_row(self) -> bool:
        """False where the rows of a person are weighed."""
        return not self.weighed

    @property
    def alpha(self) -> float:
        """Infinite: a loss of any size has some probability."""
        return inf


@register_event
@dataclass(frozen=True)
class SealedGaussian(Gaussian):
    """A node's part in a sealed sum: mu = Delta/(s sqrt(h)), s the node's own noise, as long as h
    of the members add theirs and keep their masks (maths.md 13).

    Attributes
    ----------
    node, round, purpose, mu, dimension, distance, seeded
        As of :class:`Gaussian`; the purpose may be ``spare``, a further attempt.
    honest
        h: members whose noise no observer knows. The node is among them, an observer is not.
    members
        How many nodes the sum is over.
    partners
        With how many others each member shares masks; so many must collude to see through all of
        one member's.
    """

    honest: int = 1
    members: int = 1
    partners: int = 0
    kind: ClassVar[str] = "sealed"


def check_honest(honest: int, members: int) -> None:
    """Refuse a number of honest members that cannot be; one that is alone needs no other."""
    _require.whole("nodes", members)
    most = max(members - 1, 1)
    _require.whole("honest", honest, 0)
    if not 1 <= honest <= most:
        raise DeclarationError(
            f"honest is {honest} of {members} nodes; expected a number from 1 to {most}: whoever "
            "looks knows its own noise, and is not among the honest"
        )


_USUAL = {"rows": 1, "silos": 1, "adjacency": REPLACE, "limited": False, "weighed": False}


def to_json(event: Event) -> dict[str, Any]:
    """Return the event as JSON: its kind and its fields."""
    content = {"kind": event.kind, **vars(event)}
    for name, usual in _USUAL.items():
        if content.get(name) == usual:  # as before there were any, where they say nothing
            del content[name]
    return content


def from_json(content: dict[str, Any]) -> Event:
    """Return the event of ``to_json``; an unknown kind is an error, never free."""
    fields = dict(content)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        for module in entry_points(group="dynadp.events"):
            module.load()
    if kind not in _KINDS:
        raise DeclarationError(
            f"unknown kind of event {kind!r}; expected one of {', '.join(_KINDS)}, or import the "
            f"module that registers it"
        )
    try:
        return _KINDS[kind](**fields)
    except TypeError as error:
        raise DeclarationError(
            f"the {kind} event is incomplete or has fields that it should not have: {error}"
        ) from error


def read_events(path: str | Path) -> list[Event]:
    """Read a file with one event of :func:`~dynadp.privacy.events.to_json` a line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise DeclarationError(f"{path} is not UTF-8; expected one JSON object a line") from None
    events = []
    for number, line in enumerate(lines, 1):
        try:
            content = parse_json(line)
            if not isinstance(content, dict):
                raise ValueError("not an object")
            events.append(from_json(content))
        except DeclarationError as error:
            raise DeclarationError(f"{path}, line {number}: {error}") from error
        except ValueError as error:
            raise DeclarationError(
                f"{path}, line {number} is no JSON object ({error}); expected one event a line"
            ) from error
    if not events:
        raise DeclarationError(f"{path} holds no event; expected one JSON object a line")
    return events
