"""Stopping tells nothing: gamma covers whatever neighbours may send, or the run is refused before
round 1 (maths.md 6).
"""

from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynadp import Plan
from dynadp._arrays import column_spans, dot_roundings
from dynadp.consensus import admm, local_solver
from dynadp.consensus.local_solver import LocalSolver
from dynadp.consensus.releases import ReleasePlan
from dynadp.consensus.round import Releaser
from dynadp.consensus.topology import Topology
from dynadp.data.row_blocks import CodedBlock, Features, Group
from dynadp.data.shard import Shard
from dynadp.engines.journal import LedgerJournal
from dynadp.engines.simulation import simulate
from dynadp.errors import BudgetRefused, DeclarationError, NotCertified
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.planning.planner import plan
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.schedules import geometric, per_node
from dynadp.problem.gamma import longest
from dynadp.problem.losses import HuberHinge, Logistic, SmoothedHinge
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SmoothElasticNet, SquaredL2
from dynadp.problem.solver import solve
from dynadp.problem.terms import Terms
from support import flat_simulate

PAIR = Topology.family("path", 2)
AT = "2026-03-01T12:00:00+00:00"


def unit_rows(B, d, seed=0):
    X = np.random.default_rng(seed).normal(size=(B, d))
    return X / (np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-9))


def shards(B, d, nodes=2):
    return [
        Shard.of(unit_rows(B, d, p), np.where(np.arange(B) % 2, 1, -1), name=str(p))
        for p in range(nodes)
    ]


def planned(
    rows,
    mechanism,
    alpha,
    rounds,
    *,
    C=1.0,
    rho=1e-2,
    eta=0.1,
    loss=None,
    regularizer=None,
    other=None,
):
    counts = np.array([len(rows), other or len(rows)], dtype=float)
    terms = Terms(counts, rows.shape[1], loss or Logistic(), regularizer or SquaredL2(), C, rho)
    alphas = np.full((2, 1, rounds), float(alpha))
    return ReleasePlan.plan(
        terms, PAIR, np.array([eta]), mechanism, alphas, np.zeros((2, 1, rows.shape[1]))
    )


def attacked(
    rows, releases, direction, *, C=1.0, rho=1e-2, eta=0.1, loss=None, regularizer=None, seed=0
):
    """A node whose neighbour sends, in every round, the longest vector of the grid that it
    believes.
    """
    problem = StackedProblem([rows], loss or Logistic(), regularizer or SquaredL2(), C, rho)
    mine, V, degrees, penalty = (
        releases.some(slice(0, 1)),
        np.zeros((1, 1, rows.shape[1])),
        np.ones(1),
        np.array([eta]),
    )
    steps = LocalSolver(problem, degrees, penalty, mine.public.gamma, V, mine.aim)
    sender, state = Releaser(mine, steps, SeededEntropy(seed)), admm.begin(V, V, degrees)
    for n, c in enumerate(releases.noises, 1):
        g, V = sender.send(n, state)
        far = np.trunc(direction * c.radius[1, 0] / c.step[1, 0]) * c.step[1, 0]
        state = steps.next_state(
            state, admm.receive(state, V, far[None, None], degrees, penalty), g
        )


MECHANISMS = [Primal(), Dual(), Dual(split="paper"), Primal(final_release=0.3)]


@settings(max_examples=60, deadline=None)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    size=st.tuples(st.sampled_from([1, 2, 10]), st.sampled_from([1, 3, 40, 600])),
    powers=st.tuples(st.floats(-1, 3.5), st.floats(-10, 0), st.floats(-8, 2), st.floats(-3, 2)),
    rounds=st.sampled_from([1, 2, 8]),
    kind=st.sampled_from(["spread", "alike", "none"]),
    seed=st.integers(0, 99),
)
@example(
    Primal(), (10, 600), (0.0, -2.5, -6.5, 0.0), 2, "spread", 0
)  # where slopes made of margins' differences are noise
def test_no_believed_letter_stops_a_node_or_the_run_is_refused(
    mechanism, size, powers, rounds, kind, seed
):
    rows = unit_rows(*size, seed)
    if kind == "alike":
        rows[:] = rows[0]
    direction = -rows[0] / np.linalg.norm(rows[0])
    rows = rows * (kind != "none")
    C, rho, eta, alpha = (10.0**power for power in powers)
    numbers = {"C": C, "rho": rho, "eta": eta}
    try:
        releases = planned(rows, mechanism, alpha, rounds, **numbers)
    except DeclarationError:
        return
    attacked(rows, releases, direction, **numbers, seed=seed)


@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=str)
@pytest.mark.parametrize("regularizer", [SquaredL2(), SmoothElasticNet()], ids=str)
@pytest.mark.parametrize("loss", [HuberHinge(), HuberHinge(0.01), SmoothedHinge(0.05)], ids=str)
def test_sharp_losses_are_covered_too(loss, regularizer, mechanism):
    for seed, (C, rho, eta) in enumerate(
        [(0.1, 1e-6, 1e-3), (30.0, 1e-3, 1e-2), (1000.0, 1e-2, 1.0)]
    ):
        rows, numbers = (
            unit_rows(7, 9, seed),
            {"C": C, "rho": rho, "eta": eta, "loss": loss, "regularizer": regularizer},
        )
        attacked(rows, planned(rows, mechanism, 0.5, 10, **numbers), -rows[0], **numbers, seed=seed)


def chain(B, d):
    """Rows that say how neighbouring columns differ: their curvature has as many scales as there
    are columns.
    """
    rows = np.zeros((B, d))
    rows[np.arange(B), np.arange(B) % d] = 0.7
    rows[np.arange(B), (np.arange(B) + 1) % d] = -0.7
    return rows


def falling(rows, k):
    """Rows whose lengths fall by 10^k over their directions, which is hard for a solver that has no
    factor.
    """
    d = rows.shape[1]
    Q, _ = np.linalg.qr(unit_rows(d, d, 1))
    found = rows * np.logspace(0, -k, d) @ Q
    return found / (np.linalg.norm(found, axis=1).max() * (1 + 1e-9))


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("rows", "how"),
    [
        (
            unit_rows(200, 100),
            {
                "loss": HuberHinge(0.0013),
                "C": 1.89,
                "rho": 4.21e-6,
                "eta": 2.28e-6,
                "schedule": 1.37,
            },
        ),
        (
            falling(unit_rows(700, 520), 3),
            {"loss": Logistic(3.0), "C": 2910.0, "rho": 3e-6, "eta": 3e-6, "schedule": 30.0},
        ),
        (
            chain(1000, 520),
            {"loss": HuberHinge(), "C": 21.2, "rho": 6.42e-8, "eta": 1.97e-6, "schedule": 6.77},
        ),
    ],
    ids=["a sharp loss", "many columns", "a chain"],
)
def test_rows_that_take_many_iterations_do_not_stop_a_run(rows, how):
    """A limit of 500 iterations stopped these in round 1, and released with row 6 negated, or with
    rows of zeros.
    """
    other = rows.copy()
    other[6] = -other[6]
    for mine in (rows, other, 0 * rows):
        pair = [Shard.of(X, np.ones(len(X)), name=str(p)) for p, X in enumerate((mine, 0 * rows))]
        run = flat_simulate(pair, PAIR, mechanism=Primal(), rounds=1, draws=SeededEntropy(0), **how)
        assert np.isfinite(run.V).all()


def test_a_gamma_without_its_ball_is_refused_before_round_1():
    """Here a ball for a small gamma would ask for a larger gamma, whose noise would ask for a
    larger ball, and so on.
    """
    sent = []
    with pytest.raises(DeclarationError, match="node '0': no gamma fits"):
        simulate(
            shards(50, 105),
            PAIR,
            Plan.of(C=1750.0, rho=1e-10, eta=1e-8, mechanism=Primal(), schedule=1e-3, rounds=2),
            draws=SeededEntropy(0),
            on_round=lambda progress: sent.append(progress.messages),
        )
    assert not sent


def test_a_given_gamma_must_cover_as_much():
    with pytest.raises(DeclarationError, match=r"gamma is 1e-12; node '0' needs 1\..*e-10 or more"):
        simulate(
            shards(10, 3),
            PAIR,
            Plan.of(mechanism=Primal(), schedule=1.0, rounds=2),
            gamma=1e-12,
            draws=SeededEntropy(0),
        )
    run = simulate(
        shards(10, 3),
        PAIR,
        Plan.of(mechanism=Primal(), schedule=1.0, rounds=2),
        gamma=0.3,
        draws=SeededEntropy(0),
    )
    assert run.releases.inflation == pytest.approx(1 + 0.3 * 10)


def test_a_longer_letter_of_a_small_neighbour_is_covered():
    """With equal weights a node of one row sends far longer vectors than one of a thousand, and
    these are believed.
    """
    rows = unit_rows(1000, 3)
    releases = planned(rows, Primal(), 0.01, 5, other=1)
    alone = planned(rows, Primal(), 0.01, 5)
    assert releases.noises[0].radius[1, 0] > 100 * alone.noises[0].radius[1, 0]
    assert releases.public.gamma[0, 0] > 1.05 * alone.public.gamma[0, 0]
    attacked(rows, releases, -rows[0])


@pytest.mark.parametrize(
    ("size", "how"),
    [
        ((2, 200), {"mechanism": Dual(), "schedule": 0.002, "rounds": 4}),
        (
            (2, 200),
            {"mechanism": Dual(), "schedule": 0.002, "rounds": 4, "C": 1750.0, "rho": 1e-10},
        ),
        (
            (50, 20),
            {
                "mechanism": Dual(split="paper"),
                "schedule": geometric(0.01, 1.6),
                "rounds": 12,
                "C": 100.0,
                "rho": 1e-3,
            },
        ),
        (
            (50, 40),
            {
                "mechanism": Primal(augment="iterate"),
                "schedule": 1.0,
                "rounds": 50,
                "C": 1750.0,
                "rho": 1e-10,
                "eta": 1.0,
            },
        ),
        (
            (20, 60),
            {
                "mechanism": Primal(augment="iterate"),
                "schedule": 0.02,
                "rounds": 6,
                "C": 1e4,
                "rho": 1e-9,
                "eta": 1e-3,
            },
        ),
        (
            (2, 20),
            {"mechanism": Primal(final_release=1e-5), "schedule": 1.0, "rounds": 3, "rho": 1e-3},
        ),
    ],
    ids=[
        "dual, few rows",
        "dual, the paper's rho",
        "the paper's split",
        "as printed",
        "as printed, long",
        "final",
    ],
)
def test_honest_runs_are_certified_and_not_clipped(size, how):
    for seed in range(4):
        longest_sent = []
        run = flat_simulate(
            shards(*size),
            PAIR,
            draws=SeededEntropy(seed),
            **how,
            on_round=lambda progress, kept=longest_sent: kept.append(
                np.linalg.norm(progress.messages, axis=-1)
            ),
        )
        for sent, c in zip(
            [*longest_sent, np.linalg.norm(run.V, axis=-1)], run.noises, strict=False
        ):
            assert (sent < 0.6 * c.radius).all()


@pytest.mark.parametrize(
    ("counts", "how"),
    [
        (
            (500, 500, 500),
            {"schedule": geometric(0.002, 1.8), "rho": 1e-4, "eta": 0.01, "rounds": 14},
        ),
        (
            (500, 500, 500),
            {
                "schedule": per_node({"0": 0.002, "1": 1.0, "2": 1.0}),
                "rho": 1e-4,
                "eta": 0.01,
                "rounds": 20,
            },
        ),
        (
            (1, 300, 300),
            {"schedule": 0.01, "weights": "equal", "rho": 1e-4, "eta": 0.01, "rounds": 20},
        ),
    ],
    ids=["growing alphas", "one small alpha", "a tiny node"],
)
def test_noise_of_earlier_rounds_and_of_neighbours_is_not_clipped(counts, how):
    """What a node sends next holds it, however little noise it adds itself."""
    names, sent = Topology.family("ring", 3), []
    held = [Shard.of(unit_rows(B, 20, p), np.ones(B), name=str(p)) for p, B in enumerate(counts)]
    run = flat_simulate(
        held,
        names,
        mechanism=Primal(),
        draws=SeededEntropy(0),
        replicas=4,
        **how,
        on_round=lambda progress: sent.append(np.linalg.norm(progress.messages, axis=-1)),
    )
    for lengths, c in zip(sent, run.noises, strict=True):
        assert (lengths < 0.6 * c.radius).all()


@pytest.mark.parametrize("nodes", [2, 50])
@pytest.mark.parametrize(("d", "B"), [(105, 10**3), (10**4, 10**5), (10**4, 10**6), (10**5, 10**6)])
def test_the_certificate_costs_at_most_a_twentieth_of_the_noise(nodes, d, B):
    ring = Topology.family("ring", nodes)
    chosen = plan([B] * nodes, ring, d, epsilon=1.0, delta=1e-7, mechanism="primal", centring=False)
    found, chosen_for = chosen.release_plan, chosen.settings
    assert 1 < found.inflation < 1.05
    Lam = chosen_for.rho + 2 * chosen_for.eta * ring.degrees[0]
    exact = chosen.alpha / (2 * chosen_for.C / B / Lam)
    assert exact / found.noises[0].outer[0, 0] == pytest.approx(found.inflation, rel=1e-6)
    assert any("certified error lengthens the noise by" in reason for reason in chosen.reasons)


def test_a_plan_that_no_gamma_covers_is_no_plan():
    with pytest.raises(DeclarationError, match=r"no gamma fits|cannot be relied on"):
        plan(
            [10**9] * 50,
            Topology.family("ring", 50),
            10**6,
            epsilon=1.0,
            delta=1e-10,
            mechanism="primal",
            centring=False,
        )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    size=st.tuples(st.sampled_from([1, 5]), st.sampled_from([1, 4, 30])),
    powers=st.tuples(st.floats(-2, 3), st.floats(-4, 1), st.floats(-3, 3)),
    loss=st.sampled_from([Logistic(), Logistic(3.0), HuberHinge(), SmoothedHinge(0.1)]),
    regularizer=st.sampled_from([SquaredL2(), SmoothElasticNet()]),
)
def test_no_minimiser_is_longer_than_said(seed, size, powers, loss, regularizer):
    rows, (C, Lam, b) = unit_rows(*size, seed), (10.0**power for power in powers)
    problem = StackedProblem([rows], loss, regularizer, C, Lam / 2)
    push = b * -rows[0][None, None]
    found = solve(
        problem,
        np.full((1, 1), Lam / 2),
        push,
        np.full((1, 1), 1e-6 * (C + b)),
        np.zeros_like(push),
    ).point
    size_of_b = np.linalg.norm(push, axis=-1)
    bound = longest(problem, np.full((1, 1), Lam), size_of_b) + 1e-6 * (C + b) / Lam
    assert np.linalg.norm(found) <= bound[0, 0] * (1 + 1e-12)


def test_long_margins_are_summed_in_spans():
    """Beside a large entry small ones are lost one by one, and kept where they are summed among
    themselves first.
    """
    d = 2**18
    spans = column_spans(d)
    assert [spans[0].start, spans[-1].stop] == [0, d]
    assert all(a.stop == b.start for a, b in pairwise(spans))
    assert dot_roundings(512) == 512
    assert dot_roundings(d) < 2500
    row = np.full((2, d), 2.0**-54)
    row[:, 0], row[1] = 1.0 - 2.0**-30, row[1] * np.linspace(0.5, 1, d)
    f = np.ones((1, 1, d))
    exact = np.array([np.dot(r.astype(np.longdouble), f[0, 0].astype(np.longdouble)) for r in row])
    for storage in ("dense", "csr"):
        Z = StackedProblem([row], Logistic(), SquaredL2(), 1.0, 1.0, storage=storage).margins(f)[
            :, 0
        ]
        assert (np.abs(Z - exact) <= dot_roundings(d) * 2.0**-53 * np.abs(exact)).all()
    one_by_one = np.cumsum(row[0] * f[0, 0])[-1]
    assert abs(one_by_one - exact[0]) > 10 * dot_roundings(d) * 2.0**-53 * abs(exact[0])


@pytest.fixture
def ledgers(tmp_path):
    made = {}
    for node in ("0", "1"):
        made[node] = Ledger.create(tmp_path / f"{node}.ledger", node, who="test", at=AT)
        made[node].set_cap(Cap.of(10.0, 1e-5), who="test", at=AT)
    yield made
    for ledger in made.values():
        ledger.close()


class Watched(np.ndarray):
    """A matrix that says how many columns it was multiplied by in one go."""

    widths: ClassVar[list[int]] = []

    def __matmul__(self, other):
        self.widths.append(self.shape[1])
        return np.asarray(self) @ np.asarray(other)


def test_rows_that_are_not_written_down_are_summed_in_the_spans_of_all_columns():
    """512 numbers in one go and then 250 looked-up columns would be more roundings than are allowed
    for.
    """
    rng, n, m, columns = np.random.default_rng(0), 5, 512, 250
    numbers, codes = rng.normal(size=(m, n)), [rng.integers(0, 2, n) for _ in range(columns)]
    groups = [
        Group([Features(rng.normal(size=(2, 2)), slice(m + 2 * c, m + 2 * c + 2))], 2.0**-40)
        for c in range(columns)
    ]
    d, coded = m + 2 * columns, list(zip(groups, codes, strict=True))
    Watched.widths.clear()
    block = CodedBlock(np.ones(n), numbers.view(Watched), np.arange(m), coded, 0.0, d)
    F = rng.normal(size=(1, d))
    np.testing.assert_allclose(block.margins(F), F @ block.dense(), rtol=1e-10)
    assert max(Watched.widths) + columns + 1 <= dot_roundings(d) + 2


@pytest.mark.parametrize("mechanism", [Dual(), Primal()], ids=str)
@pytest.mark.parametrize("last", [1, 3])
def test_a_round_that_fails_is_charged_and_never_drawn_again(ledgers, mechanism, last, monkeypatch):
    def run(**how):
        journal = LedgerJournal(
            ledgers, "run", dataset="rows", who="test", clock=lambda: AT, resume=True
        )
        return flat_simulate(
            shards(20, 3),
            PAIR,
            mechanism=mechanism,
            schedule=0.1,
            rounds=3,
            journal=journal,
            rho=1e-3,
            eta=0.01,
            **how,
        )

    solved = []

    def stops(*args, **kwargs):
        solved.append(1)
        return solve(*args, **kwargs | ({"max_iterations": 1} if len(solved) == last else {}))

    monkeypatch.setattr(local_solver, "solve", stops)
    with pytest.raises(NotCertified, match="nothing is released"):
        run()
    monkeypatch.setattr(local_solver, "solve", solve)
    for ledger in ledgers.values():
        assert ledger.rounds("run") == list(range(1, last + 1))
        assert ledger.is_closed("run")
        assert {event.round for event in ledger.counted()} == set(range(1, last + 1))
    before = len(solved)
    with pytest.raises(BudgetRefused, match=r"closed; reserve another|never drawn again"):
        run()
    assert len(solved) == before
    assert ledgers["0"].message("run", last) == b""


def test_where_no_solver_can_be_relied_on_the_run_is_refused():
    """Past the columns that Newton's method takes, and far below the loss's curvature."""
    for d, eta, refused in ((4096, 1e-9, False), (4097, 1e-9, True), (4097, 1e-6, False)):
        terms = Terms(np.full(2, 10.0), d, Logistic(), SquaredL2(), 1.0, 1e-9)
        given = PAIR, np.array([eta]), Primal(), np.full((2, 1, 1), 1e3), np.zeros((2, 1, d))
        if refused:
            with pytest.raises(
                DeclarationError, match="4,097 columns the solver cannot be relied on"
            ):
                ReleasePlan.plan(terms, *given)
        else:
            assert ReleasePlan.plan(terms, *given).inflation < 2


def test_a_linear_term_is_for_algorithm_1_alone():
    with pytest.raises(DeclarationError, match="linear is for Algorithm 1 only"):
        simulate(
            shards(5, 2),
            PAIR,
            Plan.of(mechanism=Primal(), schedule=1.0, rounds=1),
            linear=lambda n: np.zeros((2, 1, 2)),
        )
