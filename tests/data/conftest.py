"""Counted readings of files."""

from collections import Counter

import pytest

from dynadp.data import files, streaming


@pytest.fixture
def passes(monkeypatch):
    """How often each file was read from its beginning, by DuckDB or by Arrow."""
    seen = Counter()
    query, opened = files._query, streaming._opened

    def counted_query(path, name, sql, size):
        seen[path.name] += sql.startswith("SELECT")
        return query(path, name, sql, size)

    def counted_opening(given, names, *more):
        seen[given.stamp.path.name] += bool(names)
        return opened(given, names, *more)

    monkeypatch.setattr(files, "_query", counted_query)
    monkeypatch.setattr(streaming, "_opened", counted_opening)
    return seen
