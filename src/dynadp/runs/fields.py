"""A file with declarations, checked all at once: the kinds of values that it holds, and its
mistakes in words.

Mistakes are reported together, each with its place and what to do, and without the values that were
given.
"""

import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from dynadp._files import DEPTH, parse_json, require_shallow
from dynadp.data import LEAST_MEMORY
from dynadp.errors import ConfigError
from dynadp.runs.known_keys import place_of, unknown_key

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
# a key of many parts: tomllib's memory grows with the square of their number
_DOTTED = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{DEPTH},}}")
Model = TypeVar("Model", bound=BaseModel)
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be a line of printable text")
    return text


def _plain(text: str) -> str:
    if "/" in text or "\\" in text or text in (".", "..") or not text.isprintable():
        raise ValueError(
            "must be a line of printable text without slashes: a folder is named after it"
        )
    return text


Line = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_line)]
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_plain)]
File = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_line)]


SigningKey = Annotated[str, Field(pattern=r"^ed25519:[A-Za-z0-9+/]{43}=$")]


def _mebibytes(given: Any) -> Any:
    """Return a limit on memory in MiB, from a number of them or a text with a unit."""
    mebibytes = given
    if isinstance(given, str):
        with suppress(ValidationError):
            mebibytes = TypeAdapter(ByteSize).validate_python(given) >> 20
    if type(mebibytes) is not int or mebibytes < LEAST_MEMORY >> 20:
        raise ValueError(
            f"must be a whole number of MiB from {LEAST_MEMORY >> 20}, or a text "
            f'such as "512 MiB" or "2 GiB"'
        )
    return mebibytes


Memory = Annotated[int, BeforeValidator(_mebibytes)]


def address(text: str) -> str:
    """Return a ``host:port``; refuse what is none."""
    host, _, port = text.rpartition(":")
    if (
        not host
        or not port.isdecimal()
        or not 0 < int(port) < 65536
        or any(letter.isspace() or letter == "/" for letter in host)
    ):
        raise ValueError("must be HOST:PORT, such as silo.example.org:7447")
    return text


Address = Annotated[str, Field(max_length=300), AfterValidator(address)]


def is_loopback(host: str) -> bool:
    """Whether a host, as it stands in an address, is this machine itself."""
    with suppress(ValueError):
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    return False


def loopback(where: str) -> str:
    """Return a ``host:port``; refuse one that other machines could reach."""
    if is_loopback(address(where).rpartition(":")[0]):
        return where
    raise ValueError(
        "must be a loopback address, such as 127.0.0.1:9464: it answers whoever reaches it"
    )


Loopback = Annotated[Address, AfterValidator(loopback)]


class Section(BaseModel):
    """A table of a file: no key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def checked(kind: type[Model], content: Any, path: str | Path) -> Model:
    """What the file says, or all its mistakes."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise _explained(kind, path, error) from None


def read_tables(path: Path) -> Any:
    """Return the content of a TOML file, or of a JSON file, by its ending."""
    parse, form = (parse_json, "JSON") if path.suffix == ".json" else (_parse_toml, "TOML")
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not {form} (not UTF-8)") from None
    except ValueError as error:  # the place alone: the rest may quote the file
        place = str(error).rpartition("(")[2].rstrip(")")
        raise ConfigError(f"{path} is not {form} ({place})") from None


def _parse_toml(text: str) -> Any:
    if _DOTTED.search(text):
        raise ValueError(f"nested deeper than {DEPTH}")
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEPTH}") from None
    require_shallow(content)
    return content


def _explained(kind: type[BaseModel], path: str | Path, error: ValidationError) -> ConfigError:
    """All mistakes, one a line, each with its place; never the value that was given."""
    lines, found = [], error.errors(include_url=False, include_input=False, include_context=False)
    for problem in found:
        inside = [one for one in found if one["loc"][:-2] == problem["loc"]]
        if problem["type"] == "too_short" and inside:
            continue  # items with mistakes of their own do not count
        place = place_of(kind, problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = unknown_key(kind, problem["loc"])
        elif problem["type"] == "missing":
            message = "is missing"
        # the whole file's mistakes come in one
        lines += [f"{place}: {message}"] if place else message.split("\n")
    return ConfigError(listed(path, lines, "mistake"))


def listed(place: str | Path, lines: Sequence[str], noun: str) -> str:
    """Return the lines, one below the other, after the place and their number."""
    nouns = noun if len(lines) == 1 else f"{noun}s"
    return "\n  ".join([f"{place}: {len(lines)} {nouns}", *lines])
