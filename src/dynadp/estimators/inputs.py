"""The estimator's inputs: the node and the class of each row, and the bound on ready features."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, diags_array, hstack, issparse, vstack

from dynadp import _require
from dynadp._arrays import Array, Rows
from dynadp.consensus import Topology
from dynadp.data import Shard, ambiguous, match, norms
from dynadp.errors import CellError, DataError, DeclarationError
from dynadp.mechanisms import Draws, entropy_for


def bound_features(X: Rows, norm: float, intercept: bool) -> tuple[Rows, Array]:
    """z = (x/norm, 1)/sqrt(2), or x/norm without an intercept, divided by max(1, ||z||); and u with
    f.z = sum f_j u_j x_j.

    The one way in which ready features are bounded for a declared ``data_norm``. The intercept has
    a share of the norm of its own, so a row within ``norm`` is not clipped. A longer one is scaled
    as a whole, so that no sign of f.z changes.

    Parameters
    ----------
    X
        n x d, dense or CSR.
    norm
        Public bound on ||x||.
    intercept
        Whether to append the constant.
    """
    length = sqrt(2.0) if intercept else 1.0
    X = (
        csr_array((np.clip(X.data, -1e100, 1e100), X.indices, X.indptr), X.shape)
        if issparse(X)
        else np.clip(X, -1e100, 1e100)
    )
    units = np.full(X.shape[1] + intercept, 1 / (norm * length))
    Z = X / (norm * length)
    if intercept:
        units[-1] = 1 / length
        ones = np.full((X.shape[0], 1), 1 / length)
        Z = (
            hstack([csr_array(Z), csr_array(ones)], format="csr")
            if issparse(Z)
            else np.hstack([Z, ones])
        )
    scale = 1 / np.maximum(norms(Z), 1.0)
    return (diags_array(scale) @ Z).tocsr() if issparse(Z) else Z * scale[:, None], units


def encode_classes(
    y: NDArray[Any], declared: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the classes, sorted, and each row's position among them.

    Parameters
    ----------
    y
        Labels.
    declared
        The label values, compared with y by :func:`~dynadp.data.values.match`; None to read them
        off y.
    """
    if declared is None:
        classes, codes = np.unique(y, return_inverse=True)
    else:
        classes = np.unique(np.asarray(declared))
        if ambiguous(classes.tolist()):
            raise DeclarationError(
                "classes: a label could be two of them; expected different label values"
            )
        codes = match(y, classes)
        if (codes < 0).any():
            numbers = y.dtype.kind in "iu" and classes.dtype.kind not in "iufb"
            advice = "; cross_val_predict and stacking replace labels by 0, 1, ...: declare these"
            what = f"the label is none of the declared classes{advice if numbers else ''}"
            raise CellError("y", int(np.argmin(codes)), what)
    if len(classes) < 2:
        raise DataError(
            "there is only one class; expected two or more. Declare classes= where y may lack one "
            "of them"
        )
    return classes, codes


def assign_nodes(
    topology: Any, nodes: int, rows: int, labels: ArrayLike | None, *, empty: bool = False
) -> tuple[Topology, NDArray[np.intp]]:
    """Return the network and the position of each row's node in it; refuse a node without rows.

    Parameters
    ----------
    topology
        A family's name, a :class:`~dynadp.consensus.topology.Topology` or a networkx graph.
    nodes
        How many nodes a family has, where no labels say so.
    rows
        How many rows there are.
    labels
        The node of each row; None for row i at node i mod P, a rule that looks at no row.
    empty
        Whether a node may have no rows, because their number stays secret.
    """
    family = topology if isinstance(topology, str) else None
    network = graph(topology) if family is None else None
    if labels is None:
        if network is None:
            _require.whole("nodes", nodes)
        network = network or Topology.family(str(family), int(nodes))
        owner = np.arange(rows) % len(network)
    else:
        found, owner = np.unique(np.asarray(labels), return_inverse=True)
        if owner.shape != (rows,):
            raise DataError(
                f"nodes has shape {owner.shape} for {rows} rows; expected the node of each row"
            )
        names = [str(label) for label in found]
        if network is None:
            network = Topology.family(str(family), len(names)).named(names)
        if not set(names) <= set(network.nodes):
            raise DeclarationError(
                f"nodes= names one that the network does not have; it has "
                f"{', '.join(sorted(network.nodes))}"
            )
        owner = np.array([network.nodes.index(name) for name in names])[owner]
    if not empty:
        require_rows_at(network, owner, f"n_samples={rows}")
    return network, owner


def require_rows_at(network: Topology, owner: NDArray[np.intp], rows: str = "people") -> None:
    """Refuse a node without rows."""
    counts = np.bincount(owner, minlength=len(network))
    if not counts.all():
        empty = network.nodes[int(np.argmin(counts))]
        raise DataError(
            f"node {empty!r} has no row: {rows} for {len(network)} nodes; every node needs one"
        )


def require_places(topology: Any, nodes: int, labels: ArrayLike | None) -> None:
    """Refuse to split rows over nodes by their order where their number stays secret: one more row
    would move all that follow it to other nodes.
    """
    if labels is None and (isinstance(topology, str) and nodes == 1):
        return
    if labels is None or isinstance(topology, str):
        raise DeclarationError(
            "adjacency is 'add-remove', and which node a row is at, or which nodes there are, "
            "would depend on other rows: give a Topology with named nodes, and nodes= in fit, or "
            "one node (nodes=1)"
        )


def graph(topology: Any) -> Topology:
    """Return the topology, or that of a networkx graph."""
    if isinstance(topology, Topology | nx.Graph):
        return topology if isinstance(topology, Topology) else Topology(topology)
    raise DeclarationError(
        f"topology is {topology!r}; expected a family's name, a Topology or a networkx graph"
    )


def concatenate(parts: Sequence[Any], topology: Any) -> tuple[Rows, NDArray[Any], NDArray[Any]]:
    """Return X, y and the node of each row, from one (X, y) or Shard for each node, in the
    network's order.

    Parameters
    ----------
    parts
        All pairs, or all shards.
    topology
        As for :func:`assign_nodes`; the nodes of a family are named 0, 1, ...
    """
    pairs = [(_unsigned(p), p.y) if isinstance(p, Shard) else p for p in parts]
    if any(len(pair) != 2 for pair in pairs) or len({isinstance(p, Shard) for p in parts}) > 1:
        raise DataError(
            "X is a list of different things; expected one (X, y) for each node, or one Shard for "
            "each"
        )
    X = [x if issparse(x) else np.asarray(x) for x, _ in pairs]
    if any(x.ndim != 2 or x.shape[1] != X[0].shape[1] for x in X):
        raise DataError(
            "nodes differ in their number of columns; expected the same features at each"
        )
    owner: NDArray[Any] = np.repeat(np.arange(len(parts)), [x.shape[0] for x in X])
    if not isinstance(topology, str):
        names = graph(topology).nodes
        if len(names) != len(parts):
            raise DeclarationError(
                f"{len(parts)} parts for {len(names)} nodes; expected one for each, in the "
                f"graph's order"
            )
        owner = np.array(names)[owner]
    rows = (
        vstack([csr_array(x) for x in X], format="csr")
        if any(map(issparse, X))
        else np.concatenate(X)
    )
    return rows, np.concatenate([np.asarray(y) for _, y in pairs]), owner


def _unsigned(shard: Shard) -> Rows:
    """The rows x_i of a shard."""
    if shard.kind != "signs":
        return shard.signed
    rows: Rows = shard.signed * shard.y[:, None]
    return rows


def entropy_of(random_state: Any) -> Draws:
    """Where noise comes from: the operating system, or a seed."""
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(2**31 - 1))
    return entropy_for(random_state)
