"""What a run file may leave open: whose rows they are, who hears whom, who is trusted, and what may
be spent. Every default is what a run file without a word on it means.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from dynadp.consensus import FAMILIES, Topology
from dynadp.errors import DeclarationError
from dynadp.runs.asking import Ask, Question, above_0, as_named, one_of, parts, whole

SHOWN = 40  # names of columns that are listed
ROOM = 1.2  # a cap over one run's epsilon: so that the run does not take the whole of it
Asked = Generator[Question, Any, dict[str, Any]]
SHAPES = {
    "ring": "each hears the one before and the one after",
    "path": "a ring that is open at one place",
    "star": "all hear the first, which hears all",
    "complete": "all hear all",
    "grid": "rows and columns",
}
TRUST = {
    "open": "every member may read each node's noisy sum; nobody has to be honest",
    "sealed": "only the sum over all nodes can be read; so many nodes have to be honest",
}
SPENDING = {
    "cap": "a real run: each node's ledger has a cap, and enters what is spent",
    "simulation": "a trial with seeded noise: no ledger, and nobody is protected",
}


def ask_people(
    ask: Ask, names: Sequence[str] | None, nodes: int, shown: tuple[str, ...] = ()
) -> Asked:
    """Ask whose rows they are.

    Parameters
    ----------
    ask
        Asks what is not known yet.
    names
        Columns that may name a person; None where columns are not known.
    nodes
        How many nodes there are.
    shown
        Lines to show before the first question.
    """

    def column(text: str) -> str:
        name = as_named(text, names or ()) if text.strip() else ""
        if name and names is not None and name not in names:
            known = ", ".join(names[:SHOWN]) or "none"
            raise DeclarationError(
                f"{name!r} is no column that is left; a column of people is no feature, so leave "
                f"it out among the columns (left: {known})"
            )
        return name

    choices = {"": "every row is another person's", **dict.fromkeys(names or (), "")}
    if names is None:
        choices = {}
    elif not names:
        shown = (*shown, _NONE_LEFT)
    person = yield from ask(
        Question("person", _PERSON, column, "", shown, "people", choices, usual=True)
    )
    if not person:
        return {}
    rows = yield from ask(
        Question("rows_per_person", _ROWS, lambda text: whole(text, 1), "1", step="people")
    )
    silos = 1
    if nodes > 1:
        silos = yield from ask(
            Question(
                "silos_per_person", _SILOS, lambda text: whole(text, 1, nodes), "1", step="people"
            )
        )
    return {"person": person, "rows_per_person": rows, "silos_per_person": silos}


def ask_network(ask: Ask, nodes: Sequence[str]) -> Asked:
    """Ask who hears whom, and how many rows each has."""
    graph: str | tuple[tuple[str, str], ...] = "ring"
    if len(nodes) > 1:
        graph = yield from ask(
            Question(
                "graph",
                _GRAPH,
                graph_of(nodes),
                "ring",
                step="network",
                choices=SHAPES,
                usual=True,
            )
        )
    counts = yield from ask(
        Question("counts", _COUNTS, _counts_of(nodes), "", step="network", usual=True)
    )
    return {"graph": graph, "counts": counts}


def ask_trust(ask: Ask, nodes: int) -> Asked:
    """Ask who may read what, and how many have to be honest."""
    if nodes < 2:
        return {}
    trust = yield from ask(
        Question(
            "trust",
            _TRUST,
            lambda text: one_of(text, TRUST),
            "open",
            step="trust",
            choices=TRUST,
            usual=True,
        )
    )
    if trust == "open":
        return {}
    honest = yield from ask(
        Question(
            "honest",
            _HONEST.format(nodes=nodes),
            lambda text: whole(text, 1, nodes - 1),
            str(min(nodes // 2 + 1, nodes - 1)),
            step="trust",
        )
    )
    return {"honest": honest}


def ask_ledgers(ask: Ask, epsilon: float) -> Asked:
    """Ask what may be spent over all runs; nothing of a SIMULATION."""
    seed = yield from ask(
        Question("seed", _SEED, _seed_of, "cap", step="ledgers", choices=SPENDING, usual=True)
    )
    if seed is not None and seed is not False:
        return {"seed": seed}
    cap = yield from ask(
        Question(
            "cap",
            _CAP,
            lambda text: _cap_of(text, epsilon),
            f"{ROOM * epsilon:.3g}",
            step="ledgers",
            usual=True,
        )
    )
    return {"cap": cap}


def graph_of(nodes: Sequence[str]) -> Callable[[str], str | tuple[tuple[str, str], ...]]:
    """Return what makes a family, or pairs A:B, of a text; a graph that cannot be is refused."""

    def parse(text: str) -> str | tuple[tuple[str, str], ...]:
        given = text.strip()
        if ":" not in given:
            if given not in FAMILIES:
                raise DeclarationError(
                    f"{given!r} is neither one of {', '.join(FAMILIES)} nor pairs A:B of nodes"
                )
            Topology.family(given, len(nodes))
            return given
        pairs = tuple(tuple(pair.split(":", 1)) for pair in parts(given))
        for pair in pairs:
            if len(pair) != 2 or not set(pair) <= set(nodes):
                raise DeclarationError(
                    f"{':'.join(pair)!r} is no pair of nodes; expected A:B with two of "
                    f"{', '.join(nodes)}"
                )
        edges = tuple((pair[0], pair[1]) for pair in pairs)
        Topology.from_edges(edges, list(nodes), "edges")
        return edges

    return parse


def _counts_of(nodes: Sequence[str]) -> Callable[[str], dict[str, int]]:
    def parse(text: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for each in parts(text):
            name, _, number = each.rpartition("=")
            if name not in nodes:
                raise DeclarationError(
                    f"{each!r}: expected NAME=N with one of the nodes {', '.join(nodes)}"
                )
            found[name] = whole(number.replace(",", ""), 1)
        if found and (missing := [name for name in nodes if name not in found]):
            raise DeclarationError(
                f"nothing was given for {', '.join(missing)}; give all numbers of rows or none"
            )
        return found

    return parse


def _seed_of(text: str) -> Any:
    """False for a real run: None would be asked again."""
    return 0 if one_of(text, SPENDING) == "simulation" else False


def _cap_of(text: str, epsilon: float) -> float:
    cap = above_0(text)
    if cap < epsilon:
        raise DeclarationError(
            f"the cap is {cap:g}, below the run's epsilon of {epsilon:g}; expected at least that"
        )
    return cap


_PERSON = "Column that says whose row it is; nothing where every row is another person's"
_NONE_LEFT = (
    "No column is left for that: one that names people is no feature, so leave it out among the "
    "columns."
)
_ROWS = "How many rows of one person are used at a node, at most"
_SILOS = "At how many nodes one person may have rows"
_GRAPH = "Who hears whom: ring, path, star, complete, grid, or pairs A:B"
_COUNTS = "Numbers of rows, public, as NAME=N; nothing: they are counted when the run is checked"
_TRUST = "Who may read a node's noisy sum: open, or sealed"
_HONEST = (
    "How many of the {nodes} nodes add their noise and keep their keys; whoever looks is not among "
    "them"
)
_SEED = "A real run with a cap, or a simulation: cap, simulation"
_CAP = "The most that each node may spend over all its runs, epsilon"
