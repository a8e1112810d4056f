"""The network: families, spectral gaps against closed forms, and graphs that cannot carry a
consensus.
"""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, linalg

from dynadp.consensus.topology import FAMILIES, Topology
from dynadp.errors import DeclarationError, TopologyError

RANDOM = ("random_regular", "erdos_renyi", "small_world")


def dense_gap(topology):
    root = np.sqrt(topology.degrees)
    return np.linalg.eigvalsh(
        np.eye(len(topology)) - topology.adjacency.toarray() / np.outer(root, root)
    )[1]


# --------------------------------------------------------------------------------------------------
# families


@pytest.mark.parametrize("nodes", [1, 2, 5, 20])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_family_is_a_simple_connected_graph(name, nodes):
    made = Topology.family(name, nodes)
    adjacency = made.adjacency.toarray()
    assert made.nodes == tuple(str(p) for p in range(nodes))
    assert len(made) == nodes
    assert made.name == name
    np.testing.assert_array_equal(adjacency, adjacency.T)
    np.testing.assert_array_equal(np.diag(adjacency), nodes == 1)
    assert set(adjacency.ravel()) <= {0, 1}
    assert nx.is_connected(nx.from_numpy_array(adjacency))
    np.testing.assert_array_equal(made.degrees, adjacency.sum(axis=1))
    assert made.edges == tuple(
        (p, q) for p in range(nodes) for q in range(p + 1, nodes) if adjacency[p, q]
    )
    assert made.describe() == {
        "name": name,
        "nodes": list(made.nodes),
        "edges": [list(edge) for edge in made.edges],
    }


@pytest.mark.parametrize("nodes", [3, 4, 6, 7, 12, 25, 30])
def test_families_without_networkx_are_its_graphs(nodes):
    short = max(s for s in range(1, nodes) if nodes % s == 0 and s * s <= nodes)
    cells = nx.convert_node_labels_to_integers(
        nx.grid_2d_graph(short, nodes // short), ordering="sorted"
    )
    graphs = {
        "ring": nx.cycle_graph(nodes),
        "path": nx.path_graph(nodes),
        "star": nx.star_graph(nodes - 1),
        "complete": nx.complete_graph(nodes),
        "grid": cells,
    }
    assert {name: Topology.family(name, nodes) for name in graphs} == {
        name: Topology(graph) for name, graph in graphs.items()
    }


names = st.sampled_from("abcdef")


@given(st.lists(st.tuples(names, names), max_size=9), st.lists(names, max_size=6))
def test_edge_lists_without_networkx_are_its_graphs_and_refused_alike(edges, nodes):
    def made(make):
        try:
            return make()
        except TopologyError as error:
            return str(error)

    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    found = made(lambda: Topology.from_edges(edges, nodes, name="own"))
    assert found == made(lambda: Topology(graph))


@pytest.mark.parametrize(
    ("name", "more", "nodes", "degrees"),
    [
        ("ring", {}, 5, [2] * 5),
        ("path", {}, 5, [1, 2, 2, 2, 1]),
        ("star", {}, 5, [4, 1, 1, 1, 1]),
        ("complete", {}, 5, [4] * 5),
        ("complete", {}, 2, [1, 1]),
        ("star", {}, 1, [1]),
        ("grid", {}, 12, [2, 3, 3, 2, 3, 4, 4, 3, 2, 3, 3, 2]),  # 3 x 4
        ("grid", {}, 5, [1, 2, 2, 2, 1]),  # a prime: a path
        ("random_regular", {}, 20, [4] * 20),
        ("random_regular", {"degree": 3}, 20, [3] * 20),
        ("random_regular", {"degree": 99}, 6, [5] * 6),
        ("small_world", {"probability": 0}, 20, [4] * 20),
        ("erdos_renyi", {"probability": 1}, 6, [5] * 6),
    ],
)
def test_degrees(name, more, nodes, degrees):
    assert Topology.family(name, nodes, **more).degrees.tolist() == degrees


@pytest.mark.parametrize("name", RANDOM)
def test_random_family_is_a_function_of_its_seed(name):
    one, again, other = (Topology.family(name, 30, seed=seed) for seed in (5, 5, 6))
    assert one.edges == again.edges
    assert one.edges != other.edges


def test_random_family_draws_until_connected():
    seeds = [
        s for s in range(40) if not nx.is_connected(nx.fast_gnp_random_graph(12, 0.25, seed=s))
    ]
    assert seeds  # some of these draws are useless ...
    for seed in seeds:
        assert (
            len(Topology.family("erdos_renyi", 12, probability=0.25, seed=seed)) == 12
        )  # ... and are drawn again


@pytest.mark.parametrize(
    ("name", "nodes", "more", "error", "message"),
    [
        (
            "torus",
            5,
            {},
            TopologyError,
            "unknown topology 'torus'; expected one of complete, erdos_renyi, grid",
        ),
        ("ring", 0, {}, TopologyError, "a network of 0 nodes was asked for; expected at least 1"),
        ("ring", -3, {}, TopologyError, "a network of -3 nodes"),
        (
            "random_regular",
            5,
            {"degree": 3},
            TopologyError,
            "no connected 3-regular graph with 5 nodes .* even",
        ),
        (
            "random_regular",
            6,
            {"degree": 1},
            TopologyError,
            "no connected 1-regular graph .* degree must be at least 2",
        ),
        (
            "erdos_renyi",
            9,
            {"probability": 0},
            TopologyError,
            "100 draws gave no connected graph; raise the probability",
        ),
        (
            "small_world",
            9,
            {"degree": 1},
            TopologyError,
            "100 draws gave no connected graph; raise the degree",
        ),
        (
            "erdos_renyi",
            9,
            {"probability": 1.5},
            DeclarationError,
            r"probability is 1.5; expected a number in \[0, 1\]",
        ),
        ("small_world", 9, {"probability": float("nan")}, DeclarationError, "probability is nan"),
    ],
)
def test_family_refusals(name, nodes, more, error, message):
    with pytest.raises(error, match=message):
        Topology.family(name, nodes, **more)


# --------------------------------------------------------------------------------------------------
# spectral gap


@pytest.mark.parametrize("nodes", [3, 5, 20, 101])
@pytest.mark.parametrize(
    ("name", "gap"),
    [
        ("ring", lambda P: 1 - np.cos(2 * np.pi / P)),
        ("complete", lambda P: P / (P - 1)),
        ("star", lambda P: 1.0),
        ("path", lambda P: 1 - np.cos(np.pi / (P - 1))),
    ],
)
def test_gap_is_the_closed_form(name, gap, nodes):
    assert Topology.family(name, nodes).spectral_gap == pytest.approx(gap(nodes), rel=1e-10)


def test_gap_of_the_smallest_networks():
    assert Topology.family("ring", 1).spectral_gap == 1.0
    assert Topology.family("ring", 2).spectral_gap == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("graph", "inverted"),
    [
        (nx.random_regular_graph(6, 450, seed=2), False),
        (nx.star_graph(449), False),
        (nx.barbell_graph(210, 0), False),
        (nx.cycle_graph(1000), True),
        (nx.path_graph(450), True),
        (nx.convert_node_labels_to_integers(nx.grid_2d_graph(5, 100)), False),
    ],
    ids=["regular", "star", "barbell", "ring", "path", "grid"],
)
def test_gap_of_a_large_network_is_that_of_the_dense_matrix(graph, inverted, monkeypatch):
    calls, real = [], linalg.eigsh

    def eigsh(*arguments, **options):
        calls.append("sigma" in options)
        return real(*arguments, **options)

    monkeypatch.setattr(linalg, "eigsh", eigsh)
    made = Topology(graph)
    assert made.spectral_gap == pytest.approx(dense_gap(made), rel=1e-6)
    assert any(calls) == inverted


@given(st.integers(3, 12), st.integers(0, 10_000))
def test_gap_does_not_depend_on_the_order_of_nodes(nodes, seed):
    graph = Topology.family("erdos_renyi", nodes, seed=seed)
    order = np.random.default_rng(seed).permutation(nodes)
    shuffled = Topology.from_edges([(order[p], order[q]) for p, q in graph.edges])
    assert shuffled.spectral_gap == pytest.approx(graph.spectral_gap, abs=1e-12)


# --------------------------------------------------------------------------------------------------
# own graphs


def test_edge_list_keeps_the_order_of_nodes():
    made = Topology.from_edges([("c", "a"), ("b", "c"), ("a", "c")], nodes=["a", "b", "c"])
    assert made.nodes == ("a", "b", "c")
    assert made.edges == ((0, 2), (1, 2))
    assert made.neighbours(2).tolist() == [0, 1]
    assert made.neighbours(0).tolist() == [2]
    assert repr(made) == "Topology('edges', 3 nodes, 2 edges)"
    assert str(made) == "edges, 3 nodes, 2 edges"
    assert str(Topology.family("ring", 1)) == "ring, 1 node, 0 edges"


@given(st.permutations([(p, q) for p in range(6) for q in range(p) if (p + q) % 3]))
def test_neighbours_are_sorted_however_edges_came(edges):
    made = Topology.from_edges(
        [edge[:: -1 if i % 2 else 1] for i, edge in enumerate(edges)], range(6)
    )
    assert made.adjacency.has_sorted_indices
    for p in range(6):
        assert made.neighbours(p).tolist() == [q for q in range(6) if q != p and (p + q) % 3]


def test_alone_with_itself():
    made = Topology.from_edges([], nodes=["only"])
    assert (made.edges, made.degrees.tolist(), made.adjacency.shape) == ((), [1.0], (1, 1))
    assert made.neighbours(0).tolist() == [0]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.DiGraph([(1, 2)]), "directed or has parallel edges"),
        (nx.MultiGraph([(1, 2), (1, 2)]), "directed or has parallel edges"),
        (nx.Graph(), "the graph has no nodes; expected at least one"),
        (
            nx.Graph([(1, 2), (2, 2), (1, 1)]),
            r"node '1' has an edge to itself; remove self-loops \(2 found\)",
        ),
        (nx.Graph([(1, "1")]), "two nodes have the same name once written as text"),
        (
            nx.Graph([("a", "b"), ("d", "c")]),
            r"falls into 2 components \(a, b; c, d\), so no consensus can be reached",
        ),
        (
            nx.Graph([*nx.path_graph(8).edges, ("x", "y")]),
            r"2 components \(0, 1, 2, 3, 4 and 3 more; x, y\)",
        ),
        (nx.empty_graph(7), r"falls into 7 components \(0; 1; 2; 3; 4; \.\.\.\)"),
    ],
)
def test_graph_refusals(graph, message):
    with pytest.raises(TopologyError, match=message):
        Topology(graph)


def test_graphml_round_trip(tmp_path):
    path = tmp_path / "net.graphml"
    nx.write_graphml(
        nx.Graph([("north", "east"), ("east", "south"), ("north", "south"), ("south", "west")]),
        path,
    )
    for given_ in (path, str(path)):
        made = Topology.from_graphml(given_)
        assert made.nodes == ("north", "east", "south", "west")
        assert made.edges == ((0, 1), (0, 2), (1, 2), (2, 3))
        assert made.name == "graphml"


HEAD = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no GraphML file at"),
        (b"", "is not a GraphML file"),
        (b"north,south\n", "is not a GraphML file"),
        (b"\x89PNG\x00\xff", "is not a GraphML file"),
        (b"<html></html>", "is not a GraphML file"),
        (
            (
                f'{HEAD}<graph edgedefault="directed"><edge source="a" target="b"/></graph>'
                "</graphml>"
            ).encode(),
            "directed",
        ),
        (
            f'{HEAD}<graph edgedefault="undirected"></graph></graphml>'.encode(),
            "the graph has no nodes",
        ),
        (
            f'{HEAD}<key id="k" for="node" attr.name="rows" attr.type="int"/><graph '
            f'edgedefault="undirected">'
            '<node id="a"><data key="k">many</data></node></graph></graphml>'.encode(),
            "is not a GraphML file",
        ),
    ],
    ids=["missing", "empty", "text", "binary", "html", "directed", "nodeless", "mistyped"],
)
def test_graphml_refusals(tmp_path, content, message):
    path = tmp_path / "net.graphml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TopologyError, match=message):
        Topology.from_graphml(path)


def test_graphml_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(TopologyError, match="GraphML"):
        Topology.from_graphml(tmp_path)


def weighted(*weights, name="weight"):
    graph = nx.path_graph(len(weights) + 1)
    for (u, v), weight in zip(list(graph.edges), weights, strict=True):
        graph.edges[u, v][name] = weight
    return graph


@pytest.mark.parametrize("weight", [2, 0.5, 0, -1.0, float("nan"), "3", "heavy", None])
@pytest.mark.parametrize("name", ["weight", "Weight"])
def test_weights_of_edges_are_refused(weight, name):
    with pytest.raises(
        TopologyError,
        match=r"between '1' and '2' has weight .* \(1 of 2 edges .*one penalty eta.*: remove",
    ):
        Topology(weighted(1, weight, name=name))


@pytest.mark.parametrize("weight", [1, 1.0, "1", np.float64(1), True])
def test_weights_of_one_say_nothing(weight):
    assert Topology(weighted(weight, weight)).edges == ((0, 1), (1, 2))


def test_other_attributes_of_edges_are_nobodys_business():
    assert Topology(weighted("red", 7, name="colour")).edges == ((0, 1), (1, 2))


def test_adjacency_matrices_and_edge_lists_with_weights_are_refused(tmp_path):
    matrix = np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    assert len(Topology(nx.from_numpy_array(matrix)).edges) == 2
    (tmp_path / "edges.txt").write_text("a b 1\nb c 2.5\n")
    nx.write_graphml(weighted(1.0, 4.0), tmp_path / "graph.graphml")
    for make in (
        lambda: Topology(nx.from_numpy_array(matrix * 3)),
        lambda: Topology(nx.from_scipy_sparse_array(csr_array(matrix * 0.5))),
        lambda: Topology(nx.read_weighted_edgelist(tmp_path / "edges.txt")),
        lambda: Topology.from_graphml(tmp_path / "graph.graphml"),
        lambda: Topology.from_edges([("a", "b"), ("b", "c", 2.5)]),
        lambda: Topology.from_edges([("a", "b"), ("b", "c", {"weight": 2.5})]),
    ):
        with pytest.raises(TopologyError, match="edges have no weights here"):
            make()
    assert Topology.from_edges([("a", "b", 1), ("b", "c", {"weight": 1})]).edges == ((0, 1), (1, 2))


@pytest.mark.parametrize("edge", [("a",), ("a", "b", 1, 2)])
def test_an_edge_has_two_ends(edge):
    with pytest.raises(TopologyError, match="expected the names of two nodes"):
        Topology.from_edges([("a", "b"), edge])
