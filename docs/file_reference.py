"""Tables of all keys of run files, NODE.toml and schemas, made from the models that read them."""

import inspect
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from numpydoc.docscrape import NumpyDocString
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dynadp.data import Schema
from dynadp.runs.node_file import NodeFile
from dynadp.runs.run_file import RunFile

TITLES = {
    "Label": "`label`, of two values",
    "Classes": "`label`, of several values",
    "Target": "`target`, in place of `label`",
}
WORDS = {bool: "true or false", str: "text", int: "whole number", float: "number", Any: "see there"}
BOUNDS = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
    MinLen: ("min_length", "length at least"),
}


def run_file():
    """The tables of a run file."""
    parts = []
    for name, field in RunFile.model_fields.items():
        (table,) = models(field.annotation)
        many = get_origin(field.annotation) is tuple
        parts.append(section(f"`[[{name}]]`" if many else f"`[{name}]`", table))
    return "\n".join(parts)


def node_file():
    """The keys of NODE.toml."""
    return keys(NodeFile)


def schema():
    """The keys of a schema, of its label and of its columns."""
    parts = [keys(Schema)]
    for name in ("label", "columns"):
        for kind in models(Schema.model_fields[name].annotation):
            parts.append(section(title(name, kind), kind))
    return "\n".join(parts)


def title(name, kind):
    """What a kind of label or column is called."""
    which = kind.model_fields.get("kind")
    return TITLES.get(kind.__name__) or f"`{name}`, of kind `{which.default}`"


def section(title, model):
    """A heading, what the table is, and its keys."""
    first = sentence(inspect.getdoc(model).split("\n\n")[0].replace("\n", " "))
    return f"### {title}\n\n{first}\n\n{keys(model)}"


def keys(model):
    """One line a key: what may stand there, what it is by default, and what it means."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    meanings = {
        name: meaning for group, meaning in described(model).items() for name in group.split(", ")
    }
    if missing := set(fields) - set(meanings) - {"kind"}:
        raise ValueError(f"{model.__name__} does not say what its keys {sorted(missing)} mean")
    lines = [
        f"| `{name}` | {value_words(field.annotation, field.metadata)} | {default_words(field)} | "
        f"{meanings.get(name, 'Which kind it is.')} |"
        for name, field in fields.items()
    ]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *lines, ""])


def described(model):
    """The keys that the docstring describes, and how."""
    entries = NumpyDocString(inspect.getdoc(model))["Attributes"]
    return {entry.name: sentence(" ".join(entry.desc)) for entry in entries}


def sentence(text):
    """A description as Markdown."""
    words = text.replace("``", "`").replace("|", "\\|")
    while ":class:`" in words or ":meth:`" in words or ":func:`" in words:
        head, _, rest = words.partition(":`")
        target, _, tail = rest.partition("`")
        role = head.rpartition(":")[0]
        words = f"{role}`{target.lstrip('~').rpartition('.')[2]}`{tail}"
    return words


def value_words(annotation, metadata=()):
    """What may stand there, in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return value_words(inside[0], (*inside[1:], *metadata))
    if origin is Literal:
        return " or ".join(
            f"`{one.encode('unicode_escape').decode()}`"
            if isinstance(one, str)
            else str(one).lower()
            for one in inside
        )
    if origin in (Union, UnionType):
        return unique((value_words(one, metadata) for one in inside if one is not NoneType), " or ")
    if origin is tuple:
        if inside[-1] is not ...:
            return "list of " + " and ".join(value_words(one) for one in inside)
        return f"list: {value_words(inside[0])}"
    words = WORDS.get(annotation, "table")
    metadata = [one for extra in metadata for one in getattr(extra, "metadata", [extra])]
    bounds = [
        f"{phrase} {getattr(one, BOUNDS[type(one)][0]):,.12g}"
        for one in metadata
        if type(one) in BOUNDS and annotation is not str
        for phrase in [BOUNDS[type(one)][1]]
    ]
    return " ".join([words, *bounds])


def default_words(field):
    """The default: the value itself, or how it is found."""
    if field.is_required():
        return "required"
    if field.default in (None, PydanticUndefined) or isinstance(field.default, BaseModel):
        return ""
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return f"`{list(field.default) if isinstance(field.default, tuple) else field.default}`"


def models(annotation):
    """The models among the alternatives of a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for one in get_args(annotation) for model in models(one)]


def unique(texts, between=", "):
    """Texts without repetition, joined."""
    return between.join(dict.fromkeys(text for text in texts if text))
