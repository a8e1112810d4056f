"""Where a mistake in a file stands, and which keys its table knows, for whoever misspelt one."""

from collections.abc import Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag

Part = str | int


def place_of(kind: type[BaseModel], loc: Sequence[Part]) -> str:
    """Return the place of a mistake as the file has it: without names of alternatives, which
    pydantic puts between and nobody wrote.
    """
    shown, tables = [], _tables(kind)
    for part in loc:
        if not any(part == tag for tag, _ in tables):
            shown.append(str(part))
        tables = _inside(tables, part)
    return ".".join(shown)


def unknown_key(kind: type[BaseModel], loc: Sequence[Part]) -> str:
    """Return what to do about a key that its table does not know.

    Parameters
    ----------
    kind
        What the file is read as.
    loc
        The names and positions that lead to the key, the key itself last.
    """
    tables = _tables(kind)
    for part in loc[:-1]:
        tables = _inside(tables, part)
    known = _keys(tables)
    if not known:
        return "there is no such key; check its spelling and its table"
    near = get_close_matches(str(loc[-1]), known, n=1)
    guess = f"; did you mean {near[0]}?" if near else ";"
    path = place_of(kind, loc[:-1]).split(".")
    table = next((part for part in reversed(path) if part and not part.isdigit()), "the file")
    return f"there is no such key{guess} {table} knows {', '.join(known)}"


Tables = list[tuple[str | None, Any]]  # what may stand in one place; with its tag, if it has one


def _keys(tables: Tables) -> list[str]:
    """Return the keys of these tables; none where one of them has others."""
    return list(
        dict.fromkeys(
            field.alias or name
            for _, table in tables
            if _is_model(table)
            for name, field in table.model_fields.items()
        )
    )


def _inside(tables: Tables, part: Part) -> Tables:
    """Return what may stand at one name or position of what may stand here."""
    tagged: Tables = [(None, table) for tag, table in tables if tag is not None and tag == part]
    if tagged:
        return tagged
    return [inner for _, table in tables for inner in _below(table, part)]


def _below(table: Any, part: Part) -> Tables:
    if isinstance(part, int):
        return [inner for each in get_args(table) if each is not ... for inner in _tables(each)]
    if not _is_model(table):
        return []
    for name, field in table.model_fields.items():
        if part in (name, field.alias):
            return _tables(field.annotation)
    kind = table.model_fields.get("kind")
    return [(None, table)] if kind and part in _choices(kind.annotation) else []


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _is_model(table: Any) -> bool:
    return isinstance(table, type) and issubclass(table, BaseModel)


def _tables(annotation: Any, tag: str | None = None) -> Tables:
    """Return the alternatives of a type."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        tags = [one.tag for one in inside[1:] if isinstance(one, Tag)]
        return _tables(inside[0], tags[0] if tags else tag)
    if origin in (Union, UnionType):
        return [each for one in inside for each in _tables(one)]
    return [(tag, annotation)]
