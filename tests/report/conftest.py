"""Finished runs, made once for all tests of reports, pages and tracking.

They are read only: a test that writes has a copy, and whoever changes one is found at the end."""

from contextlib import contextmanager

import pytest

from support.run_folders import SEALED, make_run


@contextmanager
def unchanged(folder):
    """The folder of a run, whose files are the same in the end."""

    def contents():
        return {p: p.read_bytes() for p in folder.parents[1].rglob("*") if p.is_file()}

    before = contents()
    yield folder
    assert contents() == before, f"a test wrote into {folder}"


@pytest.fixture(scope="session")
def private(tmp_path_factory):
    """A private run with its ledgers."""
    with unchanged(make_run(tmp_path_factory.mktemp("private"))) as run:
        yield run


@pytest.fixture(scope="session")
def seeded(tmp_path_factory):
    """A SIMULATION, with accuracy on public rows."""
    with unchanged(make_run(tmp_path_factory.mktemp("seeded"), seed=3, public=True)) as run:
        yield run


@pytest.fixture(scope="session")
def sealed(tmp_path_factory):
    """A private run of sealed sums, with its ledgers."""
    with unchanged(make_run(tmp_path_factory.mktemp("sealed"), mechanism=SEALED)) as run:
        yield run


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    """A SIMULATION of primal perturbation, without public rows."""
    folder = tmp_path_factory.mktemp("simulated")
    with unchanged(make_run(folder, seed=3, mechanism="primal")) as run:
        yield run
