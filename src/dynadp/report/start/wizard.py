"""What the wizard asks, and what the answers come to: the questions of `dynadp init` on a page.

Of files of rows their first lines alone are read.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynadp.consensus import Topology
from dynadp.data import KINDS
from dynadp.errors import DeclarationError, DynadpError
from dynadp.privacy import guess_words
from dynadp.report.drawing import drawing
from dynadp.report.states import State
from dynadp.runs import Question, Start, interview, node_files, parts, proposed

ENDINGS = (".csv", ".tsv")
DEPTH = 2  # folders below the one where the wizard was started
MOST = 200  # files that are offered
LONGEST = 1 << 20  # bytes of a first line
FORMS = (  # of a column: a name, words, the text that it makes of what is typed, an example
    ("", "leave it out", "", ""),
    ("range", "a number between public bounds", "{}", "0:120"),
    ("values", "one of published values", "{},", "yes, no, unknown"),
    ("days", "a day between two days", "{}", "2000-01-01..2030-12-31"),
    ("hash", "text of many values, hashed", "hash:{}", "64"),
    *(
        (name, kind.what, f"{name}:{{}}" if kind.sized else name, "50000" if kind.sized else "")
        for name, kind in KINDS.items()
    ),
)
_NO_COLUMN = "no column is declared yet; declare at least one, so that there is something to learn"


@dataclass
class Asked:
    """One question, as the page shows it.

    Attributes
    ----------
    question
        As the interview asks it.
    given
        The text of the page; None where nothing was given yet.
    error
        Why the text is no answer; empty where it is one.
    note
        What an answer means.
    before
        Lines that a terminal shows now, about the answer before: a page shows them there.
    """

    question: Question
    given: str | None = None
    error: str = ""
    note: str = ""
    before: tuple[str, ...] = ()

    @property
    def control(self) -> str:
        """How it is asked: ``files``, ``column``, ``one of`` with words, ``select``, ``text``."""
        one = self.question
        if one.name == "nodes":
            return "files"
        if one.name.startswith("column "):
            return "column"
        if one.choices and one.name != "graph":
            return "one of" if all(one.choices.values()) else "select"
        return "text"

    def to_json(self) -> dict[str, Any]:
        """Return what the page needs."""
        one = self.question
        return {
            "name": one.name,
            "step": one.step,
            "text": one.text,
            "default": one.default,
            "choices": list(one.choices.items()),
            "shown": [line.strip() for line in one.shown if line not in self.before],
            "control": self.control,
            "given": self.given,
            "error": self.error,
            "note": self.note,
        }


@dataclass
class Answered:
    """What answers come to.

    Attributes
    ----------
    asked
        The questions that follow from them, in order.
    start
        What can be written; None where something is missing or wrong.
    problem
        What is wrong with all answers together.
    """

    asked: list[Asked] = field(default_factory=list)
    start: Start | None = None
    problem: str = ""

    @property
    def network(self) -> str:
        """The graph as a drawing; empty where there is none yet."""
        if self.start is None:
            return ""
        names = [name for name, _ in self.start.nodes.nodes]
        graph = self.start.graph
        if isinstance(graph, str):
            topology = Topology.family(graph, len(names)).named(names)
        else:
            topology = Topology.from_edges(list(graph), names, "edges")
        return drawing(
            topology, {name: State("agreeing", _rows(self.start, name)) for name in names}
        )


def answered(folder: str, answers: Mapping[str, str]) -> Answered:
    """Hold the interview with these answers.

    A wrong answer that has a default is taken as that, so that the questions after it are there
    too; at one that has none the interview ends.

    Parameters
    ----------
    folder
        Where files will be written.
    answers
        Texts by the questions' names.
    """
    found, wrong, names = Answered(), False, set[str]()
    before: tuple[str, ...] = ()
    questions = interview(folder, {})
    try:
        question = next(questions)
        while True:
            if question.name in names:  # all columns were left out, so they are asked about anew
                found.problem = _NO_COLUMN
                return found
            names.add(question.name)
            one = Asked(question, answers.get(question.name), before=before)
            found.asked.append(one)
            text = one.given if one.given is not None and one.given.strip() else question.default
            if text is None:
                return found
            try:
                if question.name == "nodes":
                    require_plain(text, folder)
                    require_one_line(text, folder)
                value = question.parse(text)
                before = proposed(value) if question.name.startswith("column ") and value else ()
                one.note = _note(question.name, value, answers)
            except (DynadpError, OSError, ValueError) as error:
                one.error, wrong = _words(error), True
                if question.default is None:
                    return found
                value = question.parse(question.default)
            question = questions.send(value)
    except StopIteration as end:
        made: Start = end.value
    except (DynadpError, OSError, ValueError) as error:
        found.problem = _words(error)
        return found
    if not wrong:
        try:
            made.check()
            found.start = made
        except DynadpError as error:
            found.problem = _words(error)
    return found


def require_plain(text: str, folder: str) -> None:
    """Refuse files whose columns cannot be known without rows, before they are opened.

    The footer of a Parquet file holds the least and the largest cell of each column, and what
    follows a compressed header cannot be left unread.
    """
    for path in node_files(parts(text), folder).paths:
        if Path(path).suffix.lower() not in ENDINGS:
            raise DeclarationError(
                f"{path}: the wizard reads no more than headers, which it can of .csv and .tsv "
                "files alone; for others use dynadp init"
            )


def require_one_line(text: str, folder: str) -> None:
    """Refuse a first line with a quote that is not closed in it: to find the other one, whoever
    reads the header would have to read on, and may be in a row by then.
    """
    for path in node_files(parts(text), folder).paths:
        where = Path(os.path.normpath(Path(folder, path)))  # the folder may not be there yet
        if where.is_file() and first_line(where).count(b'"') % 2:
            raise DeclarationError(
                f"{path}: a quote of its first line is not closed in it; the wizard reads no line "
                "but the first, so give the header a line of its own, or use dynadp init"
            )


def first_line(path: Path) -> bytes:
    """Return the first line, read byte by byte, so that not even a buffer holds more."""
    line = bytearray()
    with open(path, "rb", buffering=0) as file:
        while (byte := file.read(1)) and byte not in b"\r\n" and len(line) < LONGEST:
            line += byte
    return bytes(line)


def offered(place: Path) -> list[str]:
    """Return files with a header that lie here or a little below, by name; none is opened."""
    found = (path for path in _below(place, DEPTH) if path.suffix.lower() in ENDINGS)
    return [path.as_posix() for path in found if os.path.isfile(place / path)][:MOST]


def runs_here(place: Path) -> list[str]:
    """Return folders of runs a little below, by name."""
    found = (path for path in _below(place, DEPTH + 1) if path.name == "run.json")
    return [path.parent.as_posix() for path in found if len(path.parts) > 1][:MOST]


def _below(place: Path, depth: int) -> list[Path]:
    """Return files in folders down to a depth, upper ones first: not what is hidden, cannot be
    listed, or has a name that is no text.
    """
    found: list[Path] = []
    for folder, folders, files in os.walk(place, followlinks=True):
        here = Path(folder).relative_to(place)
        folders[:] = filter(_shown, folders if len(here.parts) < depth else ())
        found += [here / name for name in filter(_shown, files)]
    return sorted(found, key=lambda path: (len(path.parts), path))


def _shown(name: str) -> bool:
    """Whether a page shows a name: not a hidden one, nor one that is not UTF-8."""
    return not name.startswith(".") and os.fsencode(name).decode(errors="replace") == name


def _note(name: str, value: Any, answers: Mapping[str, str]) -> str:
    """What an answer means, where that is worth a line."""
    if name.startswith("column ") and value:
        return " ".join(line.strip() for line in proposed(value))
    if name in ("epsilon", "cap"):
        try:
            delta = float(answers.get("delta") or 1e-5)
        except ValueError:
            return ""
        words = guess_words(value, delta)
        return words[0].upper() + words[1:] + "."
    return ""


def _rows(start: Start, node: str) -> str:
    return f"{start.counts[node]:,} rows" if node in start.counts else ""


def _words(error: Exception) -> str:
    if isinstance(error, DynadpError):
        return str(error)
    return "this cannot be the path of a file; expected one on this machine"
