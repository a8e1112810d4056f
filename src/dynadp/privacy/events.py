"""What a release costs, as data that an accountant can use without knowing how it was made
(maths.md 5).

Every event bounds the privacy loss of one release *given everything released before it*, for data
sets that differ by the replacement of one row of the node.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dynadp.errors import DeclarationError


@dataclass(frozen=True)
class L2Laplace:
    """A vector of norm at most Delta shifted in l2-Laplace noise of d dimensions with zeta =
    alpha/Delta: alpha-DP.

    Attributes
    ----------
    node, round
        Whose release, and of which round; round 0 comes before training.
    purpose
        ``primal`` (Algorithm 3), ``slack`` (the z of an inexact Algorithm 2) or ``centring``.
    alpha
        The loss, a number above 0.
    dimension
        d.
    seeded
        Whether the noise came from a seed: then it protects nobody, and no ledger takes it.
    """

    node: str
    round: int
    purpose: str
    alpha: float
    dimension: int
    seeded: bool = False
    kind: ClassVar[str] = "l2-laplace"


@dataclass(frozen=True)
class DualPerturbation:
    """Algorithm 2: ln(1 + c1/(a (rho + Phi + 2 eta N))) = abar for the Jacobian, ah = 2 zeta for
    the noise: (abar + ah)-DP.

    Attributes
    ----------
    node, round
        Whose release, and of which round.
    abar
        The Jacobian's share of the loss, at least 0.
    ah
        The noise's share of the loss, above 0.
    dimension
        d.
    seeded
        Whether the noise came from a seed: then it protects nobody, and no ledger takes it.
    """

    node: str
    round: int
    abar: float
    ah: float
    dimension: int
    seeded: bool = False
    kind: ClassVar[str] = "dual"

    @property
    def alpha(self) -> float:
        """The whole loss, abar + ah."""
        return self.abar + self.ah


Event = L2Laplace | DualPerturbation
_KINDS: dict[str, type[L2Laplace] | type[DualPerturbation]] = {
    kind.kind: kind for kind in (L2Laplace, DualPerturbation)
}


def to_json(event: Event) -> dict[str, Any]:
    """The event as JSON."""
    return {"kind": event.kind, **vars(event)}


def from_json(content: dict[str, Any]) -> Event:
    """The event of :func:`to_json`; an unknown kind is an error, never free."""
    fields = dict(content)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise DeclarationError(
            f"unknown kind of event {kind!r}; expected one of {', '.join(_KINDS)}"
        )
    try:
        return _KINDS[kind](**fields)
    except TypeError as error:
        raise DeclarationError(
            f"the {kind} event is incomplete or has fields that it should not have: {error}"
        ) from error


def read_events(path: str | Path) -> list[Event]:
    """Read a file with one event of :func:`to_json` a line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise DeclarationError(f"{path} is not UTF-8; expected one JSON object a line") from None
    events = []
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise DeclarationError(
                f"{path}, line {number} is no JSON object ({error}); expected one event a line"
            ) from error
        try:
            events.append(from_json(content))
        except DeclarationError as error:
            raise DeclarationError(f"{path}, line {number}: {error}") from error
    if not events:
        raise DeclarationError(f"{path} holds no event; expected one JSON object a line")
    return events
