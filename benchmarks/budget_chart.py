"""The headline curve: test error on Adult against the total epsilon, for every way to spend it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt

from dynadp.report.charts import BLUE, GREY, ORANGE

WIDTH, HEIGHT = 330, 320
MAJORITY = 24.6  # % of the test rows are of the rarer class
CLOSE = 19.6  # %: up to which the second panel shows this package's own lines
OURS = "dynadp"
LOOKS = {  # the beginning of a name: colour and dashes
    "dynadp, sealed, 5 ": (BLUE, [1, 0]),
    "dynadp, sealed, 50 ": ("#56B4E9", [1, 0]),
    "dynadp, sum, 5 ": (BLUE, [6, 3]),
    "dynadp, sum, 50 ": ("#56B4E9", [6, 3]),
    "dynadp, sum, one": ("#009E73", [1, 0]),
    "the paper's dual": (ORANGE, [1, 0]),
    "the paper's primal": ("#E69F00", [1, 0]),
    "diffprivlib": (GREY, [1, 0]),
}


def draw(lines: Sequence[tuple[str, Sequence[float]]], totals: Sequence[float], path: Path) -> None:
    """Save the picture of (name, errors in %) lines as a PNG file."""
    points = [
        {"line": name, "epsilon": e, "error": error}
        for name, errors in lines
        for e, error in zip(totals, errors, strict=True)
    ]
    largest = max(point["error"] for point in points)
    majority = alt.Chart(
        alt.Data(values=[{"error": MAJORITY, "epsilon": totals[-1], "text": "majority class"}])
    )
    x, y = _axes(totals, 14.0, 1.03 * largest)
    rule = majority.mark_rule(strokeDash=[4, 4], color=GREY).encode(y=y)
    word = majority.mark_text(align="right", dy=-7, color=GREY).encode(x=x, y=y, text="text:N")
    everything = rule + word + _curves(points, lines, x, y)
    ours = [point for point in points if point["line"].startswith(OURS)]
    closer = _curves(ours, lines, *_axes(totals, 14.4, CLOSE))
    title = alt.TitleParams(
        "UCI Adult: what a total budget buys",
        subtitle="medians of 20 draws; delta = 1e-5; right: the lines of dynadp, closer",
        anchor="start",
    )
    panels = [panel.properties(width=WIDTH, height=HEIGHT) for panel in (everything, closer)]
    picture = (
        alt.hconcat(*panels, spacing=30)
        .properties(title=title)
        .configure_view(stroke=None)
        .configure_legend(
            orient="bottom", columns=2, labelLimit=380, symbolSize=600, symbolStrokeWidth=3
        )
    )
    path.parent.mkdir(exist_ok=True)
    picture.save(str(path), scale_factor=2)


def _axes(totals: Sequence[float], low: float, high: float) -> tuple[alt.X, alt.Y]:
    x = alt.X(
        "epsilon:Q",
        title="total epsilon over all rounds (smaller is more private)",
        scale=alt.Scale(type="log", domain=[totals[0], totals[-1]], nice=False),
        axis=alt.Axis(values=list(totals), format="~g", grid=False),
    )
    scale = alt.Scale(domain=[low, high], nice=False)
    return x, alt.Y("error:Q", title="test error, %", scale=scale)


def _curves(
    points: Sequence[dict[str, Any]], lines: Sequence[tuple[str, Any]], x: alt.X, y: alt.Y
) -> alt.LayerChart:
    names = [name for name, _ in lines]
    looks = [next(look for start, look in LOOKS.items() if n.startswith(start)) for n in names]
    colours, dashes = (list(each) for each in zip(*looks, strict=True))
    colour = alt.Color("line:N", title=None, scale=alt.Scale(domain=names, range=colours))
    dash = alt.StrokeDash("line:N", title=None, scale=alt.Scale(domain=names, range=dashes))
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=y)
    drawn = base.mark_line(strokeWidth=2.5).encode(
        color=colour.legend(symbolType="stroke", symbolOpacity=1), strokeDash=dash
    )
    return drawn + base.mark_point(size=40, filled=True, opacity=1).encode(
        color=colour.legend(None)
    )
