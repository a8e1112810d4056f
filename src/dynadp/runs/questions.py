"""What a first run file and schema need to know, asked one thing after the other.

The questions are apart from whoever asks them: :func:`interview` yields them, is sent what was
answered, and returns a :class:`~dynadp.runs.starting.Start`. Of files the first line alone is read.
"""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dynadp.data import (
    KINDS,
    Categorical,
    Classes,
    Column,
    Date,
    Hashed,
    Label,
    Numeric,
    Target,
    propose_column,
    source,
)
from dynadp.errors import DeclarationError
from dynadp.runs.asking import Ask, Question, above_0, as_named, other_columns, parts, text_of
from dynadp.runs.further_questions import ask_ledgers, ask_network, ask_people, ask_trust
from dynadp.runs.starting import Answer, NodeFiles, Start

Interview = Generator[Question, Any, Start]


def interview(folder: str | Path, given: Mapping[str, Any]) -> Interview:
    """Yield the questions that are left; return what they come to.

    Parameters
    ----------
    folder
        Where the files will be written; paths of rows are relative to it.
    given
        Values that are known already, by the questions' names: ``nodes`` (:func:`node_files`),
        ``label``, ``negative`` and ``positive`` or ``answer``, ``columns``, ``epsilon``, ``delta``
        and so on; ``seed`` for a SIMULATION.
    """
    answers = dict(given)

    def ask(question: Question) -> Generator[Question, Any, Any]:
        if answers.get(question.name) is None:
            answers[question.name] = yield question
        return answers[question.name]

    files: NodeFiles = yield from ask(
        Question(
            "nodes",
            _FILES,
            lambda text: _found(node_files(parts(text), folder), folder),
            step="rows",
        )
    )
    names = common_columns(files, folder)
    shown: tuple[str, ...] = ()
    if names:
        shown = (f"Columns, from the first line alone: {_some(names)}.",)
    if files.shared and files.node_column is None:
        where = yield from ask(
            Question(
                "node_column",
                _WHERE,
                lambda text: _column(text, names),
                shown=shown,
                step="rows",
                choices=dict.fromkeys(names, ""),
            )
        )
        those = yield from ask(Question("node_names", _WHO, _names, step="rows"))
        files, shown = files.split_by(where, those), ()
    label = yield from ask(
        Question(
            "label",
            _LABEL,
            lambda text: _column(text, names),
            shown=shown,
            step="answer",
            choices=dict.fromkeys(other_columns(names, files.node_column), ""),
        )
    )
    answer: Any = answers.get("answer")
    if answer is None:
        kind = answers.get("negative") and _ANSWERS["two values"]
        kind = kind or (
            yield Question(
                "kind",
                _KIND_OF_ANSWER,
                _answer_kind,
                "two values",
                step="answer",
                choices=dict.fromkeys(_ANSWERS, ""),
            )
        )
        answer = yield from kind(ask, label)
    answer = answer.model_copy(update={"name": label})
    columns: list[Column] = answers.get("columns") or []
    _require_columns([label, *(column.name for column in columns)], names)
    said: tuple[str, ...] = ()
    if not columns and not names:
        columns = yield from ask(Question("all columns", _ALL, _all_columns, step="columns"))
    left = other_columns(names, label, files.node_column)
    while not columns:
        said = (f"For each column, at least for one, {_KINDS}.",)
        for name in left:
            made = yield Question(
                f"column {name}", f"{name}: what is it", _kind_of(name), "", said, step="columns"
            )
            said = proposed(made) if made else ()
            columns += [made] if made else []
    free = other_columns(names, label, files.node_column, *(column.name for column in columns))
    people = yield from ask_people(ask, free if names else None, len(files.nodes), said)
    nodes = [name for name, _ in files.nodes]
    graph = yield from ask_network(ask, nodes)
    trust = yield from ask_trust(ask, len(nodes))
    epsilon = yield from ask(Question("epsilon", _EPSILON, above_0, "1.0", step="budget"))
    delta = yield from ask(Question("delta", _DELTA, chance, "1e-05", step="budget", usual=True))
    money = yield from ask_ledgers(ask, epsilon)
    return Start(
        nodes=files,
        answer=answer,
        columns=tuple(columns),
        epsilon=epsilon,
        delta=delta,
        **people,
        **graph,
        **trust,
        **money,
    )


def two_values(ask: Ask, name: str) -> Generator[Question, Any, Label]:
    """Ask about an answer of two values."""
    negative = yield from ask(Question("negative", "Its negative value", text_of, step="answer"))
    positive = yield from ask(
        Question(
            "positive",
            "Its positive value",
            lambda text: _other_than(text_of(text), negative),
            step="answer",
        )
    )
    return Label(name=name, negative=negative, positive=positive)


def several_values(ask: Ask, name: str) -> Generator[Question, Any, Classes]:
    """Ask about an answer of several values."""
    made: Classes = yield from ask(
        Question(
            "answer",
            _VALUES,
            lambda text: _of_kind(declared_answer(name, text), Classes),
            step="answer",
        )
    )
    return made


def a_number(ask: Ask, name: str) -> Generator[Question, Any, Target]:
    """Ask about an answer that is a number."""
    made: Target = yield from ask(
        Question(
            "answer",
            _ENDS,
            lambda text: _of_kind(declared_answer(name, text), Target),
            step="answer",
        )
    )
    return made


_ANSWERS = {"two values": two_values, "several values": several_values, "a number": a_number}


def declared_answer(name: str, text: str) -> Classes | Target:
    """Return the answer that a short text declares: values A,B,C or public bounds LOW:HIGH."""
    try:
        if "," in text:
            values = [value.strip() for value in text.split(",")]
            return Classes(name=name, values=tuple(value for value in values if value))
        low, high = (float(end) for end in text.split(":"))
        return Target(name=name, low=low, high=high)
    except ValidationError as error:
        raise DeclarationError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    except ValueError:
        raise DeclarationError(
            f"answer {name!r}: {text!r} is neither values A,B,C nor public bounds LOW:HIGH"
        ) from None


def _of_kind(answer: Answer, kind: type[Classes] | type[Target]) -> Answer:
    if not isinstance(answer, kind):
        raise DeclarationError(
            "expected values A,B,C" if kind is Classes else "expected public bounds LOW:HIGH"
        )
    return answer


def _answer_kind(text: str) -> Any:
    found = [make for words, make in _ANSWERS.items() if words.startswith(text.strip().lower())]
    if len(found) != 1:
        raise DeclarationError(f"{text!r} is none of {', '.join(_ANSWERS)}")
    return found[0]


def node_files(texts: Sequence[str], folder: str | Path) -> NodeFiles:
    """Return the files of nodes: NAME=FILE for each, or one FILE for all.

    A file that lies where the user stands, and not where the run file will, is written relative to
    that.
    """
    if len(texts) == 1 and "=" not in texts[0]:
        return NodeFiles((), _located(texts[0], folder))
    found: list[tuple[str, str]] = []
    for text in texts:
        name, _, file = text.partition("=")
        if not (name and file):
            raise DeclarationError(
                f"node {text!r}: expected NAME=FILE, such as north=north.csv, or one file for all"
            )
        found.append((name, _located(file, folder)))
    names = [name for name, _ in found]
    if not found or len(set(names)) < len(names):
        raise DeclarationError("expected at least one node, and different names for different ones")
    return NodeFiles(tuple(found))


def common_columns(files: NodeFiles, folder: str | Path) -> tuple[str, ...]:
    """Return the names of the columns that all files have, in order; nothing where a file is not
    on this machine. Nothing but the first line, or the footer of a Parquet file, is read.
    """
    found: list[tuple[str, ...]] = []
    for file in files.paths:
        path = _path(folder, file)
        if not path.is_file():
            return ()
        columns = source(path).columns
        if any(_like_a_cell(name) for name in columns):  # so it may be a row, which is not shown
            raise DeclarationError(
                f"{file}: its first line has empty names or numbers where names of columns are "
                "expected; put a header there"
            )
        if twice := _same_name(columns):
            raise DeclarationError(
                f"{file}: columns {twice[0]} and {twice[1]} of its first line have the same name; "
                "give them different ones"
            )
        found.append(columns)
    shared = tuple(name for name in found[0] if all(name in columns for columns in found))
    if not shared:
        raise DeclarationError(
            "the first lines of the files have no name in common; expected the same columns"
        )
    needed = 2 if files.shared is None else 3
    if len(shared) < needed:
        node = "" if files.shared is None else ", one that names the node"
        raise DeclarationError(
            f"the first lines of the files share {len(shared)} of at least {needed} columns: the "
            f"answer{node}, and one to predict it from; commas, semicolons or tabs separate them"
        )
    return shared


def _found(files: NodeFiles, folder: str | Path) -> NodeFiles:
    """Return the files after their first lines were read."""
    for file in files.paths:
        if not _path(folder, file).is_file():
            raise DeclarationError(
                f"there is no file {file}; expected one on this machine, or --node for those that "
                "lie elsewhere"
            )
    common_columns(files, folder)
    return files


def declared_column(name: str, text: str) -> Column:
    """Return the declaration that a short text spells: LOW:HIGH, a kind of quantity such as age or
    money:50000, values A,B,C, FIRST..LAST for days, or hash:BUCKETS.
    """
    text = text.strip()
    try:
        if ".." in text:
            first, last = (date.fromisoformat(end.strip()) for end in text.split("..", 1))
            middle = first + (last - first) // 2  # dropped rows would make numbers of rows private
            return Date(name=name, first=first, last=last, missing=middle)
        if "," in text:
            values = tuple(value.strip() for value in text.split(",") if value.strip())
            return Categorical(name=name, values=values, missing="other")
        head, mark, tail = text.partition(":")
        if head == "hash":
            return Hashed(name=name, buckets=int(tail), missing="other")
        if head in KINDS or not mark:
            column = propose_column(name, head, float(tail) if mark else None)
        else:
            column = Numeric(name=name, low=float(head), high=float(tail))
    except DeclarationError:
        raise
    except ValidationError as error:
        one = error.errors()[0]
        where = f"column {name!r}, {one['loc'][-1]}: " if one["loc"] else ""
        raise DeclarationError(where + one["msg"].removeprefix("Value error, ")) from None
    except ValueError:
        raise DeclarationError(f"column {name!r}: {text!r} says no bounds; {_KINDS}") from None
    return column.model_copy(update={"missing": (column.low + column.high) / 2})


def proposed(column: Column) -> tuple[str, ...]:
    """Say what was taken for a column, and where it comes from."""
    if not isinstance(column, Numeric):
        return ()
    scale = {"none": "", "log1p": ", on a log scale", "signed_log": ", on a signed log scale"}
    return (
        f"  {column.name}: {column.low:g} to {column.high:g}{scale[column.transform]}, from what "
        "you said; no row was read.",
    )


_SHOWN = 40  # names of columns that are listed
_FILES = (
    "Nodes and their files, as NAME=FILE, separated by blanks; or one FILE with a column that "
    "names the node"
)
_WHERE = "Column that names the node of each row"
_WHO = "Names of the nodes, separated by blanks; they are public"
_ALL = "Columns as NAME=LOW:HIGH or NAME=A,B,C, separated by blanks"
_LABEL = "Name of the label column"
_KIND_OF_ANSWER = "Kind of answer: two values, several values, or a number"
_VALUES = "Its published values, as A,B,C"
_ENDS = "Its public bounds, as LOW:HIGH; numbers beyond are clipped"
_DELTA = "Delta, the probability that more than epsilon leaks; well below 1/rows"
_EPSILON = "Total epsilon, the most that anyone with a row can lose; smaller is safer"
_KINDS = (
    "give public bounds LOW:HIGH, a kind of quantity ("
    + ", ".join(f"{name}:X" if kind.sized else name for name, kind in KINDS.items())
    + "), published values A,B,C, days FIRST..LAST, hash:BUCKETS for many values, or nothing to "
    "leave the column out"
)


def _all_columns(text: str) -> list[Column]:
    made: list[Column] = []
    for each in text.split():
        name, _, kind = each.partition("=")
        made.append(declared_column(text_of(name), kind))
    if not made:
        raise DeclarationError("nothing was given; expected at least one column")
    return made


def _kind_of(name: str) -> Callable[[str], Column | str]:
    return lambda text: declared_column(name, text) if text.strip() else ""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split())
    if not names or len(set(names)) < len(names):
        raise DeclarationError("expected at least one name, each once")
    return names


def _other_than(text: str, other: str) -> str:
    if text == other:
        raise DeclarationError(f"both values are {text!r}; expected two different ones")
    return text


def _column(text: str, names: Sequence[str]) -> str:
    name = as_named(text_of(text) and text, names)
    _require_columns([name], names)
    return name


def _require_columns(wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if names and name not in names:
            raise DeclarationError(
                f"there is no column {name!r} in all files; they share {_some(names)}"
            )


def chance(text: str) -> float:
    """Return a probability between 0 and 1, both left out."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise DeclarationError(f"delta is {text!r}; expected a probability above 0 and below 1")
    return value


def _path(folder: str | Path, file: str) -> Path:
    """Return where a file lies, also from a folder that is not there yet."""
    return Path(os.path.normpath(Path(folder, file)))


def _located(file: str, folder: str | Path) -> str:
    path = Path(file)
    if path.is_absolute() or _path(folder, file).is_file() or not path.is_file():
        return file
    return os.path.relpath(path, folder)


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _same_name(columns: Sequence[str]) -> tuple[int, int] | None:
    """Numbers of the first two columns that cannot be told apart, from 1; None where all can."""
    first: dict[str, int] = {}
    for number, name in enumerate(columns, 1):
        if name in first:
            return first[name], number
        first[name] = number
    return None


def _like_a_cell(name: str) -> bool:
    if not name.strip():
        return True
    try:
        float(name)
    except ValueError:
        return False
    return True
