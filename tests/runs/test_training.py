"""From raw rows and a total to a model, with ledgers."""

from dataclasses import replace

import numpy as np
import pytest

from dynadp import Plan
from dynadp.consensus.journal import Journal
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines.journal import FolderJournal, LedgerJournal
from dynadp.engines.simulation import simulate
from dynadp.errors import BudgetRefused, CellError, DeclarationError, RecordError, SeededRefused
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import worst_node
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.training import train
from support import flat_simulate

NODES = ("a", "b", "c")
RING = Topology.from_edges([("a", "b"), ("b", "c"), ("c", "a")], NODES, name="ring")
AT = "2026-03-01T12:00:00+00:00"


@pytest.fixture(scope="module")
def data():
    return census(3000, seed=2, nodes=3, heterogeneity=0.5)


@pytest.fixture(scope="module")
def tables(data):
    return data.tables(NODES)


@pytest.fixture
def ledgers(tmp_path):
    found = {}
    for p in NODES:
        found[p] = Ledger.create(tmp_path / f"{p}.sqlite", p, who="test", at=AT)
        found[p].set_cap(Cap.of(2.0, 1e-5), who="test", at=AT)
    yield found
    for ledger in found.values():
        ledger.close()


def journal(ledgers, run="run", resume=False):
    return LedgerJournal(
        ledgers, run, dataset="census", who="test", clock=lambda: AT, resume=resume
    )


@pytest.mark.parametrize("mechanism", ["primal", "dual"])
def test_a_total_is_enough_to_train(data, tables, mechanism):
    trained = train(
        data.schema,
        tables,
        RING,
        epsilon=4.0,
        delta=1e-5,
        mechanism=mechanism,
        draws=SeededEntropy(3),
    )
    assert trained.total.epsilon <= 4.0
    assert not trained.total.protected
    assert [replace(e, seeded=True) for e in trained.plan.events] == list(trained.events)
    wrong = np.mean(trained.model().predict(data.test) != data.test["income"])
    assert wrong < 0.19 < np.mean(data.test["income"] == "high")
    assert trained.model().privacy["epsilon"] == trained.total.epsilon
    assert trained.schema.centre is not None


def test_system_entropy_protects(data, tables):
    trained = train(data.schema, tables, RING, epsilon=1.0, delta=1e-5)
    assert trained.total.protected
    assert trained.events == trained.plan.events


def test_a_public_centre_needs_no_round(data, tables):
    centred = data.schema.model_copy(
        update={"centre": (0.0,) * (data.schema.dimension - 1), "scaling": "unit"}
    )
    trained = train(centred, tables, RING, epsilon=1.0, delta=1e-5, draws=SeededEntropy(0))
    assert trained.centring is None
    assert min(e.round for e in trained.events) == 1
    assert 0.99 <= trained.total.epsilon <= 1.0


def test_a_public_start_is_used(data, tables):
    start = np.linspace(-1, 1, data.schema.dimension)
    begun = train(
        data.schema, tables, RING, epsilon=1.0, delta=1e-5, draws=SeededEntropy(0), start=start
    )
    plain = train(data.schema, tables, RING, epsilon=1.0, delta=1e-5, draws=SeededEntropy(0))
    assert not np.array_equal(begun.run.V, plain.run.V)


def test_rows_of_other_nodes_are_refused(data, tables):
    with pytest.raises(DeclarationError, match=r"rows are given for nodes \['a', 'b'\]"):
        train(data.schema, {p: tables[p] for p in "ab"}, RING, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("mechanism", ["primal", "dual"])
def test_a_plan_for_something_else_is_refused(data, tables, ledgers, mechanism):
    d, given = data.schema.dimension, {"epsilon": 1.0, "delta": 1e-5, "mechanism": mechanism}
    good = plan([1000] * 3, RING, d, **given)
    others = [
        plan([1000] * 3, RING, 10**5, **given),
        replace(good, protection=replace(good.protection, schedule=2.0)),
        replace(good, rounds=30),
    ]
    others += [plan([10**6] * 3, RING, d, **given)] if mechanism == "dual" else []
    for other in others:
        with pytest.raises(DeclarationError, match="plan again"):
            train(
                data.schema,
                tables,
                RING,
                other,
                journal=journal(ledgers),
            )
    assert ledgers["a"].counted() == []


def test_a_plan_at_a_larger_delta_is_refused(data, tables):
    chosen = plan(
        [1000] * 3, RING, data.schema.dimension, epsilon=1.0, delta=1e-3, mechanism="primal"
    )
    smaller = replace(chosen, protection=replace(chosen.protection, delta=1e-5))
    with pytest.raises(DeclarationError, match="at delta = 1e-05, more than the total 1 that"):
        train(data.schema, tables, RING, smaller)


@pytest.mark.parametrize(
    "total", [{"epsilon": 1.0, "delta": 1e-5}, {"epsilon": 1.0}, {"delta": 1e-5}]
)
def test_a_plan_or_a_total_and_not_both(data, tables, total):
    chosen = plan(
        [1000] * 3, RING, data.schema.dimension, epsilon=1.0, delta=1e-5, mechanism="primal"
    )
    with pytest.raises(DeclarationError, match="give a plan, or a total"):
        train(data.schema, tables, RING, chosen, **total)
    if len(total) < 2:
        with pytest.raises(DeclarationError, match="give a plan, or a total"):
            train(data.schema, tables, RING, **total)


def test_a_plan_without_protection_is_not_trained(data, tables):
    with pytest.raises(DeclarationError, match="has no protection, so messages would reveal rows"):
        train(data.schema, tables, RING, Plan.of(rounds=2))


def test_rows_without_an_intercept(data, tables, ledgers):
    bare = data.schema.model_copy(update={"intercept": 0.0})
    trained = train(bare, tables, RING, epsilon=2.0, delta=1e-5, journal=journal(ledgers))
    assert trained.events == trained.plan.events
    assert trained.events[0].dimension == bare.dimension


def test_a_message_is_entered_before_anybody_sees_it(data, ledgers):
    shards, seen = data.shards(names=NODES), []

    def on_round(progress):
        seen.append(progress.number)
        assert all(progress.number in ledgers[p].rounds("run") for p in NODES)

    class Broken(LedgerJournal):
        def spend(self, n, events, messages):
            if n == 3:
                raise Stop
            return super().spend(n, events, messages)

    broken = Broken(ledgers, "run", dataset="census", who="test", clock=lambda: AT)
    with pytest.raises(Stop):
        simulate(
            shards,
            RING,
            Plan.of(mechanism=Primal(), schedule=0.05, rounds=5),
            journal=broken,
            on_round=on_round,
        )
    assert seen == [1, 2]


def test_a_plan_past_the_total_is_refused(data, tables):
    chosen = plan(
        [1000] * 3, RING, data.schema.dimension, epsilon=2.0, delta=1e-5, mechanism="primal"
    )
    promised = replace(chosen, protection=replace(chosen.protection, epsilon=(2.0, 1.0, 2.0)))
    with pytest.raises(DeclarationError, match=r"costs node 'b' .* more than the total 1 that"):
        train(data.schema, tables, RING, promised)


@pytest.mark.parametrize("mechanism", ["primal", "dual", "sum"])
def test_ledgers_hold_the_whole_run(data, tables, ledgers, mechanism):
    sent = []
    trained = train(
        data.schema,
        tables,
        RING,
        epsilon=2.0,
        delta=1e-5,
        mechanism=mechanism,
        journal=journal(ledgers),
        on_round=lambda progress: sent.append(progress.messages.copy()),
    )
    for i, p in enumerate(NODES):
        book = ledgers[p]
        assert book.rounds("run") == list(range(21))
        assert (
            book.counted() == book.spent() == [event for event in trained.events if event.node == p]
        )
        assert book.message("run", 0) == trained.centring.messages[i].astype("<f8").tobytes()
        assert book.message("run", 20) == sent[-1][i, 0].astype("<f8").tobytes()
        assert book.verify() == []


def test_a_second_run_past_the_cap_is_refused_before_it_begins(data, tables, ledgers):
    train(data.schema, tables, RING, epsilon=2.0, delta=1e-5, journal=journal(ledgers))
    with pytest.raises(BudgetRefused):
        train(
            data.schema, tables, RING, epsilon=0.5, delta=1e-5, journal=journal(ledgers, "second")
        )
    assert ledgers["a"].rounds("second") == []


def test_refused_by_one_node_reserves_at_none(data, tables, ledgers):
    ledgers["c"].set_cap(Cap.of(0.01, 1e-5), who="test", at=AT)
    with pytest.raises(BudgetRefused):
        train(data.schema, tables, RING, epsilon=2.0, delta=1e-5, journal=journal(ledgers))
    assert [ledgers[p].counted() for p in NODES] == [[], [], []]
    ledgers["c"].set_cap(Cap.of(2.0, 1e-5), who="test", at=AT)
    train(
        data.schema, tables, RING, epsilon=2.0, delta=1e-5, journal=journal(ledgers, "again")
    )  # the cap is whole


def test_seeded_runs_enter_no_ledger(data, tables, ledgers):
    with pytest.raises(SeededRefused):
        train(
            data.schema,
            tables,
            RING,
            epsilon=1.0,
            delta=1e-5,
            draws=SeededEntropy(0),
            journal=journal(ledgers),
        )
    assert ledgers["a"].counted() == []


def test_a_run_without_a_plan_reserves_what_it_will_spend(data, ledgers):
    shards = data.shards(names=NODES)
    run = simulate(
        shards,
        RING,
        Plan.of(mechanism=Primal(final_release=0.1), schedule=0.05, rounds=3),
        journal=journal(ledgers),
    )
    assert ledgers["b"].rounds("run") == [1, 2, 3, 4]
    assert worst_node(run.events(), 1e-5).epsilon_sum == pytest.approx(0.25)


def test_books_are_for_one_private_run(data, ledgers):
    shards = data.shards(names=NODES)
    with pytest.raises(DeclarationError, match="one private run"):
        simulate(shards, RING, Plan.of(rounds=2), journal=journal(ledgers))
    with pytest.raises(DeclarationError, match="one private run"):
        simulate(
            shards,
            RING,
            Plan.of(rounds=2, mechanism=Primal(), schedule=0.1),
            replicas=2,
            journal=journal(ledgers),
        )


def test_every_node_needs_a_ledger(data, ledgers):
    ledgers.pop("b").close()
    with pytest.raises(DeclarationError, match="no ledger for b"):
        simulate(
            data.shards(names=NODES),
            RING,
            Plan.of(rounds=2, mechanism=Primal(), schedule=0.1),
            journal=journal(ledgers),
        )


def test_nothing_past_the_reservation(data, ledgers):
    reserved = journal(ledgers)
    shards = data.shards(names=NODES)
    events = simulate(
        shards, RING, Plan.of(rounds=2, mechanism=Primal(), schedule=0.1), draws=SystemEntropy()
    ).events()
    reserved.reserve(events)
    with pytest.raises(DeclarationError, match="did not reserve"):
        simulate(
            shards, RING, Plan.of(rounds=3, mechanism=Primal(), schedule=0.1), journal=reserved
        )


class Stop(Exception):
    """An interruption."""


def stop_at(n):
    def on_round(progress):
        if progress.number == n:
            raise Stop

    return on_round


@pytest.mark.parametrize("mechanism", ["primal", "dual"])
@pytest.mark.parametrize("stop", [1, 7, 20])
def test_an_interrupted_simulation_goes_on_to_the_same_bytes(
    data, tables, tmp_path, mechanism, stop
):
    def again(folder, **more):
        outbox = FolderJournal(tmp_path / folder, NODES)
        return train(
            data.schema,
            tables,
            RING,
            epsilon=1.0,
            delta=1e-5,
            mechanism=mechanism,
            draws=SeededEntropy(5),
            journal=outbox,
            **more,
        )

    whole = again("whole")
    with pytest.raises(Stop):
        again("cut", on_round=stop_at(stop))
    assert len(list((tmp_path / "cut").glob("round-*"))) == stop + 1
    resumed = again("cut")
    assert not (tmp_path / "cut").exists()
    assert resumed.run.V.tobytes() == whole.run.V.tobytes()
    assert resumed.run.tail.tobytes() == whole.run.tail.tobytes()
    assert resumed.schema == whole.schema
    assert resumed.events == whole.events


def test_an_interrupted_run_goes_on_from_its_ledgers(data, tables, ledgers):
    with pytest.raises(Stop):
        train(
            data.schema,
            tables,
            RING,
            epsilon=2.0,
            delta=1e-5,
            journal=journal(ledgers),
            on_round=stop_at(9),
        )
    kept = {n: ledgers["a"].message("run", n) for n in range(10)}
    # a crash between two nodes' entries of round 10
    plan_a = [e for e in ledgers["a"].reserved("run") if e.round == 10]
    ledgers["a"].spend(
        "run",
        10,
        plan_a,
        np.full(data.schema.dimension, 0.5).astype("<f8").tobytes(),
        who="test",
        at=AT,
    )
    resumed = train(
        data.schema, tables, RING, epsilon=2.0, delta=1e-5, journal=journal(ledgers, resume=True)
    )
    assert {n: ledgers["a"].message("run", n) for n in range(10)} == kept
    assert (
        np.frombuffer(ledgers["a"].message("run", 10), "<f8").tolist()
        == [0.5] * data.schema.dimension
    )
    assert [ledgers[p].rounds("run") for p in NODES] == [list(range(21))] * 3
    assert resumed.total.epsilon <= 2.0
    assert ledgers["b"].verify() == []


def test_a_run_is_resumed_with_its_own_plan_only(data, tables, ledgers):
    with pytest.raises(Stop):
        train(
            data.schema,
            tables,
            RING,
            epsilon=1.0,
            delta=1e-5,
            journal=journal(ledgers),
            on_round=stop_at(2),
        )
    with pytest.raises(BudgetRefused, match="with another plan"):
        train(
            data.schema,
            tables,
            RING,
            epsilon=0.9,
            delta=1e-5,
            journal=journal(ledgers, resume=True),
        )
    with pytest.raises(BudgetRefused, match="reserved before"):
        train(data.schema, tables, RING, epsilon=1.0, delta=1e-5, journal=journal(ledgers))
    first = train(
        data.schema, tables, RING, epsilon=1.0, delta=1e-5, journal=journal(ledgers, resume=True)
    )
    head = ledgers["a"].head
    again = train(
        data.schema, tables, RING, epsilon=1.0, delta=1e-5, journal=journal(ledgers, resume=True)
    )  # all is entered
    assert again.run.tail.tobytes() == first.run.tail.tobytes()
    assert ledgers["a"].head == head


def test_a_closed_run_that_did_not_spend_all_cannot_go_on(data, tables, ledgers):
    with pytest.raises(Stop):
        train(
            data.schema,
            tables,
            RING,
            epsilon=1.0,
            delta=1e-5,
            journal=journal(ledgers),
            on_round=stop_at(2),
        )
    ledgers["b"].close_run("run", "stopped", who="test", at=AT)
    with pytest.raises(BudgetRefused, match="is closed"):
        train(
            data.schema,
            tables,
            RING,
            epsilon=1.0,
            delta=1e-5,
            journal=journal(ledgers, resume=True),
        )


def test_a_bad_cell_is_found_before_anything_is_reserved(data, tables, ledgers):
    labels = tables["b"]["income"].astype(object)
    labels[7] = "SECRET-CELL"
    with pytest.raises(CellError, match="node 'b', income, row 7: the label is neither") as caught:
        train(
            data.schema,
            {**tables, "b": {**tables["b"], "income": labels}},
            RING,
            epsilon=1.0,
            delta=1e-5,
            journal=journal(ledgers),
        )
    assert "SECRET" not in str(caught.value)
    assert ledgers["a"].counted() == []


ITERATE = {"mechanism": Primal(augment="iterate"), "schedule": 0.05, "rounds": 6}


class Pinned(SeededEntropy):
    """Draws from a seed that pass for the operating system's."""

    seeded = False


def private_files(folder):
    return sorted(folder.rglob("*-own-*"))


def dies(kind, where, round_):
    """A journal whose process dies at one point of one round."""

    class Dying(kind):
        def keep(self, n, vectors):
            if (n, where) == (round_, "before keep"):
                raise Stop
            super().keep(n, vectors)
            if (n, where) == (round_, "after keep"):
                raise Stop

        def spend(self, n, events, messages):
            entered = super().spend(n, events, messages)
            if (n, where) == (round_, "after spend"):
                raise Stop
            return entered

    return Dying


@pytest.mark.parametrize("where", ["before keep", "after keep", "after spend"])
@pytest.mark.parametrize("round_", [1, 2, 5, 6])
@pytest.mark.parametrize("place", ["folder", "ledgers"])
def test_an_interrupted_run_goes_on_from_its_private_vector(
    data, ledgers, tmp_path, place, round_, where
):
    """augment = "iterate" needs the unperturbed vector of the round before; no message has it."""
    if place == "folder":
        kind, given = FolderJournal, {"path": tmp_path / "m", "nodes": NODES}
    else:
        stamp = {"dataset": "census", "who": "test", "clock": lambda: AT, "resume": True}
        kind, given = LedgerJournal, {"ledgers": ledgers, "run": "run", **stamp}
    draws = SeededEntropy(5) if place == "folder" else Pinned(5)
    shards = data.shards(names=NODES)
    whole = flat_simulate(shards, RING, draws=draws, **ITERATE)
    with pytest.raises(Stop):
        flat_simulate(
            shards, RING, draws=draws, journal=dies(kind, where, round_)(**given), **ITERATE
        )
    files = private_files(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in files} <= {0o600}
    assert len(files) == 3 * min(2, round_ - (where == "before keep"))
    resumed = flat_simulate(shards, RING, draws=draws, journal=kind(**given), **ITERATE)
    assert resumed.V.tobytes() == whole.V.tobytes()
    assert resumed.tail.tobytes() == whole.tail.tobytes()
    assert resumed.events() == whole.events()
    assert private_files(tmp_path) == []


def test_a_message_in_the_place_of_the_private_vector_would_lead_elsewhere(data, tmp_path):
    """What the kept vector is for: with the message instead, the run ends with another model."""
    shards, draws = data.shards(names=NODES), SeededEntropy(5)
    whole = flat_simulate(shards, RING, draws=draws, **ITERATE)

    class Forgetful(FolderJournal):
        def kept(self, n):
            return self.sent(n)

    with pytest.raises(Stop):
        flat_simulate(
            shards,
            RING,
            draws=draws,
            journal=FolderJournal(tmp_path / "m", NODES),
            on_round=stop_at(3),
            **ITERATE,
        )
    other = flat_simulate(
        shards, RING, draws=draws, journal=Forgetful(tmp_path / "m", NODES), **ITERATE
    )
    assert np.abs(other.V - whole.V).max() > 1e-3 * np.abs(whole.V).max()


def test_a_private_vector_that_is_gone_ends_the_run(data, tmp_path):
    shards, draws = data.shards(names=NODES), SeededEntropy(5)
    with pytest.raises(Stop):
        flat_simulate(
            shards,
            RING,
            draws=draws,
            journal=FolderJournal(tmp_path / "m", NODES),
            on_round=stop_at(3),
            **ITERATE,
        )
    for path in private_files(tmp_path):
        path.unlink()
    with pytest.raises(DeclarationError, match="private vector of round 3 is gone"):
        flat_simulate(
            shards, RING, draws=draws, journal=FolderJournal(tmp_path / "m", NODES), **ITERATE
        )


def test_a_journal_that_keeps_no_private_vector_says_so(data):
    class Plain(Journal):
        begun = True

        def reserve(self, plan):
            pass

        def sent(self, n):
            return None

        def spend(self, n, events, messages):
            return messages

        def fail(self, n, events):
            pass

        def close(self, reason):
            pass

    shards, draws = data.shards(names=NODES), SeededEntropy(5)
    with pytest.raises(DeclarationError, match="keeps no private vectors"):
        flat_simulate(shards, RING, draws=draws, journal=Plain(), **ITERATE)
    message = {**ITERATE, "mechanism": Primal()}
    assert flat_simulate(shards, RING, draws=draws, journal=Plain(), **message).seeded


def test_a_folder_is_no_ledger(data, tables, tmp_path):
    with pytest.raises(DeclarationError, match="give it ledgers"):
        train(
            data.schema,
            tables,
            RING,
            epsilon=1.0,
            delta=1e-5,
            journal=FolderJournal(tmp_path / "m", NODES),
        )


def test_a_damaged_message_is_said(data, tables, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "round-000000.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(RecordError, match="is damaged"):
        train(
            data.schema,
            tables,
            RING,
            epsilon=1.0,
            delta=1e-5,
            draws=SeededEntropy(0),
            journal=FolderJournal(tmp_path / "m", NODES),
        )
