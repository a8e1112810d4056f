"""Where noise enters a round, in numbers: the norms behind the paper's Figures 1 and 2."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import RoundProgress, Topology
from dynadp.data import Shard
from dynadp.engines import Run
from dynadp.mechanisms import Dual, Primal, PrimalNoise, SeededEntropy, l2_laplace
from dynadp.planning import Plan
from dynadp.research.experiments import run_seeded


@dataclass(frozen=True, kw_only=True)
class RoundFlow:
    """Norms of the vectors of one node in one round.

    Attributes
    ----------
    lam
        lam_p(t), known to all who saw the messages.
    noise
        What is added: (C/2B) e_p(t + 1) to lam_p (Algorithm 2), e_p(t + 1) to f_p (Algorithm 3).
    perturbed
        mu_p(t + 1) (Algorithm 2) or V_p(t + 1) (Algorithm 3).
    f
        f_p(t + 1), the minimiser of the local problem.
    lam_next
        lam_p(t + 1); None after the final release.
    """

    lam: float
    noise: float
    perturbed: float
    f: float
    lam_next: float | None = None


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The same round of Algorithms 2 and 3, and the final release of Algorithm 3.

    Attributes
    ----------
    node, round, alpha
        Whose round, t + 1, and the loss of each release.
    dual, primal, final
        The norms.
    """

    node: str
    round: int
    alpha: float
    dual: RoundFlow
    primal: RoundFlow
    final: RoundFlow

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def measure_flow(
    shards: Sequence[Shard],
    topology: Topology,
    dual: dict[str, float],
    primal: dict[str, float],
    *,
    rounds: int,
    alpha: float,
    seed: int,
) -> Flow:
    """Run Algorithms 2 and 3 for a few rounds and measure the first node in the last round.

    Parameters
    ----------
    shards, topology
        Rows of each node, and the network.
    dual, primal
        C, rho and eta of either algorithm.
    rounds, alpha, seed
        How many rounds (2 or more), the loss of each release, and the seed of the noise.
    """
    draws, nodes = SeededEntropy(seed), topology.nodes

    def run(settings: dict[str, float], mechanism: Dual | Primal) -> tuple[Run, Array, Array]:
        """The run, with V_p and lam_p of the first node after each round."""
        sent: list[Array] = []
        pulls: list[Array] = []

        def note(progress: RoundProgress) -> None:
            V = progress.messages
            sent.append(V[0, 0].copy())
            neighbours = (topology.adjacency[[0]] @ V[:, 0])[0]
            pulls.append(settings["eta"] / 2 * (topology.degrees[0] * V[0, 0] - neighbours))

        end = run_seeded(
            shards,
            topology,
            Plan.of(**settings, rounds=rounds, mechanism=mechanism, schedule=alpha),
            seed=seed,
            on_round=note,
        )
        return end, np.array(sent), np.cumsum(pulls, axis=0)

    def dual_round(end: Run, lam: Array, n: int) -> dict[str, Array]:
        term = end.noises[n - 1].linear(end.releases.public, draws, nodes, n)
        assert term is not None
        noise = term[0, 0] / 2
        return {"lam": lam, "noise": noise, "perturbed": lam + noise, "f": end.V[0, 0]}

    end, _, lam = run(dual, Dual())
    one = _norms(**dual_round(end, lam[-2], rounds), lam_next=lam[-1])
    end, V, lam = run(primal, Primal(final_release=alpha))
    last = _norms(**dual_round(end, lam[-1], rounds + 1))
    added = end.noises[rounds - 1]
    assert isinstance(added, PrimalNoise)
    noise = l2_laplace(draws, "primal", nodes, rounds, 1, V.shape[1])[0, 0] / added.outer[0, 0]
    two = _norms(lam=lam[-2], noise=noise, perturbed=V[-1], f=V[-1] - noise, lam_next=lam[-1])
    return Flow(node=nodes[0], round=rounds, alpha=alpha, dual=one, primal=two, final=last)


def _norms(**vectors: Array) -> RoundFlow:
    return RoundFlow(**{name: float(np.linalg.norm(v)) for name, v in vectors.items()})
