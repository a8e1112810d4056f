"""The public numbers that a choice of alpha rests on: from a run folder, a run file, or five silos
of census rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dynadp.consensus import Output, Topology
from dynadp.data import Categorical, Column, Numeric, Schema, census, source
from dynadp.errors import ConfigError, DeclarationError
from dynadp.planning import Plan, plan, planned_events, public_numbers
from dynadp.privacy import Event, calibrate, up, worst_node
from dynadp.problem import Weights, shares
from dynadp.report.record_view import RunView
from dynadp.runs import LocalRun, load_run_file, load_schema, plan_from_file

ROWS, NODES, DELTA, EPSILON = 20_000, ("north", "east", "south", "west", "centre"), 1e-5, 1.0
TOLD = (
    20_000  # made rows that accuracy is told on: they cost nothing, and few of them would blur it
)
PADDING = "padding"  # a column of made rows that says nothing
MOST_ROWS = (
    60_000  # of a sweep, over all nodes; larger runs are tried on fewer rows, and the page says so
)


@dataclass(frozen=True)
class Rows:
    """Public rows to try a run on.

    Attributes
    ----------
    schema
        How they become bounded rows.
    tables
        Raw rows of each node.
    test
        Raw rows that accuracy is told on.
    source
        Where they come from, in words.
    """

    schema: Schema = field(repr=False)
    tables: Mapping[str, Mapping[str, Any]] = field(repr=False)
    test: Mapping[str, Any] = field(repr=False)
    source: str

    @property
    def counts(self) -> tuple[int, ...]:
        """How many rows each node has here."""
        return tuple(len(next(iter(table.values()))) for table in self.tables.values())


@dataclass(frozen=True)
class PublicSetting:
    """What is planned, in public numbers.

    Attributes
    ----------
    name
        Of the run.
    topology, counts
        The network, and B_p in its order.
    dimension, features
        d with and without the intercept.
    epsilon, delta
        The total that is asked for.
    mechanism, centring
        As for :func:`~dynadp.planning.planner.plan`.
    public
        A file that the run file declares public, with its schema and separator; None: census rows
        are made.
    output
        Which mean of released vectors becomes the model.
    weights
        What weighs the same, every row or every node.
    given
        What a run file fixes that gives alpha and its constants itself; None where a total is
        planned for.
    """

    name: str
    topology: Topology
    counts: tuple[int, ...]
    dimension: int
    features: int
    epsilon: float = EPSILON
    delta: float = DELTA
    mechanism: str = "primal"
    centring: bool = True
    public: tuple[Path, Schema, Any] | None = field(default=None, repr=False)
    output: Output = "network"
    weights: Weights = "rows"
    given: Plan | None = field(default=None, repr=False)

    @classmethod
    def made(cls) -> "PublicSetting":
        """Five silos of census rows on a ring."""
        ring = Topology.family("ring", len(NODES)).named(NODES)
        schema = census(len(NODES), nodes=len(NODES), test_rows=0).schema
        features = schema.feature_count
        return cls(
            "census rows made here",
            ring,
            (ROWS // len(NODES),) * len(NODES),
            schema.dimension,
            features,
        )

    @classmethod
    def of_file(cls, path: Path) -> "PublicSetting":
        """Of a run file: numbers of rows, graph, schema and privacy; not one private cell."""
        file = load_run_file(path)
        if file.networked:
            schema, topology = (
                load_schema(path.parent / file.data.schema_file),
                file.graph(path.parent),
            )
            counts = tuple(int(node.rows or 0) for node in file.nodes)
        else:
            job = LocalRun.load(path, spending=False)
            schema, topology, counts = (
                job.schema,
                job.topology,
                tuple(job.counts[p] for p in job.topology.nodes),
            )
        privacy = file.privacy
        if privacy.mechanism == "none":
            raise DeclarationError(
                f"{path} protects nothing, so there is no alpha to choose; set privacy.mechanism"
            )
        totals, public = file.totals, None
        given = None if totals else plan_from_file(file, schema, topology, counts)
        if file.evaluation is not None:  # config admits only public = true
            public = (path.parent / file.evaluation.file, schema, file.data.separator)
        return cls(
            file.run.name,
            topology,
            counts,
            schema.dimension,
            schema.feature_count,
            max(totals.values()) if totals else given.total.epsilon if given else EPSILON,
            privacy.delta or DELTA,
            privacy.mechanism,
            privacy.centring and schema.centre is None,
            public,
            file.run.output,
            file.training.weights,
            given,
        )

    @classmethod
    def of_story(cls, story: RunView) -> "PublicSetting":
        """Of a run folder: the numbers that its record tells."""
        known = cls.made()
        counts = tuple(story.rows[p] for p in story.topology.nodes)
        width = story.dimension or known.dimension
        features = story.features if story.features is not None else width - 1
        plan = story.plan
        if plan is None:
            return cls(story.name, story.topology, counts, width, features)
        epsilon = (
            float(up(plan.total["epsilon"], 2))
            if plan.total and plan.total["epsilon"]
            else _asked(story)
        )
        told = cls(
            story.name, story.topology, counts, width, features, epsilon, plan.delta, plan.mechanism
        )
        told = replace(told, weights=plan.settings.get("weights", "equal"))
        return told if plan.centrings else replace(told, centring=False)

    def plan(self, epsilon: float, counts: Sequence[int] | None = None) -> Plan:
        """What `dynadp train` would do for this total: planned, or the run file's own constants
        with the alpha that fits.

        Parameters
        ----------
        epsilon
            The total.
        counts
            Other numbers of rows than the run's, for a trial on fewer.
        """
        counts, delta = counts or self.counts, self.delta
        if (fixed := self.given) is None:
            found = plan(
                counts,
                self.topology,
                self.dimension,
                epsilon=epsilon,
                delta=delta,
                mechanism=self.mechanism,
                centring=self.centring,
                features=self.features,
                weights=self.weights,
            )
            return replace(found, output=self.output)
        nodes, sizes = self.topology.nodes, np.array(counts, dtype=float)
        C = shares(fixed.C, sizes, fixed.weights)
        public = public_numbers(
            sizes, self.topology.degrees, self.dimension, C, fixed.rho, fixed.eta, fixed.loss
        )

        def events(alpha: float) -> list[Event]:
            return planned_events(
                fixed.mechanism, public, fixed.rounds, nodes, np.full(len(nodes), alpha), (), 0
            )

        alpha = calibrate(events, epsilon, delta)
        spent = tuple(events(alpha))
        return replace(
            fixed, alphas=(alpha,) * len(nodes), events=spent, total=worst_node(spent, delta)
        )

    def rows(self, seed: int = 0) -> Rows:
        """Public rows of the nodes' sizes, in the run's dimension: the declared ones, drawn again
        and again, or census rows.
        """
        scale = min(1.0, MOST_ROWS / sum(self.counts))
        counts = [max(1, int(count * scale)) for count in self.counts]
        fewer = (
            ""
            if scale == 1
            else f"; {sum(counts):,} rows instead of {sum(self.counts):,}, so the run itself "
            f"should do better"
        )
        nodes, rng = self.topology.nodes, np.random.default_rng([seed, 0xE8])
        if self.public is None:
            made = census(sum(counts), seed=seed, nodes=1, test_rows=TOLD)
            schema = of_width(made.schema, self.features, self.dimension > self.features)
            parts = np.split(rng.permutation(sum(counts)), np.cumsum(counts)[:-1])
            tables = {p: _padded(made.train, part) for p, part in zip(nodes, parts, strict=True)}
            change = schema.dimension - made.schema.dimension
            width = (
                ""
                if not change
                else f", {'cut' if change < 0 else 'padded'} to the run's {schema.dimension} "
                f"columns"
            )
            told = _padded(made.test, slice(None))
            return Rows(schema, tables, told, f"census rows made here (synthetic){width}{fewer}")
        path, schema, separator = self.public
        table = _table(path, schema, separator)
        order = rng.permutation(len(next(iter(table.values()))))
        if len(order) < 20:
            raise ConfigError(
                f"{path} has {len(order)} rows; a sweep needs at least 20, half to train on, half "
                f"to be told about"
            )
        train, test = order[: len(order) // 2], order[len(order) // 2 :]
        tables = {
            p: {name: cells[pick] for name, cells in table.items()}
            for p, count in zip(nodes, counts, strict=True)
            for pick in [train[rng.integers(len(train), size=count)]]
        }
        words = f"{path.name}, which the run file declares public: half of it drawn with replacement, told on the other half"
        return Rows(
            schema, tables, {name: cells[test] for name, cells in table.items()}, words + fewer
        )


def of_width(schema: Schema, features: int, intercept: bool) -> Schema:
    """The schema cut to its first features, or padded with features that are 0 in all rows: noise
    in d dimensions needs them.

    Parameters
    ----------
    schema
        Of made rows.
    features, intercept
        How many features the run has, and whether it has an intercept besides.
    """
    kept: list[Column] = []
    left = features
    for column in schema.columns:
        if left < len(column.features):
            column = (
                column.model_copy(update={"encode": column.encode[:left]})
                if isinstance(column, Numeric)
                else column.model_copy(update={"values": column.values[:left]})
            )
        if left:
            kept.append(column)
        left -= len(column.features)
        if left <= 0:
            break
    if left > 0:
        kept.append(Categorical(name=PADDING, values=tuple(f"{PADDING} {i}" for i in range(left))))
    return schema.model_copy(
        update={"columns": tuple(kept), "intercept": schema.intercept if intercept else 0.0}
    )


def _padded(table: Mapping[str, Any], pick: Any) -> dict[str, Any]:
    """Some rows of a table, with a column that holds no listed value."""
    found = {name: cells[pick] for name, cells in table.items()}
    return found | {PADDING: np.full(len(next(iter(found.values()))), "none")}


def _asked(story: RunView) -> float:
    """The total that a network run was asked for."""
    config = story.record["config"]
    own = [node["epsilon"] for node in config["nodes"].values() if node["epsilon"]]
    return float(max(own, default=0) or config["privacy"]["epsilon"] or EPSILON)


def _table(path: Path, schema: Schema, separator: Any) -> dict[str, Any]:
    """Raw columns of a public file, without rows that the schema drops; the first 60,000 rows."""
    names = schema.raw_columns
    batches, total = [], 0
    for batch in source(path, separator=separator).batches(names):
        keep = schema.kept(batch)
        batches.append({name: cells[keep] for name, cells in batch.items()})
        total += int(keep.sum())
        if total >= MOST_ROWS:
            break
    return {name: np.concatenate([batch[name] for batch in batches])[:MOST_ROWS] for name in names}
