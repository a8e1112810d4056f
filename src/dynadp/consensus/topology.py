"""The network: a connected undirected graph of named nodes (paper, section 2).

Any networkx graph, edge list or GraphML file will do. Random families are thin wrappers over
networkx. To add a family, write a function that returns a networkx graph and enter it in
``FAMILIES``. Edge lists of names and families that are the same every time need no networkx, which
takes a while to import.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from dynadp._arrays import Array
from dynadp._cards import card, graph
from dynadp.errors import DeclarationError, TopologyError

if TYPE_CHECKING:
    import networkx as nx


class _Edges(NamedTuple):
    """A connected graph of so many nodes, as pairs of their positions; each edge once."""

    nodes: int
    pairs: Iterable[tuple[int, int]]


class Topology:
    """P nodes and who exchanges messages with whom.

    Parameters
    ----------
    graph
        Connected, undirected, without self-loops and without weights: the algorithm has one penalty
        for all edges. Weights that are all 1 are fine. Node labels become strings and keep the
        graph's order.
    name
        What to call it in a record.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]  # pairs of positions, each once, the smaller one first

    def __init__(self, graph: "nx.Graph", name: str = "own") -> None:
        import networkx as nx

        if graph.is_directed() or graph.is_multigraph():
            raise TopologyError(
                "the graph is directed or has parallel edges; messages go both ways: give an "
                "nx.Graph"
            )
        if graph.number_of_nodes() == 0:
            raise TopologyError("the graph has no nodes; expected at least one")
        loops = sorted(str(p) for p in nx.nodes_with_selfloops(graph))
        if loops:
            raise TopologyError(
                f"node {loops[0]!r} has an edge to itself; remove self-loops ({len(loops)} found)"
            )
        _refuse_weights(graph)
        self.nodes = tuple(str(p) for p in graph.nodes)
        if len(set(self.nodes)) != len(self.nodes):
            raise TopologyError(
                "two nodes have the same name once written as text; give each its own name"
            )
        components = [[str(p) for p in part] for part in nx.connected_components(graph)]
        if len(components) > 1:
            shown = "; ".join(_some(part) for part in components[:5])
            raise TopologyError(
                f"the graph falls into {len(components)} components "
                f"({shown}{'; ...' if len(components) > 5 else ''}), "
                "so no consensus can be reached; connect them or run them apart"
            )
        self.name = name
        index = {p: i for i, p in enumerate(graph.nodes)}
        self.edges = _in_order((index[u], index[v]) for u, v in graph.edges)

    @classmethod
    def _of(cls, nodes: Sequence[str], pairs: Iterable[tuple[int, int]], name: str) -> "Topology":
        """A graph that is known to be one that this class takes."""
        made = cls.__new__(cls)
        made.nodes, made.edges, made.name = tuple(nodes), _in_order(pairs), name
        return made

    def __len__(self) -> int:
        return len(self.nodes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return (self.nodes, self.edges) == (other.nodes, other.edges)

    def __hash__(self) -> int:
        return hash((self.nodes, self.edges))

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, {len(self)} nodes, {len(self.edges)} edges)"

    def __str__(self) -> str:
        nodes, edges = len(self), len(self.edges)
        return f"{self.name}, {nodes} node{'s' * (nodes != 1)}, {edges} edge{'s' * (edges != 1)}"

    def _repr_html_(self) -> str:
        """The card of a notebook."""
        least, most = self.degrees.min(), self.degrees.max()
        degrees = f"{least:g}" if least == most else f"{least:g} to {most:g}"
        facts = {"nodes": len(self), "edges": len(self.edges), "neighbours of a node": degrees}
        return card(f"Network: {self.name}", facts, picture=graph(self.nodes, self.edges))

    @cached_property
    def adjacency(self) -> csr_array:
        """P x P, 1 where two nodes are neighbours; columns sorted in each row.

        A node that is alone is its own neighbour: eta then pulls it towards its last message, as it
        does on any network whose nodes agree, and rounds are steps of the proximal point method.
        """
        if len(self) == 1:
            return csr_array(np.ones((1, 1)))
        pairs = np.array(self.edges, dtype=np.int32).reshape(-1, 2)
        rows, columns = np.concatenate([pairs, pairs[:, ::-1]]).T
        matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(self), len(self)))
        matrix.sort_indices()
        return matrix

    @cached_property
    def degrees(self) -> Array:
        """N_p, as floats for arithmetic."""
        return np.asarray(np.diff(self.adjacency.indptr), dtype=float)

    def neighbours(self, p: int) -> NDArray[np.int32]:
        """N(p), ascending."""
        rows = self.adjacency
        return np.asarray(rows.indices[rows.indptr[p] : rows.indptr[p + 1]])

    @cached_property
    def spectral_gap(self) -> float:
        """w, the second smallest eigenvalue of I - D^{-1/2} A D^{-1/2}; 1 for a single node.

        Small means slow mixing: about (2 pi/P)^2/2 on a ring, P/(P-1) on a complete graph.
        """
        if len(self) == 1:
            return 1.0
        scale = diags_array(1 / np.sqrt(self.degrees))
        normalised = scale @ self.adjacency @ scale
        if len(self) <= 400:
            return float(np.linalg.eigvalsh(np.eye(len(self)) - normalised.toarray())[1])
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh  # of large networks alone

        options: dict[str, Any] = {
            "v0": np.random.default_rng(0).standard_normal(len(self)),
            "tol": 1e-8,
            "return_eigenvectors": False,
        }
        try:  # a well connected graph: Lanczos needs few products
            return float(1 - min(eigsh(normalised, 2, which="LA", maxiter=60, **options)))
        except ArpackNoConvergence:  # a badly connected one: little fill, so inverting is cheap
            laplacian = (diags_array(np.ones(len(self))) - normalised).tocsc()
            return float(max(eigsh(laplacian, 2, sigma=-1e-6, **options)))

    def named(self, names: Sequence[str]) -> "Topology":
        """The same graph with these names, in the order of its nodes."""
        if len(names) != len(self):
            raise TopologyError(f"{len(names)} names for {len(self)} nodes; expected one each")
        return Topology.from_edges(
            [(names[u], names[v]) for u, v in self.edges], names, name=self.name
        )

    def describe(self) -> dict[str, Any]:
        """Name, nodes and edges, for the run record."""
        return {
            "name": self.name,
            "nodes": list(self.nodes),
            "edges": [list(edge) for edge in self.edges],
        }

    @classmethod
    def family(
        cls,
        name: str,
        nodes: int,
        *,
        degree: int = 4,
        probability: float | None = None,
        seed: int = 0,
    ) -> "Topology":
        """A named family: ring, path, star, complete, grid, random_regular, erdos_renyi or
        small_world.

        Parameters
        ----------
        name
            A key of ``FAMILIES``.
        nodes
            P.
        degree
            Of ``random_regular``, and the number of nearest neighbours of ``small_world``.
        probability
            Of an edge in ``erdos_renyi`` (default 2 ln P/P) or of rewiring in ``small_world``
            (default 0.1).
        seed
            Of the random families. Graphs are public: this seed touches no privacy.
        """
        if name not in FAMILIES:
            raise TopologyError(
                f"unknown topology {name!r}; expected one of {', '.join(sorted(FAMILIES))}"
            )
        if nodes < 1:
            raise TopologyError(f"a network of {nodes} nodes was asked for; expected at least 1")
        if probability is not None and not 0 <= probability <= 1:
            raise DeclarationError(f"probability is {probability!r}; expected a number in [0, 1]")
        graph = FAMILIES[name](nodes, degree, probability, seed) if nodes > 2 else _path(nodes)
        if isinstance(graph, _Edges):
            return cls._of([str(p) for p in range(nodes)], graph.pairs, name)
        return cls(graph, name)

    @classmethod
    def from_edges(
        cls, edges: Iterable[tuple[Any, ...]], nodes: Iterable[Hashable] = (), name: str = "edges"
    ) -> "Topology":
        """The graph of an edge list, pairs of nodes; ``nodes`` fixes the order and may name further
        nodes.
        """
        edges, nodes = list(edges), list(nodes)
        if (plain := _plain(nodes, edges)) is not None:
            return cls._of(*plain, name)
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(nodes)
        for edge in edges:
            if not 2 <= len(edge) <= 3:
                raise TopologyError(
                    f"edge {edge!r} has {len(edge)} entries; expected the names of two nodes"
                )
            more = edge[2] if len(edge) == 3 else {}
            graph.add_edge(*edge[:2], **(more if isinstance(more, dict) else {"weight": more}))
        return cls(graph, name)

    @classmethod
    def from_graphml(cls, path: str | Path) -> "Topology":
        """The graph of a GraphML file."""
        from xml.etree.ElementTree import ParseError

        import networkx as nx

        try:
            graph = nx.read_graphml(path)
        except OSError as error:
            raise TopologyError(f"no GraphML file at {path}: {error.strerror}") from error
        except (ParseError, nx.NetworkXError, ValueError) as error:
            raise TopologyError(f"{path} is not a GraphML file: {error}") from error
        return cls(graph, "graphml")


def _in_order(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs}))


def _plain(
    nodes: list[Hashable], edges: list[tuple[Any, ...]]
) -> tuple[list[str], list[tuple[int, int]]] | None:
    """Return names, and pairs of their positions, where all is as it should be and no more is said
    about an edge; None for anything else.
    """
    names = [*nodes, *(name for edge in edges for name in edge)]
    if not names or not all(type(name) is str for name in names):
        return None
    if any(len(edge) != 2 or edge[0] == edge[1] for edge in edges):
        return None
    index = {name: p for p, name in enumerate(dict.fromkeys(names))}
    pairs = [(index[u], index[v]) for u, v in edges]
    near: list[list[int]] = [[] for _ in index]
    for u, v in pairs:
        near[u].append(v)
        near[v].append(u)
    seen, left = {0}, [0]
    while left:
        new = [j for j in near[left.pop()] if j not in seen]
        seen.update(new)
        left += new
    return ([str(name) for name in index], pairs) if len(seen) == len(index) else None


def _refuse_weights(graph: "nx.Graph") -> None:
    """Refuse weights other than 1, which would change nothing in silence."""
    found = [
        (u, v, w)
        for u, v, more in graph.edges(data=True)
        for k, w in more.items()
        if str(k).lower() == "weight"
    ]
    heavy = [(u, v, w) for u, v, w in found if not is_one(w)]
    if heavy:
        u, v, w = heavy[0]
        raise TopologyError(
            f"the edge between {str(u)!r} and {str(v)!r} has weight {w!r} ({len(heavy)} of "
            f"{graph.number_of_edges()} edges have one other than 1); edges have no weights here, "
            "since the algorithm has one penalty eta for all of them: remove the weights, or set "
            "them all to 1"
        )


def is_one(weight: Any) -> bool:
    """Whether a weight is 1, as a number or a text."""
    try:
        return float(weight) == 1.0
    except (TypeError, ValueError):
        return False


def _path(nodes: int) -> _Edges:
    return _Edges(nodes, pairwise(range(nodes)))


def _ring(nodes: int) -> _Edges:
    return _Edges(nodes, [*pairwise(range(nodes)), (0, nodes - 1)])


def _star(nodes: int) -> _Edges:
    return _Edges(nodes, [(0, p) for p in range(1, nodes)])


def _complete(nodes: int) -> _Edges:
    return _Edges(nodes, combinations(range(nodes), 2))


def _grid(nodes: int) -> _Edges:
    """The most nearly square grid with exactly P nodes, row after row."""
    short = next(s for s in range(isqrt(nodes), 0, -1) if nodes % s == 0)
    width = nodes // short
    along = [(p, p + 1) for p in range(nodes) if (p + 1) % width]
    return _Edges(nodes, along + [(p, p + width) for p in range(nodes - width)])


def _connected(draw: Callable[[int], "nx.Graph"], seed: int, hint: str) -> "nx.Graph":
    """The first connected graph of draw(seed), draw(seed + 1), ...: at most 100."""
    import networkx as nx

    for offset in range(100):
        graph = draw(seed + offset)
        if nx.is_connected(graph):
            return graph
    raise TopologyError(f"100 draws gave no connected graph; {hint}")


def _random_regular(nodes: int, degree: int, _: float | None, seed: int) -> "nx.Graph":
    import networkx as nx

    degree = min(degree, nodes - 1)
    if degree < 2 or nodes * degree % 2:
        raise TopologyError(
            f"no connected {degree}-regular graph with {nodes} nodes exists for certain; "
            "the degree must be at least 2 and nodes times degree even"
        )
    return _connected(
        lambda s: _sorted(nx.random_regular_graph(degree, nodes, seed=s)), seed, "raise the degree"
    )


def _erdos_renyi(nodes: int, _: int, probability: float | None, seed: int) -> "nx.Graph":
    import networkx as nx

    chance = min(1.0, 2 * np.log(nodes) / nodes) if probability is None else probability
    return _connected(
        lambda s: nx.fast_gnp_random_graph(nodes, chance, seed=s), seed, "raise the probability"
    )


def _small_world(nodes: int, degree: int, probability: float | None, seed: int) -> "nx.Graph":
    import networkx as nx

    chance = 0.1 if probability is None else probability
    near = min(degree, nodes - 1)
    return _connected(
        lambda s: nx.watts_strogatz_graph(nodes, near, chance, seed=s), seed, "raise the degree"
    )


def _sorted(graph: "nx.Graph") -> "nx.Graph":
    import networkx as nx

    ordered = nx.Graph()
    ordered.add_nodes_from(sorted(graph.nodes))
    ordered.add_edges_from(graph.edges)
    return ordered


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


FAMILIES: "dict[str, Callable[[int, int, float | None, int], nx.Graph | _Edges]]" = {
    "ring": lambda nodes, *_: _ring(nodes),
    "path": lambda nodes, *_: _path(nodes),
    "star": lambda nodes, *_: _star(nodes),
    "complete": lambda nodes, *_: _complete(nodes),
    "grid": lambda nodes, *_: _grid(nodes),
    "random_regular": _random_regular,
    "erdos_renyi": _erdos_renyi,
    "small_world": _small_world,
}
