"""Rows that are there or not, on every path: what is planned is what is drawn, and what a ledger
states is about the person that it names.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from dynadp.cli import main
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.node_rows import NodeRows, bytes_in_memory
from dynadp.data.readers import source
from dynadp.data.shard import Shard
from dynadp.engines.journal import LedgerJournal
from dynadp.engines.simulation import simulate
from dynadp.errors import DataError, DeclarationError
from dynadp.estimators.classifier import NetworkClassifier
from dynadp.mechanisms.centring import private_centre
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sums import Sum
from dynadp.planning.parts import Consortium
from dynadp.planning.planner import plan
from dynadp.planning.plans import Plan
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import Gaussian, L2Laplace
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.privacy.units import Unit
from dynadp.runs.training import train
from support.run_files import write_csv

AT = "2026-03-01T12:00:00+00:00"
PAIR = Topology.family("ring", 2).named(["a", "b"])


def shards(rng, rows=100, d=4):
    X = rng.normal(size=(2 * rows, d))
    X /= 2 * np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X[:, 0] > 0, 1, -1)
    return [Shard.of(X[k * rows :][:rows], y[k * rows :][:rows], name="ab"[k]) for k in (0, 1)]


def made_plan(mechanism, adjacency):
    schedule = {"schedule": 1.0, "delta": 1e-5, "unit": Unit(adjacency=adjacency)}
    made = Plan.of(rho=1e-2, eta=0.05, rounds=2, mechanism=mechanism, **schedule)
    return made.on(Consortium(PAIR, (100, 100), 4))


MECHANISMS = (
    Primal(),
    Primal(noise="gaussian"),
    Primal(augment="iterate"),
    Primal(final_release=0.5),
    Dual(),
)


@pytest.mark.parametrize("adjacency", ["replace", "add-remove"])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_what_is_planned_is_what_is_drawn(mechanism, adjacency):
    made = made_plan(mechanism, adjacency)
    run = simulate(shards(np.random.default_rng(0)), PAIR, made, draws=SeededEntropy(1))
    assert run.releases.public.moves == made.release_plan.public.moves == made.unit.moves
    for drawn, planned in zip(run.releases.noises, made.release_plan.noises, strict=True):
        for name, value in vars(planned).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(getattr(drawn, name), value, err_msg=name)
    assert list(run.events()) == [replace(e, seeded=True) for e in made.events]


@pytest.mark.parametrize("mechanism", [Dual(), Primal(final_release=0.5)], ids=repr)
def test_ledgers_take_what_was_reserved(mechanism, tmp_path):
    made, ledgers = made_plan(mechanism, "add-remove"), {}
    for node in PAIR.nodes:
        ledgers[node] = Ledger.create(tmp_path / f"{node}.sqlite", node, who="me", at=AT)
        ledgers[node].set_cap(Cap.of(20.0, 1e-5), who="me", at=AT)
    journal = LedgerJournal(ledgers, "visits", dataset="rows", who="me")
    journal.reserve(made.events)
    rows = shards(np.random.default_rng(0))
    simulate(rows, PAIR, made, draws=SystemEntropy(), journal=journal)
    for node, ledger in ledgers.items():
        assert ledger.spent() == [event for event in made.events if event.node == node]
        ledger.close()


# --------------------------------------------------------------------------------------------------
# ledgers


def laplace(n, alpha=1.0, **whose):
    return L2Laplace("a", n, "message", alpha, 3, **whose)


@pytest.mark.parametrize(
    ("first", "second", "times"),
    [
        ({}, {"rows": 5}, 5),
        ({"adjacency": "add-remove"}, {}, 2),
        ({"adjacency": "add-remove", "rows": 2}, {"rows": 3}, 6),
    ],
)
def test_what_is_lost_is_about_the_person_that_a_ledger_names(tmp_path, first, second, times):
    """Released for one unit, reserved for a larger one: all figures are about the larger one."""
    with Ledger.create(tmp_path / "a.sqlite", "a", who="me", at=AT) as ledger:
        ledger.set_cap(Cap.of(50.0, 1e-5), who="me", at=AT)
        how = {"dataset": "rows", "who": "me", "at": AT}
        ledger.reserve("one", [laplace(1, **first)], **how)
        ledger.spend("one", 1, [laplace(1, **first)], b"v", who="me", at=AT)
        ledger.close_run("one", "finished", who="me", at=AT)
        alone = LedgerSummary.of(ledger)
        assert alone.lost == pytest.approx(first.get("rows", 1), rel=2e-3)
        ledger.reserve("two", [laplace(1, **second)], **how)
        both = LedgerSummary.of(ledger)
    assert both.unit == Unit(second.get("rows", 1))
    assert both.lost == pytest.approx(times)
    assert both.to_json()["cap"]["odometer"] == pytest.approx(times)
    assert {r.measure: r.spent for r in both.rooms}["sum"] == pytest.approx(times)


def test_how_often_a_run_fits_beside_one_of_another_unit():
    """Exactly as often as the rule admits it, and without lists of all of them."""
    cap = Cap.of(30.0, 1e-5)
    before = [Gaussian("a", 1, "gradient", 0.2, 5, rows=1)]
    release = [Gaussian("a", 1, "gradient", 0.05, 5, rows=3)]
    fits = cap.affordable(before, release)
    assert cap.filter(before + release * fits)
    assert not cap.filter(before + release * (fits + 1))
    many = cap.affordable(before, [Gaussian("a", 1, "gradient", 1e-6, 5, rows=3)])
    assert many > 10**9


def test_ledger_left_keeps_what_is_not_given(tmp_path):
    path = tmp_path / "a.sqlite"
    with Ledger.create(path, "a", who="me", at=AT) as ledger:
        ledger.set_cap(Cap.of(4.0, 1e-5), who="me", at=AT)
        planned = [Gaussian("a", 1, "gradient", 0.1, 5, rows=2, adjacency="add-remove")]
        ledger.reserve("one", planned, dataset="rows", who="me", at=AT)
    said = CliRunner().invoke(
        main, ["ledger", "left", str(path), "--rows-per-person", "3", "--json"]
    )
    assert said.exit_code == 0, said.output
    assert json.loads(said.output)["next_run"]["unit"]["adjacency"] == "add-remove"


# --------------------------------------------------------------------------------------------------
# refusals before anything is spent


def small():
    data = census(240, seed=2, nodes=2, test_rows=0)
    return data.schema, data.tables(PAIR.nodes)


def test_a_plan_may_not_say_that_rows_are_limited_where_nothing_limits():
    schema, tables = small()
    plain = schema.model_copy(update={"rows_per_person": 3})
    counts = [len(next(iter(t.values()))) for t in tables.values()]
    how = {"epsilon": 1.0, "delta": 1e-5, "features": plain.feature_count}
    made = plan(counts, PAIR, plain.dimension, unit=Unit(3, limited=True), **how)
    with pytest.raises(DeclarationError, match="names no column of people"):
        train(plain, tables, PAIR, made)


def test_a_centre_is_accounted_for_the_adjacency_of_its_schema():
    schema, tables = small()
    rows = next(iter(tables.values()))
    added = schema.model_copy(update={"adjacency": "add-remove"})
    sums = NodeRows(added, rows, "a", declared=5000).sums
    with pytest.raises(DeclarationError, match="accounted for the other one"):
        private_centre(added, [sums], ["a"], 1.0, SeededEntropy(0))
    unit = Unit(adjacency="add-remove")
    found = private_centre(added, [sums], ["a"], 1.0, SeededEntropy(0), unit=unit)
    assert {event.adjacency for event in found.events} == {"add-remove"}


def test_people_at_several_nodes_need_losses_that_compare_in_every_release():
    given = {"epsilon": 1.0, "delta": 1e-5, "unit": Unit(silos=2)}
    ring = Topology.family("ring", 3)
    final = Primal(noise="gaussian", final_release=0.1)
    with pytest.raises(DeclarationError, match="nodes lose differently"):
        _ = plan([2000, 20, 2000], ring, 11, mechanism=final, **given).events
    assert plan([2000, 20, 2000], ring, 11, mechanism=Sum(), **given).total.silos == 2


def test_rows_that_will_not_fit_are_refused_before_the_centre_is_released(tmp_path):
    """Sparse rows fit into 16 MiB, and dense ones, which have a centre, do not."""
    schema, tables = small()
    write_csv(tmp_path / "rows.csv", tables["a"])
    given = source(tmp_path / "rows.csv", memory=1 << 24)
    rows = NodeRows(schema.model_copy(update={"adjacency": "add-remove"}), given, "a", declared=90)
    assert rows.sums.rows == 90
    dense = rows.schema.model_copy(update={"centre": (0.0,) * schema.feature_count})
    most = (1 << 24) * 90 // bytes_in_memory(rows.schema, 90)
    assert bytes_in_memory(dense, most) > 1 << 24
    many = NodeRows(rows.schema, given, "a", declared=most)
    many.check()
    with pytest.raises(DataError, match="raise the limit"):
        _ = many.sums


def test_an_estimator_without_rows_fits_as_one_with_a_row():
    how = {"epsilon": 2.0, "delta": 1e-5, "data_norm": 1.0, "classes": [0, 1], "random_state": 1}
    how |= {"adjacency": "add-remove", "rows": 50, "nodes": 1}
    none = NetworkClassifier(**how).fit(np.empty((0, 3)), np.empty(0, int))
    one = NetworkClassifier(**how).fit(np.ones((1, 3)), np.ones(1, int))
    assert none.plan_.total == one.plan_.total
    assert none.privacy_["adjacency"] == "add-remove"
