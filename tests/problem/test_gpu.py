"""The same code on a GPU: runs where there is one (CuPy), and is skipped elsewhere."""

import numpy as np
import pytest

from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import BatchedDraws, SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sampling import l2_laplace
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.problem import solver
from dynadp.problem.losses import HuberHinge, Logistic, SmoothedHinge
from dynadp.problem.regularizers import SmoothElasticNet

RING = Topology.family("ring", 5)


def has_gpu():
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        return False


gpu = pytest.mark.skipif(not has_gpu(), reason="no GPU with CuPy is here")


@pytest.fixture(scope="module")
def shards():
    return census(2003, seed=3, nodes=5).shards()


@gpu
@pytest.mark.parametrize("mechanism", [Primal(), Dual(), None], ids=str)
@pytest.mark.parametrize("loss", [Logistic(3.0), SmoothedHinge(), HuberHinge()], ids=repr)
def test_messages_are_those_of_the_cpu(shards, mechanism, loss):
    sent = {}
    for device in ("cpu", "cuda"):
        run = simulate(
            shards,
            RING,
            Plan.of(
                loss=loss,
                regularizer=SmoothElasticNet(),
                rho=0.01,
                eta=0.05,
                rounds=6,
                mechanism=mechanism,
                schedule=[0.2, 1.0, 5.0] if mechanism else None,
            ),
            replicas=3,
            draws=SeededEntropy(1),
            device=device,
        )
        sent[device] = run.V
        assert isinstance(run.V, np.ndarray)
        assert run.rounds[-1].disagreement.shape == (5, 3)
    steps = run.noises[0].step[..., None] if mechanism else 1e-9
    assert (np.abs(sent["cpu"] - sent["cuda"]) <= 2 * steps + 1e-9 * np.abs(sent["cpu"])).all()


@gpu
@pytest.mark.parametrize("second_moment", [False, True])
def test_sums_are_those_of_the_cpu_to_the_last_bit(shards, second_moment):
    """Sums of whole numbers are exact on every device; only a slope near a half may be rounded
    otherwise, since exp differs there.
    """
    made = Plan.of(mechanism=Sum(second_moment=second_moment), schedule=0.5, rounds=5, pull=0.05)
    sent = {}
    for device in ("cpu", "cuda"):
        sent[device] = []
        run = simulate(
            shards,
            RING,
            made,
            replicas=3,
            draws=SeededEntropy(1),
            device=device,
            on_round=lambda progress, device=device: sent[device].append(progress.messages.copy()),
        )
        assert isinstance(run.V, np.ndarray)
    np.testing.assert_array_equal(sent["cpu"][0], sent["cuda"][0])  # slopes at 0 are alike
    for one, other in zip(sent["cpu"], sent["cuda"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


def sealed_run(shards, device, second_moment=False, replicas=3, draws=None):
    """The run and its messages: in a sweep the sums, of one run the letters of all nodes."""
    mechanism, sent = Sealed(second_moment=second_moment, honest=3), []
    run = simulate(
        shards,
        RING,
        Plan.of(mechanism=mechanism, schedule=0.5, rounds=5, pull=0.05),
        replicas=replicas,
        draws=draws or SeededEntropy(1),
        device=device,
        on_round=lambda progress: sent.append(progress.messages.copy()),
    )
    return run, sent


@gpu
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("second_moment", [False, True])
def test_sealed_sums_are_those_of_the_cpu_to_the_last_bit(shards, second_moment, replicas):
    """Letters with masks, or the sums of a sweep; what is decoded moves the same point."""
    (cpu, one), (cuda, other) = (
        sealed_run(shards, device, second_moment, replicas) for device in ("cpu", "cuda")
    )
    assert one[0].shape[0] == (5 if replicas == 1 else 1)
    np.testing.assert_array_equal(one[0], other[0])  # slopes at 0 are alike
    assert isinstance(cuda.V, np.ndarray)
    np.testing.assert_allclose(cpu.V, cuda.V, atol=1e-5)
    np.testing.assert_allclose(cpu.models(), cuda.models(), atol=1e-5)


@gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_large_sweep_of_sealed_sums_runs_on_a_gpu(shards, device):
    """Draws of all replicas at once have the spread of single ones."""
    batched = sealed_run(shards, "cuda", False, 200, BatchedDraws(1, device))[0]
    single = sealed_run(shards, "cpu", False, 200)[0]
    spreads = [run.models()[0].std(axis=0).mean() for run in (batched, single)]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.1)


@pytest.mark.parametrize("draws", [SeededEntropy(1), BatchedDraws(1)], ids=["single", "batched"])
def test_a_sweep_of_sealed_sums_draws_the_noise_of_all_nodes_at_once(shards, draws):
    run, sent = sealed_run(shards, "cpu", replicas=200, draws=draws)
    assert [message.shape for message in sent] == [(1, 200, run.V.shape[-1])] * 5
    noise = run.noises[0]
    sums = sent[0].view(np.int64)[0] * noise.step[0, 0]
    expected = 5**0.5 * noise.parameter[0, 0] * noise.step[0, 0]
    assert np.sqrt(sums.var(axis=0).mean()) == pytest.approx(expected, rel=0.03)


@gpu
@pytest.mark.parametrize("worth", [0, np.inf], ids=["leaving", "staying"])
def test_a_sweep_in_chunks_is_certified(shards, monkeypatch, worth):
    """Whether chunks that are done are left behind or not."""
    monkeypatch.setattr(solver, "_WORTH_COPIES", worth)
    alphas = np.repeat([0.1, 1.0, 10.0, 100.0], 50).tolist()
    runs = [
        simulate(
            shards,
            RING,
            Plan.of(rho=0.01, eta=0.05, rounds=12, mechanism=Primal(), schedule=alphas),
            replicas=200,
            draws=BatchedDraws(1, device),
            device=device,
        )
        for device in ("cpu", "cuda")
    ]
    far, near = (
        np.linalg.norm(run.V - run.V[:, -50:].mean(axis=1, keepdims=True), axis=-1).mean(axis=0)
        for run in runs
    )
    np.testing.assert_allclose(
        far.reshape(4, 50).mean(axis=1), near.reshape(4, 50).mean(axis=1), rtol=0.2
    )


def test_sweep_draws_have_the_law_of_l2_laplace_vectors():
    d, found = 4, l2_laplace(BatchedDraws(3), "primal", ["a", "b"], 1, 20_000, 4)
    radii = np.linalg.norm(found, axis=-1)
    assert abs(radii.mean() - d) < 0.05
    assert abs(radii.var() - d) < 0.2
    assert np.abs((found / radii[..., None]).mean(axis=(0, 1))).max() < 0.01
    again = l2_laplace(BatchedDraws(3), "primal", ["a", "b"], 1, 20_000, 4)
    assert (found == again).all()
    for other in (("slack", 1), ("primal", 2)):
        assert (
            found != l2_laplace(BatchedDraws(3), other[0], ["a", "b"], other[1], 20_000, 4)
        ).all()


def test_what_a_gpu_cannot_do_is_refused(shards):
    with pytest.raises(DeclarationError, match="'cpu' or 'cuda'"):
        simulate(shards, RING, device="tpu")
    with pytest.raises(DeclarationError, match="rows are dense"):
        simulate(shards, RING, device="cuda", storage="csr")


@pytest.mark.skipif(has_gpu(), reason="a GPU is here")
def test_without_a_gpu_the_way_out_is_told(shards):
    with pytest.raises(DeclarationError, match=r"dynadp\[gpu\]|no GPU"):
        simulate(shards, RING, device="cuda")
