"""A file with declarations, checked all at once: the kinds of values that it holds, and its
mistakes in words.

Mistakes are reported together, each with its place and what to do, and without the values that were
given.
"""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dynadp.data import LEAST_MEMORY
from dynadp.errors import ConfigError

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


def _mebibytes(given: Any) -> Any:
    """A limit on memory in MiB, from a number of them or a text with a unit."""
    found = (
        re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([MG]i?B)\s*", given)
        if isinstance(given, str)
        else None
    )
    units = {"MiB": 2**20, "GiB": 2**30, "MB": 10**6, "GB": 10**9}
    mebibytes = math.floor(float(found[1]) * units[found[2]] / 2**20) if found else given
    if (
        not isinstance(mebibytes, int)
        or isinstance(mebibytes, bool)
        or mebibytes < LEAST_MEMORY >> 20
    ):
        raise ValueError(
            f"must be a whole number of MiB from {LEAST_MEMORY >> 20}, or a text "
            f'such as "512 MiB" or "2 GiB"'
        )
    return mebibytes


Memory = Annotated[int, BeforeValidator(_mebibytes)]


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if (
        not host
        or not port.isdecimal()
        or not 0 < int(port) < 65536
        or any(letter.isspace() or letter == "/" for letter in host)
    ):
        raise ValueError("must be HOST:PORT, such as silo.example.org:7447")
    return text


Address = Annotated[str, Field(max_length=300), AfterValidator(_address)]


class Section(BaseModel):
    """A table of a file: no key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def checked(kind: type[Model], content: Any, path: str | Path) -> Model:
    """What the file says, or all its mistakes."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise _explained(path, error) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = (
            str(error).rpartition("(")[2].rstrip(")")
            if isinstance(error, tomllib.TOMLDecodeError)
            else "not UTF-8"
        )
        raise ConfigError(f"{path} is not TOML ({place})") from None


def read_json(path: Path) -> Any:
    """What a JSON file says."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        raise ConfigError(f"{path} is not JSON") from None


def _explained(path: str | Path, error: ValidationError) -> ConfigError:
    """All mistakes, one a line, each with its place; never the value that was given."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = "there is no such key; check its spelling and its table"
        elif problem["type"] == "missing":
            message = "is missing"
        # the whole file's mistakes come in one
        lines += [f"{place}: {message}"] if place else message.split("\n")
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    return ConfigError(f"{path}: {count}\n" + "\n".join(f"  {line}" for line in lines))
