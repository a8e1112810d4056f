"""Pictures of runs, with Altair (extra ``dynadp[report]``): convergence and the network.

Colours are from the Okabe-Ito palette, which colour-blind readers can tell apart; state is shown by
shape and text as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import networkx as nx

from dynadp.consensus import Topology
from dynadp.errors import DeclarationError

Row = Mapping[str, Any]

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, "#56B4E9", "#E69F00", "#000000")


def require() -> Any:
    """Altair, or the sentence that says what to install."""
    try:
        import altair
        import vl_convert  # noqa: F401  (saving needs it; fail here, with the sentence, and not at the end)
    except ImportError as error:
        raise DeclarationError(f"pictures need {error.name}: install dynadp[report]") from error
    return altair


def marks(rows: Iterable[Row]) -> Any:
    """A chart of these rows, to be drawn as marks."""
    alt = require()
    return alt.Chart(alt.Data(values=list(rows)))


def convergence(
    rows: Sequence[Row], references: Sequence[Row], source: str, models: Sequence[Row] = ()
) -> Any:
    """Error and disagreement of every round's messages, and the error of the model that is made of
    them.

    Parameters
    ----------
    rows
        ``round``, ``series`` (a node), ``error`` (share of wrong answers) and ``disagreement``
        (relative distance from the mean of all nodes, above 0).
    references
        Horizontal lines: ``name`` and ``error``.
    source
        Where the rows of data came from; printed on the picture.
    models
        ``series``, ``round`` and ``error`` of what is taken home after the last round: diamonds
        with their error beside them.
    """
    alt = require()
    x = alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1))
    series = [str(name) for name in dict.fromkeys(row["series"] for row in (*rows, *models))]
    shades = [PALETTE[i % len(PALETTE)] for i in range(len(series))]
    colour = alt.Color("series:N", title=None, scale=alt.Scale(domain=series, range=shades))
    lines = marks(rows).encode(x=x, color=colour)
    errors = [row["error"] for row in (*rows, *references, *models)]
    room = 0.08 * (max(errors) - min(errors)) + 1e-4
    error = lines.mark_line(strokeWidth=2).encode(
        y=alt.Y(
            "error:Q",
            title="test error",
            axis=alt.Axis(format=".1~%"),
            scale=alt.Scale(domain=[min(errors) - room, max(errors) + room], nice=False),
        ),
        tooltip=[
            alt.Tooltip("series:N"),
            alt.Tooltip("round:Q"),
            alt.Tooltip("error:Q", format=".2%"),
        ],
    )
    last = max(row["round"] for row in rows)
    flat = marks([{**row, "round": last} for row in references])
    rules = flat.mark_rule(strokeDash=[5, 4], color=GREY).encode(y="error:Q")
    names = flat.mark_text(align="right", dy=9, color=GREY).encode(x=x, y="error:Q", text="name:N")
    home = marks([{**row, "label": f"model {row['error']:.1%}"} for row in models])
    at = home.encode(x=x, y="error:Q", color=colour)
    taken = at.mark_point(shape="diamond", filled=True, size=110, opacity=1) + at.mark_text(
        align="left", dx=9
    ).encode(text="label:N")
    apart = [row["disagreement"] for row in rows]
    decades = range(floor(log10(min(apart))), ceil(log10(max(apart))) + 1)
    disagreement = lines.mark_line(strokeWidth=2).encode(
        y=alt.Y(
            "disagreement:Q",
            title="distance from the mean",
            scale=alt.Scale(type="log", domain=[10.0 ** decades[0], 10.0 ** decades[-1]]),
            axis=alt.Axis(format=".0e", values=[10.0**k for k in decades]),
        ),
        tooltip=[
            alt.Tooltip("series:N"),
            alt.Tooltip("round:Q"),
            alt.Tooltip("disagreement:Q", format=".2e"),
        ],
    )
    said = [
        f"data: {source}",
        "lines: messages of one round" + ("; diamonds: the model taken home" if models else ""),
    ]
    title = alt.TitleParams("How the nodes learn and agree", subtitle=said, anchor="start")
    top = error + rules + names
    if models:
        top += taken
    top = top.properties(width=440, height=260, title=title)
    return alt.vconcat(top, disagreement.properties(width=440, height=150)).configure_view(
        stroke=None
    )


def network(topology: Topology, labels: Sequence[str], source: str) -> Any:
    """The graph: a circle a node, its name and a label beside it, away from the edges."""
    alt = require()
    graph = nx.Graph()
    graph.add_nodes_from(range(len(topology)))
    graph.add_edges_from(topology.edges)
    ring = topology.name in {"ring", "complete"} or len(topology) < 3
    place = {
        p: at[::-1]
        for p, at in (
            nx.circular_layout(graph) if ring else nx.spring_layout(graph, seed=1)
        ).items()
    }
    hidden = {"axis": None, "scale": alt.Scale(domain=[-1.5, 1.5])}
    edges = [
        dict(zip(("x", "y", "x2", "y2"), map(float, (*place[a], *place[b])), strict=True))
        for a, b in topology.edges
    ]
    nodes = [
        {
            "x": float(place[p][0]),
            "y": float(place[p][1]),
            "above": bool(place[p][1] >= -1e-9),
            "name": name,
            "label": label,
        }
        for p, (name, label) in enumerate(zip(topology.nodes, labels, strict=True))
    ]
    x, y = alt.X("x:Q", **hidden), alt.Y("y:Q", **hidden)
    wires = (
        marks(edges).mark_rule(color=GREY, strokeWidth=1.5).encode(x=x, y=y, x2="x2:Q", y2="y2:Q")
    )
    base = marks(nodes).encode(x=x, y=y)
    layers = [
        wires,
        base.mark_circle(size=300, color=BLUE, opacity=1).encode(tooltip=["name:N", "label:N"]),
    ]
    for side, name_at, label_at in (("datum.above", -30, -16), ("!datum.above", 18, 32)):
        part = base.transform_filter(side)
        for text, at, weight in (("name:N", name_at, "bold"), ("label:N", label_at, "normal")):
            for halo in (
                {"stroke": "white", "strokeWidth": 5},
                {},
            ):  # edges that pass behind a text stay readable
                layers.append(
                    part.mark_text(dy=at, fontWeight=weight, color="#222222", **halo).encode(
                        text=text
                    )
                )
    size = f"{len(topology)} nodes, {len(topology.edges)} edges"
    title = alt.TitleParams(f"{topology.name}: {size}", subtitle=f"data: {source}", anchor="start")
    return (
        alt.layer(*layers)
        .properties(width=440, height=360, title=title)
        .configure_view(stroke=None)
    )


def save(chart: Any, stem: Path) -> list[Path]:
    """Write STEM.png (for papers) and STEM.html (interactive, self-contained, works from disk)."""
    png, html = (stem.with_name(stem.name + ending) for ending in (".png", ".html"))
    chart.save(str(png), scale_factor=2)
    chart.save(str(html), inline=True)
    return [png, html]
