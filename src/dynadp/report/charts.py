"""Pictures of runs, and what all pictures share, with Altair (extra ``dynadp[report]``).

Colours are from the Okabe-Ito palette, which colour-blind readers can tell apart; state is shown by
shape and text as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from dynadp.consensus import Topology
from dynadp.errors import DeclarationError
from dynadp.report.drawing import layout

Row = Mapping[str, Any]

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, "#56B4E9", "#E69F00", "#000000")


def require() -> Any:
    """Return Altair; the error says what to install."""
    try:
        import altair
        import vl_convert  # noqa: F401  (saving needs it; fail here, with the sentence, and not at the end)
    except ImportError as error:
        raise DeclarationError(f"pictures need {error.name}: install dynadp[report]") from error
    return altair


class _Altair:
    """Altair, imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(require(), name)


alt = _Altair()


def marks(rows: Iterable[Row]) -> Any:
    """A chart of these rows, to be drawn as marks."""
    return alt.Chart({"values": list(rows)})


def decades(values: Iterable[float]) -> list[float]:
    """Whole powers of ten around the values.

    >>> decades([0.02, 3.0])
    [0.01, 0.1, 1.0, 10.0]
    """
    logs = [log10(value) for value in values]
    return [10.0**k for k in range(floor(min(logs)), ceil(max(logs)) + 1)]


def page(panels: Any, title: str, caption: Iterable[str], columns: int = 4) -> Any:
    """Panels under one title, with readable letters; ``columns`` is of the legend."""
    head = alt.TitleParams(
        title, subtitle=list(caption), anchor="start", fontSize=16, subtitleFontSize=12, offset=10
    )
    return (
        panels.properties(title=head)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12,
            titleFontSize=13,
            gridOpacity=0.4,
            titleFontWeight="normal",
            labelLimit=200,
        )
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_legend(
            labelFontSize=13,
            orient="bottom",
            symbolSize=500,
            symbolStrokeWidth=2.5,
            columns=columns,
            labelLimit=300,
        )
    )


def convergence(
    rows: Sequence[Row], references: Sequence[Row], source: str, models: Sequence[Row] = ()
) -> Any:
    """Error and disagreement of every round's messages, and the error of the model that is made of
    them.

    Parameters
    ----------
    rows
        ``round``, ``series`` (a node), ``error`` (share of wrong answers) and ``disagreement``
        (relative distance from the mean of all nodes; 0 where all stand at one point, which no line
        shows).
    references
        Horizontal lines: ``name`` and ``error``.
    source
        Where the rows of data came from; printed on the picture.
    models
        ``series``, ``round`` and ``error`` of what is taken home after the last round: diamonds
        with their error beside them.
    """
    x = alt.X("round:Q").title("round").axis(tickMinStep=1)
    series = [str(name) for name in dict.fromkeys(row["series"] for row in (*rows, *models))]
    shades = [PALETTE[i % len(PALETTE)] for i in range(len(series))]
    colour = alt.Color("series:N").title(None).scale(domain=series, range=shades)
    numbers = [alt.Tooltip("error:Q", format=".2%"), alt.Tooltip("disagreement:Q", format=".2e")]
    tips = ["series:N", "round:Q", *numbers]
    lines = marks(rows).mark_line(strokeWidth=2).encode(x=x, color=colour, tooltip=tips)
    errors = [row["error"] for row in (*rows, *references, *models)]
    room = 0.08 * (max(errors) - min(errors)) + 1e-4
    error = lines.encode(
        y=alt.Y("error:Q")
        .title("test error")
        .axis(format=".1~%")
        .scale(domain=[min(errors) - room, max(errors) + room], nice=False),
    )
    last = max(row["round"] for row in rows)
    flat = marks([{**row, "round": last} for row in references])
    rules = flat.mark_rule(strokeDash=[5, 4], color=GREY).encode(y="error:Q")
    names = flat.mark_text(align="right", dy=9, color=GREY).encode(x=x, y="error:Q", text="name:N")
    top, caption = error + rules + names, "lines: messages of one round"
    if models:
        home = marks([{**row, "label": f"model {row['error']:.1%}"} for row in models])
        at = home.encode(x=x, y="error:Q", color=colour)
        top += at.mark_point(shape="diamond", filled=True, size=110, opacity=1)
        top += at.mark_text(align="left", dx=9).encode(text="label:N")
        caption += "; diamonds: the model taken home"
    subtitle = [f"data: {source}", caption]
    title = alt.TitleParams("How the nodes learn and agree", subtitle=subtitle, anchor="start")
    panels = [top.properties(width=440, height=260, title=title)]
    if apart := [row for row in rows if row["disagreement"] > 0]:
        ticks = decades(row["disagreement"] for row in apart)
        distance = (
            marks(apart)
            .mark_line(strokeWidth=2)
            .encode(
                x=x,
                y=alt.Y("disagreement:Q")
                .title("distance from the mean")
                .scale(type="log", domain=[ticks[0], ticks[-1]])
                .axis(format=".0e", values=ticks),
                color=colour,
                tooltip=tips,
            )
        )
        panels.append(distance.properties(width=440, height=150))
    return alt.vconcat(*panels).configure_view(stroke=None)


def network(topology: Topology, labels: Sequence[str], source: str) -> Any:
    """The graph: a circle a node, its name and a label beside it, away from the edges."""
    places = layout(topology)
    edges = [
        dict(zip(("x", "y", "x2", "y2"), (*places[a], *places[b]), strict=True))
        for a, b in topology.edges
    ]
    nodes = [
        {"x": x, "y": y, "above": y >= -1e-6, "name": name, "label": label}
        for (x, y), name, label in zip(places, topology.nodes, labels, strict=True)
    ]
    x, y = (axis.axis(None).scale(domain=[-1.5, 1.5]) for axis in (alt.X("x:Q"), alt.Y("y:Q")))
    wires = marks(edges).mark_rule(color=GREY, strokeWidth=1.5)
    base = marks(nodes).encode(x=x, y=y)
    circles = base.mark_circle(size=300, color=BLUE, opacity=1)
    layers = [
        wires.encode(x=x, y=y, x2="x2:Q", y2="y2:Q"),
        circles.encode(tooltip=["name:N", "label:N"]),
    ]
    for side, name_at, label_at in (("datum.above", -30, -16), ("!datum.above", 18, 32)):
        for text, at, weight in (("name:N", name_at, "bold"), ("label:N", label_at, "normal")):
            words = base.transform_filter(side).encode(text=text)
            look = {"dy": at, "fontWeight": weight, "color": "#222222"}
            halo = words.mark_text(stroke="white", strokeWidth=5, **look)  # edges may pass behind
            layers += [halo, words.mark_text(**look)]
    size = f"{len(topology)} nodes, {len(topology.edges)} edges"
    title = alt.TitleParams(f"{topology.name}: {size}", subtitle=f"data: {source}", anchor="start")
    chart = alt.layer(*layers).properties(width=440, height=360, title=title)
    return chart.configure_view(stroke=None)


def save(chart: Any, stem: Path, also: str = "html") -> list[Path]:
    """Write STEM.png, for papers, and STEM.html (interactive, self-contained) or STEM.svg."""
    png, other = (stem.with_name(f"{stem.name}.{ending}") for ending in ("png", also))
    chart.save(str(png), scale_factor=2)
    chart.save(str(other), inline=also == "html")
    return [png, other]
