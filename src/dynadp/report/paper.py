"""The paper's figures and the privacy-accuracy curve, with Altair (extra ``dynadp[report]``).

Lines are medians over draws; bands hold 10 to 90% of them, and those of test errors the sampling
error of the rows too. Colours are from the Okabe-Ito palette and each series has its own dashes;
letters stay readable at the width of a column.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp._intervals import SEVERAL
from dynadp.planning import AccuracyLoss, PrivacyUtility
from dynadp.report.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, alt, decades, marks, page
from dynadp.report.flow_diagram import LEGEND, dual_panel, final_panel, primal_panel
from dynadp.research import unit_of

Numbers = Mapping[str, Any]
WIDTH, HEIGHT = 190, 150
ERRORS = f"bands of errors: {SEVERAL}"
WIDE = {"width": 2 * WIDTH, "height": HEIGHT + 30}
STYLE: dict[str, tuple[str, list[int]]] = {  # algorithm or schedule -> colour, dashes
    "Algorithm 1": ("#000000", [2, 2]),
    "DVP": (BLUE, [1, 0]),
    "PVP as printed": (ORANGE, [7, 3]),
    "PVP public": (GREEN, [10, 3, 2, 3]),
    "PVP public, (rho, C) of DVP": (PURPLE, [4, 2]),
    "constant": (BLUE, [1, 0]),
    "growing": (ORANGE, [7, 3]),
    "shrinking": (GREEN, [2, 2]),
    "all in the end": (PURPLE, [10, 3, 2, 3]),
}


def figures(result: Numbers) -> dict[str, Any]:
    """Every figure of :func:`~dynadp.research.reproduction.reproduce`, by name."""
    drawn = (flow, final_flow, convergence, tradeoff, final, rho, margins, schedules)
    return {chart.__name__: chart(result) for chart in drawn}


def flow(result: Numbers) -> Any:
    """The paper's Figure 1: where noise enters a round of Algorithms 2 and 3."""
    panels = [dual_panel(result["flow"]["dual"]), primal_panel(result["flow"]["primal"])]
    return _page(panels, "Where noise enters a round", _flow_caption(result, "t + 1"), columns=1)


def final_flow(result: Numbers) -> Any:
    """The paper's Figure 2: the final iteration."""
    caption = [*_flow_caption(result, "t_s"), "DVP: the same, from f in place of V"]
    return _page([final_panel(result["flow"]["final"])], "The final iteration", caption)


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
    plain = [
        {"round": n, "algorithm": "Algorithm 1", "median": loss}
        for n, loss in enumerate(result["plain"]["losses"], 1)
    ]
    rows = result["convergence"]
    y = _loss_axis([*_ends(rows), plain[-1]["median"]])
    panels = []
    for alpha in sorted({row["alpha"] for row in rows}):
        own = [row for row in rows if row["alpha"] == alpha]
        panels.append(_panel([*plain, *own], _round_axis(), y, f"alpha = {alpha:g}"))
    return _page(panels, "Loss against rounds", _caption(result))


def tradeoff(result: Numbers) -> Any:
    """Loss against alpha at two rounds with the fitted L_acc and the best measured alpha; and
    U_priv.
    """
    panels = []
    for row in result["tradeoff"]:
        fit, colour = AccuracyLoss(**row["fit"]), STYLE[row["algorithm"]][0]
        fitted = _sampled(fit, row["points"])
        values = [*_ends(row["points"]), *(point["median"] for point in fitted)]
        chosen = row["recommended"]["alpha"]
        drawn = _curve(row["points"], fitted, _loss_axis(values), chosen, colour)
        title = f"{row['algorithm']}, t = {row['round']}"
        panels.append(drawn.properties(width=WIDTH, height=HEIGHT, title=title))
    caption = [
        *_caption(result),
        "points: medians; line: fitted L_acc; dashes: the measured alpha of the best U_priv - loss",
    ]
    return _page([*panels, *_utilities(result)], "Loss against alpha", caption)


def _utilities(result: Numbers) -> list[Any]:
    """U_priv, and U_priv - measured median loss after the last round; what lies below -1 is cut
    off.
    """
    w, last = PrivacyUtility(), result["settings"]["rounds"]
    points = result["tradeoff"][0]["points"]
    x = _alpha_axis(points)
    line = marks(_sampled(w, points)).mark_line(color="#000000", strokeWidth=2)
    utility = line.encode(x=x, y=alt.Y("median:Q").title("U_priv").axis(tickCount=4))
    rows = [
        {"algorithm": row["algorithm"], **point}
        for row in result["tradeoff"]
        if row["round"] == last
        for point in _objectives(row["points"], w)
    ]
    values = [row["median"] for row in rows]
    ends = [max(min(values), -1.0) - 0.02, max(*values, -0.9) + 0.02]
    y = alt.Y("median:Q").title("U_priv - loss").axis(tickCount=4).scale(domain=ends, nice=False)
    return [
        utility.properties(width=WIDTH, height=HEIGHT, title="utility of privacy"),
        _panel(rows, x, y, f"what is maximised, measured, t = {last}"),
    ]


def final(result: Numbers) -> Any:
    """Loss of the final output, and misclassification rates, against alpha."""
    plain, x = result["plain"], _alpha_axis(result["final"])

    def rows(key: str, exact: float) -> list[dict[str, Any]]:
        own = [{**row, **row[key]} for row in result["final"]]
        return own + [
            {**row, "algorithm": "Algorithm 1", "median": exact} for row in result["final"]
        ]

    losses, y = rows("loss", plain["losses"][-1]), _share_axis("test error").scale(zero=False)
    values = [*_ends(losses), plain["losses"][-1]]
    top = _panel(losses, x, _loss_axis(values), "loss of the final output")
    below = alt.hconcat(
        _panel(rows("error", plain["error"]), x, y, "error, last message"),
        _panel(rows("network_error", plain["error"]), x, y, "error, network mean"),
    )
    title = f"After {result['settings']['rounds']} rounds"
    panels = [top.properties(width=2 * WIDTH + 50), below]
    return _page(panels, title, [*_caption(result), ERRORS], columns=1)


def rho(result: Numbers) -> Any:
    """Loss against rho at one alpha; a ring marks the paper's choice."""
    rows = result["rho"]
    x = _log_axis(alt.X("rho:Q"), "rho", [row["rho"] for row in rows])
    y = _loss_axis(_ends(rows))
    named = result["algorithms"]
    chosen = [row for row in rows if np.isclose(row["rho"], named[row["algorithm"]]["rho"])]
    rings = marks(chosen).mark_point(size=120, strokeWidth=2, color="#000000").encode(x=x, y=y)
    lines = alt.layer(_panel(rows, x, y, ""), rings)
    s = result["settings"]
    caption = [
        *_caption(result, s["rho_draws"]),
        f"alpha = {s['rho_alpha']:g}, round {s['rho_rounds']}; rings: the paper's rho",
    ]
    return _page([lines.properties(**WIDE)], "Loss against rho", caption)


def margins(result: Numbers) -> Any:
    """Test error against the margin of made problems."""
    rows = result["margins"]
    grid = sorted({row["margin"] for row in rows})
    x = alt.X("margin:Q").title("margin").axis(values=grid, format="~g")
    x = x.scale(type="log", domain=[grid[0], grid[-1]], nice=False)
    panel = _panel(rows, x, _share_axis("test error"), "").properties(**WIDE)
    s = result["settings"]
    caption = [
        f"data: separable rows made here, {s['nodes']} x {s['margin_rows']:,} (synthetic)",
        f"SIMULATION, seed {s['seed']}",
        f"alpha = {s['rho_alpha']:g}, {s['rounds']} rounds, {s['margin_draws']} draws, last "
        f"message",
        ERRORS,
    ]
    return _page([panel], "Test error against the margin", caption, legend=3)


def schedules(result: Numbers) -> Any:
    """alpha by round, and test error, of schedules with one total."""
    compared = result["schedules"]
    steps = [
        {"algorithm": row["schedule"], "round": n, "median": alpha}
        for row in compared["rows"]
        for n, alpha in enumerate(row["alphas"], 1)
    ]
    errors = [
        {"algorithm": row["schedule"], "output": output, **row[key]}
        for key, output in (("last", "error, last message"), ("network", "error, network mean"))
        for row in compared["rows"]
    ]
    y, title = alt.Y("median:Q").title("alpha"), "what each round may lose"
    top = _panel(steps, _round_axis(), y, title, interpolate="step")
    x = alt.X("low:Q").title("test error").axis(format=".0%", tickCount=4).scale(zero=False)
    base = marks(errors).encode(
        y=alt.Y("algorithm:N").sort(None).title(None), color=_scales(errors)[0].legend(None)
    )
    bars = base.mark_rule(strokeWidth=4, opacity=0.4).encode(x=x, x2="high:Q")
    dots = base.mark_point(size=70, filled=True, opacity=1).encode(x="median:Q")
    outputs = alt.Column("output:N").sort(None).title(None)
    outputs = outputs.header(labelFontSize=13, labelFontWeight="bold", labelAnchor="start")
    below = alt.layer(bars, dots).properties(width=WIDTH - 15, height=HEIGHT - 20)
    s = result["settings"]
    caption = [
        f"data: {compared['source']}, {s['nodes']} nodes",
        f"SIMULATION, seed {s['seed']}",
        f"total epsilon = {compared['epsilon']:g}, delta = {compared['delta']:g}; "
        f"{s['schedule_draws']} draws",
        ERRORS,
    ]
    panels = [top.properties(width=2 * WIDTH - 10), below.facet(column=outputs)]
    return _page(panels, "Schedules of alpha at one total", caption, columns=1)


def curve(
    points: Sequence[Numbers],
    fit: AccuracyLoss | None,
    w: PrivacyUtility,
    alpha: float | None,
    caption: Sequence[str],
    title: str = "wrong answers",
) -> Any:
    """Share of wrong answers, or another loss, against alpha, or mu, with its fit and the
    recommended one, if there is one, and what is maximised below.
    """
    unit = unit_of(points)
    loss: list[dict[str, float]] = []
    objective: list[dict[str, float]] = []
    if fit is not None:
        loss = _sampled(fit, points)
        objective = _sampled(lambda a: w(a) - fit(a), points)
    y = _share_axis(title).scale(zero=False)
    top = _curve(points, loss, y, alpha, BLUE)
    y = alt.Y("median:Q").title("U_priv - wrong").axis(tickCount=4).scale(zero=False)
    below = _curve(_objectives(points, w), objective, y, alpha, BLUE)
    panels = [
        top.properties(width=2 * WIDTH, height=HEIGHT + 40),
        below.properties(width=2 * WIDTH, height=HEIGHT - 30, title="what is maximised"),
    ]
    lines = f"nothing is recommended: no {unit} beats always giving the same answer; line: the fit"
    if alpha is not None:
        lines = (
            f"dashes: the recommended {unit} = {alpha:.3g}, the best measured and allowed one; "
            "line: the fit"
        )
    return _page(
        panels, f"{title[0].upper()}{title[1:]} against {unit}", [*caption, lines], columns=1
    )


def joining(rows: Sequence[Numbers], caption: Sequence[str], title: str = "wrong answers") -> Any:
    """Shares of wrong answers, or other losses, with their intervals: nodes alone, joined, and all
    rows in one place.

    Parameters
    ----------
    rows
        ``way`` in words, ``median``, ``low`` and ``high``, from the top down.
    caption
        Lines below the title.
    """
    x = alt.X("low:Q").title(title).axis(format=".0%", tickCount=5).scale(zero=False)
    y = alt.Y("way:N").sort(None).title(None).axis(labelLimit=220)
    colour = alt.condition("indexof(datum.way, 'alone') == 0", alt.value(ORANGE), alt.value(BLUE))
    base = marks(rows).encode(y=y, color=colour)
    bars = base.mark_rule(strokeWidth=4, opacity=0.4).encode(x=x, x2="high:Q")
    dots = base.mark_point(size=70, filled=True, opacity=1).encode(x="median:Q")
    drawn = alt.layer(bars, dots).properties(width=2 * WIDTH, height=30 * len(rows))
    return _page([drawn], "Alone or joined", caption)


def _caption(result: Numbers, draws: int | None = None) -> list[str]:
    s = result["settings"]
    ours = f"{s['nodes']}-node {s['graph']}, eta = {s['eta']:g} (ours)"
    return [
        f"data: {result['source']}",
        f"SIMULATION, seed {s['seed']}: {ours}, {draws or s['draws']} draws, 10 to 90%",
    ]


def _page(
    panels: Sequence[Any], title: str, caption: Iterable[str], columns: int = 2, legend: int = 4
) -> Any:
    """Panels in columns under one title."""
    return page(alt.concat(*panels, columns=columns, spacing=14), title, caption, legend)


def _scales(rows: Iterable[Numbers]) -> tuple[Any, Any]:
    """Colour and dashes of each algorithm, or schedule."""
    drawn = {row["algorithm"] for row in rows}
    domain = [name for name in STYLE if name in drawn]
    colours, dashes = zip(*(STYLE[name] for name in domain), strict=True)
    colour = alt.Color("algorithm:N").title(None).scale(domain=domain, range=list(colours))
    dash = alt.StrokeDash("algorithm:N").title(None).scale(domain=domain, range=list(dashes))
    return colour.legend(symbolType="stroke", symbolOpacity=1), dash


def _panel(rows: Sequence[Numbers], x: Any, y: Any, title: str, **look: Any) -> Any:
    """Median lines with bands, a colour and dashes for each algorithm."""
    colour, dash = _scales(rows)
    lines = marks(rows).mark_line(strokeWidth=2, clip=True, **look)
    chart = alt.layer(lines.encode(x=x, y=y, color=colour, strokeDash=dash))
    if bands := [row for row in rows if "low" in row]:
        area = marks(bands).mark_area(opacity=0.2)
        chart = area.encode(x=x, y="low:Q", y2="high:Q", color=colour) + chart
    return chart.properties(width=WIDTH, height=HEIGHT, title=title)


def _curve(
    points: Sequence[Numbers], fitted: Sequence[Numbers], y: Any, chosen: float | None, colour: str
) -> Any:
    """Points with their intervals, the fitted curve, and a dashed line at the chosen alpha."""
    at = [] if chosen is None else [{unit_of(points): chosen}]
    x, measured = _alpha_axis(points), marks(points)
    bars = marks(point for point in points if "low" in point)
    return alt.layer(
        marks(fitted).mark_line(color=GREY, strokeWidth=2, clip=True).encode(x=x, y=y),
        bars.mark_rule(color=colour, strokeWidth=4, opacity=0.35).encode(
            x=x, y="low:Q", y2="high:Q"
        ),
        measured.mark_point(color=colour, filled=True, size=45, opacity=1).encode(x=x, y=y),
        marks(at).mark_rule(strokeDash=[5, 3], color="#000000").encode(x=x),
    )


def _objectives(points: Sequence[Numbers], w: PrivacyUtility) -> list[dict[str, float]]:
    """U_priv - loss, as measured."""
    unit = unit_of(points)
    return [
        {unit: point[unit], "median": float(w(point[unit])) - point["median"]} for point in points
    ]


def _sampled(
    function: Callable[[Array], Array], points: Sequence[Numbers]
) -> list[dict[str, float]]:
    """A function of alpha on a fine grid over the measured alphas."""
    unit = unit_of(points)
    alphas = [point[unit] for point in points]
    grid = np.geomspace(min(alphas), max(alphas), 120)
    values = function(grid)
    return [{unit: float(a), "median": float(v)} for a, v in zip(grid, values, strict=True)]


def _ends(rows: Iterable[Numbers]) -> list[float]:
    """Both ends of every band."""
    return [row[side] for row in rows for side in ("low", "high") if side in row]


def _round_axis() -> Any:
    return alt.X("round:Q").title("round").axis(tickCount=4, tickMinStep=1)


def _share_axis(title: str) -> Any:
    return alt.Y("median:Q").title(title).axis(format=".0%", tickCount=5)


def _loss_axis(values: Iterable[float]) -> Any:
    return _log_axis(alt.Y("median:Q"), "loss", values)


def _alpha_axis(points: Sequence[Numbers]) -> Any:
    unit = unit_of(points)
    return _log_axis(alt.X(f"{unit}:Q"), unit, [point[unit] for point in points])


def _log_axis(channel: Any, title: str, values: Iterable[float]) -> Any:
    """A logarithmic axis over the values, labelled at decades; at 2 and 5 where there are few."""
    positive = [value for value in values if value > 0]
    low, high = min(positive), max(positive)
    ticks = decades(positive)
    if high / low < 100:
        ticks = [digit * tick for tick in ticks for digit in (1, 2, 5)]
    room = (high / low) ** 0.04
    ends = [low / room, high * room]
    shown = [tick for tick in ticks if ends[0] <= tick <= ends[1]]
    axis = channel.title(title).axis(values=shown, format="~g", labelOverlap=True)
    return axis.scale(type="log", domain=ends, nice=False)
