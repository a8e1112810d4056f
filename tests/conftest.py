"""Shared data, made once; and the rule that a skip must be a known one."""

import atexit
import gc
import os
from collections import Counter
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, settings

from dynadp.data.datasets.synthetic import census
from dynadp.data.datasets.uci import adult
from dynadp.errors import DatasetError
from support.tiers import left_to_the_second

gc.disable()  # until all tests are collected: it takes a fifth of that, and finds nothing

# Their assertions explain themselves like those of tests.
pytest.register_assert_rewrite(
    "support.contracts", "support.memory", "support.mutants", "support.networks"
)

# Thousands of ledgers' entries are made durable one by one: in memory, where there is room for it.
_SHARED = "/dev/shm"
_MEMORY = None
if os.access(_SHARED, os.W_OK) and disk_usage(_SHARED).free > 2 << 30:
    _MEMORY = _SHARED
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)  # of tmp_path

# Anchors of ledgers and what nodes remember of each other: never in the home of who runs the tests.
os.environ["XDG_STATE_HOME"] = mkdtemp(prefix="dynadp-state-", dir=_MEMORY)
atexit.register(rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

for _option in ("EPSILON", "DELTA", "SEED", "OUT"):  # of the shell that starts the tests
    os.environ.pop(f"DYNADP_{_option}", None)

# Contract classes are inherited, so that one property runs for several classes: that is meant.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.differing_executors],
)
settings.register_profile(
    "fuzz", settings.get_profile("tests"), derandomize=False, max_examples=5_000
)
settings.load_profile("tests")

_ALLOWED = {
    line.strip()
    for line in (Path(__file__).parent / "allowed_skips.txt").read_text().splitlines()
    if not line.startswith("#")
}
_unknown_skips = []
MEASURED = 4  # cases of a parametrised test


def pytest_collection_finish():
    """Collect garbage again, but leave alone what was imported: it is never any."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before slow ones are left out
def pytest_collection_modifyitems(items):
    """Leave cases to the second tier where ``first`` or ``diagonal`` says so. Measure coverage in
    the first cases of a test alone, and in no property test: tracing costs half of the time that
    the rest takes.
    """
    cases = Counter()
    for item in left_to_the_second(items):
        item.add_marker("slow")
    for item in items:
        test = getattr(item, "obj", None)
        cases[test] += not item.get_closest_marker("slow")
        if cases[test] > MEASURED or getattr(test, "is_hypothesis_test", False):
            item.add_marker("no_cover")


def pytest_runtest_logreport(report):
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in _ALLOWED:
            _unknown_skips.append(f"{report.nodeid}: {reason}")


def pytest_terminal_summary(terminalreporter):
    for skip in _unknown_skips:
        terminalreporter.line(f"skip not listed in allowed_skips.txt: {skip}", red=True)


def pytest_sessionfinish(session):
    if _unknown_skips and os.environ.get("CI"):
        session.exitstatus = 1


@pytest.fixture(scope="session")
def census5():
    """Five unlike nodes of 200 rows."""
    return census(1000, seed=1, nodes=5, heterogeneity=0.7)


@pytest.fixture(scope="session")
def adult_data():
    if "DYNADP_DATA" in os.environ:
        return adult()
    try:
        return adult(download=False)
    except DatasetError:
        pytest.skip("the UCI Adult files are not here: set DYNADP_DATA")


@pytest.fixture(scope="session")
def one_nursery():
    from support.networks import Nursery  # which needs the extra [network]

    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def nursery(one_nursery):
    """Starts processes; whatever a test started ends with it."""
    yield one_nursery
    one_nursery.kill_all()


@pytest.fixture
def network(base, tmp_path, nursery):
    """A copy of the module's network that has not run."""
    return base.copy(tmp_path / "home")


@pytest.fixture
def pretended(monkeypatch):
    """Ray in this process."""
    from support.clusters import pretend

    with pretend(monkeypatch) as made:
        yield made


@pytest.fixture
def pair():
    """Two silos of one process on loopback: NODE.toml and all that it names."""
    from support.pair import two_silos

    with two_silos() as folder:
        yield folder
