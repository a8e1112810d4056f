"""Ledgers as the people of a node use them: read one, set its cap, close a run; or those of all
nodes at once.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dynadp.data import Seal
from dynadp.engines import forget_vectors, now
from dynadp.errors import ConfigError, DeclarationError, DynadpError, LedgerDamaged, LedgerError
from dynadp.privacy import Cap, Ledger, LedgerSummary
from dynadp.runs.fields import listed
from dynadp.runs.run_file import load_run_file

_Done = TypeVar("_Done")


def open_readable(path: str | Path) -> Ledger:
    """Open a ledger for reading.

    An entry that a killed process left half written is undone first, if this user may write.
    """
    try:
        return Ledger.open(path, read_only=True)
    except LedgerDamaged:
        raise
    except LedgerError:
        if not os.access(path, os.W_OK):
            raise
        return Ledger.open(path)


def set_cap(
    path: str | Path,
    cap: Cap,
    *,
    node: str | None = None,
    who: str,
    anchor: str | Path | None = None,
) -> tuple[Cap | None, LedgerSummary]:
    """Set the cap of a ledger, which is made if it is missing and its node is given.

    Parameters
    ----------
    path, cap
        The ledger's file, and the most that its node may spend.
    node
        Whose ledger it is.
    who
        Who sets the cap.
    anchor
        The ledger's anchor, if not in this user's state folder.

    Returns
    -------
    The cap that was in force before, and the ledger's summary.
    """
    exists = Path(path).exists()
    if not exists and node is None:
        raise _absent(path)
    with (
        Ledger.open(path, anchor=anchor)
        if exists
        else Ledger.create(path, str(node), who=who, at=now(), anchor=anchor)
    ) as ledger:
        _require_node(ledger, node)
        before = ledger.cap
        ledger.set_cap(cap, who=who, at=now())
        return before, LedgerSummary.of(ledger)


def close_run(
    path: str | Path, run: str, *, who: str, anchor: str | Path | None = None
) -> tuple[int, str]:
    """End a run that will not go on: its unspent reservation is free again.

    Its seal and its private vectors are removed. ``anchor`` as for :func:`set_cap`.

    Returns the number of rounds that it spent, and the ledger's new head.
    """
    with Ledger.open(path, anchor=anchor) as ledger:
        known = LedgerSummary.of(ledger)
        if run not in known.open_runs:
            names = ", ".join(map(repr, known.open_runs)) or "none"
            raise DeclarationError(
                f"{path}: {_not_open(known, run)}; open runs, by their whole names: {names}"
            )
        ledger.close_run(run, "stopped", who=who, at=now())
        Seal.beside(ledger.path, run, entered=True).remove()
        forget_vectors(ledger.path, run)
        return len(ledger.rounds(run)), ledger.head


def ledgers_of(path: str | Path) -> dict[str, Path]:
    """Return the ledgers that a run file names, by node."""
    file, home = load_run_file(path), Path(path).parent
    if file.networked:
        raise ConfigError(
            f"{path} is a network run, which names no ledgers: each node has its own in its "
            "NODE.toml; give the ledgers' files instead"
        )
    if missing := [node.name for node in file.nodes if node.ledger is None]:
        raise ConfigError(
            f"{path} names no ledger for {', '.join(missing)}: a SIMULATION, and a run without a "
            "mechanism, has none; give the ledgers' files instead"
        )
    found = {node.name: home / str(node.ledger) for node in file.nodes}
    if len({ledger.resolve() for ledger in found.values()}) < len(found):
        raise ConfigError(f"{path}: two nodes have the same ledger; give each its own")
    return found


def set_caps(
    ledgers: Mapping[Path, str | None], cap: Cap, *, who: str
) -> dict[Path, tuple[Cap | None, LedgerSummary]]:
    """Set one cap in many ledgers, as :func:`set_cap` does in one.

    All are checked before one is changed. Where one fails all the same, such as by a full disk, the
    error says which were changed.

    Parameters
    ----------
    ledgers
        The files, each with the node whose ledger is made if the file is missing.
    cap, who
        The most that each node may spend, and who sets it.
    """
    _check_all(ledgers, _require_cappable)
    return _all_or_say(
        ledgers, lambda path: set_cap(path, cap, node=ledgers[path], who=who), "the cap was set in"
    )


def close_runs(
    paths: Sequence[Path], run: str, *, who: str
) -> tuple[dict[Path, tuple[int, str]], dict[Path, str]]:
    """End a run in many ledgers, as :func:`close_run` does in one.

    A ledger in which it is closed already, or which has no such run because its node released
    nothing, stays as it is. All are checked before one is changed.

    Returns
    -------
    What :func:`close_run` returned, and why others stayed as they are.
    """
    others, open_runs = dict[Path, str](), Counter[str]()

    def look(path: Path, _: str | None) -> None:
        with Ledger.open(path) as ledger:
            _require_writable(path)
            known = LedgerSummary.of(ledger)
        open_runs.update(known.open_runs)
        if run not in known.open_runs:
            others[path] = _not_open(known, run)

    _check_all(dict.fromkeys(paths), look)
    if len(others) == len(set(paths)):
        names = ", ".join(map(repr, open_runs)) or "none"
        raise DeclarationError(
            f"run {run!r} is open in none of these ledgers; open runs, by their whole names: "
            f"{names}"
        )
    those = [path for path in dict.fromkeys(paths) if path not in others]
    done = _all_or_say(
        those, lambda path: close_run(path, run, who=who), f"run {run!r} was closed in"
    )
    return done, others


def _check_all(
    ledgers: Mapping[Path, str | None], check: Callable[[Path, str | None], object]
) -> None:
    """Refuse these ledgers, with all reasons together; a damaged one is raised by itself."""
    places = Counter(path.resolve() for path in ledgers)
    mistakes = [f"{path} is given twice" for path in ledgers if places[path.resolve()] > 1]
    for path, node in ledgers.items():
        try:
            check(path, node)
        except LedgerDamaged:
            raise
        except DynadpError as error:
            mistakes.append(str(error))
    if mistakes:
        raise DeclarationError(listed("ledgers, of which none was changed", mistakes, "problem"))


def _all_or_say(
    paths: Sequence[Path] | Mapping[Path, object], change: Callable[[Path], _Done], what: str
) -> dict[Path, _Done]:
    """Change all ledgers; an error says in which of them it was done before."""
    done = dict[Path, _Done]()
    for path in paths:
        try:
            done[path] = change(path)
        except DynadpError as error:
            if not done:
                raise
            rest = [str(one) for one in paths if one not in done]
            raise type(error)(
                f"{error}\n{what} {', '.join(map(str, done))}, and not in {', '.join(rest)}; when "
                "the cause is gone, give the same command for the rest"
            ) from error.__cause__
    return done


def _require_cappable(path: Path, node: str | None) -> None:
    """Refuse a ledger that cannot be opened, written or made, or is another node's."""
    if path.exists():
        with Ledger.open(path) as ledger:
            _require_node(ledger, node)
            _require_writable(path)
    elif node is None:
        raise _absent(path)
    elif not os.access(path.parent, os.W_OK):
        raise LedgerError(f"cannot make {path}; choose a folder that exists and can be written")


def _require_writable(path: Path) -> None:
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise LedgerError(f"{path} or its folder cannot be written by this user")


def _require_node(ledger: Ledger, node: str | None) -> None:
    if node not in (None, ledger.node):
        raise DeclarationError(f"{ledger.path} is the ledger of {ledger.node!r}, not of {node!r}")


def _absent(path: str | Path) -> DeclarationError:
    return DeclarationError(f"there is no ledger {path}; name its node with --node to make one")


def _not_open(known: LedgerSummary, run: str) -> str:
    return f"its run {run!r} is closed already" if run in known.runs else f"it has no run {run!r}"
