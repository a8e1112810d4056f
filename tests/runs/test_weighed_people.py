"""Rows of people that are weighed: accounts, plans, audits, and runs from a file to a ledger."""

import csv
import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.node_rows import NodeRows
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.schema import Schema
from dynadp.errors import DeclarationError
from dynadp.estimators.classifier import NetworkClassifier
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import for_person, total
from dynadp.privacy.events import Gaussian, SealedGaussian, from_json, to_json
from dynadp.privacy.gaussian import joint_mu
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.units import Unit
from dynadp.research.audit import Stream, audit_mechanism, audited_node, worst_sum_cases
from dynadp.research.audit import sums as audit_sums
from dynadp.runs.training import train
from support.typed import dynadp

DELTA, NODES, M = 1e-5, ("a", "b", "c"), 4
RING = Topology.family("ring", 3).named(NODES)
WEIGHED = [Sum(weighed=True), Sealed(honest=2, weighed=True)]


@pytest.fixture(scope="module")
def people():
    """Rows of a census whose people have one to some rows."""
    data = census(900, seed=5, nodes=3, test_rows=0)
    schema = Schema.model_validate(
        data.schema.model_dump() | {"person": "who", "rows_per_person": M}
    )
    rng = np.random.default_rng(0)
    tables = {
        node: {**table, "who": np.array([f"p{i}" for i in rng.integers(0, 100, 300)])}
        for node, table in data.tables(NODES).items()
    }
    return schema, tables


# --------------------------------------------------------------------------------------------------
# accounts and plans


def test_the_loss_of_weighed_rows_does_not_grow_with_them():
    one, full = Gaussian("a", 1, "gradient", 0.3, 2, weighed=True), Gaussian("a", 1, "g", 0.3, 2)
    assert joint_mu([one], rows=5) == pytest.approx(0.3)
    assert joint_mu([one, full], rows=5) == pytest.approx(sqrt(0.3**2 + 1.5**2))
    assert total([one], DELTA, rows=5).epsilon == total([full], DELTA).epsilon
    assert not one.per_row
    assert from_json(to_json(one)) == one
    assert "weighed" not in to_json(full)
    # but with her nodes, and where rows that are added stand beside rows that are replaced
    assert joint_mu([one], rows=5, silos=4) == pytest.approx(0.6)
    sealed = SealedGaussian("a", 1, "gradient", 0.3, 2, honest=2, members=3, weighed=True)
    assert joint_mu([sealed], rows=5, silos=2) == pytest.approx(0.6)
    both = [sealed, replace(sealed, node="b")]
    at_two = total([sealed], DELTA, rows=5, silos=2).epsilon
    assert for_person(both, ["a", "b"], DELTA, rows=5).epsilon == pytest.approx(at_two)
    mixed = [replace(one, adjacency="add-remove"), full]
    assert joint_mu(mixed, rows=1) == pytest.approx(sqrt(0.6**2 + 0.3**2))


@pytest.mark.parametrize("mechanism", WEIGHED, ids=str)
def test_a_plan_for_weighed_rows(mechanism):
    """Noise for one row; of the centring round, for all of a person's."""

    def planned(mechanism, m):
        return plan(
            [2000] * 3, RING, 11, epsilon=1.0, delta=DELTA, mechanism=mechanism, unit=Unit(m)
        )

    made, one = planned(mechanism, M), planned(replace(mechanism, weighed=False), 1)
    assert 0.99 < made.total.epsilon <= 1.0
    np.testing.assert_allclose(made.table(), one.table(), rtol=1e-6)
    np.testing.assert_allclose(np.array(made.centrings) * M, one.centrings, rtol=1e-6)
    assert made.steps.pull == pytest.approx(one.steps.pull, rel=1e-6)
    kinds = {event.purpose: event.weighed for event in made.events}
    assert kinds.pop("centring") is False
    assert set(kinds.values()) == {True}
    assert made.release_plan.weighed
    assert not one.release_plan.weighed


def test_a_spare_attempt_at_the_centring_round_costs_what_is_charged():
    """Features are not weighed: their noise is m times as long as that of a spare gradient."""
    made = plan(
        [2000] * 3, RING, 11, epsilon=1.0, delta=DELTA, mechanism=WEIGHED[1], unit=Unit(M)
    ).release_plan
    spare, gradient = made.spares[0], made.noises[-1]
    assert made.spare(1, gradient, 1)[1].mu == pytest.approx(spare.mu)
    features = gradient.changed(weighed=False)
    assert made.spare(0, features, 1)[1].mu * M == pytest.approx(spare.mu)


# --------------------------------------------------------------------------------------------------
# audits


@pytest.mark.parametrize("m", [2, 5])
@pytest.mark.parametrize(
    "mechanism",
    [
        Sum(weighed=True),
        Sum(True, weighed=True),
        Sealed(honest=3, spares=0, weighed=True),
    ],
    ids=str,
)
def test_m_rows_lose_what_one_may(mechanism, m):
    """All her rows replaced at once: the exact distance comes up to mu, for any m."""
    largest = 0.0
    for dimension in (1, 2, 3):
        for case in worst_sum_cases(dimension, m):
            node = audited_node(case, mechanism, 0.5, 2)
            assert joint_mu(node.events, m) == pytest.approx(0.5 * sqrt(2))
            for rows in (case.rows, case.other):
                found = node.compare(*node.transcript(rows, 4, Stream(1)))
                largest = max(largest, float(found.shift.max()))
                assert found.shift.max() <= 0.5 * sqrt(2)
    assert largest > (0.98 if not mechanism.second_moment else 0.8) * 0.5 * sqrt(2)


def test_draws_of_weighed_rows_and_a_mutant_that_forgets_to_weigh():
    how = {"draws": 20_000, "source": Stream(1), "cases": worst_sum_cases(1, 3)[:1]}
    sound = audit_mechanism(Sum(weighed=True), 0.8, **how)
    assert not sound.refuted
    assert 0.84 * 0.8 < sound.mu_lower <= sound.mu_claimed == pytest.approx(0.8)
    honest = audit_sums.IntegerRows

    def forgets(*given, people=None, **more):
        return honest(*given, **more)

    with patch.object(audit_sums, "IntegerRows", forgets):
        mutant = audit_mechanism(Sum(weighed=True), 0.8, **how)
    assert mutant.refuted_exactly
    assert mutant.mu_lower > 2 * 0.8


# --------------------------------------------------------------------------------------------------
# runs


@pytest.mark.parametrize("mechanism", WEIGHED, ids=str)
def test_training_with_weighed_rows(people, mechanism):
    schema, tables = people
    how = {"epsilon": 2.0, "delta": DELTA, "draws": SeededEntropy(1)}
    found = train(schema, tables, RING, mechanism=mechanism, **how)
    assert found.total.epsilon <= 2.0
    assert {e.weighed for e in found.events if e.purpose == "gradient"} == {True}
    plain = train(schema, tables, RING, mechanism=replace(mechanism, weighed=False), **how)
    assert (found.run.models("network") != plain.run.models("network")).any()
    gain = found.plan.table()[0, 0, -1] / plain.plan.table()[0, 0, -1]
    assert gain == pytest.approx(M, rel=0.01)


def test_rows_that_cannot_be_weighed(people, tmp_path):
    """Refused before anything is released."""
    schema, tables = people
    nobody = schema.model_copy(update={"person": None})
    how = {"epsilon": 2.0, "delta": DELTA, "mechanism": WEIGHED[0]}
    with pytest.raises(DeclarationError, match="names no column that says whose they are"):
        train(nobody, tables, RING, **how)
    pq.write_table(pa.table(tables["a"]), tmp_path / "a.parquet")
    small = source(tmp_path / "a.parquet", memory=LEAST_MEMORY)
    large = NodeRows(schema, small, "a", declared=10**6)
    with pytest.raises(DeclarationError, match="do not fit into the"):
        large.require_people()
    NodeRows(schema, tmp_path / "a.parquet", "a").require_people()


def test_a_run_file_with_weighed_rows(people, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schema, tables = people
    bare = schema.model_copy(update={"person": None, "rows_per_person": 1})
    Path("schema.json").write_text(bare.model_dump_json())
    text = '[data]\nschema = "schema.json"\n[privacy]\nepsilon = 2.0\ndelta = 1e-5\n'
    text += 'person = "who"\nrows_per_person = 4\nmechanism = { name = "sum", weighed = true }\n'
    for node, table in tables.items():
        with open(f"{node}.csv", "w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(table)
            lines.writerows(zip(*table.values(), strict=True))
        text += f'[[nodes]]\nname = "{node}"\nfile = "{node}.csv"\nledger = "{node}.sqlite"\n'
        words = f"ledger cap {node}.sqlite --node {node} --epsilon 5 --delta 1e-5"
        assert dynadp(*words.split()).exit_code == 0
    Path("run.toml").write_text(text)
    done = dynadp("train", "run.toml", "--out", "run")
    assert done.exit_code == 0, done.output
    record = json.loads(Path("run/run.json").read_text())
    assert record["plan"]["mechanism"]["weighed"] is True
    with Ledger.open("a.sqlite", read_only=True) as ledger:
        assert {e.weighed for e in ledger.spent() if e.purpose == "gradient"} == {True}
    report = dynadp("report", "run", "--out", "report.html")
    assert report.exit_code == 0, report.output
    Path("run.toml").write_text(text.replace('person = "who"\n', ""))
    refused = dynadp("train", "run.toml", "--out", "again")
    assert refused.exit_code == 2
    assert "names no column that says whose they are" in refused.output


def test_the_estimator_weighs_rows():
    rng = np.random.default_rng(1)
    X, who = rng.normal(size=(600, 2)), rng.integers(0, 150, 600)
    y = (X[:, 0] > 0).astype(int)
    how = {"delta": DELTA, "data_norm": 4.0, "classes": [0, 1], "random_state": 0}
    model = NetworkClassifier(
        epsilon=2.0, rows_per_person=M, nodes=3, mechanism=Sum(weighed=True), **how
    )
    model.fit(X, y, people=who)
    assert model.plan_.release_plan.weighed
    assert model.privacy_["epsilon"] <= 2.0
    with pytest.raises(DeclarationError, match="nothing says whose they are: give people="):
        model.fit(X, y, nodes=np.arange(600) % 3)


def test_the_estimator_weighs_rows_that_are_there_or_not():
    """Null rows are nobody's, and a node may have no others."""
    rng = np.random.default_rng(1)
    X, who = rng.normal(size=(300, 2)), rng.integers(0, 100, 300)
    y, nodes = (X[:, 0] > 0).astype(int), np.array(["a", "b"])[who % 2]
    how = {"delta": DELTA, "data_norm": 4.0, "classes": [0, 1], "random_state": 0}
    how |= {"epsilon": 2.0, "rows_per_person": M, "mechanism": Sum(weighed=True)}
    how |= {"topology": RING, "adjacency": "add-remove", "rows": 200}
    model = NetworkClassifier(**how).fit(X, y, nodes=nodes, people=who)
    assert model.plan_.bound.counts == (200, 200, 200)  # and none at c
    assert model.score(X, y) > 0.8


def test_plans_say_how_rows_of_people_count(people):
    how = {"epsilon": 1.0, "delta": DELTA}
    for mechanism, words in ((WEIGHED[0], "are weighed, so that"), (Sum(), "4 times that of one")):
        unit = Unit(M, limited=True)
        made = plan([2000] * 3, RING, 11, mechanism=mechanism, unit=unit, **how)
        assert sum(words in reason for reason in made.reasons) == 1
    assert not any("weighed" in r for r in plan([2000] * 3, RING, 11, **how).reasons)


def test_the_command_line_audits_weighed_rows():
    words = "audit --mechanism sum --weighed --alpha 0.5 --rows-per-person 3 --draws 2000 --seed 1"
    done = dynadp(*words.split(), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["mu_claimed"], found["rows_per_person"]) == (0.5, 3)
    assert dynadp(*words.replace("sum", "primal").split()).exit_code == 2
