"""Where messages are entered before they are sent; engines implement it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from dynadp._arrays import Array
from dynadp.data import Seal
from dynadp.errors import DeclarationError
from dynadp.privacy import Event

Messages = dict[str, Array]


class Journal(ABC):
    """Messages of one run, kept before they leave.

    Attributes
    ----------
    run
        The name of the run.
    """

    run: str = "simulation"

    @property
    @abstractmethod
    def begun(self) -> bool:
        """True once the whole plan is reserved."""

    @property
    def over(self) -> bool:
        """True once the run is closed: then all its messages are here."""
        return False

    @abstractmethod
    def reserve(self, plan: Sequence[Event]) -> None:
        """Reserve the whole plan before anything is computed from rows.

        Later calls may name a part of it.
        """

    def require_room(self, plan: Sequence[Event]) -> None:  # noqa: B027 (most have no cap)
        """Refuse what :meth:`reserve` would refuse now, and reserve nothing; here it refuses
        nothing.
        """

    @abstractmethod
    def sent(self, n: int) -> Messages | None:
        """Return every node's message of round n; None unless all of them were entered."""

    @abstractmethod
    def spend(self, n: int, events: Sequence[Event], messages: Messages) -> Messages:
        """Enter round n; send what this returns, and only after it returned."""

    @abstractmethod
    def fail(self, n: int, events: Sequence[Event]) -> None:
        """Charge round n, whose noise was drawn and whose solver failed, and end the run."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """End the run."""

    def keep(self, n: int, vectors: Messages) -> None:
        """Keep every node's own minimiser of round n, private, beside its rows, before it is spent.

        Those of round n - 1 stay, those before go: a run that goes on needs the last spent one.
        """
        raise DeclarationError(
            "this journal keeps no private vectors, which augment = 'iterate' needs to go on after "
            "an interruption; use augment = 'message'"
        )

    def kept(self, n: int) -> Messages | None:
        """Return what :meth:`keep` kept of round n; None where there is nothing."""
        return None

    def secret(self, node: str, make: Callable[[], bytes]) -> bytes:
        """Return a node's key for the run: the one that is kept, or a new one, kept until the run
        ends; here it is not kept.
        """
        return make()

    def seal(self, node: str) -> Seal | None:
        """Where a node keeps the seal of the rows that the run began with; None where rows are not
        compared.
        """
        return None
