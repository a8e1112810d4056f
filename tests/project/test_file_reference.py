"""The tables of all keys of files: complete, and in the words of the code that reads them."""

import file_reference
import pytest

from dynadp.data.columns import Declared
from dynadp.runs.node_file import NodeFile
from dynadp.runs.run_file import RunFile


def test_every_key_is_described():
    tables = file_reference.run_file()
    for name, section in RunFile.model_fields.items():
        (model,) = file_reference.models(section.annotation)
        assert f"[{name}]" in tables
        for key, field in model.model_fields.items():
            assert f"| `{field.alias or key}` |" in tables
    for key in NodeFile.model_fields:
        assert f"| `{key}` |" in file_reference.node_file()
    for key in ("low", "values", "negative", "missing", "rows_per_person"):
        assert f"| `{key}` |" in file_reference.schema()


def test_rows_say_value_default_and_meaning():
    lines = file_reference.run_file().splitlines()
    assert any(line.startswith("| `seed` | whole number at least 0 |  | Makes") for line in lines)
    assert any(line.startswith("| `name` | text | `run` |") for line in lines)
    assert any("| `wait` or `go on` | `wait` |" in line for line in lines)
    assert ":class:" not in file_reference.schema()


def test_a_key_without_a_meaning_is_found():
    class Silent(Declared):
        """What it is.

        Attributes
        ----------
        told
            This one.
        """

        told: int
        untold: int = 0

    with pytest.raises(ValueError, match=r"Silent does not say what its keys \['untold'\] mean"):
        file_reference.keys(Silent)
