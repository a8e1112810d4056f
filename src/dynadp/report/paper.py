"""The paper's figures and the privacy-accuracy curve, with Altair (extra ``dynadp[report]``).

Lines are medians over draws; bands hold 10 to 90% of them, and those of test errors the sampling
error of the rows too. Colours are from the Okabe-Ito palette and each series has its own dashes;
letters stay readable at the width of a column.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp._intervals import SEVERAL
from dynadp.planning import AccuracyLoss, PrivacyUtility
from dynadp.report.charts import BLUE, GREEN, GREY, ORANGE, PALETTE, PURPLE, require
from dynadp.report.flow_diagram import LEGEND, dual_panel, final_panel, primal_panel

Numbers = Mapping[str, Any]
WIDTH, HEIGHT = 190, 150
ERRORS = f"bands of errors: {SEVERAL}"
STYLE = {  # series -> colour, dashes
    "Algorithm 1": ("#000000", [2, 2]),
    "DVP": (BLUE, [1, 0]),
    "PVP as printed": (ORANGE, [7, 3]),
    "PVP public": (GREEN, [10, 3, 2, 3]),
    "PVP public, (rho, C) of DVP": (PURPLE, [4, 2]),
}


def figures(result: Numbers) -> dict[str, Any]:
    """Every figure of :func:`~dynadp.research.reproduction.reproduce`, by name."""
    drawn = (flow, final_flow, convergence, tradeoff, final, rho, margins, schedules)
    return {chart.__name__: chart(result) for chart in drawn}


def flow(result: Numbers) -> Any:
    """The paper's Figure 1: where noise enters a round of Algorithms 2 and 3."""
    alt = require()
    panels = [dual_panel(alt, result["flow"]["dual"]), primal_panel(alt, result["flow"]["primal"])]
    return _page(
        alt, panels, "Where noise enters a round", _flow_caption(result, "t + 1"), columns=1
    )


def final_flow(result: Numbers) -> Any:
    """The paper's Figure 2: the final iteration."""
    alt = require()
    caption = [*_flow_caption(result, "t_s"), "DVP: the same, from f in place of V"]
    panel = final_panel(alt, result["flow"]["final"])
    return _page(alt, [panel], "The final iteration", caption, columns=1)


def _flow_caption(result: Numbers, time: str) -> list[str]:
    s, seen = result["settings"], result["flow"]
    return [
        f"data: {result['source']}",
        f"SIMULATION, seed {s['seed']}: node {seen['node']} of a {s['nodes']}-node {s['graph']}, "
        f"alpha = {seen['alpha']:g}, {time} = {seen['round']}",
        LEGEND,
    ]


def convergence(result: Numbers) -> Any:
    """Loss against rounds, one panel for each alpha."""
    alt = require()
    plain = [
        {"round": n, "series": "Algorithm 1", "median": loss}
        for n, loss in enumerate(result["plain"]["losses"], 1)
    ]
    rows = _series(result["convergence"])
    y = _log_axis(alt, "median:Q", "loss", [*_ends(rows), plain[-1]["median"]])
    panels = []
    for alpha in sorted({row["alpha"] for row in rows}):
        own = [row for row in rows if row["alpha"] == alpha]
        panels.append(_panel(alt, [*plain, *own], _round_axis(alt), y, f"alpha = {alpha:g}"))
    return _page(alt, panels, "Loss against rounds", _caption(result))


def tradeoff(result: Numbers) -> Any:
    """Loss against alpha at two rounds with the fitted L_acc and the best measured alpha; and
    U_priv.
    """
    alt = require()
    panels = []
    for row in result["tradeoff"]:
        fit = AccuracyLoss(row["fit"]["c4"], row["fit"]["c5"], row["fit"]["c6"])
        title = f"{row['algorithm']}, t = {row['round']}"
        colour = STYLE[row["algorithm"]][0]
        drawn = _curve(alt, row["points"], fit, row["recommended"]["alpha"], colour)
        panels.append(drawn.properties(width=WIDTH, height=HEIGHT, title=title))
    alphas = [point["alpha"] for point in result["tradeoff"][0]["points"]]
    panels += [_utility(alt, alphas), _objectives(alt, result, alphas)]
    caption = [
        *_caption(result),
        "points: medians; line: fitted L_acc; dashes: the measured alpha with the best U_priv - "
        "loss",
    ]
    return _page(alt, panels, "Loss against alpha", caption)


def final(result: Numbers) -> Any:
    """Loss of the final output, and misclassification rates, against alpha."""
    alt = require()
    x = _log_axis(alt, "alpha:Q", "alpha", [row["alpha"] for row in result["final"]], "x")
    panels = []
    titles = {
        "loss": "loss of the final output",
        "error": "error, last message",
        "network_error": "error, network mean",
    }
    for key, title in titles.items():
        rows = [
            {"series": row["algorithm"], "alpha": row["alpha"], **row[key]}
            for row in result["final"]
        ]
        exact = result["plain"]["losses"][-1] if key == "loss" else result["plain"]["error"]
        rows += [
            {"series": "Algorithm 1", "alpha": alpha, "median": exact}
            for alpha in {row["alpha"] for row in rows}
        ]
        y = _share_axis(alt, "test error", scale=alt.Scale(zero=False))
        if key == "loss":
            y = _log_axis(alt, "median:Q", "loss", [*_ends(rows), exact])
        panels.append(_panel(alt, rows, x, y, title))
    rows_of_panels = [panels[0].properties(width=2 * WIDTH + 50), alt.hconcat(*panels[1:])]
    title = f"After {result['settings']['rounds']} rounds"
    return _page(alt, rows_of_panels, title, [*_caption(result), ERRORS], columns=1)


def rho(result: Numbers) -> Any:
    """Loss against rho at one alpha; a ring marks the paper's choice."""
    alt = require()
    rows = _series(result["rho"])
    x = _log_axis(alt, "rho:Q", "rho", [row["rho"] for row in rows], "x", every=3)
    y = _log_axis(alt, "median:Q", "loss", _ends(rows))
    named = result["algorithms"]
    marks = [row for row in rows if np.isclose(row["rho"], named[row["algorithm"]]["rho"])]
    rings = _chart(alt, marks).mark_point(size=120, strokeWidth=2, color="#000000")
    lines = alt.layer(_panel(alt, rows, x, y, ""), rings.encode(x=x, y=y))
    lines = lines.properties(width=2 * WIDTH, height=HEIGHT + 30)
    s = result["settings"]
    caption = [
        *_caption(result, s["rho_draws"]),
        f"alpha = {s['rho_alpha']:g}, round {s['rho_rounds']}; rings: the paper's rho",
    ]
    return _page(alt, [lines], "Loss against rho", caption)


def margins(result: Numbers) -> Any:
    """Test error against the margin of made problems."""
    alt = require()
    rows = _series(result["margins"])
    grid = sorted({row["margin"] for row in rows})
    axis = alt.Axis(values=grid, format="~g")
    x = alt.X(
        "margin:Q",
        title="margin",
        axis=axis,
        scale=alt.Scale(type="log", domain=[grid[0], grid[-1]], nice=False),
    )
    panel = _panel(alt, rows, x, _share_axis(alt, "test error"), "")
    panel = panel.properties(width=2 * WIDTH, height=HEIGHT + 30)
    s = result["settings"]
    caption = [
        f"data: separable rows made here, {s['nodes']} x {s['margin_rows']:,} (synthetic)",
        f"SIMULATION, seed {s['seed']}",
        f"alpha = {s['rho_alpha']:g}, {s['rounds']} rounds, {s['margin_draws']} draws, last "
        f"message",
        ERRORS,
    ]
    return _page(alt, [panel], "Test error against the margin", caption, legend=3)


def schedules(result: Numbers) -> Any:
    """alpha by round, and test error, of schedules with one total."""
    alt = require()
    compared = result["schedules"]
    dashes = ([1, 0], [7, 3], [2, 2], [10, 3, 2, 3])
    names = [row["schedule"] for row in compared["rows"]]
    styles = {name: (PALETTE[i], dashes[i]) for i, name in enumerate(names)}
    steps = [
        {"series": r["schedule"], "round": n, "median": a}
        for r in compared["rows"]
        for n, a in enumerate(r["alphas"], 1)
    ]
    y, title = alt.Y("median:Q", title="alpha"), "what each round may lose"
    top = _panel(alt, steps, _round_axis(alt), y, title, styles, "step")
    top = top.properties(width=2 * WIDTH - 10)
    ends = _ends(row[output] for row in compared["rows"] for output in ("last", "network"))
    room = 0.04 * (max(ends) - min(ends))
    across = {
        "scale": alt.Scale(domain=[min(ends) - room, max(ends) + room], nice=False),
        "axis": alt.Axis(format=".0%", tickCount=4),
    }
    colour = _scales(alt, styles, shown=False)[0]
    panels = []
    for output, title in (("last", "error, last message"), ("network", "error, network mean")):
        rows = [{"series": row["schedule"], **row[output]} for row in compared["rows"]]
        names_at = (
            alt.Axis(labelLimit=200) if output == "last" else alt.Axis(labels=False, ticks=False)
        )
        base = _chart(alt, rows).encode(
            y=alt.Y("series:N", title=None, sort=names, axis=names_at), color=colour
        )
        bars = base.mark_rule(strokeWidth=4, opacity=0.4).encode(
            x=alt.X("low:Q", title="test error", **across), x2="high:Q"
        )
        dots = base.mark_point(size=70, filled=True, opacity=1).encode(
            x=alt.X("median:Q", **across)
        )
        panels.append(
            alt.layer(bars, dots).properties(width=WIDTH - 15, height=HEIGHT - 20, title=title)
        )
    s = result["settings"]
    caption = [
        f"data: {compared['source']}, {s['nodes']} nodes",
        f"SIMULATION, seed {s['seed']}",
        f"total epsilon = {compared['epsilon']:g}, delta = {compared['delta']:g}; "
        f"{s['schedule_draws']} draws",
        ERRORS,
    ]
    return _page(
        alt, [top, alt.hconcat(*panels)], "Schedules of alpha at one total", caption, columns=1
    )


def curve(
    points: Sequence[Numbers],
    fit: AccuracyLoss | None,
    w: PrivacyUtility,
    alpha: float,
    caption: Sequence[str],
) -> Any:
    """Share of wrong answers against alpha with its fit and the recommended alpha, and what is
    maximised below.
    """
    alt = require()
    y = _share_axis(alt, "wrong answers", scale=alt.Scale(zero=False))
    top = _curve(alt, points, fit, alpha, BLUE, y).properties(width=2 * WIDTH, height=HEIGHT + 40)
    below = _objective(alt, points, fit, w, alpha).properties(width=2 * WIDTH, height=HEIGHT - 30)
    lines = (
        f"dashes: the recommended alpha = {alpha:.3g}, the best measured and allowed one; line: "
        f"the fit"
    )
    title = "Wrong answers against alpha"
    return _page(alt, [top, below], title, [*caption, lines], columns=1)


def save(chart: Any, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg."""
    png, svg = (stem.with_name(stem.name + ending) for ending in (".png", ".svg"))
    chart.save(str(png), scale_factor=2)
    chart.save(str(svg))
    return [png, svg]


def _caption(result: Numbers, draws: int | None = None) -> list[str]:
    s = result["settings"]
    ours = f"{s['nodes']}-node {s['graph']}, eta = {s['eta']:g} (ours)"
    return [
        f"data: {result['source']}",
        f"SIMULATION, seed {s['seed']}: {ours}, {draws or s['draws']} draws, 10 to 90%",
    ]


def _page(
    alt: Any,
    panels: Sequence[Any],
    title: str,
    caption: Iterable[str],
    columns: int = 2,
    legend: int = 4,
) -> Any:
    """Panels in columns under one title."""
    head = alt.TitleParams(
        title, subtitle=list(caption), anchor="start", fontSize=16, subtitleFontSize=12, offset=10
    )
    grid = alt.concat(*panels, columns=columns, spacing=14).properties(title=head)
    return (
        grid.configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12, titleFontSize=13, gridOpacity=0.4, titleFontWeight="normal"
        )
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_legend(
            labelFontSize=13,
            orient="bottom",
            symbolSize=500,
            symbolStrokeWidth=2.5,
            columns=legend,
            labelLimit=300,
        )
    )


def _scales(
    alt: Any, styles: Mapping[str, tuple[str, list[int]]], shown: bool = True
) -> tuple[Any, Any]:
    domain = list(styles)
    colours, dashes = zip(*styles.values(), strict=True)
    legend = alt.Legend(symbolType="stroke", symbolOpacity=1) if shown else None
    colour = alt.Color(
        "series:N", title=None, scale=alt.Scale(domain=domain, range=list(colours)), legend=legend
    )
    dash = alt.StrokeDash(
        "series:N", title=None, scale=alt.Scale(domain=domain, range=list(dashes)), legend=legend
    )
    return colour, dash


def _panel(
    alt: Any,
    rows: Sequence[Numbers],
    x: Any,
    y: Any,
    title: str,
    styles: Mapping[str, tuple[str, list[int]]] | None = None,
    interpolate: str = "linear",
    clip: bool = False,
) -> Any:
    """Median lines with bands, a colour and dashes for each series."""
    drawn = {row["series"] for row in rows}
    colour, dash = _scales(
        alt, styles or {name: style for name, style in STYLE.items() if name in drawn}
    )
    mark = _chart(alt, rows).mark_line(strokeWidth=2, interpolate=interpolate, clip=clip)
    lines = mark.encode(x=x, y=y, color=colour, strokeDash=dash)
    spread = [row for row in rows if "low" in row]
    layers = [lines]
    if spread:
        area = _chart(alt, spread).mark_area(opacity=0.2)
        layers.insert(0, area.encode(x=x, y=_side(y, "low:Q"), y2="high:Q", color=colour))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _chart(alt: Any, rows: Iterable[Numbers]) -> Any:
    return alt.Chart(alt.Data(values=list(rows)))


def _series(rows: Iterable[Numbers]) -> list[dict[str, Any]]:
    """Records with a series for each algorithm."""
    return [{**row, "series": row["algorithm"]} for row in rows]


def _ends(rows: Iterable[Numbers]) -> list[float]:
    """Both ends of every band."""
    return [row[side] for row in rows for side in ("low", "high") if side in row]


def _round_axis(alt: Any) -> Any:
    return alt.X("round:Q", title="round", axis=alt.Axis(tickCount=4, tickMinStep=1))


def _share_axis(alt: Any, title: str, **more: Any) -> Any:
    return alt.Y("median:Q", title=title, axis=alt.Axis(format=".0%", tickCount=5), **more)


def _side(y: Any, field: str) -> Any:
    """The same axis for another field."""
    other = y.copy()
    other.shorthand = field
    return other


def _curve(
    alt: Any,
    points: Sequence[Numbers],
    fit: AccuracyLoss | None,
    chosen: float,
    colour: str,
    y: Any = None,
) -> Any:
    """Points with bands, the fitted curve, and a dashed line at the chosen alpha."""
    alphas = [point["alpha"] for point in points]
    fitted = [] if fit is None else _sampled(fit, alphas, "median")
    values = [*_ends(points), *(row["median"] for row in fitted)]
    x = _log_axis(alt, "alpha:Q", "alpha", alphas, "x")
    y = y or _log_axis(alt, "median:Q", "loss", [v for v in values if v > 0])
    measured = _chart(alt, points)
    bars = measured.mark_rule(color=colour, strokeWidth=4, opacity=0.35)
    return alt.layer(
        _chart(alt, fitted).mark_line(color=GREY, strokeWidth=2, clip=True).encode(x=x, y=y),
        bars.encode(x=x, y=_side(y, "low:Q"), y2="high:Q"),
        measured.mark_point(color=colour, filled=True, size=45, opacity=1).encode(x=x, y=y),
        _chosen_line(alt, x, chosen),
    )


def _objective(
    alt: Any, points: Sequence[Numbers], fit: AccuracyLoss | None, w: PrivacyUtility, chosen: float
) -> Any:
    """U_priv - loss: as measured, and of the fit."""
    alphas = [point["alpha"] for point in points]
    fitted = [] if fit is None else _sampled(lambda a: w(a) - fit(a), alphas, "value")
    measured = [{"alpha": p["alpha"], "value": float(w(p["alpha"])) - p["median"]} for p in points]
    x = _log_axis(alt, "alpha:Q", "alpha", alphas, "x")
    y = alt.Y(
        "value:Q", title="U_priv - wrong", axis=alt.Axis(tickCount=4), scale=alt.Scale(zero=False)
    )
    dots = _chart(alt, measured).mark_point(color=BLUE, filled=True, size=45, opacity=1)
    return alt.layer(
        _chart(alt, fitted).mark_line(color=GREY, strokeWidth=2).encode(x=x, y=y),
        dots.encode(x=x, y=y),
        _chosen_line(alt, x, chosen),
    ).properties(title="what is maximised")


def _chosen_line(alt: Any, x: Any, alpha: float) -> Any:
    """A dashed line at the chosen alpha."""
    rule = _chart(alt, [{"alpha": alpha}]).mark_rule(strokeDash=[5, 3], color="#000000")
    return rule.encode(x=x)


def _sampled(
    curve: Callable[[Array], Array], alphas: Sequence[float], name: str, points: int = 120
) -> list[dict[str, float]]:
    """A function of alpha on a fine grid over the measured alphas."""
    grid = np.geomspace(min(alphas), max(alphas), points)
    return [{"alpha": float(a), name: float(v)} for a, v in zip(grid, curve(grid), strict=True)]


def _utility(alt: Any, alphas: Sequence[float]) -> Any:
    rows = _sampled(PrivacyUtility(), alphas, "value", 80)
    x = _log_axis(alt, "alpha:Q", "alpha", alphas, "x")
    line = _chart(alt, rows).mark_line(color="#000000", strokeWidth=2)
    y = alt.Y("value:Q", title="U_priv", axis=alt.Axis(tickCount=4))
    return line.encode(x=x, y=y).properties(width=WIDTH, height=HEIGHT, title="utility of privacy")


def _objectives(alt: Any, result: Numbers, alphas: Sequence[float]) -> Any:
    """U_priv - measured median loss after the last round; what lies below -1 is cut off."""
    w, last = PrivacyUtility(), result["settings"]["rounds"]
    rows = [
        {
            "series": row["algorithm"],
            "alpha": p["alpha"],
            "median": float(w(p["alpha"])) - p["median"],
        }
        for row in result["tradeoff"]
        if row["round"] == last
        for p in row["points"]
    ]
    values = [row["median"] for row in rows]
    ends = alt.Scale(domain=[max(min(values), -1.0) - 0.02, max(*values, -0.9) + 0.02], nice=False)
    y = alt.Y("median:Q", title="U_priv - loss", axis=alt.Axis(tickCount=4), scale=ends)
    x = _log_axis(alt, "alpha:Q", "alpha", alphas, "x")
    return _panel(alt, rows, x, y, f"what is maximised, measured, t = {last}", clip=True)


def _log_axis(
    alt: Any, field: str, title: str, values: Iterable[float], side: str = "y", every: int = 1
) -> Any:
    """A logarithmic axis over the values, labelled at decades; at 2 and 5 where there are few."""
    positive = [v for v in values if v > 0]
    low, high = min(positive), max(positive)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    ticks = [10.0**k for k in decades if k % every == 0]
    if log10(high / low) < 2:
        ticks = [m * 10.0**k for k in decades for m in (1, 2, 5)]
    if side == "y" or len(set(positive)) < 20:
        low, high = low / (high / low) ** 0.04, high * (high / low) ** 0.04
    kind = alt.Y if side == "y" else alt.X
    axis = alt.Axis(
        values=[t for t in ticks if low * 0.999 <= t <= high * 1.001],
        format=".0e" if every > 1 else "~g",
    )
    return kind(
        field, title=title, axis=axis, scale=alt.Scale(type="log", domain=[low, high], nice=False)
    )
