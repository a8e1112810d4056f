"""The picture of growth: time a round against nodes, rows and columns, and rounds against the
spectral gap.
"""

from pathlib import Path
from typing import Any

import altair as alt

from dynadp.report.charts import BLUE, GREY, ORANGE

WIDTH, HEIGHT = 210, 200


def draw(
    times: list[dict[str, Any]], rounds: list[dict[str, Any]], base: dict[str, int], path: Path
) -> None:
    """Save the picture as a PNG file."""
    panels = [_time(what, [t for t in times if t["what"] == what], times, base) for what in base]
    point = ", ".join(f"{size} {what}" for what, size in base.items())
    above = f"above: a round of Algorithm 1, 1 at {point}; grey: proportional"
    below = "below: until every node's vector is certified"
    title = alt.TitleParams("How time and rounds grow", subtitle=[above, below], anchor="start")
    picture = (
        alt.vconcat(alt.hconcat(*panels), _rounds(rounds))
        .properties(title=title)
        .configure_view(stroke=None)
    )
    path.parent.mkdir(exist_ok=True)
    picture.save(str(path), scale_factor=2)


def _log(values: list[float]) -> alt.Scale:
    return alt.Scale(type="log", domain=[min(values) * 0.8, max(values) * 1.25], nice=False)


def _time(
    what: str, here: list[dict[str, Any]], everything: list[dict[str, Any]], base: dict[str, int]
) -> alt.Chart:
    sizes = [t["size"] for t in here]
    titles = {"nodes": "nodes", "rows": "rows a node", "columns": "columns"}
    x = alt.X(
        "size:Q",
        title=titles[what],
        scale=_log(sizes),
        axis=alt.Axis(values=sizes[::2], grid=False),
    )
    ticks = alt.Axis(values=[0.1, 0.3, 1, 3, 10, 30, 100, 300], format="~g")
    y = alt.Y(
        "relative:Q",
        title="time a round",
        scale=_log([t["relative"] for t in everything]),
        axis=ticks,
    )
    straight = [{"size": s, "relative": s / base[what]} for s in sizes]
    line = (
        alt.Chart(alt.Data(values=straight))
        .mark_line(strokeDash=[4, 4], color=GREY, clip=True)
        .encode(x=x, y=y)
    )
    points = (
        alt.Chart(alt.Data(values=here))
        .mark_line(point={"color": BLUE}, color=BLUE, strokeWidth=2)
        .encode(x=x, y=y)
    )
    return (line + points).properties(width=WIDTH, height=HEIGHT)


def _rounds(rounds: list[dict[str, Any]]) -> alt.Chart:
    chart = alt.Chart(
        alt.Data(
            values=[
                {**r, "family": r["family"].replace("_", " ")} for r in rounds if r["certified"]
            ]
        )
    )
    ticks = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1]
    x = alt.X(
        "spectral_gap:Q",
        title="spectral gap of the graph",
        scale=_log([r["spectral_gap"] for r in rounds]),
        axis=alt.Axis(values=ticks, format="~g", grid=False),
    )
    y = alt.Y(
        "rounds:Q",
        title="rounds to a gap of 1e-6",
        scale=_log([r["rounds"] for r in rounds]),
        axis=alt.Axis(values=[10, 30, 100, 300, 1000, 3000], format="~g"),
    )
    ways = list(dict.fromkeys(r["way"] for r in rounds))
    colour = alt.Color("way:N", title=None, scale=alt.Scale(domain=ways, range=[ORANGE, BLUE]))
    points = chart.mark_point(size=70, filled=True, opacity=0.85).encode(
        x=x, y=y, color=colour, shape=alt.Shape("family:N", title=None)
    )
    return points.properties(width=3 * WIDTH + 100, height=HEIGHT)
