"""The headline curve: test error on Adult against the total epsilon, for every way to spend it."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from dynadp.report.charts import BLUE, GREY, ORANGE

WIDTH, HEIGHT = 460, 300
COLOURS = (BLUE, "#56B4E9", "#009E73", ORANGE, "#E69F00", GREY)
MAJORITY = 24.6  # % of the test rows are of the rarer class


def draw(lines: Sequence[tuple[str, Sequence[float]]], totals: Sequence[float], path: Path) -> None:
    """Save the picture of (name, errors in %) lines as a PNG file."""
    points = [
        {"line": name, "epsilon": e, "error": error}
        for name, errors in lines
        for e, error in zip(totals, errors, strict=True)
    ]
    x = alt.X(
        "epsilon:Q",
        title="total epsilon over all rounds, delta = 1e-5 (smaller is more private)",
        scale=alt.Scale(type="log", domain=[totals[0], totals[-1]], nice=False),
        axis=alt.Axis(values=list(totals), format="~g", grid=False),
    )
    largest = max(point["error"] for point in points)
    y = alt.Y(
        "error:Q", title="test error, %", scale=alt.Scale(domain=[14, 1.03 * largest], nice=False)
    )
    colour = alt.Color(
        "line:N",
        title=None,
        scale=alt.Scale(domain=[name for name, _ in lines], range=list(COLOURS[: len(lines)])),
        legend=alt.Legend(orient="right", labelLimit=320, symbolType="stroke", symbolStrokeWidth=3),
    )
    curves = (
        alt.Chart(alt.Data(values=points))
        .mark_line(strokeWidth=2.5, point={"size": 45})
        .encode(x=x, y=y, color=colour)
    )
    majority = alt.Chart(
        alt.Data(values=[{"error": MAJORITY, "epsilon": totals[-1], "text": "majority class"}])
    )
    rule = majority.mark_rule(strokeDash=[4, 4], color=GREY).encode(y=y)
    word = majority.mark_text(align="right", dy=-7, color=GREY).encode(x=x, y=y, text="text:N")
    title = alt.TitleParams(
        "UCI Adult: what a total budget buys", subtitle="medians of 20 draws", anchor="start"
    )
    picture = (
        (rule + word + curves)
        .properties(width=WIDTH, height=HEIGHT, title=title)
        .configure_view(stroke=None)
    )
    path.parent.mkdir(exist_ok=True)
    picture.save(str(path), scale_factor=2)
