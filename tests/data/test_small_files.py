"""Small CSV files that all readers take alike are read without a library."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.data import files
from dynadp.data.readers import source
from dynadp.errors import DataError


def cells_of(path):
    """All cells of a file with two columns, or that it was refused."""
    try:
        parts = source(path).batches(("a", "b"), 2)
        return [{name: cells.tolist() for name, cells in part.items()} for part in parts]
    except DataError:
        return "refused"


def require_the_same(path, rest):
    path.write_bytes(b"a,b\n" + rest)
    found = cells_of(path)
    with patch.object(files, "_SMALL", 0):
        assert found == cells_of(path)


ODD = (
    b"",
    b"1,2",
    b"1,2\n,\n",
    b" 1 ,\t2\n3,4\n5,6",
    b"1\n",
    b"1,2,3\n",
    b"1,2\n\n3,4\n",
    b"\n1,2\n",
)
ODD += (
    b'"1",2\n',
    b"1,2\r\n3,4\r\n",
    b"\xff,2\n",
    b"1,\xc3\xa4\n",
    b"1,\xe2\x80\xa8\n",
    b"1,\x0b\x0c\n",
)
ODD += (b"1,\\\n#,'\n", b"\xef\xbb\xbf1,2\n", b"1,\0\n", b"\n", b"NULL,nan\n", b"1;2,3\n")


@pytest.mark.parametrize("rest", ODD)
def test_a_small_file_is_read_without_duckdb_as_with_it(rest, tmp_path):
    require_the_same(tmp_path / "rows.csv", rest)


@pytest.mark.slow
@settings(max_examples=1_000)
@given(st.text("12,,\n\n ;\t\"'\\#\räß\u2028\x0b\x1a", max_size=24))
def test_any_small_file_is_read_without_duckdb_as_with_it(rest):
    with TemporaryDirectory() as folder:
        require_the_same(Path(folder, "rows.csv"), rest.encode())


def test_a_small_plain_file_needs_no_library(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,x\n2,y\n3,z\n")
    for library in ("duckdb", "pyarrow"):
        monkeypatch.setitem(sys.modules, library, None)
    parts = [{k: v.tolist() for k, v in part.items()} for part in source(path).batches(("b",), 2)]
    assert parts == [{"b": ["x", "y"]}, {"b": ["z"]}]
