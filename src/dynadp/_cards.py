"""Cards by which notebooks show objects: HTML that needs no script, no style and no network."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import cos, isfinite, log10, pi, sin

_EDGE = "1px solid rgba(128,128,128,.45)"
_MOST = 40  # lines of a table
_LONG = 16  # letters of a cell that is broken where there is no room


def card(
    title: str,
    facts: Mapping[str, object] | None = None,
    notes: Iterable[str] = (),
    picture: str = "",
) -> str:
    """Return a card: a title, facts by name, sentences below, and a picture beside.

    Parameters
    ----------
    title, facts, notes
        Plain text; whatever stands in it is shown, and nothing of it is run.
    picture
        HTML, such as that of :func:`graph`, :func:`curve` or :func:`table`.
    """
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal;padding:.1em 1em .1em 0;'
        f'vertical-align:top">{escape(name)}</th>'
        '<td style="text-align:left;overflow-wrap:anywhere">'
        f"{escape(str(value))}</td></tr>"
        for name, value in (facts or {}).items()
        if value not in (None, "")
    )
    lines = "".join(f'<p style="margin:.4em 0 0">{escape(note)}</p>' for note in notes if note)
    return (
        f'<div class="dynadp-card" style="border:{_EDGE};border-radius:6px;padding:.7em 1em;'
        f'max-width:46em;box-sizing:border-box;display:inline-block"><strong>{escape(title)}</strong>'
        f'<table style="margin:.4em 0 0;border-collapse:collapse">{rows}</table>{lines}{picture}'
        "</div>"
    )


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; of many rows the first ones, and how many more there are. Nothing of none."""
    if not rows:
        return ""
    cell = "padding:.1em 1em .1em 0;text-align:left"
    head = "".join(f'<th scope="col" style="{cell}">{escape(name)}</th>' for name in names)
    lines = [
        "".join(f'<td style="{_wrapped(one, cell)}">{escape(str(one))}</td>' for one in row)
        for row in rows[:_MOST]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>and {len(rows) - _MOST} more</p>" if len(rows) > _MOST else ""
    return (
        f'<table style="margin:.5em 0 0;border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>{more}"
    )


def graph(nodes: Sequence[str], edges: Iterable[tuple[int, int]]) -> str:
    """Return nodes on a circle, joined by edges; names where there is room for them."""
    count, middle, radius = len(nodes), 110.0, 78.0
    turn = [2 * pi * p / count - pi / 2 for p in range(count)]
    reach = radius if count > 1 else 0.0
    at = [(middle + reach * cos(t), middle + reach * sin(t)) for t in turn]
    lines = "".join(
        f'<line x1="{at[u][0]:.1f}" y1="{at[u][1]:.1f}" x2="{at[v][0]:.1f}" y2="{at[v][1]:.1f}"/>'
        for u, v in edges
    )
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if count < 60 else 2}"/>' for x, y in at
    )
    away = reach + 12
    names = "".join(
        f'<text x="{middle + away * cos(t):.1f}" y="{middle + away * sin(t) + 3:.1f}" '
        f'text-anchor="{_side(cos(t))}">{escape(name[:14])}</text>'
        for name, t in zip(nodes, turn, strict=True)
        if count <= 16
    )
    return _svg(
        220,
        220,
        f"{count} nodes and who exchanges messages with whom",
        f'<g stroke="currentColor" stroke-opacity=".5">{lines}</g>'
        f'<g fill="currentColor">{dots}</g><g fill="currentColor" font-size="9">{names}</g>',
    )


def curve(values: Sequence[float], words: str) -> str:
    """Return numbers above 0 as a line on a logarithmic axis; nothing where there are none."""
    seen = [(i, log10(v)) for i, v in enumerate(values) if isfinite(v) and v > 0]
    if len(seen) < 2:
        return ""
    low, high = min(y for _, y in seen), max(y for _, y in seen)
    span, last = (high - low) or 1.0, len(values) - 1
    points = " ".join(f"{8 + 304 * i / last:.1f},{72 - 60 * (y - low) / span:.1f}" for i, y in seen)
    line = f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    ends = (
        f'<g fill="currentColor" font-size="9"><text x="8" y="88">{10**low:.3g} to '
        f"{10**high:.3g}, logarithmic</text></g>"
    )
    return _svg(320, 92, words, line + ends) + f'<p style="margin:0">{escape(words)}</p>'


def _svg(wide: int, tall: int, words: str, inside: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" role="img" '
        f'style="display:block;margin-top:.5em"><title>{escape(words)}</title>{inside}</svg>'
    )


def _wrapped(one: object, style: str) -> str:
    """Of a long text, which makes room for the short ones beside it."""
    return f"{style};overflow-wrap:anywhere" if len(str(one)) > _LONG else style


def _side(x: float) -> str:
    return "middle" if abs(x) < 0.3 else "start" if x > 0 else "end"
