"""M_p ~ H_p + q_p I, the solver's preconditioner: shared by replicas, kept across rounds."""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array, Margins, Numbers, Vectors, host, namespace, on
from dynadp.problem.gamma import LARGEST_INVERSE
from dynadp.problem.objective import Problem
from dynadp.problem.threads import WORTH_SHARING, share_out, spans

_LARGEST_FACTOR = 1e8  # numbers in all inverses together
_CHUNK = 50  # replicas that share a Hessian on a GPU


def chunks_of(replicas: int) -> int:
    """The number of equal chunks of at most 50 replicas; 1 if they do not divide."""
    chunks = -(-replicas // _CHUNK)
    return chunks if replicas % chunks == 0 else 1


@dataclass(frozen=True)
class Factor:
    """M_p ~ H_p + q_p I as explicit inverses (groups x P x d x d) or as diagonals (groups x P x d).

    Replicas with equal q share a group; ``group`` has the group of each replica, or is empty if
    all share one. ``majorant`` marks a first factor, good for any start and best for none.
    """

    inverses: Array = field(repr=False)
    group: NDArray[np.int64]
    majorant: bool = False

    @classmethod
    def at(
        cls,
        problem: Problem,
        F: Vectors,
        Z: Margins,
        q: Numbers,
        step: int = 1,
        majorant: bool = False,
        largest: int = LARGEST_INVERSE,
    ) -> "Factor":
        """The factor for curvature averaged over the replicas F.

        It is made from Hessians, or their majorant, over every ``step``-th row. Inverses have up to
        ``largest`` columns.
        """
        xp, (P, K, d) = namespace(F), F.shape
        gpu = not isinstance(F, np.ndarray)
        chunks = chunks_of(K) if gpu and not majorant and q.shape[1] == K else 1
        if chunks > 1:  # a Hessian costs little there: one for each chunk, alike in sweeps
            step, group = 1, np.repeat(np.arange(chunks), K // chunks)
            shifts = q.reshape(P, chunks, -1).mean(axis=2).T[..., None]
        else:
            distinct, group = np.unique(host(q), axis=1, return_inverse=True)
            group = np.zeros(0, dtype=int) if distinct.shape[1] == 1 else group.reshape(-1)
            shifts = on(distinct.T[..., None], F)  # groups x P x 1
        if d > largest or P * len(shifts) * d * d > _LARGEST_FACTOR:
            return cls(problem.hessian_diagonals(F, Z, majorant) + shifts, group, majorant)
        H = problem.hessians(F, Z, step, majorant, chunks)
        # Duplicated columns make H singular; a shift far below its own rounding noise keeps the
        # inverse finite.
        shifts = shifts + 1e-13 * xp.trace(H, axis1=2, axis2=3)[..., None]
        inverses = xp.repeat(H, len(shifts) // chunks, axis=0)
        diagonal = xp.arange(d)
        inverses[..., diagonal, diagonal] += shifts
        if gpu:
            return cls(xp.linalg.inv(inverses), group, majorant)
        for inverse in inverses:
            share_out(partial(_invert, inverse), spans(P), H.size * d > WORTH_SHARING)
        return cls(inverses, group, majorant)

    def apply(self, G: Vectors) -> Vectors:
        """M^{-1} G."""
        if not self.group.size:
            return self._apply(0, G)
        if not isinstance(G, np.ndarray) and (chunks := self.chunks(G.shape[1])):
            xp, (P, K, d) = namespace(G), G.shape
            chunked = G.reshape(P, chunks, -1, d).transpose(1, 0, 2, 3)
            return xp.matmul(chunked, self.inverses).transpose(1, 0, 2, 3).reshape(P, K, d)
        out = namespace(G).empty_like(G)
        for i in range(len(self.inverses)):
            chosen = np.flatnonzero(self.group == i)
            if not chosen.size:
                continue
            together = chosen[-1] - chosen[0] + 1 == chosen.size  # then no copy is needed
            some = slice(int(chosen[0]), int(chosen[-1]) + 1) if together else on(chosen, G)
            out[:, some] = self._apply(i, G[:, some])
        return out

    def chunks(self, replicas: int) -> int:
        """In how many chunks of equal length, one after the other, replicas share inverses; 0 if
        they do not.
        """
        if self.inverses.ndim != 4:
            return 0
        count = len(self.inverses)
        in_order = np.repeat(np.arange(count), replicas // count)
        return count if not self.group.size or np.array_equal(self.group, in_order) else 0

    def _apply(self, i: int, G: Vectors) -> Vectors:
        M = self.inverses[i]
        return namespace(G).matmul(G, M) if M.ndim == 3 else G / M[:, None, :]

    def of(self, replicas: NDArray[np.int64]) -> "Factor":
        """The same factor for some of the replicas."""
        if not self.group.size or len(replicas) == len(self.group):
            return self
        kept, group = np.unique(self.group[replicas], return_inverse=True)
        return replace(self, inverses=self.inverses[on(kept, self.inverses)], group=group)


def _invert(matrices: Array, some: slice) -> None:
    matrices[some] = np.linalg.inv(matrices[some])
