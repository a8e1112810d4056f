"""The picture to decide by: accuracy above, the chance of a right guess below, against epsilon.

It is drawn here and not in the browser, so that it is there without JavaScript and on paper. Zones
and lines differ in pattern and in words, never in colour alone. The page moves the choice's mark,
by the numbers that the drawing carries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log, log10

import numpy as np

from dynadp.privacy import guess_probability, guesses_in_100
from dynadp.research import ALIKE, MOST_COMMON, Zones

Point = Mapping[str, float]
WIDE, NARROW = 760, 350  # widths in pixels; letters have the same size in both
LEFT, RIGHT, TOP, UPPER, GAP, LOWER, BOTTOM = 46, 16, 60, 230, 76, 96, 44
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
USELESS, VALUE, ENOUGH = "no better than the most common answer", "good value", "no further gain"
LETTER = 6.4  # about the width of one, in pixels


@dataclass(frozen=True)
class Decision:
    """What is drawn.

    Attributes
    ----------
    measured, curve
        ``epsilon``, ``median``, ``low`` and ``high`` of 100: as measured, and evened.
    baselines
        Horizontal lines, by name.
    zones
        Once the sweep is over.
    delta
        At which epsilon is stated.
    better
        What the upper axis is called.
    planned, recommended
        The total that the run asks for, and the recommended one, if there is one.
    asked_by
        Who asks for the planned total, in a word or two.
    """

    measured: Sequence[Point]
    curve: Sequence[Point]
    baselines: Mapping[str, float]
    zones: Zones | None
    delta: float
    better: str
    planned: float
    recommended: float | None
    asked_by: str

    @property
    def ends(self) -> tuple[float, float]:
        """The totals between which accuracy was measured."""
        return self.curve[0]["epsilon"], self.curve[-1]["epsilon"]

    def zone_list(self) -> list[tuple[str, str, float, float]]:
        """Each zone's kind, name and ends."""
        if self.zones is None:
            return []
        first, last = self.ends
        useful, enough = self.zones.useful, self.zones.enough
        useless = f"no better than {ALIKE}" if ALIKE in self.baselines else USELESS
        found = [
            ("useless", useless, first, last if useful is None else useful),
            ("value", VALUE, useful or last, enough),
            ("enough", ENOUGH, enough, last),
        ]
        return [zone for zone in found[: 1 if useful is None else 3] if zone[2] < zone[3]]

    def drawn(self, width: int, choice: float) -> str:
        """The picture as SVG, with a mark at this total; ``width`` in pixels."""
        return _Drawing(self, width).svg(choice)


class _Drawing:
    def __init__(self, shown: Decision, width: int) -> None:
        self.shown, self.width = shown, width
        self.right, self.height = width - RIGHT, TOP + UPPER + GAP + LOWER + BOTTOM
        low, high = shown.ends
        self.low, self.span = log(low), log(high / low)
        numbers = [p[name] for p in (*shown.curve, *shown.measured) for name in ("low", "high")]
        numbers += shown.baselines.values()
        room = 0.06 * (max(numbers) - min(numbers)) + 0.3
        self.ends = min(numbers) - room, max(numbers) + room
        self.step = _step(self.ends[1] - self.ends[0])

    def x(self, epsilon: float) -> float:
        share = (log(epsilon) - self.low) / self.span
        return round(LEFT + min(max(share, 0.0), 1.0) * (self.right - LEFT), 1)

    def y(self, value: float) -> float:
        low, high = self.ends
        return round(TOP + UPPER * (high - value) / (high - low), 1)

    def below(self, guesses: float) -> float:
        top = TOP + UPPER + GAP
        return round(top + LOWER * (100 - guesses) / 50, 1)

    def svg(self, choice: float) -> str:
        shown = self.shown
        parts = [
            *self._zones(),
            *self._axes(),
            *self._baselines(),
            self._curve(),
            *self._guesses(),
            *self._mark(shown.planned, "planned"),
            *self._mark(shown.recommended, "recommended"),
            self._choice(choice),
            *self._named(shown.planned, shown.asked_by, 0),  # above the lines that cross them
            *self._named(shown.recommended, "recommended", 1),
        ]
        low, high = shown.ends
        carried = {
            "left": LEFT,
            "right": self.right,
            "low": low,
            "high": high,
            "top": self.y(self.ends[1]),
            "bottom": self.y(self.ends[0]),
            "least": self.ends[0],
            "most": self.ends[1],
            "even": self.below(50),
            "sure": self.below(100),
        }
        data = " ".join(f'data-{name}="{value:g}"' for name, value in carried.items())
        return (
            f'<svg class="decision" viewBox="0 0 {self.width} {self.height}" role="img" {data} '
            f'aria-label="{escape(self._words())}">{_patterns(self.width)}{"".join(parts)}</svg>'
        )

    def _words(self) -> str:
        zones = "; ".join(f"{n} from {a:g} to {b:g}" for _, n, a, b in self.shown.zone_list())
        return (
            f"{self.shown.better} and right guesses in 100, against total epsilon; the table has "
            f"the numbers. {zones}"
        )

    def _zones(self) -> list[str]:
        found, bottom = [], TOP + UPPER + GAP + LOWER
        for kind, name, first, last in self.shown.zone_list():
            a, b = self.x(first), self.x(last)
            fill = "" if kind == "value" else f' fill="url(#{kind}-{self.width})"'
            found.append(
                f'<rect class="zone {kind}" x="{a:g}" y="{TOP}" width="{b - a:.1f}" '
                f'height="{bottom - TOP}"{fill}/>'
            )
            lines = _wrapped(name, b - a)
            if lines:  # otherwise the list below has it
                y = TOP - 7 - 14 * (len(lines) - 1)
                spans = "".join(
                    f'<tspan x="{(a + b) / 2:.1f}" y="{y + 14 * i}">{escape(line)}</tspan>'
                    for i, line in enumerate(lines)
                )
                found.append(f'<text class="zone-name">{spans}</text>')
        return found

    def _axes(self) -> list[str]:
        out, bottom = [], TOP + UPPER + GAP + LOWER
        low, high = self.shown.ends
        for tick in TICKS:
            if low * 0.999 <= tick <= high * 1.001:
                x = self.x(tick)
                out.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>')
                out.append(f'<text class="tick" x="{x}" y="{bottom + 16}">{tick:g}</text>')
        at = ceil(self.ends[0] / self.step) * self.step
        while at <= self.ends[1]:
            out += self._level(self.y(at), f"{at:g}")
            at = round(at + self.step, 6)
        for at in (50, 75, 100):
            out += self._level(self.below(at), f"{at:g}")
        middle = (LEFT + self.right) / 2
        upper = self.shown.better
        out.append(
            f'<text class="tick" x="{middle}" y="{bottom + 36}">total epsilon, of all rounds '
            f"{'together ' if self.width == WIDE else ''}(smaller is more private)</text>"
        )
        lower = "guesses right, in 100, at most (50: a coin toss)"
        for words, y in ((upper, 16), (lower, TOP + UPPER + GAP - 8)):
            out.append(f'<text class="panel" x="4" y="{y}">{escape(words)}</text>')
        return out

    def _level(self, y: float, words: str) -> list[str]:
        return [
            f'<line class="grid" x1="{LEFT}" x2="{self.right}" y1="{y}" y2="{y}"/>',
            f'<text class="level" x="{LEFT - 6}" y="{y + 4:.1f}">{words}</text>',
        ]

    def _baselines(self) -> list[str]:
        out = []
        for name, value in self.shown.baselines.items():
            y, blind = self.y(value), name in (MOST_COMMON, ALIKE)
            out.append(
                f'<line class="{"blind" if blind else "without"}" x1="{LEFT}" x2="{self.right}" '
                f'y1="{y}" y2="{y}"/>'
            )
            side = (
                f'class="name right" x="{self.right - 4}"'
                if blind
                else (f'class="name" x="{LEFT + 4}"')
            )
            out.append(f'<text {side} y="{y + 14 if blind else y - 5:.1f}">{escape(name)}</text>')
        return out

    def _curve(self) -> str:
        curve = self.shown.curve
        at = [self.x(p["epsilon"]) for p in curve]
        up = [f"{x},{self.y(p['high'])}" for x, p in zip(at, curve, strict=True)]
        down = [f"{x},{self.y(p['low'])}" for x, p in zip(at, curve, strict=True)]
        line = " ".join(f"{x},{self.y(p['median'])}" for x, p in zip(at, curve, strict=True))
        dots = "".join(
            f'<circle cx="{self.x(p["epsilon"])}" cy="{self.y(p["median"])}" r="4"><title>epsilon '
            f"{p['epsilon']:g}: {p['median']:.1f}, from {p['low']:.1f} to {p['high']:.1f}, measured"
            f"</title></circle>"
            for p in self.shown.measured
        )
        return (
            f'<polygon class="band" points="{" ".join([*up, *reversed(down)])}"/>'
            f'<polyline class="line" points="{line}"/><g class="dots">{dots}</g>'
        )

    def _guesses(self) -> list[str]:
        low, high = self.shown.ends
        points = " ".join(
            f"{self.x(e)},{self.below(100 * guess_probability(e, self.shown.delta))}"
            for e in map(float, np.geomspace(low, high, 49))
        )
        return [f'<polyline class="line" points="{points}"/>']

    def _tried(self, epsilon: float | None) -> float | None:
        """The total, if it lies between those that were tried."""
        low, high = self.shown.ends
        return epsilon if epsilon and low * 0.999 <= epsilon <= high * 1.001 else None

    def _named(self, epsilon: float | None, words: str, row: int) -> list[str]:
        """The name of a marked total, in a row of its own between the panels."""
        if (epsilon := self._tried(epsilon)) is None:
            return []
        x, y = self.x(epsilon), TOP + UPPER + 16 + 16 * row
        left = x > (LEFT + self.right) / 2
        side = f'class="mark right" x="{x - 6:.1f}"' if left else f'class="mark" x="{x + 6:.1f}"'
        return [f'<text {side} y="{y}">{escape(words)}: {epsilon:g}</text>']

    def _mark(self, epsilon: float | None, kind: str) -> list[str]:
        """A line at a total, and a star where it is the recommended one."""
        if (epsilon := self._tried(epsilon)) is None:
            return []
        x, bottom = self.x(epsilon), TOP + UPPER + GAP + LOWER
        out = [f'<line class="{kind}" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>']
        if kind == "recommended":
            median = self._at(epsilon)
            out.append(f'<path class="star" d="M{x} {self.y(median) - 11}l8 14h-16z"/>')
        return out

    def _at(self, epsilon: float) -> float:
        totals = [log(p["epsilon"]) for p in self.shown.curve]
        return float(np.interp(log(epsilon), totals, [p["median"] for p in self.shown.curve]))

    def _choice(self, epsilon: float) -> str:
        guesses = guesses_in_100(epsilon, self.shown.delta)
        bottom, diamond = TOP + UPPER + GAP + LOWER, "M0-8 8 0 0 8-8 0z"
        return (
            f'<g class="choice" transform="translate({self.x(epsilon)} 0)">'
            f'<line y1="{TOP}" y2="{bottom}"/>'
            f'<path class="accuracy" d="{diamond}" transform="translate(0 '
            f'{self.y(self._at(epsilon))})"/>'
            f'<path class="guess" d="{diamond}" transform="translate(0 {self.below(guesses)})"/>'
            "</g>"
        )


def _patterns(width: int) -> str:
    """Stripes and dots, so that zones differ without colour."""
    return (
        f'<defs><pattern id="useless-{width}" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line class="stripe" y2="8"/></pattern>'
        f'<pattern id="enough-{width}" width="9" height="9" patternUnits="userSpaceOnUse">'
        '<circle class="speck" cx="4" cy="4" r="1.1"/></pattern></defs>'
    )


def _wrapped(name: str, width: float) -> list[str]:
    """A name in at most two lines of this width; nothing where it needs more."""
    most = int(width / LETTER)
    if len(name) <= most:
        return [name]
    words, lines = name.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > most and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines if len(lines) <= 2 and max(map(len, lines)) <= most else []


def _step(span: float) -> float:
    """A round distance between about five lines."""
    power = 10.0 ** floor(log10(span / 5))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= span / 6)
