"""A histogram of scores whose round a node stays away from: those who remain agree on it, and it
says what noise it has.
"""

import numpy as np
import pytest

from dynadp.data.loading import load_shard
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from support.absent import Drive, setting, sound
from support.memory import Network, memory

MECHANISMS = [Sum(histogram=4), Sealed(honest=2, away=2, spares=3, histogram=4)]


@pytest.mark.diagonal
@pytest.mark.parametrize("sent", [False, True], ids=["before it sends", "after"])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=["sum", "sealed"])
def test_a_node_is_gone_in_the_round_of_the_histogram(mechanism, sent):
    with memory() as folder:
        network = Network(setting(mechanism, rounds=4), folder / "network")
        drive, victim = Drive(network), network.nodes["c"]
        last = network.setting.chosen.rounds
        while "c" not in drive.dead:
            for node in network.nodes.values():
                if node is victim and not sent and max(node.spends(), default=-1) == last - 1:
                    victim.plugged = "spent"
                drive.advance(node)
                if node is victim and last in victim.spends():
                    drive.kill("c")
                    break
            while network.on_the_way and "c" not in drive.dead:
                drive.deliver(0)
        done = sound(network, drive.finish())
        chosen, members = network.setting.chosen, next(iter(done.values())).members
        network.close()
    assert set(done) == {"a", "b", "d", "e"}
    found = [result.histogram for result in done.values()]
    for one in found:
        np.testing.assert_array_equal(one.counts, found[0].counts)
        assert (one.noise, one.mu) == (found[0].noise, found[0].mu)
    assert members == (() if sent else ("a", "b", "d", "e"))  # what it sent counts
    members = members or tuple(chosen.bound.nodes)
    noise, there = chosen.release_plan.noises[-1], [chosen.bound.nodes.index(p) for p in members]
    each = (noise.parameter * noise.step)[:, 0]
    mu = float(noise.mu.max())
    if mechanism.name == "sealed" and not sent:  # a spare attempt loses what a step does
        before = chosen.release_plan.noises[-2].mu
        each, mu = each * (noise.mu / before)[:, 0], float(before.max())
    elif mechanism.name != "sealed":
        each = each * np.array(chosen.steps.node_weights)
    assert found[0].noise == pytest.approx(float(np.linalg.norm(each[there])))
    assert found[0].mu == pytest.approx(mu)
    schema, tables = done["a"].schema, network.setting.tables
    exact = np.zeros_like(found[0].counts)
    vector = done["a"].vector
    for p in members:
        shard = load_shard(schema, tables[p], p)
        X = shard.signed.toarray() if hasattr(shard.signed, "toarray") else shard.signed
        scores, w = (X * shard.y[:, None]) @ vector, chosen.steps.node_weights
        bins = np.searchsorted(found[0].edges, scores, side="left")
        for k, y in enumerate((-1, 1)):
            rows = np.bincount(bins[shard.y == y], minlength=exact.shape[1])
            exact[k] += w[chosen.bound.nodes.index(p)] * rows
    apart = np.abs(found[0].counts - exact) / found[0].noise
    assert apart.max() < 5
