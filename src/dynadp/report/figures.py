"""The charts that the report and the page share, with Altair (extra ``dynadp[report]``).

Colours are placeholders of the Okabe-Ito palette: the page and the report put their own shades
there, light or dark.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dynadp.report.budgets import IN_USE, ONLY, WITH_SPARES, WITHOUT_SPARES, WORDS
from dynadp.report.charts import BLUE, GREEN, GREY, ORANGE, alt, decades
from dynadp.report.progress import Row

INK, LINE = "#202122", "#C8CCD1"
SHADES = {
    "blue": BLUE,
    "orange": ORANGE,
    "green": GREEN,
    "grey": GREY,
    "ink": INK,
    "line": LINE,
}
WIDTH, HEIGHT = 400, 210
QUANTITIES = {
    "disagreement": "distance from neighbours",
    "change": "change of what was heard",
    "apart": "distance from its own mean",
}
STEP = "length of the step"  # what "change" is where all nodes stand at one point
ACCOUNTINGS: dict[str, tuple[str, list[int]]] = {  # colour and dashes of each
    WORDS["sum"][0]: (ORANGE, [2, 3]),
    WORDS["pure"][0]: (GREEN, [7, 4]),
    WITHOUT_SPARES: (GREEN, [7, 4]),
    IN_USE: (BLUE, [1, 0]),
    ONLY: (BLUE, [1, 0]),
    WITH_SPARES: (BLUE, [1, 0]),
}
COLLUSION = {  # title of the axis, its domain and its format
    "epsilon": ("total epsilon", None, ".4~g"),
    "right": ("right guesses in 100", [50, 100], "d"),
}


def convergence(rows: Iterable[Row], quantity: str, *, sums: bool = False) -> Any:
    """Median over nodes, with their range, against rounds; from released vectors alone. Dashed:
    how long a step of noise alone would be, where that is known.
    """
    values = flat(rows, quantity)
    title = STEP if sums and quantity == "change" else QUANTITIES[quantity]
    y = alt.Y("low:Q").title(title).axis(format="~g", tickCount=4).scale(type="log")
    if values:
        ends = decades(
            row[end] for row in values for end in ("low", "high", "noise") if row.get(end)
        )
        y = y.scale(type="log", domain=[ends[0], max(ends[-1], 10 * ends[0])])
    base = _named("rounds").encode(x=_round_axis("round"))
    tips = [alt.Tooltip(f"{name}:Q", format=".3~g") for name in ("median", "low", "high")]
    dots = base.mark_point(color=BLUE, filled=True, size=30, opacity=0.001)
    floor = base.transform_filter("datum.noise > 0").encode(y="noise:Q")
    return alt.layer(
        base.mark_area(color=BLUE, opacity=0.25).encode(y=y, y2="high:Q"),
        floor.mark_line(color=ORANGE, strokeWidth=2, strokeDash=[6, 4]),
        base.mark_line(color=BLUE, strokeWidth=2).encode(y="median:Q"),
        dots.encode(y="median:Q", tooltip=["round:Q", *tips]),
    ).properties(width=WIDTH, height=HEIGHT, datasets={"rounds": values})


def flat(rows: Iterable[Row], quantity: str) -> list[dict[str, float]]:
    """One record a round: what a logarithmic picture can show; of steps with that of noise."""
    records = []
    for row in rows:
        if quantity in row and row[quantity][1] > 0:
            ends = dict(zip(("median", "low", "high"), row[quantity], strict=True))
            floor = {"noise": row["noise"][0]} if quantity == "change" and "noise" in row else {}
            records.append({"round": row["round"], **ends, **floor})
    return records


def totals(rows: Sequence[Mapping[str, Any]], names: Collection[str] | None = None) -> Any:
    """Total epsilon after each round under each accounting.

    Parameters
    ----------
    rows
        ``round``, ``epsilon`` and ``accounting``.
    names
        The accountings that there are; by default those of the rows.
    """
    there = {row["accounting"] for row in rows} if names is None else names
    looks = {name: look for name, look in ACCOUNTINGS.items() if name in there}
    legend = {
        "orient": "bottom",
        "title": None,
        "labelLimit": 300,
        "symbolType": "stroke",
        "symbolSize": 300,
        "symbolOpacity": 1,
        "symbolStrokeWidth": 2.5,
        "columns": 1,
    }
    domain = list(looks)
    shades, lines = ([look[i] for look in looks.values()] for i in (0, 1))
    colour = alt.Color("accounting:N").scale(domain=domain, range=shades)
    dashes = alt.StrokeDash("accounting:N").scale(domain=domain, range=lines)
    if len(looks) > 1:
        colour, dashes = colour.legend(**legend), dashes.legend(**legend)
    else:  # nothing to tell apart
        colour, dashes = colour.legend(None), dashes.legend(None)
    base = _named("totals").encode(
        x=_round_axis("rounds done"),
        y=alt.Y("epsilon:Q").title("total epsilon").scale(zero=True),
        color=colour,
        strokeDash=dashes,
    )
    tips = ["accounting:N", "round:Q", alt.Tooltip("epsilon:Q", format=".4~g")]
    points = base.mark_point(filled=True, size=40, opacity=0.001).encode(tooltip=tips)
    return (base.mark_line(strokeWidth=2.5) + points).properties(
        width=WIDTH, height=HEIGHT, datasets={"totals": list(rows)}
    )


def collusion(rows: Sequence[Mapping[str, Any]], quantity: str, members: int) -> Any:
    """The loss against the number of nodes that collude, with the planned number marked.

    Parameters
    ----------
    rows
        ``colluding``, ``planned``, and the quantity.
    quantity
        ``epsilon``, or ``right``: guesses in 100.
    members
        How many nodes there are, more than two.
    """
    title, domain, form = COLLUSION[quantity]
    every = -(-members // 12)
    ticks = list(range(1, members, every))
    x = alt.X("colluding:Q").title("nodes that collude").axis(values=ticks, format="d")
    x = x.scale(nice=False, domain=[1, members - 1])
    y = alt.Y(f"{quantity}:Q").title(title).axis(tickCount=5)
    y = y.scale(zero=True) if domain is None else y.scale(domain=domain)
    base = _named("collusion").encode(x=x, y=y)
    tips = [
        alt.Tooltip("colluding:Q", title="nodes that collude"),
        alt.Tooltip(f"{quantity}:Q", title=title, format=form),
    ]
    planned = base.transform_filter("datum.planned")
    rule = planned.mark_rule(color=ORANGE, strokeDash=[5, 4])
    diamond = planned.mark_point(color=ORANGE, shape="diamond", filled=True, size=160, opacity=1)
    left = f"datum.planned && datum.colluding <= {members / 2}"
    right = f"datum.planned && datum.colluding > {members / 2}"
    names = [
        base.transform_filter(side)
        .mark_text(color=ORANGE, align=align, baseline="bottom", dx=dx)
        .encode(text=alt.value("planned"), y=alt.value(HEIGHT - 6))
        for side, align, dx in ((left, "left", 6), (right, "right", -6))
    ]
    return alt.layer(
        rule.encode(y=alt.value(0), y2=alt.value(HEIGHT)),
        base.mark_line(color=BLUE, strokeWidth=2),
        base.mark_point(color=BLUE, filled=True, size=35, opacity=1).encode(tooltip=tips),
        diamond.encode(tooltip=tips),
        *names,
    ).properties(width=WIDTH, height=HEIGHT, datasets={"collusion": list(rows)})


def coefficients(rows: Sequence[Mapping[str, Any]], intervals: bool) -> Any:
    """Coefficients of scaled features, those that stand out of the noise most above.

    Parameters
    ----------
    rows
        ``name``, ``place``, ``value``, ``low``, ``high``, ``clear``.
    intervals
        Whether their noise is known: full marks are clear of it, empty ones are not.
    """
    names = [str(row["name"]) for row in rows]
    y = alt.Y("name:N").title(None).sort(names).axis(labelLimit=220, grid=False)
    x = alt.X("value:Q").title("coefficient of the scaled feature").axis(tickCount=6)
    base = _named("coefficients").encode(x=x, y=y)
    tips = ["name:N", *(alt.Tooltip(f"{name}:Q", format=".3~g") for name in ("value", "low"))]
    zero = alt.Chart({"values": [{"at": 0}]}).mark_rule(color=GREY, strokeDash=[5, 4])
    layers = [zero.encode(x=alt.X("at:Q"))]
    dots = {"shape": "circle", "size": 60, "opacity": 1, "color": BLUE}
    if intervals:
        layers.append(base.mark_rule(color=BLUE, strokeWidth=2).encode(x="low:Q", x2="high:Q"))
        empty = {**dots, "fill": "white", "strokeWidth": 1.5}
        unclear = base.transform_filter("!datum.clear").mark_point(**empty)
        layers.append(unclear.encode(tooltip=tips))
        base = base.transform_filter("datum.clear")
    layers.append(base.mark_point(filled=True, **dots).encode(tooltip=tips))
    longest = min(max(map(len, names), default=0), 32)
    return alt.layer(*layers).properties(
        width=WIDTH,
        height=18 * len(names) + 20,
        # a reader's letters may be wider than those that the picture was measured with
        padding={"left": 5 + longest, "right": 5, "top": 5, "bottom": 5},
        datasets={"coefficients": list(rows)},
    )


def calibration(rows: Sequence[Mapping[str, Any]], chance: str) -> Any:
    """How often rows of about equal probability are as the probability says: on the dashed line
    where it is right.

    Parameters
    ----------
    rows
        ``probability``, ``share``, ``low``, ``high``, ``rows``.
    chance
        Of what, for the axes.
    """
    scale = {"domain": [0, 1], "nice": False}
    x = alt.X("probability:Q").title(f"probability of {chance}").axis(tickCount=6).scale(**scale)
    y = alt.Y("share:Q").title("share of the rows").axis(tickCount=6).scale(**scale)
    ends = alt.Chart({"values": [{"at": 0}, {"at": 1}]})
    ideal = ends.mark_line(color=GREY, strokeDash=[5, 4]).encode(x="at:Q", y="at:Q")
    base = _named("calibration").encode(x=x)
    tips = [alt.Tooltip(f"{n}:Q", format=".3~g") for n in ("probability", "share", "low", "high")]
    dots = base.mark_point(color=BLUE, filled=True, size=50, opacity=1)
    return alt.layer(
        ideal,
        base.mark_rule(color=BLUE, strokeWidth=2).encode(y="low:Q", y2="high:Q"),
        dots.encode(y=y, tooltip=[*tips, "rows:Q"]),
    ).properties(width=WIDTH, height=HEIGHT, datasets={"calibration": list(rows)})


def spec(chart: Any) -> dict[str, Any]:
    """For the page: as wide as its place, without colours of text, which the page puts in."""
    return _plain(chart) | {
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
    }


def svg(chart: Any) -> str:
    """For the report: a picture whose colours follow the reader's light or dark page."""
    drawn = image(chart)
    for name, shade in SHADES.items():
        drawn = re.sub(f'"{shade}"', f'"var(--{name})"', drawn, flags=re.IGNORECASE)
    return drawn


def image(chart: Any, background: str = "transparent") -> str:
    """A picture with colours of its own, for light pages."""
    import vl_convert

    text = {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    config = {
        "font": "system-ui, sans-serif",
        "background": background,
        "aria": False,
        "view": {"stroke": None},
        "axis": text
        | {"domainColor": LINE, "tickColor": LINE, "gridColor": LINE, "gridOpacity": 0.5},
        "legend": text,
    }
    drawn: str = vl_convert.vegalite_to_svg(_plain(chart) | {"config": config})
    return drawn


def _named(values: str) -> Any:
    """A chart of one of its named sets of values, which the page may change."""
    return alt.Chart(alt.NamedData(values))


def _round_axis(title: str) -> Any:
    axis = {"tickMinStep": 1, "labelOverlap": "greedy", "labelSeparation": 8}
    return alt.X("round:Q").title(title).axis(**axis).scale(nice=False)


def _plain(chart: Any) -> dict[str, Any]:
    """The specification without Altair's looks. No mark has a description: the words beside the
    picture do that.
    """
    out: dict[str, Any] = chart.to_dict()
    out.pop("config", None)
    for layer in out["layer"]:
        layer["mark"]["aria"] = False
    return out
