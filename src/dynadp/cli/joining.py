"""``dynadp tradeoff --join``: should a node join, or stay alone?"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from dynadp import privacy, report, research
from dynadp.cli.output import Answer, new_folder, write_json

if TYPE_CHECKING:
    from rich.table import Table

    from dynadp.mechanisms import Sealed
    from dynadp.report import PublicSetting
    from dynadp.research import JoinAnswer, NodeAnswer, Spread

SHOWN = 5  # names in a line
FEW = 8  # draws that quantiles need to mean something


def answer_join(
    setting: "PublicSetting",
    draws: int,
    seed: int,
    out: str | None,
    spread: "Spread",
    honest: int | None = None,
    colluding: int | None = None,
) -> Answer:
    """Compare on public rows, write join.json and a picture, and return the answer.

    Parameters
    ----------
    setting
        The run file's public numbers.
    draws, seed
        Of the noise, over all samples of the rows.
    out
        Folder to make; NAME-join by default.
    spread
        Carries out a task for each sample of the rows.
    honest, colluding
        How many nodes are honest, or may collude, for sealed sums; by default as the run file
        declares it, and without a declaration half of the nodes.
    """
    sealed = _declared(setting, honest, colluding)
    folder = new_folder(out or f"{setting.name}-join")
    samples = min(research.SAMPLES, draws)
    found = research.should_join(
        [setting.rows(seed * research.SAMPLES + i, by_node=True) for i in range(samples)],
        setting.topology,
        setting.epsilon if setting.totals is None else setting.totals,
        setting.delta,
        counts=dict(zip(setting.topology.nodes, setting.counts, strict=True)),
        weights=setting.weights,
        centring=setting.centring,
        sealed=sealed,
        unit=setting.unit,
        draws=draws,
        seed=seed,
        spread=spread,
        objective=setting.objective,
        calibration=setting.calibration,
        class_weights=setting.class_weights,
        positives=setting.positives,
    )
    kinds, words = _kinds(found), _words(found, setting)
    result: dict[str, Any] = {
        "version": 1,
        "simulation": True,
        **found.to_json(),
        "sentences": [_sentence(kind, found.measure == "accuracy") for kind in kinds],
        "words": words,
    }
    write_json(folder / "join.json", result)
    caption = [
        f"data: {found.source}",
        f"SIMULATION, seed {seed}: {setting.topology.name}, {_totals(found)}",
        f"{draws} draws of the noise, {samples} of the rows; bars: as intervals of the table",
    ]
    drawn = report.paper.joining(_marks(found, kinds), caption, setting.objective.axis)
    pictures = report.charts.save(drawn, folder / "join", "svg")
    result |= {"folder": str(folder), "pictures": [str(path) for path in pictures]}
    return Answer(result, _lines(found, result, kinds))


def _declared(
    setting: "PublicSetting", honest: int | None, colluding: int | None
) -> "Sealed | None":
    """As typed, or as the run file declares it; None where neither does."""
    from dynadp.mechanisms import Sealed

    named = setting.mechanism if isinstance(setting.mechanism, Sealed) else None
    if honest is None and colluding is None:
        known = named is not None and (named.honest, named.colluding) != (None, None)
        return named if known else None
    return replace(named or Sealed(), honest=honest, colluding=colluding)


def _lines(
    found: "JoinAnswer", result: dict[str, Any], kinds: Sequence[Sequence["NodeAnswer"]]
) -> "Iterator[str | Table]":
    from rich import box
    from rich.table import Table

    yield f"Should you join? {_what(found)} in 100, {_totals(found)}:"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("nodes", "rows", "alone", *found.ways.values()):
        table.add_column(title, overflow="fold")
    for kind in kinds:
        one = kind[0]
        table.add_row(
            _named(kind),
            _rows(kind),
            _band(one.alone),
            *(f"{_band(one.joined[way])}: {one.verdict(way)}" for way in found.ways),
        )
    yield table
    yield from result["sentences"]
    yield from (f"  - {words}" for words in result["words"])
    yield f"Picture: {result['pictures'][0]}"


def _what(found: "JoinAnswer") -> str:
    """What the numbers are of."""
    axis = research.Objective(found.measure).axis
    return axis[0].upper() + axis[1:]


def _sentence(kind: Sequence["NodeAnswer"], plain: bool) -> str:
    """What nodes of this kind should do, and by how much."""
    one = kind[0]
    parts = [f"alone {_band(one.alone, '%')}{' wrong' if plain else ''}"]
    for way in one.differences:
        band, words = one.differences[way], research.JOINED[way]
        more = f"{100 * band['low']:+.1f} to {100 * band['high']:+.1f}"
        parts.append(
            f"{words} {_band(one.joined[way], '%')}, difference {100 * band['median']:+.1f} "
            f"({more}): {one.verdict(way)}"
        )
    silent = (
        ""
        if one.sends
        else ". With sums it would send and spend nothing, as its noise is worth more than its "
        "rows, and still get the model"
        + (". With sealed sums every node sends and spends" if "sealed" in one.joined else "")
    )
    nearest = "" if _rows(kind) == f"{one.compared:,}" else f" (alone with {one.compared:,})"
    return f"{_named(kind)}, {_rows(kind)} rows{nearest}: {'; '.join(parts)}{silent}."


def _words(found: "JoinAnswer", setting: "PublicSetting") -> list[str]:
    """What the numbers rest on."""
    places = "; ".join(
        f"{words} {_band(found.wrong[way], '%')}" for way, words in research.REFERENCES.items()
    )
    kind = (
        "the public rows may differ from a node's own"
        if setting.public is not None
        else "census rows are no node's own rows: declare public rows of your kind under "
        "[evaluation] for an answer about them"
    )
    limits = (
        [f"only {found.draws} draws: another seed may answer otherwise; give --draws {FEW} or more"]
        if found.draws < FEW
        else []
    )
    rows = sum(one.rows for one in found.nodes)
    if found.pool is not None and rows > found.pool:
        limits.append(
            f"the nodes' {rows:,} rows were drawn from {found.pool:,} public ones, so a node alone "
            "sees many of the others' rows too: joining looks worse here than it is"
        )
    tried = min(rows, research.MOST_ROWS)
    if tried < rows:
        limits.append(
            f"common models were trained on {tried:,} rows instead of the run's {rows:,}, so "
            f"joining looks worse here than it is: trust '{research.JOIN}' more than "
            f"'{research.ALONE}'"
        )
    most_common = ""
    if found.most_common is not None:
        most_common = f"; always the most common answer {100 * found.most_common:.1f}%"
    return [
        *limits,
        *_honesty(found),
        f"for comparison: {places}{most_common}",
        f"a SIMULATION on {found.source}; {kind}",
        "nodes are taken to be alike: rows are split among them at random. A node whose rows "
        "differ from the others' may gain less, or lose"
        if found.alike
        else "nodes differ as the public rows do, which name their nodes: each is trained and "
        "checked on its own",
        "alone means without noise: a model that leaves the house would need privacy too",
        f"intervals span {found.draws} draws of the noise and {found.samples} of the rows (10% to "
        f"90% quantiles), widened by the sampling error (95%) of {found.test_rows:,} held-out "
        "rows. The difference of both models on the same rows decides: join, or stay alone, where "
        "its interval leaves 0 out",
        f"{_totals(found)}: one trusted place would hold all rows at {_total(found.epsilon)}, with "
        "algorithm sum",
    ]


def _honesty(found: "JoinAnswer") -> list[str]:
    """What sealed sums rest on."""
    honesty = found.honesty
    if honesty is None:
        return []
    h, P = honesty.honest, honesty.nodes
    if honesty.assumed:
        first = (
            f"sealed sums: an ASSUMPTION that {h} of {P} nodes are honest, which nobody declared; "
            "give --honest or --colluding"
        )
    else:
        first = f"sealed sums: {h} of {P} nodes are honest, as declared"
    more = "; ".join(
        f"{_total(inf if point['epsilon'] is None else point['epsilon'])} if "
        f"{point['colluding']} nodes collude"
        for point in honesty.if_more
    )
    words = [f"{first}. Whoever looks is not among them"]
    if more:
        words[0] += f". Where more collude, a row loses more: {more}"
    if found.draws >= 2 * found.samples:
        words.append(
            "sealed sums are tried without masks: the noise of the sum is drawn at once, which has "
            "the same law"
        )
    return words


def _kinds(found: "JoinAnswer") -> "list[list[NodeAnswer]]":
    """Nodes with the same answer, the largest first."""
    kinds: dict[Any, list[NodeAnswer]] = {}
    for one in sorted(found.nodes, key=lambda one: -one.rows):
        key = (one.compared, one.sends) if found.alike else one.node
        kinds.setdefault(key, []).append(one)
    return list(kinds.values())


def _marks(found: "JoinAnswer", kinds: Sequence[Sequence["NodeAnswer"]]) -> list[dict[str, Any]]:
    """The picture's rows: each kind of nodes alone, then what is the same for all."""
    if found.alike:
        own = {f"alone, {one.compared:,} rows": one.alone for one, *_ in kinds}
    else:
        own = {f"alone, {one.node}": one.alone for one in found.nodes}
    alone = [{"way": words, **band} for words, band in own.items()]
    ways = {**found.ways, **research.REFERENCES}
    return alone + [{"way": words, **found.wrong[way]} for way, words in ways.items()]


def _totals(found: "JoinAnswer") -> str:
    most = max(one.epsilon for one in found.nodes)
    if most == found.epsilon:
        return f"{_total(most)}, delta = {found.delta:g}"
    return f"{_total(found.epsilon)} to {privacy.upper_bound(most)}, delta = {found.delta:g}"


def _total(epsilon: float) -> str:
    return f"epsilon = {privacy.upper_bound(epsilon)}"


def _named(kind: Sequence["NodeAnswer"]) -> str:
    shown = ", ".join(one.node for one in kind[:SHOWN])
    return shown + (f" and {len(kind) - SHOWN} more" if len(kind) > SHOWN else "")


def _rows(kind: Sequence["NodeAnswer"]) -> str:
    least, most = kind[-1].rows, kind[0].rows
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _band(band: Any, unit: str = "") -> str:
    low, high = 100 * band["low"], 100 * band["high"]
    return f"{100 * band['median']:.1f}{unit} ({low:.1f} to {high:.1f})"
