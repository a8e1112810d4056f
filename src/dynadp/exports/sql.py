"""How numbers, texts and names are written in SQL."""

from dynadp.data import Value

BLANKS = "' \t\n\r\v\f'"


def trimmed(cell: str) -> str:
    """A cell as text without blanks around it."""
    return f"trim(CAST({cell} AS VARCHAR), {BLANKS})"


def literal(value: float) -> str:
    """A number; a float in every dialect, not a decimal."""
    shown = repr(float(value))
    shown = shown if "e" in shown else f"{shown}e0"
    return f"({shown})" if value < 0 else shown


def valued(value: Value) -> str:
    """A label value."""
    return quoted(value) if isinstance(value, str) else repr(value)


def quoted(text: str) -> str:
    """A text."""
    return "'" + text.replace("'", "''") + "'"


def named(name: str) -> str:
    """The name of a column or table."""
    return '"' + name.replace('"', '""') + '"'
