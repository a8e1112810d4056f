"""Sealed sums from the plan to the model: noise, weights, ledgers, spare attempts, going on."""

import stat
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.consensus.masks import Masks
from dynadp.consensus.sums import Steps
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines.journal import FolderJournal, LedgerJournal
from dynadp.engines.simulation import run_masks, simulate
from dynadp.errors import BudgetRefused, DeclarationError, SumSpoiled
from dynadp.mechanisms.discrete_gaussian import discrete_gaussian
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan, recorded
from dynadp.planning.plans import Consortium, Plan
from dynadp.privacy.accountant import by_node, for_person, total, worst_node
from dynadp.privacy.cap import Cap
from dynadp.privacy.collusion import collusion_curve, if_colluding, left_honest
from dynadp.privacy.events import SealedGaussian, from_json, to_json
from dynadp.privacy.gaussian import distance_of_sum, gaussian_epsilon, joint_mu
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.schedules import per_node
from dynadp.runs.record import RecordedPlan
from dynadp.runs.training import train

EPSILON, DELTA, P = 2.0, 1e-5, 5
HONEST = Sealed(honest=3)


@pytest.fixture(scope="module")
def data():
    return census(2000, seed=3, nodes=P, test_rows=1000)


@pytest.fixture(scope="module")
def ring():
    return Topology.family("ring", P)


def trained(data, ring, **more):
    given = {"epsilon": EPSILON, "delta": DELTA, "mechanism": HONEST, "draws": SeededEntropy(1)}
    return train(data.schema, data.tables(ring.nodes), ring, **{**given, **more})


def without_centring(shards, ring):
    """A plan for rows that are bounded already."""
    counts, d = [shard.rows for shard in shards], shards[0].dimension
    how = {"epsilon": 1.0, "delta": DELTA, "mechanism": HONEST, "centring": False}
    return plan(counts, ring, d, **how)


# --------------------------------------------------------------------------------------------------
# the algorithm


def test_a_sealed_run_is_the_run_of_its_sums(data, ring):
    """With keys of another run, and without masks at all: the same model to the last bit."""
    shards = data.shards(names=ring.nodes)
    made = without_centring(shards, ring)
    first = simulate(shards, ring, made, draws=SeededEntropy(4))
    bound = made.on(Consortium(ring, tuple(s.rows for s in shards), shards[0].dimension))
    other = run_masks(bound, SystemEntropy())
    again = simulate(shards, ring, made, draws=SeededEntropy(4), masks=other)

    class Bare(Masks):
        def sealed(self, k, nodes, n, attempt=0):
            return k.view(np.uint64)

    bare = Bare(other.graph, other._pairs)
    plain = simulate(shards, ring, made, draws=SeededEntropy(4), masks=bare)
    for run in (again, plain):
        assert (run.V == first.V).all()
        assert (run.tail == first.tail).all()


def test_letters_of_a_run_are_not_its_vectors(data, ring):
    letters, sums = [], []
    trained(data, ring, on_round=lambda progress: letters.append(progress.messages))
    trained(data, ring, mechanism="sum", on_round=lambda progress: sums.append(progress.messages))
    for words in letters:
        assert words.dtype == np.uint64
        assert words.shape[0] == P
        high = (words >> np.uint64(56)).ravel()  # the top byte of a small number is 0 or 255
        assert np.isin(high, (0, 255)).mean() < 0.1


def test_more_honest_nodes_less_noise(data, ring):
    noises = {}
    for h in (1, 2, 4):
        made = plan([400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism=Sealed(honest=h))
        noise = made.release_plan.noises[-1]
        noises[h] = float((noise.parameter * noise.step).max())
        mu = made.table()[0, 0, -1]
        delta = 2.0 * noise.resolution.gradient * noise.resolution.step**2
        assert noises[h] * sqrt(h) == pytest.approx(delta / mu, rel=1e-9)
    assert noises[1] / noises[4] == pytest.approx(2.0, rel=1e-3)


def test_one_honest_node_has_the_noise_of_a_sum_in_the_open(ring):
    mine = plan([400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism=Sealed(honest=1, spares=0))
    open_ = plan([400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism=Sum())
    a, b = (m.release_plan.noises[-1] for m in (mine, open_))
    assert (a.parameter * a.step).max() == pytest.approx((b.parameter * b.step).max(), rel=2e-3)


@pytest.mark.parametrize("P", [1, 2, 3])
def test_few_nodes(data, P):
    names = [f"n{p}" for p in range(P)]
    top = Topology.family("complete", P).named(names)
    tables = dict.fromkeys(names, data.train)
    made = train(
        data.schema,
        tables,
        top,
        epsilon=1.0,
        delta=DELTA,
        mechanism=Sealed(honest=max(P - 1, 1)),
        draws=SeededEntropy(0),
    )
    assert made.total.epsilon <= 1.0
    assert np.isfinite(made.run.V).all()


def test_every_draw_is_new_without_a_seed(data, ring):
    seen = []
    for _ in range(2):
        trained(data, ring, draws=SystemEntropy(), on_round=lambda p: seen.append(p.messages))
    half = len(seen) // 2
    assert not any((a == b).any() for a, b in zip(seen[:half], seen[half:], strict=True))


def test_replicas_have_the_noise_of_the_sum(data, ring):
    """Drawn at once, of the same deviation: sqrt(P) times one node's."""
    shards = data.shards(names=ring.nodes)
    made = without_centring(shards, ring)
    sums = []
    simulate(
        shards,
        ring,
        made,
        replicas=200,
        draws=SeededEntropy(0),
        on_round=lambda p: sums.append(p.messages.copy()),
    )
    first = sums[0].view(np.int64).astype(float)[0]
    assert first.shape == (200, shards[0].dimension)
    noise = made.release_plan.noises[0]
    apart = (first - first.mean(axis=0)) / (float(noise.parameter.max()) * sqrt(P))
    assert apart.var() * 200 / 199 == pytest.approx(1.0, abs=0.05)


def test_with_real_noise_replicas_are_all_counted(data, ring):
    shards = data.shards(names=ring.nodes)
    made = without_centring(shards, ring)
    run = simulate(shards, ring, made, replicas=3)
    assert len(run.events()) == 3 * len(made.events)


# --------------------------------------------------------------------------------------------------
# the theorem's numbers


@pytest.mark.parametrize("s", [1.0, 1.3, 2.0])
@pytest.mark.parametrize("h", [2, 3, 8])
def test_a_sum_of_discrete_gaussians_is_nearly_one(h, s):
    """The whole law, convolved, against one of sqrt(h) s."""
    k = np.arange(-600, 601)

    def law(sigma):
        p = np.exp(-(k**2) / (2 * sigma**2))
        return p / p.sum()

    summed = law(s)
    for _ in range(h - 1):
        summed = np.convolve(summed, law(s))[600:-600]
    apart = 0.5 * np.abs(summed - law(sqrt(h) * s)).sum()
    assert apart <= distance_of_sum(h, s) + 1e-14
    if s == 1.0 and h == 2:
        assert apart > distance_of_sum(h, s) / 100  # the bound is no formality


def test_the_variances_of_nodes_add_up():
    rng = np.random.default_rng(0)
    s = 2.0**30
    draws = sum(discrete_gaussian(rng, s, 20_000).astype(float) for _ in range(6))
    assert draws.var() / (6 * s * s) == pytest.approx(1.0, abs=0.05)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5),
    st.integers(0, 10**6),
    st.integers(1, 6),
)
def test_weighed_sums_differ_by_no_more_than_is_charged(mus, seed, d):
    """Rounded after weighing: w Delta + 2 sqrt(d) units at most, and each node's own mu."""
    n = len(mus)
    top = Topology.family("complete", n)
    by = {p: [mu] for p, mu in zip(top.nodes, mus, strict=True)}
    made = Plan.of(mechanism=Sealed(honest=1, spares=0), schedule=per_node(by), rounds=1, pull=1.0)
    bound = made.on(Consortium(top, (50,) * n, d))
    (noise,) = bound.release_plan.noises
    rng, unit = np.random.default_rng(seed), noise.resolution.step**2
    g = rng.integers(-(2**40), 2**40, (n, 1, d)) * unit
    move = rng.normal(size=(n, 1, d))
    move *= 2.0 * noise.resolution.gradient / np.linalg.norm(move, axis=-1, keepdims=True)
    other = g + np.trunc(move) * unit
    apart = (noise.steps_of(other) - noise.steps_of(g)) * noise.step[0, 0]
    loss = np.linalg.norm(apart, axis=-1)[:, 0] / (noise.parameter * noise.step)[:, 0]
    assert (loss <= noise.mu[:, 0] * (1 + 1e-12)).all()
    assert noise.mu[:, 0] == pytest.approx(mus, rel=1e-12)


def test_each_node_loses_its_own_total(ring):
    asked = dict(zip(ring.nodes, [1.0, 0.5, 1.0, 2.0, 0.1], strict=True))
    made = plan([6000, 50, 300, 4000, 1], ring, 51, epsilon=asked, delta=DELTA, mechanism=HONEST)
    costs = by_node(made.events, DELTA)
    for node, epsilon in asked.items():
        assert epsilon * 0.99 <= costs[node].epsilon <= epsilon
    assert made.senders == tuple(range(P))


def test_nodes_that_weigh_the_same(ring):
    made = plan(
        [6000, 50, 300, 4000, 1000],
        ring,
        51,
        epsilon=1.0,
        delta=DELTA,
        mechanism=HONEST,
        weights="equal",
    )
    w = np.array(made.steps.node_weights) * [6000, 50, 300, 4000, 1000]
    assert w == pytest.approx(w[0])
    costs = by_node(made.events, DELTA)
    assert max(costs.values(), key=lambda t: t.epsilon) == costs[ring.nodes[1]]
    assert made.total.epsilon <= 1.0


def test_spares_are_reserved_and_counted(ring):
    plans = {
        spares: plan(
            [400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism=Sealed(honest=3, spares=spares)
        )
        for spares in (0, 1, 4)
    }
    for spares, made in plans.items():
        own = [e for e in made.events if e.node == ring.nodes[0]]
        extra = [e for e in own if e.purpose == "spare"]
        assert [e.round for e in extra] == list(range(made.rounds + 1, made.rounds + 1 + spares))
        assert all(e.mu == own[-1 - spares].mu for e in extra)
        assert 0.99 <= made.total.epsilon <= 1.0
    assert plans[4].alpha < plans[1].alpha < plans[0].alpha


def test_events_of_sealed_sums_come_back_from_json(ring):
    made = plan([400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism=HONEST)
    for event in made.events:
        assert isinstance(event, SealedGaussian)
        assert from_json(to_json(event)) == event
        assert (event.honest, event.members, event.partners) == (3, P, P - 1)


@pytest.mark.parametrize(
    "wrong", [{"honest": 0}, {"honest": 6}, {"members": 2}, {"partners": 5}, {"honest": 1.5}]
)
def test_events_that_make_no_sense_cost_infinity(wrong):
    event = SealedGaussian("a", 1, "gradient", 0.1, 3, honest=3, members=5, partners=4)
    assert total([event], DELTA).epsilon < 1
    assert total([replace(event, **wrong)], DELTA).epsilon == np.inf


# --------------------------------------------------------------------------------------------------
# who colludes, who has rows where


def events(node="a", mu=0.1, rounds=4, **more):
    given = {"honest": 4, "members": 6, "partners": 5, **more}
    return [SealedGaussian(node, n, "gradient", mu, 3, **given) for n in range(1, rounds + 1)]


@pytest.mark.parametrize(("c", "left"), [(0, 5), (1, 5), (2, 4), (3, 3), (5, 1)])
def test_the_loss_if_others_collude(c, left):
    assert left_honest(6, 5, c) == left
    mu = joint_mu(if_colluding(events(), c))
    assert mu == pytest.approx(0.2 * sqrt(4 / left))
    (point,) = collusion_curve(events(), DELTA, colluding=[c])
    assert point.mu == pytest.approx(mu)
    assert point.epsilon == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-6)
    assert point.planned == (c == 2)


def test_all_partners_of_a_node_see_through_its_masks():
    few = events(members=50, honest=47, partners=4)
    assert joint_mu(if_colluding(few, 3)) == pytest.approx(0.2)
    assert joint_mu(if_colluding(few, 4)) == pytest.approx(0.2 * sqrt(47))


def test_the_curve_of_a_plan():
    """P = 50, planned for 1, epsilon = 1: 10 -> 1.12, 25 -> 1.45, 40 -> 2.4, all others -> 9.2."""
    given = events(mu=0.268 / 2, honest=49, members=50, partners=49)
    curve = collusion_curve(given, DELTA, colluding=[1, 10, 25, 40, 49])
    found = [round(point.epsilon, 2) for point in curve]
    assert found == [1.0, 1.12, 1.45, 2.41, 9.24]


def test_a_person_at_two_nodes_moves_one_sum_twice():
    """In the open two noises hide her, sqrt(2) mu; in one sealed sum there is one, 2 mu."""
    both = [*events("a"), *events("b", mu=0.3)]
    assert joint_mu(both) == pytest.approx(0.2 + 0.6)
    found = for_person(both, ["a", "b"], DELTA).epsilon
    assert found == pytest.approx(gaussian_epsilon(0.8, DELTA), rel=1e-6)
    assert for_person(both, ["a"], DELTA).epsilon < found
    assert Cap.of(1.0, DELTA).spent(both)[1] == pytest.approx(Cap.of(1.0, DELTA).order * 0.8**2 / 2)


def test_shifts_at_two_nodes_add_up_in_the_decoded_sum(ring):
    """What the account says about two nodes, from the numbers that are summed."""
    made = Plan.of(mechanism=HONEST, schedule=0.1, rounds=1, pull=1.0)
    (noise,) = made.on(Consortium(ring, (50,) * P, 3)).release_plan.noises
    far = 2.0 * noise.resolution.gradient * noise.resolution.step**2
    g, other = np.zeros((P, 1, 3)), np.zeros((P, 1, 3))
    other[:2, 0, 0] = far
    apart = (noise.steps_of(other) - noise.steps_of(g)).sum(axis=0)[0, 0] * noise.step[0, 0]
    deviation = float(noise.parameter.max() * noise.step.max()) * sqrt(3)
    assert apart / deviation == pytest.approx(0.2, rel=1e-9)


# --------------------------------------------------------------------------------------------------
# ledgers, spare attempts, going on


def ledgers(folder, nodes, epsilon=20.0):
    out = {}
    for node in nodes:
        out[node] = Ledger.create(folder / f"{node}.ledger", node, who="me", at=at())
        out[node].set_cap(Cap.of(epsilon, DELTA), who="me", at=at())
    return out


def at():
    return "2024-01-01T00:00:00+00:00"


class Spoiling(LedgerJournal):
    """A node whose letters of some entries are changed on their way."""

    spoiled = ()

    def spend(self, n, events, messages):
        sent = super().spend(n, events, messages)
        if n in self.spoiled:
            node = next(iter(sent))
            words = sent[node].view(np.uint64).copy()
            words[0] ^= np.uint64(2**62)
            sent = {**sent, node: words.view(np.float64)}
        return sent


def journal(kind, folder, nodes, **more):
    given = {"dataset": "rows", "who": "me", "clock": at, **more}
    return kind(ledgers(folder, nodes), "run", **given)


def beside(folder):
    return sorted(path.name for path in folder.iterdir() if "-own-" in path.name)


@pytest.mark.parametrize("entry", [0, 1, 3])
def test_a_spoiled_sum_is_released_once_more(data, ring, tmp_path, entry):
    """Of the centring round, the second moment, a gradient: charged, and the run goes on."""
    mechanism = Sealed(honest=3, spares=2, second_moment=True)
    made = journal(Spoiling, tmp_path, ring.nodes)
    made.spoiled = (entry,)
    found = trained(data, ring, mechanism=mechanism, journal=made, draws=SystemEntropy())
    rounds = found.plan.rounds
    for node in ring.nodes:
        assert sorted(made.ledgers[node].rounds("run")) == [*range(rounds + 1), rounds + 1]
        spent = made.ledgers[node].spent()
        assert [e.purpose for e in spent].count("spare") == 1
        assert total(spent, DELTA).epsilon <= found.plan.total.epsilon
    assert found.total.epsilon <= found.plan.total.epsilon  # a spare attempt is not counted twice
    assert np.isfinite(found.run.V).all()
    assert beside(tmp_path) == []


def test_without_a_spare_a_spoiled_sum_ends_the_run(data, ring, tmp_path):
    made = journal(Spoiling, tmp_path, ring.nodes)
    made.spoiled = range(100)
    with pytest.raises(SumSpoiled, match="no spare attempt is left: the run is over"):
        trained(
            data, ring, mechanism=Sealed(honest=3, spares=1), journal=made, draws=SystemEntropy()
        )
    ledger = made.ledgers[ring.nodes[0]]
    assert len(ledger.rounds("run")) == 2  # the first attempt and the spare one
    assert ledger.is_closed("run")  # the rest is free again
    assert beside(tmp_path) == []


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_a_plan_that_was_recorded_is_reserved_again_to_the_last_bit(ring, weights):
    """Nodes with totals of their own are weighed; a plan of a record must not be weighed anew."""
    rng = np.random.default_rng(0)
    for _ in range(15):
        epsilon = dict(zip(ring.nodes, rng.uniform(0.5, 3, P).tolist(), strict=True))
        counts = rng.integers(50, 5000, P).tolist()
        made = plan(
            counts, ring, 11, epsilon=epsilon, delta=DELTA, mechanism=HONEST, weights=weights
        )
        again = recorded(made, made.to_json())
        assert again.events == made.events
        assert again.centrings == made.centrings


def test_a_record_lists_what_was_reserved(data, ring):
    made = plan([400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism=HONEST, features=50)
    read = RecordedPlan.from_json(made.to_json(), ring.nodes)
    rows = dict.fromkeys(ring.nodes, 400)
    assert read.events(ring, rows, 51, 50) == made.events
    assert [point["colluding"] for point in read.collusion] == [2, 4]


def test_a_spare_attempt_has_no_label_of_another(data, ring, tmp_path, monkeypatch):
    """Entries are unique in a ledger, and so are labels: also where a node lost its letters and
    takes spare attempts for other sums than before.
    """
    shards = data.shards(names=ring.nodes)
    made = Plan.of(mechanism=Sealed(honest=3, spares=3), schedule=0.2, rounds=3, pull=1.0)
    used, sealed = [], Masks.sealed

    def noting(self, k, nodes, n, attempt=0):
        used.append((n, attempt, self.transcript))
        return sealed(self, k, nodes, n, attempt)

    monkeypatch.setattr(Masks, "sealed", noting)
    decoded = np.full((1, shards[0].dimension), 0.25)  # chosen by a coalition that sends last
    opened = ledgers(tmp_path, ring.nodes)

    def life(*script):
        answers = iter(script)

        def exchange(n, V):
            answer = next(answers)
            if isinstance(answer, type):
                raise answer("")
            return answer

        journal = LedgerJournal(opened, "run", dataset="rows", who="me", clock=at, resume=True)
        with pytest.raises(Fuse):
            simulate(shards, ring, made, exchange=exchange, journal=journal, draws=SystemEntropy())

    life(decoded, SumSpoiled, Fuse)
    life(SumSpoiled, SumSpoiled, decoded, SumSpoiled, Fuse)
    assert len(used) == len(set(used)) == 5


def test_a_node_that_adds_no_noise_is_refused(ring):
    steps = Steps(pull=1.0, node_weights=(1.0, 0.0, 0.0, 0.0, 0.0))
    made = replace(Plan.of(mechanism=HONEST, schedule=0.1, rounds=2), steps=steps)
    with pytest.raises(DeclarationError, match="weighs nothing in a sealed sum"):
        made.on(Consortium(ring, (50,) * P, 3))
    public = plan([50] * P, ring, 3, epsilon=1.0, delta=DELTA, mechanism=HONEST).release_plan.public
    with pytest.raises(DeclarationError, match="over 2 nodes, and noise was shared among 5"):
        HONEST.among(P).plan(public.some(slice(0, 2)), np.full((2, 1, 1), 0.1))


@pytest.mark.parametrize(("first", "words"), [(1.0, "more than 4 times"), (1e-9, "far below it")])
def test_losses_that_a_spare_attempt_cannot_stand_in_for(ring, first, words):
    by_round = per_node({node: [first, 0.1] for node in ring.nodes})
    made = Plan.of(mechanism=HONEST, schedule=by_round, rounds=2, pull=1.0)
    with pytest.raises(DeclarationError, match=words):
        made.on(Consortium(ring, (50,) * P, 3)).release_plan  # noqa: B018
    without = Plan.of(mechanism=replace(HONEST, spares=0), schedule=by_round, rounds=2, pull=1.0)
    assert without.on(Consortium(ring, (50,) * P, 3)).release_plan.noises


def test_the_ball_of_a_sum_is_the_same_at_every_node(ring):
    asked = dict(zip(ring.nodes, [1.0, 0.5, 1.3, 2.0, 0.1], strict=True))
    made = plan([6000, 50, 300, 4000, 1], ring, 51, epsilon=asked, delta=DELTA, mechanism=HONEST)
    for noise in made.release_plan.noises:
        assert np.ptp(noise.radius) == 0


class Fuse(Exception):
    """Power fails."""


class Cut(LedgerJournal):
    """Power fails after so many entries, in the middle of a round."""

    left = 10**9

    def spend(self, n, events, messages):
        out = {}
        for node, message in messages.items():
            if self.left == 0:
                raise Fuse
            self.left -= 1
            out |= super().spend(n, events, {node: message})
        return out


@pytest.mark.parametrize("after", [2, P + 3, 4 * P + 1, 9 * P])
def test_a_run_that_was_cut_short_goes_on_with_the_same_letters(data, ring, tmp_path, after):
    made = journal(Cut, tmp_path, ring.nodes)
    made.left = after
    with pytest.raises(Fuse):
        trained(data, ring, journal=made, draws=SystemEntropy())
    held = {
        node: {n: ledger.message("run", n) for n in ledger.rounds("run")}
        for node, ledger in made.ledgers.items()
    }
    assert sum(map(len, held.values())) == after
    keys = {name: (tmp_path / name).read_bytes() for name in beside(tmp_path)}
    assert len(keys) == P
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in keys}
    assert modes == {0o600}
    again = LedgerJournal(made.ledgers, "run", dataset="rows", who="me", clock=at, resume=True)
    found = trained(data, ring, journal=again, draws=SystemEntropy())
    for node, letters in held.items():
        for n, letter in letters.items():
            assert made.ledgers[node].message("run", n) == letter
        assert sorted(made.ledgers[node].rounds("run")) == list(range(found.plan.rounds + 1))
    assert beside(tmp_path) == []  # keys are forgotten
    assert np.linalg.norm(found.run.V) < 1e4


def test_keys_and_sums_of_one_node_are_nowhere_in_the_files(data, ring, tmp_path):
    """Not in the ledgers, and not beside them: neither k_p, nor a key, after the run."""
    seen = []

    class Watching(Masks):
        def sealed(self, k, nodes, n, attempt=0):
            seen.extend(row.tobytes() for row in k)
            seen.extend((row * 1.0).tobytes() for row in k)
            return super().sealed(k, nodes, n, attempt)

    made = journal(LedgerJournal, tmp_path, ring.nodes)
    shards = data.shards(names=ring.nodes)
    chosen = without_centring(shards, ring)
    base = run_masks(chosen, SystemEntropy(), made)
    secrets = [key.secret for key in base._pairs.keys.values()]
    simulate(shards, ring, chosen, journal=made, masks=Watching(base.graph, base._pairs))
    for ledger in made.ledgers.values():
        ledger.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert len(seen) == 2 * P * chosen.rounds
    assert not any(part in content for part in (*seen, *secrets))


def test_a_folder_of_a_simulation_goes_on(data, ring, tmp_path):
    whole = trained(data, ring)

    class Stop(FolderJournal):
        def spend(self, n, events, messages):
            if n == 4:
                raise Fuse
            return super().spend(n, events, messages)

    with pytest.raises(Fuse):
        trained(data, ring, journal=Stop(tmp_path / "m", ring.nodes))
    found = trained(data, ring, journal=FolderJournal(tmp_path / "m", ring.nodes))
    assert (found.run.V == whole.run.V).all()


def test_a_ledger_refuses_a_sum_that_was_not_reserved(data, ring, tmp_path):
    made = journal(LedgerJournal, tmp_path, ring.nodes)
    with pytest.raises(BudgetRefused):
        trained(data, ring, epsilon=50.0, journal=made, draws=SystemEntropy())


# --------------------------------------------------------------------------------------------------
# refusals


def test_plans_that_cannot_be(ring):
    with pytest.raises(DeclarationError, match="declare how many of the 5"):
        plan([400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism="sealed")
    bound = plan([400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism=HONEST)
    with pytest.raises(DeclarationError, match="another network"):
        bound.on(Consortium(Topology.family("ring", 6), (400,) * 6, 51))
    loose = Plan.of(mechanism=bound.mechanism, schedule=0.1, rounds=3)
    with pytest.raises(DeclarationError, match="honest is 3 and colluding is 2 of 6 nodes"):
        loose.on(Consortium(Topology.family("ring", 6), (400,) * 6, 51))


def test_several_problems_share_a_total(ring):
    made = plan([400] * P, ring, 51, epsilon=1.0, delta=DELTA, mechanism=HONEST, problems=3)
    part = made.part(3)
    assert 3 * part.rounds == made.rounds
    assert made.mechanism.spares == 0
    spent = [e for e in made.events if e.round == 0] + list(
        part.release_plan.events(seeded=False)
    ) * 3
    assert worst_node(spent, DELTA).epsilon <= 1.0
