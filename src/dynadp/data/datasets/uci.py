"""The UCI Adult census extract."""

import hashlib
import os
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError

import numpy as np

from dynadp._files import write_bytes
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.datasets.base import Dataset
from dynadp.data.labels import Label
from dynadp.data.schema import Schema
from dynadp.data.sources import RawTable
from dynadp.errors import DatasetError, DeclarationError

ADULT_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT_SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
_NUMERIC = {  # name in file order -> bounds, from the published description of the extract
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "education_num": (1, 16),
    "capital_gain": (0, 99_999),
    "capital_loss": (0, 5_000),
    "hours_per_week": (1, 99),
}
_NOMINAL = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th "
    "12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native_country": "United-States Cambodia England Puerto-Rico Canada Germany "
    "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines "
    "Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador "
    "Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
    "Trinadad&Tobago Peru Hong Holand-Netherlands",
}
_ORDER = [
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
    for name in _ORDER[:-1]:
        if name not in _NUMERIC:
            declared.append(
                Categorical(name=name, values=tuple(_NOMINAL[name].split()), missing="drop")
            )
            continue
        low, high = _NUMERIC[name]
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
    tables = []
    for name in ADULT_SHA256:
        table = _parse_adult(_adult_file(name, data, download))
        keep = schema.kept(table)
        tables.append({column: cells[keep] for column, cells in table.items()})
    return Dataset("adult", schema, train=tables[0], test=tables[1])


def _parse_adult(content: bytes) -> RawTable:
    lines = [
        line for line in content.decode().splitlines() if line.strip() and not line.startswith("|")
    ]
    cells = np.array([[cell.strip() for cell in line.rstrip(".").split(",")] for line in lines])
    return {
        name: cells[:, i].astype(float) if name in _NUMERIC else cells[:, i]
        for i, name in enumerate(_ORDER)
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
            f"({error}); put the UCI Adult files in a folder and name it with --data or DYNADP_DATA"
        ) from error
    content = _checked(name, content, ADULT_URL + name)
    cache.mkdir(parents=True, exist_ok=True)
    write_bytes(cache / name, content)
    return content


def _checked(name: str, content: bytes, source: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != ADULT_SHA256[name]:
        raise DatasetError(
            f"{source} is not the published {name}: its SHA-256 is {found}, expected "
            f"{ADULT_SHA256[name]}; remove it and fetch it again"
        )
    return content
