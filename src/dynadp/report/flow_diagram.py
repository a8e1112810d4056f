"""The paper's Figures 1 and 2 as diagrams, with the norms of a real round in the boxes."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import atan2, copysign, cos, degrees, sin
from typing import Any, Literal

from dynadp.report.charts import BLUE, GREEN, GREY, ORANGE, alt, marks

Kind = Literal["public", "private", "noise", "released"]
Norms = Mapping[str, float]
Point = tuple[float, float]
WIDTH, HEIGHT = 640, 240
ABOVE, BELOW = 28, 12  # the two rows of boxes; the picture is 100 x 40
HALF_WIDTH, HALF_HEIGHT = 8.2, 5.2  # of a box
LINE = 2.9  # between two lines of a box
HEAD = 5  # pixels from the middle of an arrow's head to its tip
LOOKS: dict[str, tuple[str, str, list[int]]] = {  # kind -> fill, border, dashes
    "public": ("#f2f2f2", GREY, [1, 0]),
    "private": ("#fbe5d6", ORANGE, [1, 0]),
    "noise": ("#dcecf7", BLUE, [4, 2]),
    "released": ("#d9f0e8", GREEN, [1, 0]),
}
LEGEND = "grey: public; orange: private; blue, dashed: holds noise, kept; green: released"


@dataclass(frozen=True)
class Box:
    """One vector or step: its place, how it is drawn, and its lines; a number is a norm."""

    x: float
    y: float
    kind: Kind
    lines: tuple[str | float, ...]


@dataclass
class Flow:
    """Boxes, and arrows between them: each the corners of a line."""

    boxes: list[Box]
    arrows: list[list[Point]]

    def join(self, *boxes: Box) -> None:
        """Add boxes with an arrow from each to the next; all stand in one row, or in one column."""
        self.boxes += [box for box in boxes if box not in self.boxes]
        self.arrows += [[_edge(a, b), _edge(b, a)] for a, b in pairwise(boxes)]


def _edge(box: Box, other: Box) -> Point:
    """The middle of the box's side that faces the other."""
    if box.y == other.y:
        return box.x + copysign(HALF_WIDTH, other.x - box.x), box.y
    return box.x, box.y + copysign(HALF_HEIGHT, other.y - box.y)


def dual_panel(norms: Norms) -> Any:
    """Figure 1 (a): a round of Algorithm 2, noise on the dual variable."""
    f = Box(67, ABOVE, "released", ("f_p(t+1)", norms["f"]))
    flow = _perturbed_dual(norms, "t", "f", ("(14)", "(15)"), f)
    return _panel(_exchanged(flow, f, norms, "f", "(16)"), "(a) DVP, a round")


def primal_panel(norms: Norms) -> Any:
    """Figure 1 (b): a round of Algorithm 3, noise on the primal variable."""
    lam = Box(10, ABOVE, "public", ("λ_p(t)", norms["lam"]))
    step = Box(29, ABOVE, "private", ("argmin L_prim (18)", "with V_p, V_j"))
    f = Box(48, ABOVE, "private", ("f_p(t+1)", norms["f"]))
    V = Box(67, ABOVE, "released", ("V_p(t+1) (19)", norms["perturbed"]))
    noise = Box(48, BELOW, "noise", ("noise ε_p(t+1)", norms["noise"]))
    flow = Flow([noise], [[(noise.x + 5, BELOW + HALF_HEIGHT), (V.x - 5, ABOVE - HALF_HEIGHT)]])
    flow.join(lam, step, f, V)
    flow.join(Box(29, BELOW, "private", ("rows D_p",)), step)
    return _panel(_exchanged(flow, V, norms, "V", "(20)"), "(b) PVP, a round")


def final_panel(norms: Norms) -> Any:
    """Figure 2: the final release of Algorithm 3, by Algorithm 2 from released vectors."""
    f = Box(67, ABOVE, "released", ("f*_p", norms["f"]))
    flow = _perturbed_dual(norms, "t_s", "V", ("(21)", "(22)"), f)
    flow.join(f, Box(90, ABOVE, "public", ("final output",)))
    return _panel(flow, "PVP, the final iteration")


def _perturbed_dual(norms: Norms, t: str, held: str, numbers: tuple[str, str], f: Box) -> Flow:
    """lam, mu, the argmin of Algorithm 2 and its outcome f, with noise and rows below."""
    lam = Box(10, ABOVE, "public", (f"λ_p({t})", norms["lam"]))
    mu = Box(29, ABOVE, "noise", (f"μ_p({t}+1) {numbers[0]}", norms["perturbed"]))
    step = Box(48, ABOVE, "private", (f"argmin L_dual {numbers[1]}", f"with {held}_p, {held}_j"))
    flow = Flow([], [])
    flow.join(lam, mu, step, f)
    flow.join(Box(29, BELOW, "noise", (f"(C/2B) ε_p({t}+1)", norms["noise"])), mu)
    flow.join(Box(48, BELOW, "private", ("rows D_p",)), step)
    return flow


def _exchanged(flow: Flow, sent: Box, norms: Norms, name: str, number: str) -> Flow:
    """Add the neighbours that get the message, and the way back to lam, the leftmost box."""
    heard = Box(90, ABOVE, "public", ("neighbours j:", f"{name}_j(t+1)"))
    lam = Box(sent.x, BELOW, "public", (f"λ_p(t+1) {number}", norms["lam_next"]))
    flow.join(sent, heard)
    flow.join(sent, lam)
    first, low = min(box.x for box in flow.boxes), ABOVE - HALF_HEIGHT
    flow.arrows.append([(heard.x, low), (heard.x, BELOW), (lam.x + HALF_WIDTH, BELOW)])
    flow.arrows.append([(lam.x, BELOW - HALF_HEIGHT), (lam.x, 3.0), (first, 3.0), (first, low)])
    return flow


def _panel(flow: Flow, title: str) -> Any:
    """Boxes and arrows; everything left of x = 78 is inside node p."""
    x = alt.X("x:Q").axis(None).scale(domain=[0, 100], nice=False)
    y = alt.Y("y:Q").axis(None).scale(domain=[0, 40], nice=False)
    ends = {"x": x, "y": y, "x2": "x2:Q", "y2": "y2:Q"}
    node = marks([_corners(0.3, 1, 77.5, 38)]).mark_rect(
        fill="#ffffff", stroke="#000000", strokeDash=[6, 3], cornerRadius=6
    )
    label = marks([{"x": 1.5, "y": 35.8, "text": "node p"}]).mark_text(align="left", fontSize=12)
    segments = [_corners(*a, *b) for points in flow.arrows for a, b in pairwise(points)]
    layers = [
        node.encode(**ends),
        label.encode(x=x, y=y, text="text:N"),
        marks(segments).mark_rule(strokeWidth=1.5).encode(**ends),
    ]
    for kind, (fill, border, dashes) in LOOKS.items():
        own = [
            _corners(b.x - HALF_WIDTH, b.y - HALF_HEIGHT, b.x + HALF_WIDTH, b.y + HALF_HEIGHT)
            for b in flow.boxes
            if b.kind == kind
        ]
        look = {"fill": fill, "stroke": border, "strokeDash": dashes}
        boxes = marks(own).mark_rect(strokeWidth=1.5, cornerRadius=3, **look)
        layers.append(boxes.encode(**ends))
    heads = marks(_head(*points[-2:]) for points in flow.arrows).mark_point(
        shape="triangle", filled=True, size=70, color="#000000", opacity=1
    )
    texts = [
        {
            "x": box.x,
            "y": box.y + LINE * ((len(box.lines) - 1) / 2 - i),
            "text": line if isinstance(line, str) else f"norm {line:.3g}",
        }
        for box in flow.boxes
        for i, line in enumerate(box.lines)
    ]
    layers += [
        heads.encode(x=x, y=y, angle=alt.Angle("turn:Q").scale(None)),
        marks(texts).mark_text(fontSize=11).encode(x=x, y=y, text="text:N"),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _corners(left: float, low: float, right: float, high: float) -> dict[str, float]:
    return {"x": left, "y": low, "x2": right, "y2": high}


def _head(start: Point, end: Point) -> dict[str, float]:
    """The middle of an arrow's head that touches ``end``, and its turn, clockwise from upwards."""
    across, up = WIDTH / 100, HEIGHT / 40  # pixels of a unit
    turn = atan2((end[0] - start[0]) * across, (end[1] - start[1]) * up)
    x, y = end[0] - HEAD * sin(turn) / across, end[1] - HEAD * cos(turn) / up
    return {"x": x, "y": y, "turn": degrees(turn)}
