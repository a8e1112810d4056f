"""Mechanisms by name."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from dynadp.errors import DeclarationError
from dynadp.mechanisms import dual as dual
from dynadp.mechanisms import primal as primal
from dynadp.mechanisms import sealed as sealed
from dynadp.mechanisms import sums as sums  # all enter the registry
from dynadp.mechanisms.base import Mechanism, NoProtection

_OF_ALGORITHM = {"admm": "primal", "sum": "sum"}


def mechanism_names() -> tuple[str, ...]:
    """The names of all mechanisms that protect, those of this package first."""
    ours = ["sum", "sealed", "primal", "dual"]
    others = (name for name in Mechanism.registry if name not in (*ours, NoProtection.name))
    return (*ours, *others)


def mechanism_named(name: str, **parameters: Any) -> Mechanism:
    """Make the mechanism of this name."""
    kind = Mechanism.registry.get(name)
    if kind is None:
        raise DeclarationError(
            f"mechanism is {name!r}; expected one of {', '.join(mechanism_names())}"
        )
    given = kind.translated(parameters)
    known: list[str] = [f.name for f in fields(kind)] if is_dataclass(kind) else []
    if strange := sorted(set(given) - set(known)):
        raise DeclarationError(
            f"mechanism {name} has no parameter {', '.join(strange)}; it has "
            f"{', '.join(known) or 'none'}"
        )
    return kind(**given)


def mechanism_for(
    mechanism: str | Mechanism | None = None, algorithm: str | None = None
) -> Mechanism | None:
    """Make the mechanism of a name, or that of an algorithm; None where neither is given.

    Parameters
    ----------
    mechanism
        Its name, or itself.
    algorithm
        ``admm``, whose mechanism is ``primal`` by default, or ``sum``.
    """
    if algorithm not in (None, "admm", "sum"):
        raise DeclarationError(f"algorithm is {algorithm!r}; expected 'admm' or 'sum'")
    if mechanism is None:
        return None if algorithm is None else mechanism_named(_OF_ALGORITHM[algorithm])
    made = mechanism_named(mechanism) if isinstance(mechanism, str) else mechanism
    if algorithm not in (None, made.algorithm):
        raise DeclarationError(
            f"mechanism {made.name!r} is for algorithm {made.algorithm!r}, and algorithm is "
            f"{algorithm!r}; leave out one of them"
        )
    return made


def mechanism_from(description: Mapping[str, Any]) -> Mechanism:
    """Make the mechanism that :meth:`~dynadp.mechanisms.base.Mechanism.describe` described."""
    return mechanism_named(**description)
