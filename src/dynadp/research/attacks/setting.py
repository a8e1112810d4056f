"""The network that is attacked, and what every result of an attack says."""

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from dynadp.consensus import Topology
from dynadp.privacy import Unit
from dynadp.problem import Logistic, Loss

DELTA = 1e-5


@dataclass(frozen=True)
class Setting:
    """A network and its public numbers: by default three nodes in a row, the middle one attacked,
    the first one curious.

    Attributes
    ----------
    topology
        The network.
    target, watcher
        Places of the node whose row is sought, and of the neighbour that listens.
    loss, C, rho, eta, rounds
        As for :func:`~dynadp.engines.simulation.simulate`. With these the loss of a release comes
        close to alpha: attacks are as strong as the noise allows.
    gamma
        How exact Algorithm 1 is, and the attacker.
    sealed_view
        What is seen of sealed sums. ``sum``: as many collude as was planned for, the watcher first,
        and are left with the sum over all others. ``node``: all others collude, or masks are
        broken, and the target's own sum is seen. ``letter``: the target's letter, by someone
        without a key.
    unit
        Whose totals are stated, and what is asked about: rows that are replaced, or rows that are
        there or not.
    silent
        Whether nodes of sums leave their noise out.
    """

    topology: Topology = field(default_factory=lambda: Topology.family("path", 3))
    target: int = 1
    watcher: int = 0
    loss: Loss = field(default_factory=lambda: Logistic(3.0))
    C: float = 1.0
    rho: float = 0.01
    eta: float = 0.25
    gamma: float = 1e-9
    rounds: int = 20
    sealed_view: str = "sum"
    unit: Unit = field(default_factory=Unit)
    silent: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was attacked, and what the accountant allows.

    Attributes
    ----------
    mechanism, alpha, rounds
        Of the run; ``none`` and None for Algorithm 1.
    epsilon, delta
        What the rounds cost the target in total; infinite for Algorithm 1, and 0 for one letter of
        a sealed sum.
    seen
        Of sealed sums: ``sum``, ``node`` or ``letter``, as of :class:`Setting`; else None.
    adjacency
        ``replace``, or ``add-remove`` where totals are of rows that are there or not.
    """

    mechanism: str
    alpha: float | None
    rounds: int
    epsilon: float
    delta: float = DELTA
    seen: str | None = None
    adjacency: str = "replace"

    def to_json(self) -> dict[str, Any]:
        """All numbers; an infinite one is null."""
        return {
            name: None if isinstance(v, float) and not isfinite(v) else v
            for name, v in asdict(self).items()
        }


@dataclass(frozen=True)
class Interval:
    """Where a measured share truly lies, with 95% confidence."""

    lower: float
    upper: float
