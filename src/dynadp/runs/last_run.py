"""The terms of the last runs that a silo took part in, kept beside its ledger; and in words how the
terms of the next one differ from them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dynadp._files import read_file, write_bytes
from dynadp.engines import LOG
from dynadp.errors import RecordError

FORMAT, VERSION = "dynadp-last-runs", 1
_KEPT = 2  # this run, when it is started again, and the one before it
_SHOWN = 60  # letters of a value


def _file(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}-last-runs.json")


def keep_terms(ledger: Path, run: str, terms: Mapping[str, Any], at: str) -> None:
    """Keep the terms of a run that begins; that they cannot be kept stops no run."""
    try:
        before = [one for one in _kept(ledger) if one["run"] != run]
    except RecordError as error:
        LOG.warning("%s", error)
        before = []
    runs = [{"run": run, "at": at, "terms": terms}, *before][:_KEPT]
    content = {"format": FORMAT, "version": VERSION, "runs": runs}
    try:
        write_bytes(_file(ledger), json.dumps(content).encode() + b"\n", mode=0o600)
    except OSError as error:
        LOG.warning(
            "%s cannot be written (%s): dynadp check will not know what changed since this run",
            _file(ledger),
            error.strerror,
        )


def terms_before(ledger: Path, run: str) -> tuple[str, dict[str, Any]] | None:
    """Return when the last other run began, and its terms; None where none is known."""
    found = next((one for one in _kept(ledger) if one["run"] != run), None)
    return None if found is None else (str(found["at"]), dict(found["terms"]))


def _kept(ledger: Path) -> list[dict[str, Any]]:
    path = _file(ledger)
    if not path.exists():
        return []
    try:
        runs = read_file(path, FORMAT, VERSION)["runs"]
        kept = [{name: one[name] for name in ("run", "at", "terms")} for one in runs]
        for one in kept:
            _since(one["at"], one["terms"])
        return kept
    except (KeyError, TypeError):
        raise RecordError(
            f"{path} is damaged; remove it, and the next run has none to compare with"
        ) from None


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how terms differ, one sentence for each change; the run's name is no change."""
    old, new = _flat(before), _flat(now)
    places = [place for place in new if place in old] + sorted(set(old) ^ set(new))
    lines = []
    for place in places:
        if place in _NO_CHANGE or old.get(place, _NONE) == new.get(place, _NONE):
            continue
        if _covered(place, old, new):
            continue
        lines.append(_sentence(place, old.get(place, _NONE), new.get(place, _NONE)))
    derived = [line for line in lines if line.startswith("plan, ")]
    stated = [line for line in lines if line not in derived]
    if stated and len(derived) > 3:
        more = len(derived) - 3
        derived = [*derived[:3], f"and {more} more number{'s' * (more > 1)} of the plan"]
    return stated + derived


_NO_CHANGE = {"config, run, name"}
_NONE = object()  # not there


def _flat(value: Any, place: str = "") -> dict[str, Any]:
    """All values by their places, lists of named things by their names."""
    if isinstance(value, list) and value and all(_name(one) for one in value):
        value = {str(_name(one)): one for one in value}
    if not isinstance(value, Mapping) or not value:
        return {place: value}
    found: dict[str, Any] = {} if not place else {place: dict}  # that it is there
    for key, inner in value.items():
        found |= _flat(inner, f"{place}, {key}" if place else str(key))
    return found


def _name(one: Any) -> Any:
    return one.get("name") if isinstance(one, Mapping) else None


def _covered(place: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a place lies within something that is new or gone as a whole."""
    outer = place.rpartition(", ")[0]
    while outer:
        if (outer in old) != (outer in new):
            return True
        outer = outer.rpartition(", ")[0]
    return False


def _sentence(place: str, old: Any, new: Any) -> str:
    words = place.removeprefix("config, ")
    for start, better in _WORDS.items():
        if words.startswith(start):
            words = better + words.removeprefix(start)
    if old is _NONE:
        return f"{words} is new{_of(new)}"
    if new is _NONE:
        return f"{words} is gone{_of(old)}"
    return f"{words} is {_shown(new)} now, it was {_shown(old)}"


_WORDS = {
    "nodes, ": "silo ",
    "recipients, ": "who gets messages: ",
    "schema, columns, ": "column ",
    "schema, ": "schema, ",
    "edges": "the list of edges",
    "endpoints, ": "the endpoint of ",
    "ledger, ": "the ledger's ",
    "own, ": "this silo's ",
}


def _of(value: Any) -> str:
    return "" if value is dict or value is None else f": {_shown(value)}"


def _shown(value: Any) -> str:
    text = "there" if value is dict else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _since(at: str, terms: Mapping[str, Any]) -> str:
    return f"since run {terms['config']['run']['name']!r}, which began on {at[:10]}"


def described(
    before: tuple[str, Mapping[str, Any]] | None, now: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what changed since the last run, in lines."""
    if before is None:
        yield "no earlier run of this ledger is known here, so there is nothing to compare with"
        return
    at, terms = before
    found = changes(terms, now)
    since = _since(at, terms)
    if not found:
        yield f"nothing but the name, {since}"
        return
    yield f"{len(found)} thing{'s' * (len(found) > 1)} {since}:"
    yield from (f"  {line}" for line in found)
