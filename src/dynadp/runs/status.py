"""Reads status.json of nodes' run folders: how each node is."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any

from dynadp._files import read_file
from dynadp.errors import DynadpError, LedgerDamaged, LedgerError, RecordError
from dynadp.privacy import Ledger, LedgerSummary
from dynadp.runs.processes import alive

STATUS, STATUS_VERSION = "dynadp-status", 1
SHOWN = 16  # letters of the configuration's hash that stand behind a run's name in a ledger
SILENT = 30.0  # seconds without a sign of life, after which a node that cannot be seen is gone


def read_status(folder: Path) -> dict[str, Any]:
    """Read status.json of a node's run folder."""
    return read_file(folder / "status.json", STATUS, STATUS_VERSION)


def node_states(folders: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Return the state of every node that has run in these folders, or in folders inside them."""
    folders = list(folders)
    files = sorted(file for folder in folders for file in _status_files(Path(folder)))
    if not files:
        raise RecordError(
            f"no node has run in {', '.join(map(str, folders))}: there is no status.json; give "
            f"the folder that NODE.toml names"
        )
    return [_checked(file) for file in files]


def _status_files(folder: Path) -> list[Path]:
    here = folder / "status.json"
    try:
        here.stat()
    except (FileNotFoundError, NotADirectoryError):
        return list(folder.glob("*/status.json"))
    except OSError as error:  # such as another user's folder
        raise RecordError(f"cannot read {here}: {error.strerror}") from error
    return [here]


def is_alive(state: dict[str, Any]) -> bool:
    """Return whether the process that wrote the file still runs; where it counts its processes
    elsewhere, as in a container, whether it gave a sign of life a moment ago.
    """
    seen = alive(state)
    return abs(_age(state)) < SILENT if seen is None else seen


def _age(state: dict[str, Any]) -> float:
    """Seconds since the file was written, by this machine's clock; 0 where an earlier version wrote
    no time.
    """
    if "at" not in state:
        return 0.0
    return (datetime.now(UTC) - datetime.fromisoformat(state["at"])).total_seconds()


_FIELDS: dict[str, type | tuple[type, ...]] = {  # what all versions wrote
    "run": str,
    "node": str,
    "state": str,
    "round": int,
    "rounds": int,
    "neighbours": dict,
    "rejected": dict,
    "waiting": (str, NoneType),
    "ledger": (str, NoneType),
    "pid": int,
}


def _checked(file: Path) -> dict[str, Any]:
    """Return the state of a node; refuse a file that no node wrote like that."""
    state, damaged = read_status(file.parent), None
    try:
        if all(isinstance(state.get(name, 0.0), kind) for name, kind in _FIELDS.items()):
            return _state(state)
    except DynadpError:
        raise
    except (TypeError, ValueError, OverflowError) as error:  # a time or a number that is none
        damaged = error
    raise RecordError(
        f"{file} does not hold what a node writes of itself: it is damaged. A node that runs "
        "writes it anew within seconds"
    ) from damaged


def _state(state: dict[str, Any]) -> dict[str, Any]:
    state["alive"], state["ahead"] = is_alive(state), _age(state) < -SILENT
    if not state["alive"]:
        state["neighbours"] = {
            j: how if how == "given up" else "not known" for j, how in state["neighbours"].items()
        }
        if state["state"] in ("starting", "agreeing", "running", "finished"):
            unseen = state["ahead"] and alive(state) is None
            state["state"] += " when it wrote this" if unseen else " when it ended"
    # who runs writes it every few seconds, by the same clock: a time to come is no sign of life
    state["late"] = state["alive"] and abs(_age(state)) > SILENT
    if "certificate_ends" in state:
        ends = datetime.fromisoformat(state["certificate_ends"])
        state["certificate_days"] = (ends - datetime.now(UTC)).days
    state["spent"] = None
    if state["ledger"] is not None:
        try:
            with Ledger.open(state["ledger"], read_only=True) as ledger:
                summary = LedgerSummary.of(ledger)
        except LedgerDamaged:
            raise
        except LedgerError:  # an entry that a crash cut short: the node undoes it when it starts
            return state
        state["spent"] = _spent(summary, state["run"], state.get("config"))
    return state


def _spent(summary: LedgerSummary, name: str, config: str | None) -> dict[str, Any] | None:
    """What the run of this name and configuration spent; without a configuration, the newest."""
    pattern = f"{re.escape(name)} [0-9a-f]{{{SHOWN}}}"
    found = [run for run in summary.runs.values() if re.fullmatch(pattern, run.run)]
    run = next(
        (run for run in reversed(found) if config is None or run.run == f"{name} {config}"), None
    )
    if run is None or summary.cap is None:
        return None
    return {
        "config": run.run.rpartition(" ")[2],
        "others": len(found) - 1,
        "rounds_spent": run.rounds_spent,
        "rounds_planned": run.rounds_planned,
        "spares_spent": run.spares_spent,
        "spares_planned": len(run.spares),
        "alpha_spent": run.to_json()["alpha_spent"],
        "mu_spent": run.mu_spent,
        "lost": summary.to_json()["cap"]["lost"],  # null where it is infinite
        "cap": summary.cap.epsilon,
        "delta": summary.cap.delta,
    }
