"""Mistakes that are planted on purpose, and the tables of them in docs/audit.md."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


@dataclass(frozen=True)
class Mutant:
    """A planted mistake, with its sound version.

    Attributes
    ----------
    planted, catcher
        In words, for the page.
    caught
        Plants it and says whether its catcher catches it.
    sound
        The same catcher on the sound version: whether that passes.
    """

    planted: str
    catcher: str
    caught: Callable[[], bool]
    sound: Callable[[], bool]

    def check(self):
        assert self.caught()
        assert self.sound()


@dataclass(frozen=True)
class PatchedMutant:
    """A mistake that is planted in shipped code.

    Attributes
    ----------
    planted, catcher
        In words, for the page.
    plant
        Makes the context in which the mistake is there.
    catch
        Whether its catcher finds it.
    """

    planted: str
    catcher: str
    plant: Callable[[], AbstractContextManager]
    catch: Callable[[], bool]

    def check(self):
        with self.plant():
            assert self.catch()
        assert not self.catch()


@dataclass(frozen=True)
class Table:
    """Mutants as the page shows them, under a heading of their own."""

    heading: str
    mutants: dict[str, Mutant | PatchedMutant]

    def __str__(self):
        lines = [f"| {name} | {m.planted} | {m.catcher} |" for name, m in self.mutants.items()]
        return "\n".join([f"| {self.heading} | planted | caught by |", "|---|---|---|", *lines])

    def is_shown(self):
        return f"{self}\n" in PAGE.read_text(encoding="utf-8")

    def write(self):
        """Put it into the page in place of the one under the same heading."""
        text = PAGE.read_text(encoding="utf-8")
        start = text.index(f"| {self.heading} |")
        end = text.index("\n\n", start)
        PAGE.write_text(f"{text[:start]}{self}{text[end:]}", encoding="utf-8")
