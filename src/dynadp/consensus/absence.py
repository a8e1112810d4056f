"""What a run does when nodes stay away: public, and agreed on by all before round 1."""

from dataclasses import dataclass
from typing import Literal

from dynadp import _require
from dynadp.errors import DeclarationError

OnAbsence = Literal["wait", "go on"]


@dataclass(frozen=True)
class Absence:
    """Whether a run waits for a node that stays away, or goes on without it.

    Attributes
    ----------
    on_absence
        ``wait``: nodes wait, then stop, and the run goes on when all are back. ``go on``: those
        who remain give up whoever is silent for ``patience`` seconds, and go on.
    patience
        Seconds.
    least
        Nodes that must remain; with fewer a run stops, and can be resumed. None for two, or for
        as many as sealed sums need.
    """

    on_absence: OnAbsence = "wait"
    patience: float = 600.0
    least: int | None = None

    def __post_init__(self) -> None:
        if self.on_absence not in ("wait", "go on"):
            raise DeclarationError(f"on_absence is {self.on_absence!r}; expected 'wait' or 'go on'")
        _require.positive("patience", self.patience)
        if self.least is not None:
            _require.whole("least", self.least)

    @property
    def goes_on(self) -> bool:
        """Whether a run goes on without nodes that stay away."""
        return self.on_absence == "go on"
