"""Draw what a neighbour sees of a row, from real attacks: python docs/make_neighbour_picture.py

The attacks take about a minute. The picture opens README.md.
"""

from html import escape
from pathlib import Path

from dynadp.research.attacks import look

HERE = Path(__file__).parent / "pictures"
EPSILON = 1.0
WIDTH, TOP, LINE = 960, 150, 31
X = (40, 190, 372, 562, 752)  # left ends of the columns
WIDE = 172
INK, SOFT, RULE, PAPER = "#1b1f24", "#57606a", "#d0d7de", "#ffffff"
SAFE, WARN, READ, OWN = "#00654a", "#8f3600", "#ffe2cc", "#eef1f4"


def words(x, y, text, size=14, colour=INK, weight=400, anchor="start", style="normal"):
    """One line of text."""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" font-weight="{weight}" '
        f'text-anchor="{anchor}" font-style="{style}">{escape(text)}</text>'
    )


def cell(column, row, text, kind):
    """What one column says of one attribute."""
    x, y = X[column], TOP + row * LINE
    fill = {"truth": OWN, "read": READ, "lucky": OWN, "wrong": "none"}[kind]
    box = (
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{LINE - 4}" rx="4" fill="{fill}" '
        f'stroke="{RULE if kind == "wrong" else fill}"/>'
    )
    colour, weight = {
        "truth": (INK, 600),
        "read": (WARN, 700),
        "lucky": (SOFT, 400),
        "wrong": (SOFT, 400),
    }[kind]
    marked = kind in ("read", "lucky")
    mark = words(x + WIDE - 12, y + 19, "✓", 14, colour, 700, "end") if marked else ""
    style = "italic" if kind == "wrong" else "normal"
    return box + words(x + 12, y + 19, text, 14, colour, weight, style=style) + mark


def bar(x, y, share, low, high, colour):
    """A share with its interval."""
    return (
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="9" rx="2" fill="{OWN}"/>'
        f'<rect x="{x}" y="{y}" width="{WIDE * share:.1f}" height="9" rx="2" fill="{colour}"/>'
        f'<path d="M{x + WIDE * low:.1f} {y + 4.5}H{x + WIDE * high:.1f}M{x + WIDE * low:.1f} {y - 2}v13'
        f'M{x + WIDE * high:.1f} {y - 2}v13" stroke="{INK}" stroke-width="1.4" fill="none"/>'
    )


def picture(found):
    """A whole SVG file."""
    plain, noisy = found["plain"], found["noisy"]
    certain, asked = found["certain"], found["asked"]
    names, most = list(plain["example"]), plain["attributes"]
    heads = (
        ("", ""),
        ("The row", "made, nobody's"),
        ("Without noise", "what a neighbour reads"),
        (f"With ε = {found['epsilon']:g}", "what a neighbour reads"),
        ("Plain guessing", "hearing nothing"),
    )
    out = [
        words(40, 50, "What your neighbour sees", 26, weight=700),
        words(
            40,
            76,
            "It hears every message of the run and knows every other row of your node. "
            "Which cells of your row can it read?",
            15,
            SOFT,
        ),
    ]
    for x, (head, below) in zip(X, heads, strict=True):
        out += [words(x + 2, 116, head, 16, weight=700), words(x + 2, 136, below, 12.5, SOFT)]
    for row, name in enumerate(names):
        truth, read, guess = plain["example"][name]
        hidden = noisy["example"][name][1]
        out.append(words(X[0], TOP + row * LINE + 19, name, 14, SOFT))
        out.append(cell(1, row, truth, "truth"))
        lucky = "lucky" if guess == truth else "read"
        for column, text, right in ((2, read, "read"), (3, hidden, lucky), (4, guess, "lucky")):
            out.append(cell(column, row, text, right if text == truth else "wrong"))
    y = TOP + len(names) * LINE + 26
    out.append(f'<path d="M40 {y - 14}H{WIDTH - 40}" stroke="{RULE}"/>')
    out += [
        words(
            X[0], y + 12, f"Of {most} cells, on average over {plain['rows']} rows", 14, weight=700
        ),
        words(X[0], y + 32, "95% interval", 12.5, SOFT),
    ]
    guesses = plain["guessing"], plain["guessing_interval"]
    shown = (
        (plain["recovered"], plain["interval"]),
        (noisy["recovered"], noisy["interval"]),
        guesses,
    )
    for x, colour, (value, ends) in zip(X[2:], (WARN, SAFE, SOFT), shown, strict=True):
        low, high = ends["lower"], ends["upper"]
        out += [
            words(x, y + 12, f"{value:.1f} right", 16, colour, 700),
            words(x + WIDE, y + 12, f"{low:.1f} to {high:.1f}", 12.5, SOFT, anchor="end"),
            bar(x, y + 22, value / most, low / most, high / most, colour),
        ]
    y += 62
    answers = 2 * asked["runs"]
    out += [
        words(X[0], y + 12, "“Was this row in, or its opposite?”", 14, weight=700),
        words(X[0], y + 32, f"right of 100, {answers:,} answers", 12.5, SOFT),
    ]
    ends = asked["interval"]["lower"], asked["interval"]["upper"]
    shown = (
        (certain["right"], "in every run", (certain["right"],) * 2),
        (asked["right"], f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}", ends),
        (0.5, "a coin toss", (0.5, 0.5)),
    )
    for x, colour, (value, note, (low, high)) in zip(X[2:], (WARN, SAFE, SOFT), shown, strict=True):
        out += [
            words(x, y + 12, f"{100 * value:.3g} right", 16, colour, 700),
            words(x + WIDE, y + 12, note, 12.5, SOFT, anchor="end"),
            bar(x, y + 22, value, low, high, colour),
        ]
    out.append(words(X[3], y + 50, f"proved: at most {100 * asked['right_bound']:.1f}", 12.5, SOFT))
    y += 86
    caption = (
        "Orange: read off messages. Grey with ✓: right, as a guess is that hears nothing. "
        "White: wrong.",
        f"The attacks of dynadp attacks on transcripts of {plain['rounds']} rounds among 3 nodes, "
        f"rows made here, a SIMULATION. With noise: noisy sums,",
        f"ε = {noisy['epsilon']:.3g} at δ = 10⁻⁵ over all rounds. An attack that fails proves nothing about better "
        "ones; the bound is the accountant's. docs/attacks.md",
    )
    out += [words(40, y + 18 * i, line, 12.5, SOFT) for i, line in enumerate(caption)]
    height = y + 60
    title = "What your neighbour sees of a row: without noise, with a budget, and by guessing"
    hint = (
        f"Without noise a neighbour reads {plain['recovered']:.1f} of {most} cells of a row, with "
        f"epsilon = {found['epsilon']:g} {noisy['recovered']:.1f}, and plain guessing gets "
        f"{plain['guessing']:.1f}."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="t d" font-family="system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, '
        f'sans-serif"><title id="t">{title}</title><desc id="d">{escape(hint)}</desc>'
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="{PAPER}" '
        f'stroke="{RULE}"/>{"".join(out)}</svg>\n'
    )


if __name__ == "__main__":
    content = picture(look(EPSILON).to_json())
    (HERE / "neighbour.svg").write_text(content, encoding="utf-8")
