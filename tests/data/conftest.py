"""Counted readings of files."""

from collections import Counter

import pytest

from dynadp.data import files, streaming


@pytest.fixture
def passes(monkeypatch):
    """How often each file was read from its beginning, by DuckDB, by Arrow or as it is."""
    seen = Counter()
    opened, plain = streaming._opened, files.plain_cells

    def counted(query):
        def counted_query(path, name, sql, size):
            seen[path.name] += sql.startswith("SELECT")
            return query(path, name, sql, size)

        return counted_query

    def counted_plain(path, *more):
        found = plain(path, *more)
        seen[path.name] += found is not None
        return found

    def counted_opening(given, names, *more):
        seen[given.stamp.path.name] += bool(names)
        return opened(given, names, *more)

    for query in ("_query", "_arrow_query"):
        monkeypatch.setattr(files, query, counted(getattr(files, query)))
    monkeypatch.setattr(files, "plain_cells", counted_plain)
    monkeypatch.setattr(streaming, "_opened", counted_opening)
    return seen


@pytest.fixture(params=["rows", "arrow"])
def either_way(request, monkeypatch):
    """Files are read as rows of Python's objects, and as codes by way of Arrow."""
    monkeypatch.setattr(files, "_LARGE", 0 if request.param == "arrow" else 1 << 60)
    monkeypatch.setattr(files, "_SMALL", 0)
