"""The network as a drawing: every node with its state in shape, colour and words."""

from collections import Counter
from collections.abc import Mapping
from html import escape

import networkx as nx

from dynadp.consensus import Topology
from dynadp.report.states import LOOKS, State

WIDTH, HEIGHT, MARGIN_X, MARGIN_Y = 420, 340, 75, 60
NAMED = 24  # nodes that are drawn with their names; of more the table has them
DENSE = 200  # edges; more are drawn thin, or one could not be told from another
LETTERS = 22  # of a name or a state beside a node
ROUND = "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z"
OUTLINES = {  # of each shape, around 0
    "circle": ROUND,
    "ring": ROUND,
    "square": "M-.9-.9H.9V.9H-.9z",
    "diamond": "M0-1.25 1.25 0 0 1.25-1.25 0z",
    "triangle": "M0-1.2 1.15.9-1.15.9z",
    "cross": "M-.4-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4z",
}


def layout(topology: Topology) -> list[tuple[float, float]]:
    """Where each node is, within 1 of the middle: few nodes and rings on a circle from the top,
    others by springs.
    """
    graph = nx.empty_graph(len(topology))
    graph.add_edges_from(topology.edges)
    if len(topology) <= 6 or topology.name in ("ring", "complete") or all(topology.degrees == 2):
        # neighbours stand side by side, whatever the order of the nodes
        found = nx.circular_layout(list(nx.dfs_preorder_nodes(graph, 0)))
    else:
        found = nx.spring_layout(graph, seed=1, iterations=100)
    return [(float(y), float(x)) for x, y in (found[p] for p in range(len(topology)))]


def places(topology: Topology) -> list[tuple[float, float]]:
    """Where each node is drawn, in pixels from the upper left corner."""
    half_x = half_y = HEIGHT / 2 - 12
    if len(topology) <= NAMED:
        half_x, half_y = WIDTH / 2 - MARGIN_X, HEIGHT / 2 - MARGIN_Y
    return [
        (round(WIDTH / 2 + x * half_x, 1), round(HEIGHT / 2 - y * half_y, 1))
        for x, y in layout(topology)
    ]


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
            first, second = (y - 32, y - 17) if y <= HEIGHT / 2 else (y + 27, y + 42)
            label = (
                f'<text class="name" x="{x}" y="{first:g}">{escape(_short(name))}</text>'
                f'<text x="{x}" y="{second:g}">{escape(_short(state.words))}</text>'
            )
        nodes.append(
            f'<g>{words}<path class="{colour} {shape}" d="{OUTLINES[shape]}" '
            f'transform="translate({x} {y}) scale({size})" vector-effect="non-scaling-stroke"/>'
            f"{label}</g>"
        )
    return (
        f'<svg class="network" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(in_words(states))}">'
        f'<g class="edges{" thin" if len(topology.edges) > DENSE else ""}">{lines}</g>'
        f"{''.join(nodes)}</svg>"
    )


def in_words(states: Mapping[str, State]) -> str:
    """How many nodes are in which state."""
    counts = Counter(state.look for state in states.values())
    nodes = "1 node" if len(states) == 1 else f"{len(states)} nodes"
    listed = ", ".join(f"{count} {look}" for look, count in counts.items())
    return f"Network of {nodes}: {listed}"


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
