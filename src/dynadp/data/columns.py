"""All kinds of columns: what a schema may declare."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from dynadp.data.categories import Categorical as Categorical
from dynadp.data.categories import Hashed as Hashed
from dynadp.data.crosses import Cross as Cross
from dynadp.data.dates import Date as Date
from dynadp.data.declared import ColumnKind as ColumnKind
from dynadp.data.declared import Declared as Declared
from dynadp.data.declared import floats as floats
from dynadp.data.declared import onto_simplex as onto_simplex
from dynadp.data.numbers import Bins as Bins
from dynadp.data.numbers import Numeric as Numeric
from dynadp.data.vectors import Fourier as Fourier
from dynadp.data.vectors import Vector as Vector

Column = Annotated[
    Numeric | Categorical | Date | Bins | Hashed | Cross | Vector | Fourier,
    Field(discriminator="kind"),
]


def with_parts(columns: Any) -> Any:
    """Return declared columns in which the name of a part is replaced by that column's declaration;
    anything else stays as it is.
    """
    if not isinstance(columns, Iterable) or isinstance(columns, str | Mapping):
        return columns
    given = list(columns)
    declared = {_said(column, "name"): column for column in given}

    def expanded(column: Any) -> Any:
        parts = column.get("parts") if isinstance(column, Mapping) else None
        if not isinstance(parts, list | tuple):
            return column
        whole = []
        for part in parts:
            found = declared.get(part) if isinstance(part, str) else part
            if found is None:
                raise ValueError(
                    f"column {column.get('name')!r} has the part {part!r}, which is not declared; "
                    "expected the name of a declared column, or a declaration of its own"
                )
            if column.get("kind") == "cross" and _said(found, "kind") == "numeric":
                raise ValueError(
                    f"cross {column.get('name')!r} has the number {_said(found, 'name')!r}; a "
                    'number is crossed in public bins: {kind = "bins", name = ..., edges = [...]}'
                )
            whole.append(found)
        return {**column, "parts": whole}

    return [expanded(column) for column in given]


def _said(column: Any, name: str) -> Any:
    return column.get(name) if isinstance(column, Mapping) else getattr(column, name, None)
