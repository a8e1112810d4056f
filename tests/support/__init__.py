"""What several test files share."""

from dataclasses import fields
from typing import Any

from dynadp import Plan, simulate
from dynadp.planning import Protection, Settings

_PLAN = {f.name for kind in (Settings, Protection) for f in fields(kind)} | {"rounds", "output"}


def flat_simulate(shards: Any, topology: Any, **given: Any) -> Any:
    """``simulate`` with the numbers of its plan beside its other arguments."""
    numbers = {name: given.pop(name) for name in _PLAN & set(given)}
    return simulate(shards, topology, Plan.of(**numbers), **given)
