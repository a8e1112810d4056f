"""The paper's Figures 1 and 2 as diagrams, with the norms of a real round in the boxes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import atan2, cos, degrees, sin
from typing import Any, Literal

from dynadp.report.charts import BLUE, GREEN, GREY, ORANGE

Kind = Literal["public", "private", "noise", "released"]
Point = tuple[float, float]
WIDTH, HEIGHT = 640, 240
HALF_WIDTH, HALF_HEIGHT = 8.2, 5.2  # of a box; the picture is 100 x 40
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
    """One vector or step: its place, how it is drawn, and its lines."""

    x: float
    y: float
    kind: Kind
    lines: tuple[str, ...]

    def beside(self, way: str) -> Point:
        """The middle of a side: left, right, top or bottom."""
        dx, dy = {"left": (-1, 0), "right": (1, 0), "top": (0, 1), "bottom": (0, -1)}[way]
        return self.x + dx * HALF_WIDTH, self.y + dy * HALF_HEIGHT


def dual_panel(alt: Any, norms: Mapping[str, float]) -> Any:
    """Figure 1 (a): a round of Algorithm 2, noise on the dual variable."""
    boxes, arrows = _perturbed_dual(norms, "t", "f", ("(14)", "(15)"))
    f = Box(67, 28, "released", ("f_p(t+1)", _size(norms["f"])))
    return _panel(alt, *_exchanged(boxes, arrows, f, norms, "f", "(16)"), "(a) DVP, a round")


def primal_panel(alt: Any, norms: Mapping[str, float]) -> Any:
    """Figure 1 (b): a round of Algorithm 3, noise on the primal variable."""
    lam = Box(10, 28, "public", ("λ_p(t)", _size(norms["lam"])))
    step = Box(29, 28, "private", ("argmin L_prim (18)", "with V_p, V_j"))
    rows = Box(29, 12, "private", ("rows D_p",))
    f = Box(48, 28, "private", ("f_p(t+1)", _size(norms["f"])))
    noise = Box(48, 12, "noise", ("noise ε_p(t+1)", _size(norms["noise"])))
    V = Box(67, 28, "released", ("V_p(t+1) (19)", _size(norms["perturbed"])))
    arrows = [
        [lam.beside("right"), step.beside("left")],
        [rows.beside("top"), step.beside("bottom")],
        [step.beside("right"), f.beside("left")],
        [f.beside("right"), V.beside("left")],
        [(noise.x + 5, noise.y + HALF_HEIGHT), (V.x - 5, V.y - HALF_HEIGHT)],
    ]
    boxes = [lam, step, rows, f, noise]
    return _panel(alt, *_exchanged(boxes, arrows, V, norms, "V", "(20)"), "(b) PVP, a round")


def final_panel(alt: Any, norms: Mapping[str, float]) -> Any:
    """Figure 2: the final release of Algorithm 3, by Algorithm 2 from released vectors."""
    boxes, arrows = _perturbed_dual(norms, "t_s", "V", ("(21)", "(22)"))
    f = Box(67, 28, "released", ("f*_p", _size(norms["f"])))
    out = Box(90, 28, "public", ("final output",))
    arrows += [
        [boxes[2].beside("right"), f.beside("left")],
        [f.beside("right"), out.beside("left")],
    ]
    return _panel(alt, [*boxes, f, out], arrows, "PVP, the final iteration")


def _perturbed_dual(
    norms: Mapping[str, float], t: str, held: str, numbers: tuple[str, str]
) -> tuple[list[Box], list[list[Point]]]:
    """lam, mu and the argmin of Algorithm 2, with noise and rows below."""
    lam = Box(10, 28, "public", (f"λ_p({t})", _size(norms["lam"])))
    mu = Box(29, 28, "noise", (f"μ_p({t}+1) {numbers[0]}", _size(norms["perturbed"])))
    step = Box(48, 28, "private", (f"argmin L_dual {numbers[1]}", f"with {held}_p, {held}_j"))
    noise = Box(29, 12, "noise", (f"(C/2B) ε_p({t}+1)", _size(norms["noise"])))
    rows = Box(48, 12, "private", ("rows D_p",))
    arrows = [
        [lam.beside("right"), mu.beside("left")],
        [noise.beside("top"), mu.beside("bottom")],
        [mu.beside("right"), step.beside("left")],
        [rows.beside("top"), step.beside("bottom")],
    ]
    return [lam, mu, step, noise, rows], arrows


def _exchanged(
    boxes: list[Box],
    arrows: list[list[Point]],
    sent: Box,
    norms: Mapping[str, float],
    name: str,
    number: str,
) -> tuple[list[Box], list[list[Point]]]:
    """Add the message, the neighbours, and the way back to lam."""
    heard = Box(90, 28, "public", ("neighbours j:", f"{name}_j(t+1)"))
    lam = replace(sent, y=12, kind="public", lines=(f"λ_p(t+1) {number}", _size(norms["lam_next"])))
    back = [lam.beside("bottom"), (lam.x, 3.0), (boxes[0].x, 3.0), boxes[0].beside("bottom")]
    more = [
        [sent.beside("right"), heard.beside("left")],
        [sent.beside("bottom"), lam.beside("top")],
        [heard.beside("bottom"), (heard.x, lam.y), lam.beside("right")],
        back,
    ]
    if name == "f":
        more.append([boxes[2].beside("right"), sent.beside("left")])
    return [*boxes, sent, heard, lam], [*arrows, *more]


def _size(norm: float) -> str:
    return f"norm {norm:.3g}"


def _panel(alt: Any, boxes: Sequence[Box], arrows: Sequence[Sequence[Point]], title: str) -> Any:
    """Boxes and arrows; everything left of x = 78 is inside node p."""
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 100], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, 40], nice=False))

    def chart(rows: Sequence[Mapping[str, Any]]) -> Any:
        return alt.Chart(alt.Data(values=list(rows)))

    def corners(left: float, low: float, right: float, high: float) -> dict[str, float]:
        return {"x": left, "y": low, "x2": right, "y2": high}

    node = chart([corners(0.3, 1, 77.5, 38)]).mark_rect(
        fill="#ffffff", stroke="#000000", strokeDash=[6, 3], cornerRadius=6
    )
    layers = [node.encode(x=x, y=y, x2="x2:Q", y2="y2:Q")]
    label = chart([{"x": 1.5, "y": 35.8, "text": "node p"}]).mark_text(align="left", fontSize=12)
    layers.append(label.encode(x=x, y=y, text="text:N"))
    segments = [corners(*a, *b) for points in arrows for a, b in pairwise(points)]
    layers.append(chart(segments).mark_rule(strokeWidth=1.5).encode(x=x, y=y, x2="x2:Q", y2="y2:Q"))
    for kind, (fill, border, dashes) in LOOKS.items():
        own = [
            corners(b.x - HALF_WIDTH, b.y - HALF_HEIGHT, b.x + HALF_WIDTH, b.y + HALF_HEIGHT)
            for b in boxes
            if b.kind == kind
        ]
        marks = chart(own).mark_rect(
            fill=fill, stroke=border, strokeWidth=1.5, strokeDash=dashes, cornerRadius=3
        )
        layers.append(marks.encode(x=x, y=y, x2="x2:Q", y2="y2:Q"))
    tips = chart([_head(*points[-2:]) for points in arrows]).mark_point(
        shape="triangle", filled=True, size=70, color="#000000", opacity=1
    )
    layers.append(tips.encode(x=x, y=y, angle=alt.Angle("turn:Q", scale=None)))
    texts = [
        {"x": b.x, "y": b.y + LINE * ((len(b.lines) - 1) / 2 - i), "text": line}
        for b in boxes
        for i, line in enumerate(b.lines)
    ]
    layers.append(chart(texts).mark_text(fontSize=11).encode(x=x, y=y, text="text:N"))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _head(start: Point, end: Point) -> dict[str, float]:
    """The middle of an arrow's head that touches ``end``, and its turn, clockwise from upwards."""
    across, up = WIDTH / 100, HEIGHT / 40  # pixels of a unit
    turn = atan2((end[0] - start[0]) * across, (end[1] - start[1]) * up)
    x, y = end[0] - HEAD * sin(turn) / across, end[1] - HEAD * cos(turn) / up
    return {"x": x, "y": y, "turn": degrees(turn)}
