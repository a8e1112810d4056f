"""Files of this program: one spelling for public declarations and its hash, whole writes, versioned
reads.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from dynadp.errors import RecordError

_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
)
DEPTH = 64  # of a file's tables and lists, at most; deeper ones break readers, and mean nothing


def parse_json(data: str | bytes) -> Any:
    """Return the content of a JSON text; what is nested too deep is a ValueError like any other
    mistake.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: nested deeper than 64
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEPTH}") from None
    require_shallow(value)
    return value


def require_shallow(value: Any) -> None:
    """Refuse tables and lists within tables and lists, more than ``DEPTH`` deep."""
    level = [value]
    for _ in range(DEPTH + 1):
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return
        level = [
            inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
        ]
    raise ValueError(f"nested deeper than {DEPTH}")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces, no NaN and the shortest spelling of every float.

    >>> canonical_json({"b": 1.0, "a": [True, None]})
    '{"a":[true,null],"b":1.0}'
    """
    if _has_text_keys(value):
        text = _CANONICAL.encode(value)
        if text.isascii():
            return text
    # keys become text before they are sorted, and halves of a letter one letter
    return _CANONICAL.encode(json.loads(json.dumps(value, allow_nan=False)))


def _has_text_keys(value: Any) -> bool:
    """Whether all keys of all tables are text."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(
            _has_text_keys(one) for one in value.values()
        )
    return not isinstance(value, list | tuple) or all(_has_text_keys(one) for one in value)


def digest(value: Any) -> str:
    """SHA-256 of :func:`canonical_json`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it appears whole or not at all, even if power fails."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes, *, new: bool = False, mode: int = 0o644) -> None:
    """Write a file so that it appears whole or not at all, even if power fails; ``new`` refuses a
    name that is taken.
    """
    try:
        _write_aside(path, content, new, mode)
    except OSError as error:
        error.filename = str(path)  # and not the name of a file that is gone
        raise


def _write_aside(path: Path, content: bytes, new: bool, mode: int) -> None:
    """Write another file first, which then gets the name."""
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as partial:
        try:
            partial.write(content)
            partial.flush()
            os.fsync(partial.fileno())
            os.chmod(partial.name, mode)
            if new:
                os.link(partial.name, path)
                os.unlink(partial.name)
            else:
                os.replace(partial.name, path)
        except BaseException:
            os.unlink(partial.name)
            raise


def read_format(path: Path) -> str:
    """Return the format that a JSON file of dynadp names."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("format"), str):
        raise RecordError(f"{path} is not a file of dynadp that names its format")
    return str(content["format"])


def read_file(path: Path, expected: str | tuple[str, ...], version: int = 1) -> dict[str, Any]:
    """Read a JSON file of this format, or one of these, of this version or an older one."""
    formats = (expected,) if isinstance(expected, str) else expected
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path} is not JSON; it is damaged or not a file of dynadp") from error
    if not isinstance(content, dict) or content.get("format") not in formats:
        raise RecordError(f"{path} is not a {formats[0]} file")
    found = content.get("version")
    if not isinstance(found, int) or found < 1:
        raise RecordError(
            f"{path} has version {found!r}; expected a whole number from 1 to {version}"
        )
    if found > version:
        raise RecordError(
            f"{path} has version {found}, this program reads up to {version}; upgrade dynadp"
        )
    return content
