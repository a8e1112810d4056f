"""Data to try things on: the UCI Adult census extract, and census-like rows made here with a known
truth.
"""

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from dynadp import _require
from dynadp._arrays import Array
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.schema import Label, Schema, Shard
from dynadp.errors import DatasetError, DeclarationError

RawTable = dict[str, NDArray[Any]]
Indices = NDArray[np.int64]

ADULT_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT_SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Raw rows with their public schema.

    Attributes
    ----------
    name
        ``adult`` or ``census``; every curve drawn from it carries this name.
    schema
        Public declarations for its columns.
    train, test
        Raw columns by name.
    node
        The node of each training row, where the data come with one.
    truth
        The coefficients that made the labels, where they are known: P(y = 1 | x) = sigmoid(truth .
        phi(raw)), with phi the schema's features before scaling, the intercept last.
    """

    name: str
    schema: Schema
    train: RawTable = field(repr=False)
    test: RawTable = field(repr=False)
    node: Indices | None = field(default=None, repr=False)
    truth: Array | None = field(default=None, repr=False)

    def shards(
        self, parts: Sequence[ArrayLike] | None = None, names: Sequence[str] | None = None
    ) -> list[Shard]:
        """One shard for each part (row positions); by default the nodes that the rows came with."""
        if parts is None:
            if self.node is None:
                raise DeclarationError(
                    f"{self.name} does not say which node holds which row; give parts, see "
                    f"partition()"
                )
            parts = [np.flatnonzero(self.node == p) for p in range(int(self.node.max()) + 1)]
        names = names or [str(p) for p in range(len(parts))]
        if len(names) != len(parts):
            raise DeclarationError(f"{len(names)} names for {len(parts)} parts; expected one each")
        return [
            self.schema.shard(
                {column: cells[np.asarray(part)] for column, cells in self.train.items()}, name
            )
            for part, name in zip(parts, names, strict=True)
        ]


# ----------------------------------------------------------------------------------------------------------------
# Adult

_ADULT_NUMERIC = {  # name in file order -> bounds, from the published description of the extract
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "education_num": (1, 16),
    "capital_gain": (0, 99_999),
    "capital_loss": (0, 5_000),
    "hours_per_week": (1, 99),
}
_ADULT_NOMINAL = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th "
    "7th-8th 12th Masters 1st-4th "
    "10th Doctorate 5th-6th Preschool",
    "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv "
    "Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native_country": "United-States Cambodia England Puerto-Rico Canada Germany "
    "Outlying-US(Guam-USVI-etc) India Japan "
    "Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico "
    "Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland "
    "Thailand Yugoslavia "
    "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
_ADULT_ORDER = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
]


def adult_schema(columns: Literal["paper", "rich"] = "paper") -> Schema:
    """Published bounds and vocabularies; rows clipped to norm 1.

    Parameters
    ----------
    columns
        ``paper``: numbers to [0, 1], nominals one-hot: 105 columns and the intercept (maths.md 11).
        ``rich``: what serves small budgets better, from the same published description: numbers to
        [-1, 1] with weight 2, squares of age and hours, capital gain and loss as hat functions on
        decades; 116 columns and the intercept.
    """
    if columns not in ("paper", "rich"):
        raise DeclarationError(f"columns is {columns!r}; expected 'paper' or 'rich'")
    declared: list[Numeric | Categorical] = []
    for name in _ADULT_ORDER[:-1]:
        if name not in _ADULT_NUMERIC:
            declared.append(
                Categorical(name=name, values=tuple(_ADULT_NOMINAL[name].split()), missing="drop")
            )
            continue
        low, high = _ADULT_NUMERIC[name]
        if columns == "paper":
            shape: dict[str, Any] = {"signed": False}
        elif name.startswith("capital"):
            decades = tuple(10.0**k - 1 for k in range(5) if 10**k - 1 < high)
            shape = {
                "transform": "log1p",
                "encode": ("hats",),
                "knots": (*decades, high),
                "weight": 2,
            }
        else:
            shape = {
                "encode": ("linear", "square")
                if name in ("age", "hours_per_week")
                else ("linear",),
                "weight": 2,
            }
        declared.append(Numeric(name=name, low=low, high=high, missing="drop", **shape))
    return Schema(
        columns=tuple(declared),
        label=Label(name="income", negative="<=50K", positive=">50K"),
        missing_values=("", "?"),
    )


def adult(
    data: str | Path | None = None,
    *,
    download: bool = True,
    columns: Literal["paper", "rich"] = "paper",
) -> Dataset:
    """UCI Adult (Becker and Kohavi, 1996): 30,162 training and 15,060 test rows once missing values
    are dropped.

    Parameters
    ----------
    data
        Folder that holds ``adult.data`` and ``adult.test`` (or has a folder ``adult`` that does).
        Without it: the environment variable ``DYNADP_DATA``, then the cache, then a download into
        the cache. Files are checked by SHA-256.
    download
        Whether a download may be tried.
    columns
        See :func:`adult_schema`.
    """
    schema = adult_schema(columns)
    raw = {name: _parse_adult(_adult_file(name, data, download)) for name in ADULT_SHA256}
    kept = [
        {column: cells[schema.kept(table)] for column, cells in table.items()}
        for table in (raw["adult.data"], raw["adult.test"])
    ]
    return Dataset("adult", schema, train=kept[0], test=kept[1])


def _parse_adult(content: bytes) -> RawTable:
    lines = [
        line for line in content.decode().splitlines() if line.strip() and not line.startswith("|")
    ]
    cells = np.array([[cell.strip() for cell in line.rstrip(".").split(",")] for line in lines])
    return {
        name: cells[:, i].astype(float) if name in _ADULT_NUMERIC else cells[:, i]
        for i, name in enumerate(_ADULT_ORDER)
    }


def _adult_file(name: str, data: str | Path | None, download: bool) -> bytes:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynadp" / "adult"
    given = data or os.environ.get("DYNADP_DATA")
    folders = [Path(given), Path(given) / "adult"] if given else [cache]
    for folder in folders:
        if (folder / name).is_file():
            return _checked(name, (folder / name).read_bytes(), str(folder / name))
    looked = " and ".join(str(folder) for folder in folders)
    if given or not download:
        raise DatasetError(
            f"no file {name} in {looked}; put the UCI Adult files there or name their folder with "
            f"--data"
        )
    try:
        with urllib.request.urlopen(ADULT_URL + name, timeout=30) as answer:
            content = answer.read()
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # it is the server's answer too
        raise DatasetError(
            f"no file {name} in {looked}, and it could not be downloaded from {ADULT_URL} "
            f"({error}); "
            "put the UCI Adult files in a folder and name it with --data or DYNADP_DATA"
        ) from error
    content = _checked(name, content, ADULT_URL + name)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as partial:
        partial.write(content)
    os.replace(partial.name, cache / name)
    return content


def _checked(name: str, content: bytes, source: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != ADULT_SHA256[name]:
        raise DatasetError(
            f"{source} is not the published {name}: its SHA-256 is {found}, expected "
            f"{ADULT_SHA256[name]}; "
            "remove it and fetch it again"
        )
    return content


# ---------------------------------------------------------------------------------------------------------------
# census

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
) -> Dataset:
    """Census-like rows with a known truth: P(high | raw) = sigmoid(truth.phi(raw)).

    About a quarter of the labels are ``high``, and the truth itself errs on about 16 rows in 100.

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
    """
    if rows < nodes or nodes < 1:
        raise DeclarationError(
            f"census of {rows} rows over {nodes} nodes; expected at least one node and one row each"
        )
    if seed < 0 or (test_rows is not None and test_rows < 0):
        raise DeclarationError(f"seed is {seed} and test_rows is {test_rows}; expected 0 or above")
    if not 0 <= heterogeneity <= 1:
        raise DeclarationError(f"heterogeneity is {heterogeneity!r}; expected a number in [0, 1]")
    schema = census_schema()
    truth = _census_truth(schema)
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
    features = schema.model_copy(update={"norm": 1.0, "scaling": "none"})
    chance = expit(np.asarray(features.rows(table) @ truth))
    table["income"] = np.where(rng.random(count) < chance, "high", "low")
    return table


# ------------------------------------------------------------------------------------------------------------
# partition


def partition(
    rows: int,
    nodes: int,
    how: Literal["even", "sized", "column", "label_skew"] = "even",
    *,
    sizes: Sequence[float] | None = None,
    column: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    concentration: float = 0.5,
    seed: int = 0,
) -> list[Indices]:
    """Split row positions 0..rows-1 over nodes, at least one row each (for simulations: real nodes
    own their rows).

    Parameters
    ----------
    rows, nodes
        How many of each.
    how
        ``even``: shuffled, sizes differing by at most 1. ``sized``: shuffled, sizes proportional to
        ``sizes``. ``column``: sorted by ``column`` and cut evenly, so that nodes are unlike each
        other. ``label_skew``: each label value is spread over the nodes by a Dirichlet draw with
        ``concentration`` (small: very unlike).
    sizes, column, labels, concentration
        What ``how`` needs.
    seed
        Of the shuffle and the Dirichlet draw.
    """
    if nodes < 1 or rows < nodes:
        raise DeclarationError(
            f"{rows} rows cannot be split over {nodes} nodes; every node needs at least one row"
        )
    rng = np.random.default_rng([seed, 0x5917])
    even = (np.arange(1, nodes) * rows) // nodes
    if how == "even":
        return [np.sort(part) for part in np.split(rng.permutation(rows), even)]
    if how == "sized":
        weights = np.asarray(sizes if sizes is not None else (), dtype=float)
        if weights.shape != (nodes,) or not (np.isfinite(weights).all() and (weights > 0).all()):
            raise DeclarationError(f"'sized' needs sizes: {nodes} numbers above 0, one a node")
        # one row each first, the rest by cumulative share
        cuts = np.arange(1, nodes) + np.round(
            np.cumsum(weights)[:-1] / weights.sum() * (rows - nodes)
        ).astype(int)
        return [np.sort(part) for part in np.split(rng.permutation(rows), cuts)]
    if how == "column":
        return [
            np.sort(part)
            for part in np.split(np.argsort(_one_each("column", column, rows), kind="stable"), even)
        ]
    if how == "label_skew":
        _require.positive("concentration", concentration)
        owner = np.empty(rows, dtype=int)
        values, kind = np.unique(_one_each("labels", labels, rows), return_inverse=True)
        for value in range(len(values)):
            of_value = rng.permutation(np.flatnonzero(kind == value))
            cuts = np.round(
                np.cumsum(rng.dirichlet(np.full(nodes, concentration)))[:-1] * len(of_value)
            ).astype(int)
            for p, part in enumerate(np.split(of_value, cuts)):
                owner[part] = p
        for empty in np.flatnonzero(
            np.bincount(owner, minlength=nodes) == 0
        ):  # an empty node takes one row of the largest
            largest = np.bincount(owner, minlength=nodes).argmax()
            owner[rng.choice(np.flatnonzero(owner == largest))] = empty
        return [np.flatnonzero(owner == p) for p in range(nodes)]
    raise DeclarationError(
        f"unknown way to split {how!r}; expected even, sized, column or label_skew"
    )


def _one_each(what: str, values: ArrayLike | None, rows: int) -> NDArray[Any]:
    try:
        array = np.asarray(values)
        if values is not None and array.shape == (rows,):
            np.sort(array)  # a split goes by order and equality
            return array
    except (TypeError, ValueError):
        raise DeclarationError(
            f"this split needs {what} that can be compared with each other"
        ) from None
    raise DeclarationError(f"this split needs {what}: one value for each of the {rows} rows")
