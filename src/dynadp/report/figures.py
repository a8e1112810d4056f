"""The charts that the report and the page share, with Altair (extra ``dynadp[report]``).

Colours are placeholders of the Okabe-Ito palette: the page and the report put their own shades
there, light or dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

from dynadp.report.budgets import IN_USE, WORDS
from dynadp.report.charts import BLUE, GREEN, GREY, ORANGE, require
from dynadp.report.progress import Row

INK, LINE = "#202122", "#C8CCD1"
SHADES = {
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    GREY: "--grey",
    INK: "--ink",
    LINE: "--line",
}
WIDTH, HEIGHT = 400, 210
QUANTITIES = {
    "disagreement": "distance from neighbours",
    "change": "change of what was heard",
}
ACCOUNTINGS = {WORDS["sum"][0]: ORANGE, WORDS["pure"][0]: GREEN, IN_USE: BLUE}


def convergence(rows: Iterable[Row], quantity: str) -> Any:
    """Median over nodes, with their range, against rounds; from released vectors alone."""
    alt = require()
    values = flat(rows, quantity)
    seen = [row[k] for row in values for k in ("low", "high")]
    scale = alt.Scale(type="log", domain=decades(seen)) if seen else alt.Scale(type="log")
    x = alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))
    y = alt.Y(
        "low:Q", title=QUANTITIES[quantity], scale=scale, axis=alt.Axis(format="~g", tickCount=4)
    )
    base = alt.Chart(alt.NamedData("rounds"))
    tips = [alt.Tooltip("round:Q")] + [
        alt.Tooltip(f"{name}:Q", format=".3~g") for name in ("median", "low", "high")
    ]
    layers = [
        base.mark_area(color=BLUE, opacity=0.25).encode(x=x, y=y, y2="high:Q"),
        base.mark_line(color=BLUE, strokeWidth=2).encode(x=x, y=alt.Y("median:Q", scale=scale)),
        base.mark_point(color=BLUE, filled=True, size=30, opacity=0.001).encode(
            x=x, y=alt.Y("median:Q", scale=scale), tooltip=tips
        ),
    ]
    chart = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, datasets={"rounds": values})
    return chart


def flat(rows: Iterable[Row], quantity: str) -> list[dict[str, float]]:
    """One record a round: what a logarithmic picture can show."""
    records = (
        {"round": row["round"], **dict(zip(("median", "low", "high"), row[quantity], strict=True))}
        for row in rows
    )
    return [record for record in records if record["low"] > 0]


def decades(values: Sequence[float]) -> list[float]:
    """Whole powers of ten around the values.

    >>> decades([0.02, 3.0])
    [0.01, 10.0]
    """
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return [10.0**low, 10.0 ** max(high, low + 1)]


def totals(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Total epsilon after each round under each accounting."""
    alt = require()
    colours = alt.Scale(domain=list(ACCOUNTINGS), range=list(ACCOUNTINGS.values()))
    dashes = alt.Scale(domain=list(ACCOUNTINGS), range=[[2, 3], [7, 4], [1, 0]])
    legend = alt.Legend(
        orient="bottom",
        title=None,
        labelLimit=300,
        symbolType="stroke",
        symbolSize=300,
        symbolOpacity=1,
        symbolStrokeWidth=2.5,
        columns=1,
    )
    base = alt.Chart(alt.NamedData("totals")).encode(
        x=alt.X(
            "round:Q",
            title="rounds done",
            axis=alt.Axis(tickMinStep=1),
            scale=alt.Scale(nice=False),
        ),
        y=alt.Y("epsilon:Q", title="total epsilon", scale=alt.Scale(zero=True)),
        color=alt.Color("accounting:N", scale=colours, legend=legend),
        strokeDash=alt.StrokeDash("accounting:N", scale=dashes, legend=legend),
    )
    tips = [
        alt.Tooltip("accounting:N"),
        alt.Tooltip("round:Q"),
        alt.Tooltip("epsilon:Q", format=".4~g"),
    ]
    points = base.mark_point(filled=True, size=40, opacity=0.001).encode(tooltip=tips)
    return (base.mark_line(strokeWidth=2.5) + points).properties(
        width=WIDTH, height=HEIGHT, datasets={"totals": list(rows)}
    )


def accuracy(
    points: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, float],
    chosen: Mapping[str, Any] | None,
) -> Any:
    """Right answers in 100 against alpha: medians and their intervals, baselines, and what is
    chosen.

    Parameters
    ----------
    points
        ``alpha``, ``epsilon``, ``median``, ``low``, ``high``: right answers in 100.
    baselines
        Horizontal lines, by name.
    chosen
        ``alpha`` and ``median`` of the choice; None for none.
    """
    alt = require()
    values = [*(p["low"] for p in points), *(p["high"] for p in points), *baselines.values()]
    room = 0.06 * (max(values) - min(values)) + 0.2
    y_scale = alt.Scale(
        domain=[min(values) - room, min(max(values) + room, 100.0)], nice=False, zero=False
    )
    alphas = [p["alpha"] for p in points]
    x_scale = alt.Scale(type="log", domain=[min(alphas), max(alphas)], nice=False)
    x = alt.X(
        "alpha:Q",
        title="alpha, the loss of one round",
        scale=x_scale,
        axis=alt.Axis(format="~g", tickCount=5),
    )
    y = alt.Y("low:Q", title="right answers in 100", scale=y_scale)
    base = alt.Chart(alt.NamedData("points"))
    tips = [
        alt.Tooltip("alpha:Q", format=".3~g", title="alpha"),
        alt.Tooltip("epsilon:Q", format=".3~g", title="total epsilon"),
        alt.Tooltip("median:Q", format=".1f", title="median"),
        alt.Tooltip("low:Q", format=".1f", title="interval from"),
        alt.Tooltip("high:Q", format=".1f", title="to"),
    ]
    lines = alt.Chart(alt.NamedData("baselines"))
    there = alt.Chart(alt.NamedData("chosen"))
    layers = [
        lines.mark_rule(color=GREY, strokeDash=[5, 4]).encode(y=alt.Y("median:Q", scale=y_scale)),
        *(
            lines.transform_filter(f"datum.upper == {side}")
            .mark_text(color=GREY, align=align, baseline="bottom", dx=shift, dy=-3)
            .encode(y=alt.Y("median:Q", scale=y_scale), x=alt.value(where), text="name:N")
            for side, align, shift, where in (
                ("true", "left", 4, 0),
                ("false", "right", -4, "width"),
            )
        ),
        base.mark_area(color=BLUE, opacity=0.25).encode(x=x, y=y, y2="high:Q"),
        base.mark_line(color=BLUE, strokeWidth=2).encode(x=x, y=alt.Y("median:Q", scale=y_scale)),
        base.mark_point(color=BLUE, filled=True, size=45, opacity=1).encode(
            x=x, y=alt.Y("median:Q", scale=y_scale), tooltip=tips
        ),
        there.mark_rule(color=ORANGE, strokeWidth=2).encode(x=x),
        there.mark_point(color=ORANGE, shape="diamond", filled=True, size=160, opacity=1).encode(
            x=x, y=alt.Y("median:Q", scale=y_scale)
        ),
    ]
    top = max(
        baselines.values(), default=0.0
    )  # its name stands on the left, where the curve is low; others on the right
    named = [
        {"name": name, "median": value, "upper": value == top} for name, value in baselines.items()
    ]
    datasets = {
        "points": list(points),
        "baselines": named,
        "chosen": [dict(chosen)] if chosen else [],
    }
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT + 40, datasets=datasets)


def spec(chart: Any) -> dict[str, Any]:
    """For the page: as wide as its place, without colours of text, which the page puts in."""
    return _plain(chart) | {
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
    }


def svg(chart: Any) -> str:
    """For the report: a picture whose colours follow the reader's light or dark page."""
    import vl_convert

    text = {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    axis = {**text, "domainColor": LINE, "tickColor": LINE, "gridColor": LINE, "gridOpacity": 0.5}
    look = {
        "font": "system-ui, sans-serif",
        "background": "transparent",
        "aria": False,
        "view": {"stroke": None},
    }
    drawn: str = vl_convert.vegalite_to_svg(
        _plain(chart) | {"config": {**look, "axis": axis, "legend": text}}
    )
    for shade, name in SHADES.items():
        drawn = drawn.replace(f'"{shade}"', f'"var({name})"').replace(
            f'"{shade.lower()}"', f'"var({name})"'
        )
    return drawn


def _plain(chart: Any) -> dict[str, Any]:
    """The specification without Altair's looks, and with marks that say nothing: the words beside
    the picture do.
    """
    out: dict[str, Any] = chart.to_dict()
    out.pop("config", None)
    for layer in out["layer"]:
        layer["mark"]["aria"] = False
    return out
