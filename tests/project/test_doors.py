"""The doors of the rooms: what others may import, pinned; and that nobody climbs in at a window.

Remake the list on purpose with: python tests/project/test_doors.py
"""

import ast
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

import dynadp

ROOT = Path(dynadp.__file__).parent
PINNED = Path(__file__).parents[1] / "doors.json"
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.pyi"))


def door(room):
    tree = ast.parse((ROOT / room / "__init__.pyi").read_text())
    return sorted(
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


@pytest.mark.parametrize("room", ROOMS)
def test_the_names_of_a_door(room):
    module, names = import_module(f"dynadp.{room}"), door(room)
    assert names == json.loads(PINNED.read_text())[room]
    assert sorted(module.__all__) == names == sorted(set(names))
    files = {path.stem for path in (ROOT / room).iterdir()} - {"__init__"}
    own = {name for name in names if name in files and (ROOT / room / name).suffix == ""}
    for name in names:
        found = getattr(module, name)
        is_module = type(found).__name__ == "module"
        assert is_module == (name in own), f"{room}: {name} is a file and a name"


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dynadp."):
            yield node.module.split(".")[1:], [alias.name for alias in node.names]


@pytest.mark.parametrize("room", [*ROOMS, "cli"])
def test_rooms_are_entered_by_their_doors(room):
    climbed = []
    for path in (ROOT / room).rglob("*.py"):
        for (other, *deeper), names in imports(path):
            if other == room or other not in ROOMS or not deeper:
                continue
            if (ROOT / other / deeper[0]).is_dir() and len(deeper) == 1:
                continue  # a room within the room, with a door of its own
            climbed.append(f"{path.relative_to(ROOT)}: {other}.{'.'.join(deeper)} {names}")
    assert climbed == []


REPO = ROOT.parents[1]
PAGES = [*REPO.glob("docs/*.md"), *REPO.glob("examples/*.py"), REPO / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_and_examples_use_public_names_alone(page):
    text = page.read_text(encoding="utf-8")
    for module in re.findall(r"^(?:from|import) dynadp\.([\w.]+)", text, re.MULTILINE):
        room, *deeper = module.split(".")
        own_door = deeper and (ROOT / room / deeper[0]).is_dir() and len(deeper) == 1
        assert room == "errors" or (room in ROOMS and (not deeper or own_door)), module


if __name__ == "__main__":
    PINNED.write_text(json.dumps({room: door(room) for room in ROOMS}, indent=1) + "\n")
