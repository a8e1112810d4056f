"""Whole runs by the set of silos where a person has rows, and files in which one person has very
many: what is seen never loses more than her account says, and an account that forgets a silo, or a
run that forgets to limit her, is caught.
"""

from math import sqrt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.columns import Numeric
from dynadp.data.loading import load_shard
from dynadp.data.node_rows import StreamedShard
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.schema import Label, Schema
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan
from dynadp.planning.sums import gaussian_mu
from dynadp.privacy.accountant import for_person
from dynadp.privacy.gaussian import joint_mu
from dynadp.privacy.units import Unit
from dynadp.problem.losses import HuberHinge
from dynadp.research.audit import (
    Stream,
    audit_mechanism,
    lower_bound,
    lower_mu,
    worst_cases,
    worst_sum_cases,
)

NODES, M, ROUNDS, DELTA = ("a", "b", "c", "d"), 2, 2, 1e-3
STEEP = HuberHinge(10.0, 30.0)  # slopes stay at their bound
SILOS = [1, 2, 3, 4]


def messages(shards, made, count, nodes=NODES):
    """Everything that all nodes send in so many runs, and what one run costs."""
    sent = []
    run = simulate(
        shards,
        Topology.family("complete", len(nodes)).named(nodes),
        made,
        replicas=count,
        draws=Stream(5),
        on_round=lambda p: sent.append(p.messages.transpose(1, 0, 2).reshape(count, -1)),
    )
    return np.hstack(sent), run.events()


def both(made, silos, count):
    """A run with her rows at the first silos, and one with other rows in their places."""
    quiet, found = Shard.of(np.zeros((M, 1)), np.ones(M)), []
    for sign in (1, -1):
        mine = Shard.of(np.ones((M, 1)), sign * np.ones(M))
        shards = [mine if p < silos else quiet for p in range(len(NODES))]
        sent, events = messages(shards, made, count)
        found.append(sent)
    return *found, events


@pytest.mark.parametrize("silos", SILOS)
def test_sums_in_the_open_by_the_set_of_silos(silos):
    mu = 0.5 / M
    made = Plan.of(loss=STEEP, rounds=ROUNDS, mechanism=Sum(False), schedule=mu, pull=20.0)
    mine, others, events = both(made, silos, 20_000)
    lower = lower_mu(mine, others).mu
    claimed = [joint_mu([e for e in events if e.node in NODES[:k]], M) for k in (silos, silos - 1)]
    assert claimed[0] == pytest.approx(M * mu * sqrt(ROUNDS * silos))
    assert 0.84 * claimed[0] < lower <= claimed[0]
    account = for_person(events, NODES[:silos], DELTA, rows=M)
    assert lower_bound(mine, others, delta=DELTA, confidence=0.999).epsilon <= account.epsilon
    # an account that forgets a silo
    if silos > 1:
        assert lower > claimed[1]


@pytest.mark.parametrize("silos", SILOS)
def test_sealed_sums_by_the_set_of_silos(silos):
    """Five nodes of which one looks on: one noise of the four others hides her at all of them."""
    found = audit_mechanism(
        Sealed(honest=4, spares=0),
        0.5 / M,
        1,
        ROUNDS,
        draws=20_000,
        source=Stream(1),
        cases=worst_sum_cases(1, M)[:1],
        nodes=5,
        colluding=1,
        silos_per_person=silos,
    )
    each = 0.5 * sqrt(ROUNDS)
    assert found.mu_claimed == pytest.approx(silos * each)
    assert not found.refuted
    assert 0.85 * found.mu_claimed < found.mu_lower
    # accounts that forget a silo, or add up as in the open
    assert found.largest_shift > max((silos - 1) * each, 0.99 * sqrt(silos) * each)
    if silos > 1:
        assert found.mu_lower > (silos - 1) * each


def test_sealed_sums_at_all_silos():
    """With rows at all five nodes, and noise made for four of them."""
    found = audit_mechanism(
        Sealed(honest=4, spares=0),
        0.5 / M,
        draws=20_000,
        source=Stream(1),
        cases=worst_sum_cases(1, M)[:1],
        nodes=5,
        colluding=0,
        silos_per_person=5,
    )
    assert not found.refuted
    assert found.largest_shift == pytest.approx(2.5 * sqrt(4 / 5), rel=1e-3)
    assert found.mu_lower > 4 * 0.5  # one silo forgotten
    assert found.mu_claimed >= found.largest_shift


@pytest.mark.diagonal
@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=str)
@pytest.mark.parametrize("silos", SILOS)
def test_admm_by_the_set_of_silos(mechanism, silos):
    """Draws of whole runs stay below her account; single outputs come up to their bound, which
    one silo fewer would break.
    """
    alpha = 0.5 / M
    made = Plan.of(loss=STEEP, rounds=ROUNDS, mechanism=mechanism, schedule=alpha, rho=0.1, eta=0.5)
    mine, others, events = both(made, silos, 3_000)
    account = for_person(events, NODES[:silos], DELTA, rows=M)
    assert lower_bound(mine, others, delta=DELTA, confidence=0.999).epsilon <= account.epsilon
    found = audit_mechanism(
        mechanism,
        alpha,
        1,
        ROUNDS,
        delta=DELTA,
        draws=2_000,
        source=Stream(1),
        cases=worst_cases(1, alpha, M)[:1],
        silos_per_person=silos,
    )
    assert not found.refuted
    assert found.alpha_claimed == pytest.approx(account.epsilon, rel=2e-3)
    each = found.log_ratio_bound / silos
    assert found.largest_log_ratio > max((silos - 1) * each, 0.98 * found.log_ratio_bound)


# --------------------------------------------------------------------------------------------------
# one person with a thousand rows

SCHEMA = Schema(
    columns=(Numeric(name="v", low=0, high=1),),
    label=Label(name="y", negative=0, positive=1),
    person="id",
    rows_per_person=5,
)
OTHERS, HERS, EPSILON = 300, 1000, 2.0


def crowded(path, sign):
    """A file of which a thousand rows, here and there, are ann's; all alike."""
    rng = np.random.default_rng(3)
    hers = rng.permutation(np.arange(OTHERS + HERS) < HERS)
    ids = np.where(hers, "ann", np.char.add("other ", np.arange(OTHERS + HERS).astype(str)))
    table = {
        "v": np.where(hers, 1.0, rng.random(len(hers))),
        "y": np.where(hers, (sign + 1) // 2, rng.integers(0, 2, len(hers))),
        "id": ids,
    }
    pq.write_table(pa.table(table), path)
    return path


def planned(rows, m):
    return plan(
        [rows],
        Topology.family("complete", 1).named(["a"]),
        SCHEMA.dimension,
        epsilon=EPSILON,
        delta=DELTA,
        mechanism=Sum(False),
        centring=False,
        unit=Unit(m),
    )


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_a_person_with_a_thousand_rows_loses_what_was_declared(tmp_path, streamed):
    """Two files that differ in her rows alone, and all that is sent of them."""
    files = [crowded(tmp_path / f"{sign}.parquet", sign) for sign in (1, -1)]

    def found(schema, made, draws):
        sent = []
        for file in files:
            given = source(file, memory=LEAST_MEMORY if streamed else None)
            shard = (StreamedShard.of if streamed else load_shard)(schema, given)
            assert isinstance(shard, StreamedShard) == streamed
            sent.append(messages([shard], made, draws, ["a"])[0])
        epsilon = lower_bound(*sent, delta=DELTA, confidence=0.999).epsilon
        return lower_mu(*sent).mu, epsilon

    mu, epsilon = found(SCHEMA, planned(OTHERS + 5, 5), 8_000)
    assert 0.7 * gaussian_mu(EPSILON, DELTA) < mu <= gaussian_mu(EPSILON, DELTA)
    assert epsilon <= EPSILON
    # noise that was made for two of her rows; and all thousand of them
    assert found(SCHEMA, planned(OTHERS + 5, 2), 8_000)[0] > gaussian_mu(EPSILON, DELTA)
    everything = SCHEMA.model_copy(update={"rows_per_person": HERS})
    mu, epsilon = found(everything, planned(OTHERS + HERS, 5), 500)
    assert mu > gaussian_mu(EPSILON, DELTA)
    assert epsilon > EPSILON
