"""The run file with the chosen total: the text as people wrote it, with one number changed."""

import re
import tomllib
from copy import deepcopy

from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism


def with_total(text: str, key: str, value: float) -> str:
    """The text of a run file with ``key`` of its [privacy] set to a value; all else stays.

    Parameters
    ----------
    text
        Of a run file.
    key, value
        ``epsilon``, ``alpha`` or ``mu``.
    """
    wanted = deepcopy(tomllib.loads(text))
    wanted.setdefault("privacy", {})[key] = value
    lines, section = text.splitlines(keepends=True), ""
    for at, line in enumerate(lines):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            section = header[1].strip()
        elif line.lstrip().startswith("[["):
            section = ""
        if section == "privacy" and re.match(rf"\s*{key}\s*=", line):
            lines[at] = re.sub(rf"^(\s*{key}\s*=\s*)[^\s#]+", rf"\g<1>{value:g}", line)
    made = "".join(lines)
    if tomllib.loads(made) != wanted:
        raise DeclarationError(
            f"privacy.{key} cannot be set in this run file; expected a line `{key} = NUMBER` below "
            "[privacy]: change it by hand"
        )
    return made


def privacy_section(key: str, value: float, delta: float, mechanism: Mechanism) -> str:
    """What a run file needs, where there is none to change."""
    named = f'mechanism = "{mechanism.name}"\n'
    if mechanism.sealing is not None:
        named += f"honest = {mechanism.sealing.honest}\n"
    return f"[privacy]\n{named}{key} = {value:g}\ndelta = {delta:g}\n"
