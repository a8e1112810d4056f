"""The network as a drawing: every node with its state in shape, colour and words."""

from collections.abc import Mapping
from html import escape
from math import cos, pi, sin

import networkx as nx

from dynadp.consensus import Topology
from dynadp.report.states import LOOKS, State

WIDTH, HEIGHT, MARGIN_X, MARGIN_Y = 420, 340, 75, 60
NAMED = 24  # nodes that are drawn with their names; of more the table tells
LETTERS = 22  # of a name or a state beside a node
OUTLINES = {  # corners of each shape around 0, for a radius of 1
    "square": "-.9,-.9 .9,-.9 .9,.9 -.9,.9",
    "diamond": "0,-1.25 1.25,0 0,1.25 -1.25,0",
    "triangle": "0,-1.2 1.15,.9 -1.15,.9",
    "cross": "-.4,-1.1 .4,-1.1 .4,-.4 1.1,-.4 1.1,.4 .4,.4 .4,1.1 -.4,1.1 -.4,.4 -1.1,.4 -1.1,-.4 "
    "-.4,-.4",
}


def places(topology: Topology) -> list[tuple[float, float]]:
    """Where each node is drawn: small ones and rings on a circle, others by springs."""
    count = len(topology)
    circle = count <= 6 or topology.name in ("ring", "complete") or all(topology.degrees == 2)
    if circle:
        at = [(sin(2 * pi * p / count), -cos(2 * pi * p / count)) for p in _around(topology)]
    else:
        graph = nx.Graph()
        graph.add_nodes_from(range(count))
        graph.add_edges_from(topology.edges)
        found = nx.spring_layout(graph, seed=1, iterations=100)
        far = max(1e-9, max(abs(float(v)) for place in found.values() for v in place))
        at = [(float(found[p][0]) / far, float(found[p][1]) / far) for p in range(count)]
    if count == 1:
        at = [(0.0, 0.0)]
    half_x, half_y = (
        (WIDTH / 2 - MARGIN_X, HEIGHT / 2 - MARGIN_Y)
        if count <= NAMED
        else (HEIGHT / 2 - 12, HEIGHT / 2 - 12)
    )
    return [(round(WIDTH / 2 + x * half_x, 1), round(HEIGHT / 2 + y * half_y, 1)) for x, y in at]


def _around(topology: Topology) -> list[int]:
    """Each node's place on the circle: a ring is drawn as one, whatever the order of its nodes."""
    if not (len(topology) > 2 and all(topology.degrees == 2)):
        return list(range(len(topology)))
    order, last, here = [0], -1, 0
    while len(order) < len(topology):
        last, here = (
            here,
            next(
                int(q)
                for q in topology.neighbours(here)
                if q != last and (len(order) < 2 or q != order[-2])
            ),
        )
        order.append(here)
    return [order.index(p) for p in range(len(topology))]


def drawing(topology: Topology, states: Mapping[str, State]) -> str:
    """The network as SVG."""
    at, small = places(topology), len(topology) > NAMED
    size = 5.0 if small else 11.0
    lines = "".join(
        f'<line x1="{at[u][0]}" y1="{at[u][1]}" x2="{at[v][0]}" y2="{at[v][1]}"/>'
        for u, v in topology.edges
    )
    nodes = []
    for (x, y), name in zip(at, topology.nodes, strict=True):
        state = states[name]
        shape, colour = LOOKS[state.look]
        words = f"<title>{escape(name)}: {escape(state.words)}</title>"
        label = ""
        if not small:
            above = y <= HEIGHT / 2
            first, second = (y - 32, y - 17) if above else (y + 27, y + 42)
            label = (
                f'<text class="name" x="{x}" y="{first:g}">{escape(_short(name))}</text>'
                f'<text x="{x}" y="{second:g}">{escape(_short(state.words))}</text>'
            )
        nodes.append(
            f'<g>{words}<path class="{colour} {shape}" d="{path(shape, x, y, size)}"/>{label}</g>'
        )
    said = escape(in_words(states))
    return (
        f'<svg class="network" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">'
        f'<g class="edges">{lines}</g>{"".join(nodes)}</svg>'
    )


def in_words(states: Mapping[str, State]) -> str:
    """How many nodes are in which state."""
    counts: dict[str, int] = {}
    for state in states.values():
        counts[state.look] = counts.get(state.look, 0) + 1
    said = ", ".join(f"{count} {look}" for look, count in counts.items())
    return f"Network of {len(states)} node{'s' * (len(states) != 1)}: {said}"


def path(shape: str, x: float, y: float, r: float) -> str:
    """The outline of a shape around a point."""
    if shape in ("circle", "ring"):
        return f"M{x - r:g} {y:g}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0z"
    corners = " ".join(
        f"{x + r * float(dx):.1f} {y + r * float(dy):.1f}"
        for dx, dy in (corner.split(",") for corner in OUTLINES[shape].split())
    )
    return f"M{corners}z"


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
