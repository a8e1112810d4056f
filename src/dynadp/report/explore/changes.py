"""What would change if nodes, people or delta were others, by the planner's own number N.

Two runs with the same N see their rows as clearly. So a change of the setting is worth as much as
the change of epsilon that leads to the same N, and the swept curve has the accuracy of that total.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

from scipy.optimize import brentq

from dynadp.mechanisms import Mechanism, Sealed
from dynadp.planning import strength_of
from dynadp.privacy import Unit
from dynadp.report.explore.setting import PublicSetting

LEAST, MOST = 1e-3, 300.0  # totals among which one is looked for


@dataclass(frozen=True)
class Variant:
    """A run that is not quite the planned one.

    Attributes
    ----------
    name
        What is different.
    counts, delta, unit, mechanism
        As of the setting.
    """

    name: str
    counts: Sequence[int]
    delta: float
    unit: Unit
    mechanism: str | Mechanism | None

    def strength(self, epsilon: float, setting: PublicSetting) -> float:
        """N for a total."""
        return strength_of(
            self.counts,
            epsilon=epsilon,
            delta=self.delta,
            mechanism=self.mechanism,
            weights=setting.weights,
            unit=self.unit,
        )


@dataclass(frozen=True)
class Change:
    """What a variant is worth.

    Attributes
    ----------
    name
        What is different.
    same_total
        Accuracy at the chosen total, as ``Advisor.expected`` has it; None outside the swept
        totals.
    gain
        Right answers in 100 more than planned; None likewise.
    same_accuracy
        The total that is needed for the planned accuracy; None where none is found.
    """

    name: str
    same_total: dict[str, Any] | None
    gain: float | None
    same_accuracy: float | None


def variants(setting: PublicSetting) -> tuple[Variant, list[Variant]]:
    """The run as it is planned, and others that people ask about."""
    counts, unit, delta = setting.counts, setting.unit, setting.delta
    mechanism = setting.given.mechanism if setting.given else setting.mechanism
    planned = Variant("as planned", counts, delta, unit, mechanism)
    sealed, mean = _colluding(mechanism, len(counts)), round(sum(counts) / len(counts))
    others = [
        replace(planned, name="twice the rows at every node", counts=[2 * b for b in counts]),
        replace(
            planned,
            name=f"up to {_rows(unit.rows + 1)} a person at a node, instead of {unit.rows}",
            unit=replace(unit, rows=unit.rows + 1),
        ),
        replace(
            planned,
            name=f"another silo with {mean:,} rows",
            counts=[*counts, mean],
            mechanism=sealed,
        ),
    ]
    if len(counts) > (2 if isinstance(sealed, Sealed) else 1):
        largest = max(range(len(counts)), key=counts.__getitem__)
        others.append(
            replace(
                planned,
                name=f"without {setting.topology.nodes[largest]} and its {counts[largest]:,} rows",
                counts=[b for p, b in enumerate(counts) if p != largest],
                mechanism=sealed,
            )
        )
    others.append(replace(planned, name=f"delta = {delta / 10:g}", delta=delta / 10))
    if isinstance(sealed, Sealed) and sealed.colluding is not None:
        more = sealed.colluding + 1
        if more < len(counts):
            name = f"{more} of the {len(counts)} nodes may collude, instead of {more - 1}"
            stronger = replace(sealed, colluding=more, partners=None)
            others.append(replace(planned, name=name, mechanism=stronger))
    return planned, others


def changes(
    setting: PublicSetting,
    epsilon: float,
    expected: Callable[[float], dict[str, Any] | None],
) -> list[Change]:
    """What each variant is worth at a total.

    Parameters
    ----------
    setting
        What is planned.
    epsilon
        The chosen total.
    expected
        The accuracy of a total, on the swept curve.
    """
    planned, others = variants(setting)

    def total_of(variant: Variant, wanted: float) -> float | None:
        """The total that leads a variant to this N."""

        def above(t: float) -> float:
            return log(variant.strength(exp(t), setting) / wanted)

        low, high = log(LEAST), log(MOST)
        if above(low) > 0 or above(high) < 0:
            return None
        return exp(float(brentq(above, low, high, xtol=1e-6)))

    now, known, out = planned.strength(epsilon, setting), expected(epsilon), []
    for variant in others:
        worth = total_of(planned, variant.strength(epsilon, setting))
        found = None if worth is None else expected(worth)
        gain = found["median"] - known["median"] if found and known else None
        out.append(Change(variant.name, found, gain, total_of(variant, now)))
    return out


def _colluding(mechanism: str | Mechanism | None, members: int) -> str | Mechanism | None:
    """The mechanism for another number of nodes, of which as many may collude as now."""
    if not isinstance(mechanism, Sealed):
        return mechanism
    among = mechanism.among(members)
    return replace(among, honest=None, colluding=among.colluding, partners=None)


def _rows(number: int) -> str:
    return f"{number} rows"
