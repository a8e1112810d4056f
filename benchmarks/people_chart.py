"""What a total for a person costs beside one for a row: test error on Adult against epsilon."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from dynadp.report.charts import BLUE, GREY, ORANGE

WIDTH, HEIGHT = 330, 320
LOOKS = {  # colour and dashes, in the order of the legend
    "epsilon for a row": (GREY, [1, 0]),
    "for a person, her rows weighed": (BLUE, [1, 0]),
    "for a person, her first row": (ORANGE, [1, 0]),
    "for a person, her first 2 rows": (ORANGE, [8, 3]),
    "for a person, her first 3 rows": (ORANGE, [5, 3]),
    "for a person, her first 5 rows": (ORANGE, [2, 3]),
}


def draw(
    medians: Mapping[tuple[str, str], Sequence[float]], totals: Sequence[float], path: Path
) -> None:
    """Save the picture of errors in % by (panel, line) as a PNG file."""
    points = [
        {"panel": panel, "line": line, "epsilon": e, "error": error}
        for (panel, line), errors in medians.items()
        for e, error in zip(totals, errors, strict=True)
    ]
    low, high = (f(point["error"] for point in points) for f in (min, max))
    panels = list(dict.fromkeys(panel for panel, _ in medians))
    title = alt.TitleParams(
        "UCI Adult, rows given to people with 1 to 5 rows",
        subtitle="5 nodes; medians of 20 draws; delta = 1e-5",
        anchor="start",
    )
    made = [_panel([p for p in points if p["panel"] == name], name, low, high) for name in panels]
    picture = (
        alt.hconcat(*made, spacing=30)
        .properties(title=title)
        .configure_view(stroke=None)
        .configure_legend(
            orient="bottom", columns=2, labelLimit=380, symbolSize=600, symbolStrokeWidth=3
        )
    )
    path.parent.mkdir(exist_ok=True)
    picture.save(str(path), scale_factor=2)


def _panel(points: list[dict[str, Any]], name: str, low: float, high: float) -> alt.LayerChart:
    totals = sorted({point["epsilon"] for point in points})
    x = alt.X(
        "epsilon:Q",
        title="total epsilon over all rounds (smaller is more private)",
        scale=alt.Scale(type="log", domain=[totals[0], totals[-1]], nice=False),
        axis=alt.Axis(values=totals, format="~g", grid=False),
    )
    scale = alt.Scale(domain=[low - 0.2, high + 0.2], nice=False)
    y = alt.Y("error:Q", title="test error, %", scale=scale)
    colours, dashes = (list(each) for each in zip(*LOOKS.values(), strict=True))
    domain = list(LOOKS)
    colour = alt.Color("line:N", title=None, scale=alt.Scale(domain=domain, range=colours))
    dash = alt.StrokeDash("line:N", title=None, scale=alt.Scale(domain=domain, range=dashes))
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=y)
    lines = base.mark_line(strokeWidth=2.5).encode(
        color=colour.legend(symbolType="stroke", symbolOpacity=1), strokeDash=dash
    )
    dots = base.mark_point(size=40, filled=True, opacity=1).encode(color=colour.legend(None))
    return (lines + dots).properties(width=WIDTH, height=HEIGHT, title=name)
