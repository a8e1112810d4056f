"""Where messages are entered before they are sent; engines implement it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dynadp._arrays import Array
from dynadp.data import Seal
from dynadp.privacy import Event

Messages = dict[str, Array]


class Journal(ABC):
    """Messages of one run, kept before they leave."""

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether nothing is left to reserve, so that no bad cell can waste a budget any more."""

    @abstractmethod
    def reserve(self, plan: Sequence[Event]) -> None:
        """Before anything is computed from rows: the whole plan, or a part of what was reserved
        already.
        """

    @abstractmethod
    def sent(self, n: int) -> Messages | None:
        """Every node's message of round n, where all of them were entered."""

    @abstractmethod
    def spend(self, n: int, events: Sequence[Event], messages: Messages) -> Messages:
        """Enter round n; send what this returns, and only after it returned."""

    @abstractmethod
    def fail(self, n: int, events: Sequence[Event]) -> None:
        """Round n was not certified after its noise was drawn: it is charged, has no message, and
        the run is over.
        """

    @abstractmethod
    def close(self, reason: str) -> None:
        """The run is over."""

    def seal(self, node: str) -> Seal | None:
        """Where a node keeps the seal of the rows that the run began with; None where rows are not
        compared.
        """
        return None
