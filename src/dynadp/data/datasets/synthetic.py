"""Census-like rows, made here with a known truth."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax

from dynadp import _require
from dynadp._arrays import Array
from dynadp._roots import root
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.datasets.base import Dataset
from dynadp.data.labels import Classes, Label, Target
from dynadp.data.schema import Schema
from dynadp.data.sources import RawTable
from dynadp.errors import DeclarationError

_SECTORS = ("private", "public", "self-employed", "family", "none")
_TRADES = (
    "clerical",
    "craft",
    "farming",
    "management",
    "machines",
    "professional",
    "sales",
    "service",
    "support",
    "transport",
)
_STATES = ("married", "never-married", "divorced", "widowed", "separated")
# of pay, in thousands: its mean at a score of 0, what a score of 1 adds, the scale of chance
_BASE, _PAY, _SPREAD = 60.0, 6.0, 6.0
_REGIONS = tuple(f"region-{i:02d}" for i in range(20))


def census_schema() -> Schema:
    """Ten columns like a census extract's, with public bounds and vocabularies; 50 features and the
    intercept.
    """
    return Schema(
        columns=(
            Numeric(name="age", low=17, high=90, encode=("linear", "square")),
            Numeric(name="schooling", low=0, high=20),
            Numeric(name="hours", low=0, high=99, encode=("linear", "square")),
            Numeric(name="gain", low=0, high=100_000, transform="log1p"),
            Categorical(name="sector", values=_SECTORS),
            Categorical(name="trade", values=_TRADES),
            Categorical(name="status", values=_STATES),
            Categorical(name="sex", values=("female", "male")),
            Categorical(name="urban", values=("no", "yes")),
            Categorical(name="region", values=_REGIONS),
        ),
        label=Label(name="income", negative="low", positive="high"),
        norm=3.0,
    )


def census(
    rows: int = 5000,
    seed: int = 0,
    nodes: int = 5,
    heterogeneity: float = 0.0,
    test_rows: int | None = None,
    positives: float | None = None,
    *,
    classes: int = 2,
    target: bool = False,
) -> Dataset:
    """Census-like rows with a known truth: P(high | raw) = sigmoid(truth.phi(raw)).

    About a quarter of the labels are ``high``, and the truth itself errs on about 16 rows in 100.
    Of three classes and more P(j | raw) = softmax(truth phi(raw))_j, and where nodes are alike each
    class has about as many rows as another; of seven the truth errs on about 16 rows in 100 too.
    With ``target`` a number is answered: pay, in thousands, whose mean is truth.phi(raw).

    Parameters
    ----------
    rows
        Training rows over all nodes; node p of P gets rows//P or one more.
    seed
        Of the rows. The truth does not depend on it.
    nodes
        P.
    heterogeneity
        0: all nodes alike. 1: each node has its own mix of trades, regions and ages (the truth
        stays common to all).
    test_rows
        Held-out rows, drawn from the nodes' mixture; by default a quarter of ``rows``, at least
        1,000.
    positives
        The share of ``high`` among all rows of alike nodes, by another intercept of the truth; by
        default as it comes.
    classes
        How many values the label has.
    target
        Whether rows have a number to predict, ``pay``, in place of the label.
    """
    _require.whole("classes", classes, least=2)
    if rows < nodes or nodes < 1:
        raise DeclarationError(
            f"census of {rows} rows over {nodes} nodes; expected at least one node and one row each"
        )
    if seed < 0 or (test_rows is not None and test_rows < 0):
        raise DeclarationError(f"seed is {seed} and test_rows is {test_rows}; expected 0 or above")
    if not 0 <= heterogeneity <= 1:
        raise DeclarationError(f"heterogeneity is {heterogeneity!r}; expected a number in [0, 1]")
    if positives is not None and not 0 < positives < 1:
        raise DeclarationError(f"positives is {positives!r}; expected a share between 0 and 1")
    schema = census_schema()
    if classes > 2 and target:
        raise DeclarationError(f"classes is {classes} and target is True; expected one of them")
    if positives is not None and (classes > 2 or target):
        raise DeclarationError(
            "positives is the share of one of two labels; leave it out with classes or target"
        )
    if classes > 2:
        groups = tuple(f"group-{j + 1}" for j in range(classes))
        schema = schema.model_copy(update={"label": Classes(name="group", values=groups)})
    truth = _census_truth(schema) if classes == 2 else _group_truth(classes)
    if positives is not None:
        truth[-1] += _intercept_shift(schema, truth, positives)
    if target:
        schema = schema.model_copy(update={"label": Target(name="pay", low=0, high=100)})
        truth = _PAY * truth
        truth[-1] += _BASE
    held_out = max(1000, rows // 4) if test_rows is None else test_rows
    sequence = np.random.SeedSequence([seed, 0xCE45])
    character, *children = sequence.spawn(nodes + 2)
    mixes = [_mix(np.random.default_rng(child), heterogeneity) for child in character.spawn(nodes)]
    train: list[RawTable] = []
    for p, child in enumerate(children[:nodes]):
        count = rows // nodes + (p < rows % nodes)
        train.append(_census_rows(np.random.default_rng(child), count, mixes[p], schema, truth))
    rng = np.random.default_rng(children[nodes])
    share = np.bincount(rng.integers(nodes, size=held_out), minlength=nodes)
    test = [
        _census_rows(rng, int(n), mix, schema, truth) for n, mix in zip(share, mixes, strict=True)
    ]
    node = np.repeat(np.arange(nodes), [len(part["age"]) for part in train])
    return Dataset("census", schema, _concatenate(train), _concatenate(test), node, truth)


def _concatenate(tables: list[RawTable]) -> RawTable:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _census_truth(schema: Schema) -> Array:
    effect = {
        "age": 2.2,
        "age^2": -2.7,
        "schooling": 3.1,
        "hours": 2.3,
        "hours^2": -1.4,
        "gain": 1.2,
        "status=married": 1.5,
        "status=never-married": -0.8,
        "sex=male": 0.35,
        "urban=yes": 0.25,
        "trade=management": 0.8,
        "trade=professional": 0.6,
        "trade=sales": 0.3,
        "trade=service": -0.8,
        "trade=farming": -1.0,
        "sector=self-employed": 0.2,
        "sector=none": -1.4,
        "(intercept)": -0.2,
    }
    small = np.random.default_rng(20).normal(scale=0.15, size=schema.dimension)
    return np.array([effect.get(name, small[i]) for i, name in enumerate(schema.features)])


def _intercept_shift(schema: Schema, truth: Array, positives: float) -> float:
    """b with E sigmoid(truth.phi + b) = positives, over rows that every seed shares."""
    rng = np.random.default_rng(0xCE45)
    rows = _census_rows(rng, 20_000, _mix(rng, 0.0), schema, truth)
    features = schema.model_copy(update={"norm": 1.0, "scaling": "none"})
    scores = np.asarray(features.rows(rows) @ truth)
    return root(lambda b: expit(scores + b).mean() - positives, -50, 50)


@lru_cache
def _group_truth(classes: int) -> Array:
    """One vector for each class: random effects, and intercepts that make classes equally likely
    over rows of nodes that are alike.
    """
    schema = census_schema()
    rng = np.random.default_rng([20, classes])
    scale = np.array([2.5 if "=" in name else 8.0 for name in schema.features])
    truth = rng.normal(size=(classes, schema.dimension)) * scale
    rows = np.asarray(_unscaled(schema).rows(census(20_000, nodes=1, test_rows=0).train).toarray())
    for _ in range(100):
        truth[:, -1] -= np.log(softmax(rows @ truth.T, axis=1).mean(axis=0) * classes)
    truth.setflags(write=False)
    return np.asarray(truth)


def _unscaled(schema: Schema) -> Schema:
    return schema.model_copy(update={"norm": 1.0, "scaling": "none"})


def _mix(rng: np.random.Generator, heterogeneity: float) -> dict[str, Any]:
    """One node's distribution: the common one, bent by its own draw."""
    base: dict[str, ArrayLike] = {
        "sector": [0.70, 0.13, 0.11, 0.04, 0.02],
        "trade": [0.13, 0.13, 0.04, 0.13, 0.08, 0.14, 0.12, 0.11, 0.05, 0.07],
        "urban": [0.3, 0.7],
        "region": 1 / np.arange(2.0, 22.0),
    }
    mix: dict[str, Any] = {
        "age": 38 + 10 * heterogeneity * rng.normal(),
        "schooling": heterogeneity * rng.normal(),
    }
    for name, weights in base.items():
        common = np.asarray(weights, dtype=float) / np.sum(np.asarray(weights, dtype=float))
        own = rng.dirichlet(np.full(len(common), 0.5))
        mix[name] = (1 - heterogeneity) * common + heterogeneity * own
    return mix


def _census_rows(
    rng: np.random.Generator, count: int, mix: dict[str, Any], schema: Schema, truth: Array
) -> RawTable:
    def pick(values: Sequence[str], chance: ArrayLike) -> NDArray[np.str_]:
        place = np.searchsorted(np.cumsum(chance), rng.random(count)).clip(max=len(values) - 1)
        return np.asarray(np.array(values)[place])

    age = np.clip(np.round(17 + rng.gamma(2.5, (max(mix["age"], 22) - 17) / 2.5, count)), 17, 90)
    trade = pick(_TRADES, mix["trade"])
    learned = np.isin(trade, ("management", "professional"))
    schooling = np.clip(np.round(rng.normal(11.5 + mix["schooling"] + 2.5 * learned, 2.6)), 0, 20)
    hours = np.clip(
        np.round(np.where(rng.random(count) < 0.5, 40, rng.normal(40 + 3 * learned, 13))), 1, 99
    )
    gain = np.where(
        rng.random(count) < 0.08, np.round(np.exp(rng.normal(8.2, 1.2, count))), 0
    ).clip(max=100_000)
    young = age < 27
    status = np.where(
        young,
        pick(_STATES, [0.15, 0.8, 0.03, 0.0, 0.02]),
        pick(_STATES, [0.58, 0.18, 0.16, 0.04, 0.04]),
    )
    table: RawTable = {
        "age": age,
        "schooling": schooling,
        "hours": hours,
        "gain": gain,
        "sector": pick(_SECTORS, mix["sector"]),
        "trade": trade,
        "status": status,
        "sex": pick(("female", "male"), [0.4, 0.6]),
        "urban": pick(("no", "yes"), mix["urban"]),
        "region": pick(_REGIONS, mix["region"]),
    }
    scores = np.asarray(_unscaled(schema).rows(table) @ truth.T)
    if isinstance(schema.label, Target):  # a few earn far more or less than others like them
        table[schema.label.name] = np.round(scores + _SPREAD * rng.standard_t(4, count), 2)
        return table
    if truth.ndim == 1:
        table["income"] = np.where(rng.random(count) < expit(scores), "high", "low")
        return table
    below = np.cumsum(softmax(scores, axis=1), axis=1)[:, :-1]
    drawn = (rng.random((count, 1)) >= below).sum(axis=1)
    table[schema.label.name] = np.array(schema.label.classes)[drawn]
    return table
