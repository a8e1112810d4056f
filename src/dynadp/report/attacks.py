"""Pictures of the attack gallery, with Altair (extra ``dynadp[report]``).

Colours are from the Okabe-Ito palette; lines differ in dashes, and right from wrong in shade, as
well.
"""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

from dynadp.report.charts import BLUE, GREEN, GREY, ORANGE, marks, require

Numbers = Mapping[str, Any]
STYLE = {
    "none": ("Algorithm 1 (no noise)", "#000000"),
    "dual": ("DVP", BLUE),
    "primal": ("PVP", ORANGE),
}
WIDTH = 250


def figures(result: Numbers) -> dict[str, Any]:
    """One picture for each attack, by name."""
    return {
        "reconstruction": reconstruction(result),
        "small-node": small_node(result),
        "membership-neighbour": membership(result, "neighbour"),
        "membership-transcript": membership(result, "transcript"),
    }


def reconstruction(result: Numbers) -> Any:
    """One row, attribute by attribute, as truth and as found; and how many attributes were right
    over all rows.
    """
    alt = require()
    cases = [case for case in result["reconstruction"] if case["alpha"] in (None, 1.0)]
    cells = []
    for name, (truth, _, guess) in cases[0]["example"].items():
        cells.append({"attribute": name, "column": "truth", "text": truth, "kind": "truth"})
        shown = [(called(case), case["example"][name][1]) for case in cases] + [("guess", guess)]
        cells += [
            {"attribute": name, "column": c, "text": t, "kind": "right" if t == truth else "wrong"}
            for c, t in shown
        ]
    order = ["truth", *(called(case) for case in cases), "guess"]
    base = marks(cells).encode(
        x=alt.X(
            "column:N",
            sort=order,
            title=None,
            axis=alt.Axis(orient="top", labelAngle=0, labelLimit=150),
        ),
        y=alt.Y("attribute:N", sort=list(cases[0]["example"]), title=None),
    )
    kinds = ["truth", "right", "wrong"]
    shades = alt.Scale(domain=kinds, range=["#eeeeee", "#bfe3d6", "#ffffff"])
    inks = alt.Scale(domain=kinds, range=["#000000", "#000000", "#888888"])
    tiles = base.mark_rect(stroke="#dddddd").encode(
        color=alt.Color("kind:N", scale=shades, legend=None)
    )
    texts = base.mark_text(fontSize=12).encode(
        text="text:N", color=alt.Color("kind:N", scale=inks, legend=None)
    )
    table = (
        (tiles + texts)
        .resolve_scale(color="independent")
        .properties(width=620, height=270, title="One row, as the attack sees it")
    )
    bars = _bars(
        alt, result["reconstruction"], f"Attributes recovered, mean of {cases[0]['rows']} rows"
    )
    said = [
        f"data: {result['source']}; SIMULATION, seed {result['seed']}; {cases[0]['rounds']} rounds",
        "The adversary sees all messages and knows every other row. Shaded and black: right. "
        "White and grey: wrong.",
        "Without noise: algebra. With noise: the likeliest value of each attribute. Guess: the "
        "population's commonest value.",
    ]
    return _page(alt, [table, bars], "Reconstruction of a row", said, "independent")


def small_node(result: Numbers) -> Any:
    """How many attributes of every row of a small node were right."""
    alt = require()
    cases = result["small_node"]
    bars = _bars(alt, cases, f"Attributes recovered, mean of the node's {cases[0]['rows']} rows")
    said = [
        f"data: {result['source']}; SIMULATION, seed {result['seed']}; {cases[0]['rounds']} rounds",
        f"The adversary sees all messages and knows no row of the node, only that it holds "
        f"{cases[0]['rows']}.",
        "It fits rows to the gradients that messages without noise would be; with noise the fit "
        "is no row at all.",
    ]
    return _page(alt, [bars], "Reconstruction of a whole small node", said)


def membership(result: Numbers, view: str) -> Any:
    """True against false positives for each alpha, with what the accountant allows; and odds after
    the attack.
    """
    alt = require()
    cases = [case for case in result["membership"] if case["view"] == view]
    alphas = sorted({case["alpha"] for case in cases if case["alpha"]})
    panels = [
        _curves(alt, [c for c in cases if c["alpha"] in (None, alpha)], alpha) for alpha in alphas
    ]
    private = [case for case in cases if case["alpha"]]
    seen = {
        "neighbour": "The adversary is a neighbour of the node and sees the messages that it "
        "exchanges itself.",
        "transcript": "The adversary sees every message of every node.",
    }
    said = [
        f"data: {result['source']}; SIMULATION, seed {result['seed']}; {cases[0]['rounds']} rounds",
        f"{seen[view]} It knows every other row.",
        f"{private[0]['runs']:,} runs hold the row, as many its opposite (the same attributes, "
        f"the other label); "
        "bands: two standard errors.",
    ]
    title = {"neighbour": "one neighbour's view", "transcript": "the whole transcript"}[view]
    odds = _odds(alt, private, [case for case in cases if not case["alpha"]])
    return _page(
        alt, [alt.hconcat(*panels, spacing=30), odds], f"Membership inference: {title}", said
    )


def called(case: Numbers) -> str:
    """A case by a short name."""
    return (
        "Algorithm 1"
        if case["alpha"] is None
        else f"{STYLE[case['mechanism']][0]}, α = {case['alpha']:g}"
    )


def _bars(alt: Any, cases: Sequence[Numbers], title: str) -> Any:
    most, guess = cases[0]["attributes"], cases[0]["guessing"]
    rows = [
        {"case": called(c), "found": c["recovered"], "mechanism": STYLE[c["mechanism"]][0]}
        for c in cases
    ]
    x = alt.X(
        "found:Q",
        title=f"attributes of {most}",
        scale=alt.Scale(domain=[0, most + 1], nice=False),
        axis=alt.Axis(values=list(range(most + 1))),
    )
    base = marks(rows).encode(
        y=alt.Y("case:N", sort=[row["case"] for row in rows], title=None), x=x
    )
    colour = _colour(alt, "mechanism:N", legend=None)
    texts = base.mark_text(align="left", dx=12, fontSize=12).encode(
        text=alt.Text("found:Q", format=".1f")
    )
    rule = marks([{"found": guess, "name": f"guessing: {guess:.1f}"}])
    layers = [
        base.mark_bar(height=18, opacity=0.85).encode(color=colour),
        texts,
        rule.mark_rule(strokeDash=[5, 4], strokeWidth=2, color=GREEN).encode(x=x),
        rule.mark_text(align="left", dx=5, fontSize=12, color=GREEN, baseline="bottom").encode(
            x=x, y=alt.value(0), text="name:N"
        ),
    ]
    return alt.layer(*layers).properties(width=620, height=28 * len(rows), title=title)


def _curves(alt: Any, cases: Sequence[Numbers], alpha: float) -> Any:
    lines, bands = [], []
    for case in cases:
        name = STYLE[case["mechanism"]][0]
        for f, seen, most in zip(
            case["false_positives"], case["true_positives"], case["bound"], strict=True
        ):
            lines.append({"f": f, "t": seen, "series": name, "line": "attack"})
            if case["alpha"]:
                lines.append(
                    {
                        "f": f,
                        "t": most,
                        "series": name,
                        "line": "allowed by the accountant, at most",
                    }
                )
                spread = 2 * (max(seen * (1 - seen), 1 / case["runs"]) / case["runs"]) ** 0.5
                bands.append(
                    {
                        "f": f,
                        "low": max(seen - spread, 0),
                        "high": min(seen + spread, 1),
                        "series": name,
                    }
                )
    kinds = alt.Scale(
        domain=["attack", "allowed by the accountant, at most"], range=[[1, 0], [6, 3]]
    )
    axis = alt.Axis(format=".0%", values=[0, 0.25, 0.5, 0.75, 1])
    unit = alt.Scale(domain=[0, 1])
    x = alt.X("f:Q", title="false alarms", axis=axis, scale=unit)
    y = alt.Y("t:Q", title="rows found", axis=axis, scale=unit)
    dash = alt.StrokeDash("line:N", title=None, scale=kinds)
    exact = next((case for case in cases if not case["alpha"]), None)
    notes = [{"f": 0.6, "t": 0.52, "name": "coin toss"}]
    if exact is not None:
        notes.append({"f": 0.03, "t": 0.95, "name": f"Algorithm 1: {exact['right']:.1%} right"})
    texts = marks(notes).mark_text(color="#444444", align="left", fontSize=11)
    chance = marks([{"f": 0, "t": 0}, {"f": 1, "t": 1}])
    area = marks(bands).mark_area(opacity=0.18)
    layers = [
        area.encode(x=x, y=alt.Y("low:Q", scale=unit), y2="high:Q", color=_series(alt)),
        chance.mark_line(color=GREY, strokeWidth=1, strokeDash=[2, 2]).encode(x=x, y=y),
        marks(lines).mark_line(strokeWidth=2).encode(x=x, y=y, color=_series(alt), strokeDash=dash),
        texts.encode(x=x, y=y, text="name:N"),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=WIDTH, title=f"α = {alpha:g} a round")


def _colour(alt: Any, field: str, **how: Any) -> Any:
    """The colour of each mechanism."""
    names, colours = zip(*STYLE.values(), strict=True)
    scale = alt.Scale(domain=list(names), range=list(colours))
    return alt.Color(field, title=None, scale=scale, **how)


def _series(alt: Any) -> Any:
    return _colour(alt, "series:N", legend=alt.Legend(symbolType="stroke", symbolOpacity=1))


def _odds(alt: Any, cases: Sequence[Numbers], bare: Sequence[Numbers]) -> Any:
    """Odds that the row is in, 1:1 before: median and 99th of 100 after, and e^epsilon; and what
    runs without noise gave.
    """
    rows = [
        {
            "case": called(c),
            "series": STYLE[c["mechanism"]][0],
            "odds": c["odds"],
            "high": c["odds_high"],
        }
        | {"most": exp(min(c["epsilon"], 50.0))}
        for c in cases
    ]
    found = [case["odds"] for case in bare]
    open_ = "".join(
        f" Without noise: {'certainty' if odds is None else f'{odds:.3g}:1'}." for odds in found
    )
    high = max(row["most"] for row in rows)
    ticks = [v for v in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if v <= 1.3 * high]
    scale = alt.Scale(type="log", domain=[0.8, 1.3 * high], nice=False)
    axis = alt.Axis(values=ticks, labelExpr="datum.label + ':1'")
    base = marks(rows).encode(y=alt.Y("case:N", sort=[row["case"] for row in rows], title=None))
    colour = _series(alt)
    title = "odds for the row after the attack (1:1 before)"
    layers = [
        base.mark_rule(strokeWidth=5, opacity=0.35).encode(
            x=alt.X("odds:Q", scale=scale, axis=axis, title=title), x2="high:Q", color=colour
        ),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            x=alt.X("odds:Q", scale=scale), color=colour
        ),
        base.mark_point(shape="diamond", size=80, strokeWidth=2).encode(
            x=alt.X("most:Q", scale=scale), color=colour
        ),
    ]
    head = alt.TitleParams(
        "Odds",
        subtitle="dot: median run; bar: 99 of 100 runs end below its right end; diamond: e^ε."
        + open_,
    )
    return alt.layer(*layers).properties(width=2 * WIDTH + 75, height=28 * len(rows), title=head)


def _page(
    alt: Any, panels: Sequence[Any], title: str, said: Sequence[str], colours: str = "shared"
) -> Any:
    head = alt.TitleParams(
        title, subtitle=list(said), anchor="start", fontSize=16, subtitleFontSize=12, offset=10
    )
    return (
        alt.vconcat(*panels, spacing=24)
        .resolve_scale(color=colours)
        .properties(title=head)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12,
            titleFontSize=12,
            gridOpacity=0.4,
            titleFontWeight="normal",
            labelLimit=200,
        )
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_legend(
            labelFontSize=12, orient="bottom", labelLimit=300, symbolStrokeWidth=2.5, symbolSize=300
        )
    )
