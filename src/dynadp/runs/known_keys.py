"""Which keys a table of a file knows, for whoever misspelt one."""

from collections.abc import Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def unknown_key(kind: type[BaseModel], place: Sequence[str | int]) -> str:
    """Return what to do about a key that its table does not know.

    Parameters
    ----------
    kind
        What the file is read as.
    place
        The names and positions that lead to the key, the key itself last.
    """
    known = known_keys(kind, place[:-1])
    if not known:
        return "there is no such key; check its spelling and its table"
    near = get_close_matches(str(place[-1]), known, n=1)
    guess = f"; did you mean {near[0]}?" if near else ";"
    table = next((str(part) for part in reversed(place[:-1]) if isinstance(part, str)), "the file")
    return f"there is no such key{guess} {table} knows {', '.join(known)}"


def known_keys(kind: Any, place: Sequence[str | int]) -> list[str]:
    """Return the keys of the table at this place; none where that cannot be known."""
    found = _tables(kind)
    for part in place:
        found = [inner for table in found for inner in _inside(table, part)]
    names = [
        field.alias or name
        for table in found
        if isinstance(table, type) and issubclass(table, BaseModel)
        for name, field in table.model_fields.items()
    ]
    return list(dict.fromkeys(names))


def _inside(table: Any, part: str | int) -> list[Any]:
    """Return what may stand at one name or position of a table, a list or a choice of tables."""
    if isinstance(part, int):
        return [inner for each in get_args(table) if each is not ... for inner in _tables(each)]
    if not (isinstance(table, type) and issubclass(table, BaseModel)):
        return []
    for name, field in table.model_fields.items():
        if part in (name, field.alias):
            return _tables(field.annotation)
        if name in ("kind", "name") and part in _choices(field.annotation):
            return [table]  # pydantic puts the name of the chosen table into the place
    return []


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _tables(annotation: Any) -> list[Any]:
    """Return the alternatives of a type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _tables(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [each for one in get_args(annotation) for each in _tables(one)]
    return [annotation]
