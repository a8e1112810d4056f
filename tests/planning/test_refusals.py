"""What would run with less protection than it claims is refused before anything is computed."""

from typing import ClassVar

import numpy as np
import pytest

from dynadp import NetworkClassifier, Plan, Topology, census, plan, train
from dynadp.data import NodeRows
from dynadp.engines import LedgerJournal, forget_vectors
from dynadp.errors import ConfigError, DeclarationError
from dynadp.mechanisms import Mechanism, NoProtection, Primal, RoundNoise
from dynadp.planning import Protection
from dynadp.privacy import Cap, Ledger, by_node
from dynadp.runs.run_file import RunFile

RING, AT = Topology.family("ring", 3), "2026-03-01T12:00:00+00:00"
DATA = census(300, seed=1, nodes=3)
TABLES = DATA.tables(RING.nodes)
TOTAL = {"epsilon": 2.0, "delta": 1e-5}
X, Y = np.random.default_rng(0).uniform(-1, 1, (120, 2)), np.arange(120) % 3


@pytest.mark.parametrize(
    "begin",
    [
        lambda: train(DATA.schema, TABLES, RING, **TOTAL, mechanism="none"),
        lambda: train(DATA.schema, TABLES, RING, **TOTAL, mechanism=NoProtection()),
        lambda: Protection(mechanism=NoProtection(), schedule=1.0),
        lambda: plan([100] * 3, RING, 4, **TOTAL, mechanism="none"),
        lambda: NetworkClassifier(**TOTAL, data_norm=2, mechanism=NoProtection()).fit(X, Y),
        lambda: NetworkClassifier(**TOTAL, data_norm=2, mechanism="none").fit(X, Y),
        lambda: Plan.of(epsilon=(1.0,) * 3, delta=1e-5),
    ],
)
def test_no_mechanism_is_no_protection(begin):
    with pytest.raises(DeclarationError, match=r"protects nothing|mechanism"):
        begin()


def test_a_table_that_names_no_mechanism_protects_nothing():
    file = {
        "data": {"schema": "s.toml"},
        "nodes": [{"name": "a", "file": "a.csv"}],
        "privacy": {"mechanism": {"name": "none"}, "epsilon": 1.0, "delta": 1e-5},
    }
    with pytest.raises(ValueError, match="mechanism is none, so nothing is protected"):
        RunFile.model_validate(file)
    assert issubclass(ConfigError, DeclarationError)


def test_rows_that_were_prepared_for_another_schema_are_refused():
    wide = DATA.schema.model_copy(update={"columns": DATA.schema.columns[:-1]})
    rows = {p: NodeRows(wide, TABLES[p], p) for p in RING.nodes}
    with pytest.raises(DeclarationError, match="prepared for another schema"):
        train(DATA.schema, rows, RING, **TOTAL)


@pytest.mark.parametrize(("d", "last"), [(100, 0.8), (10, 0.2)])
def test_a_final_release_of_unequal_nodes_keeps_every_promise(d, last):
    counts, four = [100_000] * 3 + [2000], Topology.family("ring", 4)
    made = plan(
        counts,
        four,
        d,
        epsilon=1.0,
        delta=1e-5,
        weights="equal",
        mechanism=Primal(final_release=last),
    )
    assert max(own.epsilon for own in by_node(made.events, 1e-5).values()) <= 1.0


def test_a_final_release_that_nobody_would_use_is_refused():
    given = {"mechanism": Primal(final_release=0.1), "schedule": 0.5, "rho": 0.1, "rounds": 2}
    with pytest.raises(DeclarationError, match="charged and not used"):
        train(DATA.schema, TABLES, RING, Plan.of(**given, delta=1e-5))
    done = train(DATA.schema, TABLES, RING, Plan.of(**given, delta=1e-5, output="last"))
    assert np.array_equal(done.run.models("last"), done.run.V)


def test_several_classes_have_several_final_releases():
    model = NetworkClassifier(**TOTAL, data_norm=2, mechanism=Primal(final_release=0.1))
    with pytest.raises(DeclarationError, match="3 classes are 3 problems"):
        model.fit(X, Y)
    given = {"alpha": 0.5, "rounds": 3, "delta": 1e-5, "data_norm": 2, "random_state": 0}
    model = NetworkClassifier(**given, mechanism=Primal(final_release=0.1)).fit(X, Y)
    assert model.privacy_["epsilon"] > 0
    two = NetworkClassifier(**TOTAL, data_norm=2, mechanism=Primal(final_release=0.1)).fit(X, Y > 0)
    assert two.privacy_["epsilon"] <= 2.0


def test_a_linear_term_says_how_long_it_gets():
    with pytest.raises(DeclarationError, match=r"Silent draws a linear term.*longest_linear"):

        class Silent(RoundNoise):
            """Draws inside the objective, and does not say how long that gets."""

            def linear(self, public, draws, nodes, n):
                return np.zeros((len(nodes), 1, public.dimension))


def test_two_mechanisms_cannot_have_one_name():
    with pytest.raises(DeclarationError, match="two mechanisms are named 'primal'"):

        class Mine(Primal):
            name: ClassVar[str] = "primal"

    assert Mechanism.registry["primal"] is Primal


def test_parameters_that_no_record_would_hold_are_refused():
    with pytest.raises(DeclarationError, match=r"Hidden has an __init__.*fields of a dataclass"):

        class Hidden(Primal):
            name: ClassVar[str] = "hidden"

            def __init__(self, strength: float) -> None:
                self.strength = strength

    assert "hidden" not in Mechanism.registry


def test_private_vectors_go_whatever_the_ledger_is_called(tmp_path):
    ledgers = {}
    for node in RING.nodes:
        ledgers[node] = Ledger.create(tmp_path / f"n[1]{node}.sqlite", node, who="test", at=AT)
        ledgers[node].set_cap(Cap.of(50.0, 1e-5), who="test", at=AT)
    journal = LedgerJournal(ledgers, "run", dataset="rows", who="test")
    given = Plan.of(
        rho=0.1, eta=0.1, rounds=4, mechanism=Primal(augment="iterate"), schedule=0.5, delta=1e-5
    )
    seen = []
    train(
        DATA.schema,
        TABLES,
        RING,
        given,
        journal=journal,
        on_round=lambda progress: seen.append(len(list(tmp_path.glob("*-own-*")))),
    )
    for ledger in ledgers.values():
        ledger.close()
    assert max(seen) == 2 * len(RING)
    assert not list(tmp_path.glob("*-own-*"))
    (tmp_path / ".n[1]0.sqlite-own-x").touch()
    forget_vectors(tmp_path / "other.sqlite", "run")
    assert (tmp_path / ".n[1]0.sqlite-own-x").exists()
