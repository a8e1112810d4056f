"""Draw the pictures of docs/trust.md: python docs/make_trust_pictures.py

Each shows three silos, what leaves them, and who reads it.
"""

from pathlib import Path

HERE = Path(__file__).parent / "pictures"
INK, SOFT, LINE, OPEN, HIDDEN = "#1b1f24", "#57606a", "#8c959f", "#b35900", "#0a5c8f"
SILOS = {"your silo": (110, 95), "silo A": (470, 60), "silo B": (470, 230)}


def picture(title, hint, inside):
    """A whole SVG file."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 330" role="img" '
        f'aria-labelledby="t d" font-family="sans-serif" font-size="14"><title id="t">{title}</title>'
        f'<desc id="d">{hint}</desc><defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" '
        f'markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" '
        f'fill="{SOFT}"/></marker></defs><rect width="640" height="330" fill="#ffffff"/>'
        f"{inside}</svg>\n"
    )


def silo(name, rows="rows stay here"):
    """A house with rows in it."""
    x, y = SILOS[name]
    return (
        f'<rect x="{x - 80}" y="{y - 38}" width="160" height="76" rx="6" fill="#f6f8fa" '
        f'stroke="{INK}" stroke-width="1.5"/>{words(x, y - 12, name, weight=700)}'
        f'<rect x="{x - 62}" y="{y + 2}" width="124" height="24" rx="3" fill="#ffffff" '
        f'stroke="{LINE}" stroke-dasharray="3 3"/>{words(x, y + 19, rows, SOFT, 12)}'
    )


def words(x, y, text, colour=INK, size=14, weight=400, anchor="middle"):
    """One line of text."""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{text}</text>'
    )


def arrow(x1, y1, x2, y2, both=True, dashed=False):
    """A message's way."""
    start = ' marker-start="url(#a)"' if both else ""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{SOFT}" stroke-width="1.6" fill="none" '
        f'marker-end="url(#a)"{start}{dash}/>'
    )


def note(x, y, lines, colour, width=190):
    """What somebody sees."""
    tall = 18 * len(lines) + 14
    box = (
        f'<rect x="{x}" y="{y}" width="{width}" height="{tall}" rx="4" fill="#ffffff" '
        f'stroke="{colour}" stroke-width="1.5"/>'
    )
    return box + "".join(
        words(x + 10, y + 22 + 18 * i, line, colour, 13, 700 if i == 0 else 400, "start")
        for i, line in enumerate(lines)
    )


HOUSES = "".join(map(silo, SILOS))
WAYS = arrow(194, 88, 386, 64) + arrow(180, 136, 386, 216) + arrow(470, 102, 470, 188)
PICTURES = {
    "trust-open": picture(
        "Sums in the open, or ADMM",
        "Three silos exchange noisy vectors; every member reads each silo's own.",
        HOUSES
        + WAYS
        + words(290, 60, "your noisy sum", OPEN, 13)
        + note(
            20,
            225,
            [
                "Members read",
                "each silo's noisy sum,",
                "one by one. Its own noise",
                "hides your rows.",
            ],
            OPEN,
            220,
        ),
    ),
    "trust-sealed": picture(
        "Sealed sums",
        "Three silos exchange masked sums; only the sum over all silos can be read.",
        HOUSES
        + WAYS
        + words(290, 60, "your sum, behind masks", HIDDEN, 13)
        + note(
            20,
            215,
            [
                "Members read",
                "one sum over all silos. The noise",
                "of all honest silos hides your",
                "rows. Yours alone: random",
                "numbers.",
            ],
            HIDDEN,
            240,
        ),
    ),
    "trust-relay": picture(
        "Silos behind a relay",
        "A relay carries letters in envelopes that it cannot open.",
        HOUSES
        + arrow(194, 110, 262, 140)
        + arrow(374, 134, 386, 92)
        + arrow(374, 178, 386, 206)
        + f'<rect x="266" y="128" width="108" height="54" rx="27" fill="#eaeef2" stroke="{INK}"/>'
        + words(320, 160, "relay", weight=700)
        + note(
            20,
            225,
            ["The relay sees", "who sends when, and how", "much. It cannot open", "envelopes."],
            HIDDEN,
            220,
        ),
    ),
    "trust-one-place": picture(
        "All rows in one process",
        "One process holds all rows; only messages and the model leave it.",
        f'<rect x="20" y="12" width="600" height="196" rx="8" fill="none" stroke="{OPEN}" '
        f'stroke-width="2" stroke-dasharray="6 4"/>'
        + words(320, 196, "one process, one machine, one user", OPEN, 13, 700)
        + "".join(
            f'<rect x="{x - 80}" y="50" width="160" height="76" rx="6" fill="#f6f8fa" stroke="{INK}"/>'
            + words(x, 82, name, weight=700)
            + words(x, 106, "rows", SOFT, 12)
            for x, name in ((120, "node 1"), (320, "node 2"), (520, "node 3"))
        )
        + arrow(320, 212, 320, 248, both=False)
        + words(320, 268, "model and messages", weight=700)
        + note(
            20,
            232,
            ["Whoever runs it", "sees all rows. Outside,", "the same guarantee", "holds."],
            OPEN,
            200,
        ),
    ),
}


if __name__ == "__main__":
    for name, content in PICTURES.items():
        (HERE / f"{name}.svg").write_text(content, encoding="utf-8")
