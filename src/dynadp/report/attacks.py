"""Pictures of the attack gallery, with Altair (extra ``dynadp[report]``).

Colours are from the Okabe-Ito palette; lines differ in dashes, and right from wrong in shade, as
well.
"""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

from dynadp.report.charts import BLUE, GREEN, GREY, ORANGE, alt, marks, page

Numbers = Mapping[str, Any]
STYLE = {
    "none": ("Algorithm 1 (no noise)", "#000000"),
    "dual": ("DVP", BLUE),
    "primal": ("PVP", ORANGE),
    "sum": ("sums", "#cc79a7"),
    "sealed": ("sealed sums", "#56b4e9"),
    "sealed node": ("opened sums", "#e69f00"),
}
WIDTH = 250
ATTACK, ALLOWED = "attack", "allowed by the accountant, at most"
KNOWS = {  # view -> its title, and who has it
    "neighbour": (
        "one neighbour's view",
        "The adversary is a neighbour of the node and sees the messages that it exchanges itself.",
    ),
    "transcript": ("the whole transcript", "The adversary sees every message of every node."),
}


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
    every = result["reconstruction"]
    cases = [case for case in every if case["alpha"] is None or _level(case, every) > 0]
    cells = []
    for name, (truth, _, guess) in cases[0]["example"].items():
        texts = {called(case): case["example"][name][1] for case in cases} | {"guess": guess}
        cells.append({"attribute": name, "column": "truth", "text": truth, "kind": "truth"})
        for column, text in texts.items():
            kind = "right" if text == truth else "wrong"
            cells.append({"attribute": name, "column": column, "text": text, "kind": kind})
    top = {"orient": "top", "labelAngle": 0, "labelPadding": 20, "ticks": False}
    top["labelExpr"] = "split(datum.label, ', ')"  # a line each
    base = marks(cells).encode(
        x=alt.X("column:N").sort(None).title(None).axis(**top),
        y=alt.Y("attribute:N").sort(None).title(None),
    )
    colour, kinds = alt.Color("kind:N").legend(None), ["truth", "right", "wrong"]
    shades = colour.scale(domain=kinds, range=["#eeeeee", "#bfe3d6", "#ffffff"])
    inks = colour.scale(domain=kinds, range=["#000000", "#000000", "#888888"])
    tiles = base.mark_rect(stroke="#dddddd").encode(color=shades)
    words = base.mark_text(fontSize=12).encode(text="text:N", color=inks)
    table = (tiles + words).resolve_scale(color="independent")
    table = table.properties(width=620, height=270, title="One row, as the attack sees it")
    rows = f"Attributes recovered, mean of {cases[0]['rows']} rows"
    caption = [
        _source(result, cases),
        "The adversary sees all messages and knows every other row. Shaded and black: right. "
        "White and grey: wrong.",
        "Without noise: algebra. With noise: the likeliest value of each attribute. Guess: the "
        "population's commonest value.",
        *_sealed(cases),
    ]
    panels = alt.vconcat(table, _bars(result["reconstruction"], rows), spacing=24)
    panels = panels.resolve_scale(color="independent")
    return page(panels, "Reconstruction of a row", caption)


def small_node(result: Numbers) -> Any:
    """How many attributes of every row of a small node were right."""
    cases = result["small_node"]
    bars = _bars(cases, f"Attributes recovered, mean of the node's {cases[0]['rows']} rows")
    caption = [
        _source(result, cases),
        f"The adversary sees all messages and knows no row of the node, only that it holds "
        f"{cases[0]['rows']}.",
        "It fits rows to the gradients that messages without noise would be; with noise the fit "
        "is no row at all.",
        *_sealed(cases),
    ]
    return page(alt.vconcat(bars), "Reconstruction of a whole small node", caption)


def membership(result: Numbers, view: str) -> Any:
    """True against false positives for each alpha, with what the accountant allows; and odds after
    the attack.
    """
    cases = [case for case in result["membership"] if case["view"] == view]
    private = [case for case in cases if case["alpha"]]
    plain = [case for case in cases if not case["alpha"]]
    panels = []
    for level in sorted({_level(case, private) for case in private}):
        own = [case for case in private if _level(case, private) == level]
        losses = {f"{_loss(case)} = {case['alpha']:g}": None for case in own}  # each once
        panels.append(_curves([*plain, *own], f"{', '.join(losses)} a round"))
    title, who = KNOWS[view]
    caption = [
        _source(result, cases),
        f"{who} It knows every other row.",
        f"{private[0]['runs']:,} runs hold the row, as many its opposite (the same attributes, "
        "the other label); bands: two standard errors.",
        *_sealed(cases),
    ]
    rows = alt.vconcat(alt.hconcat(*panels, spacing=30), _odds(private, plain), spacing=24)
    shared = rows.resolve_scale(color="shared")
    return page(shared, f"Membership inference: {title}", caption)


def called(case: Numbers) -> str:
    """A case by a short name."""
    if case["alpha"] is None:
        return "Algorithm 1"
    return f"{_series_of(case)}, {_loss(case)} = {case['alpha']:g}"


def _loss(case: Numbers) -> str:
    """What the loss of a round is measured by."""
    return "μ" if case["mechanism"] in ("sum", "sealed") else "α"


def _kind(case: Numbers) -> str:
    """The key of its style: the mechanism, and that all others collude."""
    return f"{case['mechanism']} node" if case["seen"] == "node" else str(case["mechanism"])


def _series_of(case: Numbers) -> str:
    """The name of its line."""
    return STYLE[_kind(case)][0]


def _level(case: Numbers, cases: Sequence[Numbers]) -> int:
    """How many smaller losses of the same mechanism there are."""
    own = {each["alpha"] for each in cases if _kind(each) == _kind(case)}
    return sorted(own).index(case["alpha"])


def _source(result: Numbers, cases: Sequence[Numbers]) -> str:
    rounds = cases[0]["rounds"]
    return f"data: {result['source']}; SIMULATION, seed {result['seed']}; {rounds} rounds"


def _sealed(cases: Sequence[Numbers]) -> list[str]:
    """What is seen of sealed sums, where there are any."""
    words = (
        "Sealed sums: two of three nodes are honest, the third sees their sum. Opened sums: both "
        "others collude, and see the node's own sum."
    )
    return [words] if any(case["seen"] for case in cases) else []


def _cases(cases: Sequence[Numbers], **fields: str) -> Any:
    """A chart with a line for each case, and these fields of it."""
    rows = [
        {"case": called(case), "series": _series_of(case)}
        | {name: case[field] for name, field in fields.items()}
        for case in cases
    ]
    return marks(rows).encode(y=alt.Y("case:N").sort(None).title(None))


def _bars(cases: Sequence[Numbers], title: str) -> Any:
    most, guess = cases[0]["attributes"], cases[0]["guessing"]
    x = alt.X("found:Q").title(f"attributes of {most}")
    x = x.scale(domain=[0, most + 1], nice=False).axis(values=list(range(most + 1)))
    base = _cases(cases, found="recovered").encode(x=x)
    numbers = base.mark_text(align="left", dx=12, fontSize=12)
    rule = marks([{"found": guess, "name": f"guessing: {guess:.1f}"}]).encode(x=x)
    names = rule.mark_text(align="left", dx=5, fontSize=12, color=GREEN, baseline="bottom")
    layers = [
        base.mark_bar(height=18, opacity=0.85).encode(color=_series().legend(None)),
        numbers.encode(text=alt.Text("found:Q", format=".1f")),
        rule.mark_rule(strokeDash=[5, 4], strokeWidth=2, color=GREEN),
        names.encode(y=alt.value(0), text="name:N"),
    ]
    return alt.layer(*layers).properties(width=620, height=28 * len(cases), title=title)


def _curves(cases: Sequence[Numbers], title: str) -> Any:
    """True against false positives, with bands of two standard errors."""
    lines, bands = [], []
    notes = [{"f": 0.6, "t": 0.52, "name": "coin toss"}]
    for case in cases:
        name = _series_of(case)
        if not case["alpha"]:
            notes.append({"f": 0.03, "t": 0.95, "name": f"Algorithm 1: {case['right']:.1%} right"})
        for f, seen, most in zip(
            case["false_positives"], case["true_positives"], case["bound"], strict=True
        ):
            lines.append({"f": f, "t": seen, "series": name, "line": ATTACK})
            if case["alpha"]:
                lines.append({"f": f, "t": most, "series": name, "line": ALLOWED})
                spread = 2 * (max(seen * (1 - seen), 1 / case["runs"]) / case["runs"]) ** 0.5
                low, high = max(seen - spread, 0), min(seen + spread, 1)
                bands.append({"f": f, "low": low, "high": high, "series": name})
    share = {"format": ".0%", "values": [0, 0.25, 0.5, 0.75, 1]}
    x = alt.X("f:Q").title("false alarms").axis(**share).scale(domain=[0, 1])
    y = alt.Y("t:Q").title("rows found").axis(**share).scale(domain=[0, 1])
    kinds = alt.StrokeDash("line:N").title(None)
    kinds = kinds.scale(domain=[ATTACK, ALLOWED], range=[[1, 0], [6, 3]])
    chance = marks([{"f": 0, "t": 0}, {"f": 1, "t": 1}]).encode(x=x, y=y)
    texts = marks(notes).mark_text(color="#444444", align="left", fontSize=11)
    area = marks(bands).mark_area(opacity=0.18)
    attacks = marks(lines).mark_line(strokeWidth=2)
    layers = [
        area.encode(x=x, y="low:Q", y2="high:Q", color=_series()),
        chance.mark_line(color=GREY, strokeWidth=1, strokeDash=[2, 2]),
        attacks.encode(x=x, y=y, color=_series(), strokeDash=kinds),
        texts.encode(x=x, y=y, text="name:N"),
    ]
    return alt.layer(*layers).properties(width=WIDTH, height=WIDTH, title=title)


def _series() -> Any:
    """The colour of each mechanism."""
    names, colours = zip(*STYLE.values(), strict=True)
    colour = alt.Color("series:N").title(None).scale(domain=list(names), range=list(colours))
    return colour.legend(symbolType="stroke", symbolOpacity=1)


def _odds(cases: Sequence[Numbers], plain: Sequence[Numbers]) -> Any:
    """Odds that the row is in, 1:1 before: median and 99th of 100 after, and e^epsilon; and what
    runs without noise gave.
    """
    words = "dot: median run; bar: 99 of 100 runs end below its right end; diamond: e^ε."
    for case in plain:
        odds = "certainty" if case["odds"] is None else f"{case['odds']:.3g}:1"
        words += f" Without noise: {odds}."
    high = 1.3 * exp(min(50.0, max(case["epsilon"] for case in cases)))
    ticks = [v for v in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if v <= high]
    x = alt.X("odds:Q").title("odds for the row after the attack (1:1 before)")
    x = x.axis(values=ticks, labelExpr="datum.label + ':1'")
    x = x.scale(type="log", domain=[0.8, high], nice=False)
    base = _cases(cases, odds="odds", high="odds_high", epsilon="epsilon").encode(color=_series())
    limits = base.transform_calculate(most="exp(min(datum.epsilon, 50))").encode(x="most:Q")
    layers = [
        base.mark_rule(strokeWidth=5, opacity=0.35).encode(x=x, x2="high:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x),
        limits.mark_point(shape="diamond", size=80, strokeWidth=2),
    ]
    title = alt.TitleParams("Odds", subtitle=words)
    return alt.layer(*layers).properties(width=2 * WIDTH + 75, height=28 * len(cases), title=title)
