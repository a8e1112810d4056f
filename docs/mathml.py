"""Mathematics as MathML: browsers show it without a script, and nothing is fetched.

A formula that latex2mathml cannot read is a warning, so that ``make docs`` fails.
"""

import re
import unicodedata
from html import escape, unescape
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import Converter
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

log = logging.getLogger(__name__)
BARS = r"\\(lVert|rVert|lvert|rvert|mid)(?![a-zA-Z])"
OPENING, CLOSING = "([{⟨⌈⌊", ")]}⟩⌉⌋"
OPENING_LEAVES = tuple(OPENING)
SCRIPTS = ("msub", "msup", "msubsup", "munder", "mover", "munderover")
THIN = "0.17em"
RELATIONS = "=<>≤≥≪≫≈≠≡∈∉∋⊆⊇∝∼←→↦⇒⪰⪯"
SUMS = "+−±∓"
LONG = 25  # elements of a part of an inline formula


def tree(latex, display):
    """A formula as a ``math`` element; ``display`` is "block" or "inline".

    Raises ValueError where it cannot be read.
    """
    bare = re.sub(r"\\[{}\\]", "", latex)
    if bare.count("{") != bare.count("}"):
        raise ValueError("its braces do not match")
    try:
        text = latex.replace("{aligned}", "{split}")  # which the library has
        math = Converter(display=display).convert_to_element(text)
    except Exception as error:
        raise ValueError(f"{type(error).__name__} {error}".strip()) from error
    del math.attrib["xmlns"]
    for element in math.iter():
        element.text = unescape(element.text or "").translate({ord("⧵"): "∖", ord("~"): "∼"})
        unknown = re.search(r"\\|[&#$^_]", element.text)
        if (
            unknown and element.tag != "mtext" and (element.tag, element.text) != ("mo", "^")
        ):  # a hat
            raise ValueError(f"{element.text} is not known")
    space_operators(math)
    space_bars(math, re.findall(BARS, latex))
    space_signs(math)
    lower_primes(math)
    return math


def space_operators(math):
    """Names of functions, brackets and relations with TeX's spaces, which the library leaves out."""
    for row in list(math.iter()):
        children = list(row)
        for at, child in enumerate(children):
            core = base(child)
            text, before, after = core.text, children[:at], children[at + 1 :]
            if row.tag in SCRIPTS and at == 0:
                continue  # seen with what is before and after it
            if core.tag in ("mi", "mo") and re.fullmatch(r"[^\W\d_]{2,}(\W[^\W\d_]+)?", text):
                first = not before or before[-1].text in OPENING_LEAVES
                last = not after or base(after[0]).text in OPENING_LEAVES
                core.tag = "mo"
                core.attrib |= {"lspace": "0" if first else THIN, "rspace": "0" if last else THIN}
            elif len(text) == 1 and text in OPENING + CLOSING and "fence" not in core.attrib:
                core.tag = "mo"
                form = "prefix" if text in OPENING else "postfix"
                core.attrib |= {"form": form, "stretchy": "false"}
            elif (
                core.tag == "mi"
                and len(text) == 1
                and unicodedata.category(text) == "Sm"
                and text != "∞"
            ):
                core.tag = "mo"
            elif child.tag == "mrow" and len(child) == 1 and child[0].text == ",":  # 30{,}000
                child[0].attrib |= {"lspace": "0", "rspace": "0"}
            elif core.tag == "mn" and core.get("mathvariant") == "bold":
                core.text = "".join(chr(0x1D7CE + int(digit)) for digit in text)
                del core.attrib["mathvariant"]


def base(element):
    """What stands before the scripts of an element."""
    while element.tag in SCRIPTS:
        element = element[0]
    return element


def space_signs(math):
    """No space beside a slash, and none after a sign that has nothing before it."""
    for row in list(math.iter("mrow")) + list(math.iter("mtd")):
        before = "("
        for child in list(row):
            text = child.text if child.tag == "mo" or child.text == ":" else ""
            if text == "/":
                child.attrib |= {"lspace": "0", "rspace": "0"}
            elif text and text in SUMS and before and before in OPENING + RELATIONS + ",;":
                child.attrib |= {"form": "prefix", "lspace": "0", "rspace": "0"}
            elif text == ":" and before == "=":
                row[list(row).index(child) - 1].text = "=:"
                row.remove(child)
            if child.tag != "mspace" and not (child.tag == "mi" and not child.text):
                before = text


def lower_primes(math):
    """Primes beside their letters: in a superscript most fonts show them too small."""
    for element in list(math.iter()):
        if element.tag in ("msup", "msubsup") and set(element[-1].text or "-") <= set("′″‴⁗"):
            letter, prime = element[0], element[-1]
            prime.tag, prime.attrib = "mo", {"class": "prime", "lspace": "0", "rspace": "0"}
            row = ElementTree.Element("mrow")
            row.extend([letter, prime])
            element.remove(letter)
            element.remove(prime)
            if element.tag == "msup":
                element.tag = "mrow"
                element.extend([letter, prime])
            else:
                element.tag = "msub"
                element.insert(0, row)


def space_bars(math, names):
    """Vertical bars as brackets, which MathML's characters alone do not show; ``names`` in order."""
    left = iter(names)
    for element in math.iter("mo"):
        if element.text in ("‖", "|", "∣") and "fence" not in element.attrib:
            name = next(left, "mid")
            element.set("stretchy", "false")
            if name != "mid":
                form = "prefix" if name[0] == "l" else "postfix"
                element.attrib |= {"form": form, "lspace": "0", "rspace": "0"}


def pieces(math):
    """An inline formula in parts, between which a line may end: after relations and signs, within
    brackets only where a part would get long.
    """
    (row,) = math
    parts, depth = [[]], 0
    for child in row:
        parts[-1].append(child)
        leaf = child[0] if len(child) else child
        if leaf.get("form") in ("prefix", "postfix") and leaf.text in OPENING + CLOSING + "‖|":
            depth += 1 if leaf.get("form") == "prefix" else -1
        elif child.tag == "mo" and child.text and child.get("form") is None:
            long = sum(1 for one in parts[-1] for _ in one.iter()) > LONG
            if (child.text in RELATIONS + SUMS + ",") and (depth == 0 or long):
                child.set("form", "infix")
                parts.append([])
    made = []
    for part in filter(None, parts):
        one = ElementTree.Element("math", math.attrib)
        ElementTree.SubElement(one, "mrow").extend(part)
        made.append(one)
    return made


def markup(latex, display, place=None, named=False):
    """The parts of a formula in HTML; a warning, and its source, where it cannot be read.

    ``named`` gives its characters as a name too.
    """
    try:
        math = tree(latex, display)
    except ValueError as error:
        log.warning("formula %r: %s", latex, error, location=place, type="mathml")
        return [f"<code>{escape(latex)}</code>"]
    parts = pieces(math) if display == "inline" else [math]
    for part in parts if named else ():
        part.set("aria-label", "".join(part.itertext()))
    return [ElementTree.tostring(part, encoding="unicode") for part in parts]


def keep_punctuation(app, doctree, name):
    """Brackets and punctuation beside a formula in a line become its own: else a line could end
    between them.
    """
    for node in list(doctree.findall(nodes.math)):
        at = node.parent.index(node)
        beside = node.parent[at - 1] if at else None, *node.parent[at + 1 : at + 2]
        for one, pattern, where in zip(
            beside, (r"[(\[]+$", r"[^\w\s(\[]+"), ("before", "after"), strict=False
        ):
            found = isinstance(one, nodes.Text) and re.search(pattern, one.astext())
            if found and (where == "before" or found.start() == 0):
                node[where] = found[0]
                rest = one.astext()[: found.start()] + one.astext()[found.end() :]
                node.parent.replace(one, nodes.Text(rest))


def visit_inline(self, node):
    """A formula in a line. A table's head may have nothing else to be called by."""
    above = node.parent
    while above is not None and not isinstance(above, nodes.thead):
        above = above.parent
    parts = markup(node.astext(), "inline", node, named=above is not None)
    parts[0] = node.get("before", "") + parts[0]
    parts[-1] += escape(node.get("after", ""))
    kept = [f'<span class="together">{part}</span>' for part in parts]
    self.body.append(f'<span class="math">{"<wbr>".join(kept)}</span>')
    raise nodes.SkipNode


def visit_block(self, node):
    """A formula of its own, with its number if it has a label."""
    self.body.append(self.starttag(node, "div", CLASS="math"))
    (formula,) = markup(node.astext(), "block", node)
    self.body.append(f'<div class="formula">{formula}</div>')
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app):
    """The renderer by its name, for ``html_math_renderer``."""
    app.connect("doctree-resolved", keep_punctuation)
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
