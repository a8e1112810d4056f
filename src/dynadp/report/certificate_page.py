"""A certificate on one page of A4: text set line by line in an SVG, which becomes a PDF."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any

from dynadp.privacy import upper_bound

WIDE, TALL, MARGIN, BOTTOM = 595, 842, 56, 36  # points
FONT = "Arimo, Liberation Sans, DejaVu Sans, sans-serif"
INK, SOFT, ALARM = "#1b1f24", "#57606a", "#9a2a00"
SIZES = {"title": 19.0, "heading": 11.5, "text": 9.2, "small": 7.6, "guarantee": 11.0}
MOST = 14  # lines of a list, before "and so many more"
VALUES = 60  # letters of a list of values that is shown
IN_THE_OPEN = (
    "Nobody but the node that holds the row. Its own noise hides the row, whatever all others do, "
    "and whoever of them work together."
)

Line = tuple[str, str, str]  # a kind of text, its colour, its words


def pdf(content: Mapping[str, Any]) -> bytes:
    """Return the page of a certificate."""
    import vl_convert

    made: bytes = vl_convert.svg_to_pdf(svg(content))
    return made


def svg(content: Mapping[str, Any]) -> str:
    """Return the page as SVG; what does not fit is left to the JSON, and said so."""
    for most in (MOST, 8, 4, 2, 1):
        lines, y = _set(content, most)
        if y <= TALL - BOTTOM:
            break
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{TALL}" '
        f'viewBox="0 0 {WIDE} {TALL}" font-family="{FONT}">'
        f'<rect width="{WIDE}" height="{TALL}" fill="#ffffff"/>{lines}</svg>'
    )


def _set(content: Mapping[str, Any], most: int) -> tuple[str, float]:
    """Set all lines below each other; return them, and where the page ends."""
    out, y = [], float(MARGIN)
    for kind, colour, words in _lines(content, most):
        size = SIZES[kind]
        weight = 700 if kind in ("title", "heading", "guarantee") else 400
        y += size * (1.9 if kind == "heading" else 0.0)
        hanging = "   " if words.startswith("-") else ""
        wide = int((WIDE - 2 * MARGIN) / (size * (0.56 if weight == 700 else 0.5)))
        for line in wrap(words, wide, subsequent_indent=hanging) or [""]:
            text = escape(line.strip())
            x = MARGIN + (8 if line.startswith(" ") else 0)
            out.append(
                f'<text x="{x}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
                f'fill="{colour}">{text}</text>'
            )
            y += size * 1.36
        y += 2
    return "".join(out), y


def _lines(content: Mapping[str, Any], most: int) -> Iterator[Line]:
    """Yield the page's words from top to bottom."""
    run, hashes = content["run"], content["hashes"]
    yield "title", INK, "Certificate of a run"
    yield "text", SOFT, f"{run['name']}, begun {run['began']}; {run['rows']}."
    if content["simulation"]:
        yield (
            "heading",
            ALARM,
            "SIMULATION: this run protects nobody. Rely on nothing here.",
        )
    if not run["finished"]:
        yield "heading", ALARM, "The run is not finished. What it costs is what was planned."
    yield "heading", INK, "What is promised"
    yield "guarantee", INK, content["guarantee"]
    if content["unit"] is not None:
        yield "text", INK, f"To whom: anybody with {content['unit']['words']}."
    if content["members"]:
        yield "text", INK, content["members"]
    if (honest := content["honest"]) is not None:
        yield "heading", INK, "Who must be honest"
        yield "text", INK, honest["words"]
        if honest["otherwise"]:
            yield "text", INK, f"If more collude, epsilon is {honest['otherwise']}."
    elif content["epsilon"] is not None:
        yield "heading", INK, "Who must be honest"
        yield "text", INK, IN_THE_OPEN
    yield "heading", INK, "What was declared"
    yield from _declared(content["declared"], most)
    yield "heading", INK, "Ledgers"
    yield from _ledgers(content, most)
    yield "heading", INK, "What is not covered"
    yield "text", INK, content["not_covered"]
    yield "heading", INK, "What this is about"
    yield "small", SOFT, f"configuration {hashes['configuration']}"
    yield "small", SOFT, f"schema {hashes['schema']}"
    models = [f"model {home} {one or 'not written'}" for home, one in hashes["models"].items()]
    for words in _few(models, most, "models"):
        yield "small", SOFT, words
    yield "heading", INK, "Signature"
    yield from _signature(content)


def _declared(declared: Mapping[str, Any], most: int) -> Iterator[Line]:
    rows = [f"{node} {count:,}" for node, count in declared["rows"].items()]
    yield "text", INK, f"Rows: {'; '.join(_few(rows, 4 * most, 'nodes'))}."
    if "norm" in declared:
        yield "text", INK, f"Longest row: {declared['norm']:g}, in units of the scaled columns."
    if declared.get("person"):
        yield "text", INK, f"Whose row it is: column {declared['person']}."
    for answer in ("label", "target"):
        if found := declared.get(answer):
            yield "text", INK, f"What is predicted: {_answer(found)}."
    columns = [_column(one) for one in declared.get("columns", ())]
    if columns:
        yield "text", INK, f"Columns: {'; '.join(_few(columns, 2 * most, 'columns'))}."


def _column(column: Mapping[str, Any]) -> str:
    """A column with its bounds, or with its values, or how many there are."""
    name = str(column.get("name", column["kind"]))
    if "low" in column and "high" in column:
        return f"{name} from {_bound(column['low'])} to {_bound(column['high'])}"
    if values := column.get("values"):
        listed = ", ".join(map(str, values))
        return f"{name} ({listed})" if len(listed) <= VALUES else f"{name}, {len(values)} values"
    return f"{name}, {column['kind']}"


def _answer(answer: Mapping[str, Any]) -> str:
    """The label with its values, or the target with its bounds."""
    values = answer.get("values") or [answer.get("negative"), answer.get("positive")]
    if values[0] is not None:
        answer = {**answer, "values": values}
    return _column({"kind": "label", **answer})


def _bound(given: Any) -> str:
    """A declared bound: a number, or a day."""
    return f"{given:g}" if isinstance(given, int | float) else str(given)


def _ledgers(content: Mapping[str, Any], most: int) -> Iterator[Line]:
    lines = []
    for node, found in content["ledgers"].items():
        if "problem" in found:
            lines.append(f"- {node}: {found['problem']}")
            continue
        cap = found["cap"]
        said = "no cap"
        if cap is not None:
            said = (
                f"lost so far, by all runs, at most epsilon = {upper_bound(found['lost'])} of its "
                f"cap {cap['epsilon']:g} at delta = {cap['delta']:g}"
            )
        lines.append(f"- {node}: {said}; head {found['head']}")
    for words in _few(lines, most, "ledgers"):
        yield "small", INK, words
    if unread := content["ledgers_not_read"]:
        yield "small", SOFT, f"Not read: {', '.join(_few(unread, 4 * most, 'nodes'))}."


def _signature(content: Mapping[str, Any]) -> Iterator[Line]:
    if "signature" not in content:
        yield "text", ALARM, "Nobody signed this certificate. Anybody could have written it."
    else:
        yield "text", INK, f"Signed by {content['signer']} with {content['key']}"
        yield "small", SOFT, content["signature"]
        yield (
            "text",
            INK,
            "The signature covers the JSON file beside this page, where dynadp verify checks it. "
            "On the page it proves nothing.",
        )
    yield "small", SOFT, f"Made {content['made']} by {content['software']}."


def _few(items: Sequence[str], most: int, noun: str) -> list[str]:
    """Return the first items, and how many more there are."""
    if len(items) <= most:
        return list(items)
    return [*items[:most], f"and {len(items) - most} more {noun}, in the JSON file"]
