"""One question of a first run file, and the rules that answers share."""

import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dynadp.errors import DeclarationError

Step = Literal["rows", "answer", "columns", "people", "network", "trust", "budget", "ledgers"]


@dataclass(frozen=True)
class Question:
    """One thing to ask.

    Attributes
    ----------
    name
        What it is about: a key of what is given beforehand.
    text
        The question.
    parse
        Makes the value of a text; refuses what is no answer, so that it is asked again.
    default
        What no text at all means; None where there must be one.
    shown
        Lines to show before it.
    step
        What it belongs to.
    choices
        Texts that may be given, with what each means; empty where any text may.
    usual
        Whether the default is what a run file without a word on it means, so that whoever gives
        flags need not give this one.
    """

    name: str
    text: str
    parse: Callable[[str], Any] = field(repr=False)
    default: str | None = None
    shown: tuple[str, ...] = ()
    step: Step = "rows"
    choices: Mapping[str, str] = field(default_factory=dict)
    usual: bool = False


Ask = Callable[[Question], Generator[Question, Any, Any]]


def text_of(text: str) -> str:
    """Return a text without blanks around it; refuse nothing at all."""
    if not text.strip():
        raise DeclarationError("nothing was given; expected a text")
    return text.strip()


def parts(text: str) -> list[str]:
    """Return what blanks separate; quotes keep a part with blanks together."""
    try:
        return shlex.split(text)
    except ValueError:
        raise DeclarationError("a quote is never closed; expected two of them or none") from None


def above_0(text: str) -> float:
    """Return a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise DeclarationError(f"epsilon is {text!r}; expected a finite number above 0")
    return value


def whole(text: str, least: int, most: int | None = None) -> int:
    """Return a whole number in these bounds."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        end = "" if most is None else f", at most {most}"
        raise DeclarationError(
            f"{text!r} was given; expected a whole number, at least {least}{end}"
        )
    return value


def other_columns(names: Sequence[str], *taken: str | None) -> list[str]:
    """Return the names that are not taken."""
    return [name for name in names if name not in taken]


def as_named(text: str, names: Sequence[str]) -> str:
    """Return the name that a text means: blanks around it need not be given, and belong to it where
    a header has them.
    """
    meant = [text] if text in names else [name for name in names if name.strip() == text.strip()]
    return meant[0] if len(meant) == 1 else text.strip()


def one_of(text: str, choices: Mapping[str, str]) -> str:
    """Return the choice that begins like the text; refuse where none or several do."""
    wanted = text.strip().lower()
    found = [wanted] if wanted in choices else [c for c in choices if c.startswith(wanted)]
    if len(found) != 1 or not wanted:
        raise DeclarationError(f"{text!r} is none of {', '.join(choices)}")
    return found[0]
