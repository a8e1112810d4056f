"""Masks that cancel in a sum: letters that show nothing, and the sum that they give (maths.md 13).

::

    letter_p = k_p + sum_{j > p} r_pj - sum_{j < p} r_pj   mod 2^64,   j over p's partners
    sum of all letters = sum of all k_p
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from dynadp._arrays import Array
from dynadp._files import canonical_json
from dynadp.consensus.run_keys import Label, PairKeys, RunKey, Words, streams, transcript_of
from dynadp.errors import DeclarationError, SumSpoiled
from dynadp.mechanisms import Draws, GaussianNoise, Integers, RoundNoise, Sealing

_ZERO = bytes(32)


@dataclass(frozen=True)
class MaskGraph:
    """Who shares masks with whom: all pairs, or each member with those next to it on a circle.

    A circle with m neighbours on either side stays connected without any 2m - 1 members: to part
    it, two gaps of m members each are needed. So with 2m = ``partners`` above c no c members learn
    more than the sum over all others.

    Attributes
    ----------
    members
        Names in the order of the circle.
    sealing
        h and partners.
    """

    members: tuple[str, ...]
    sealing: Sealing

    def __post_init__(self) -> None:
        P, planned = len(self.members), self.sealing
        if len(set(self.members)) < P:
            raise DeclarationError("two members of a sealed sum have the same name")
        colluding = planned.colluding
        if P - colluding < planned.honest:  # or a coalition could call for a sum with one victim
            raise DeclarationError(
                f"a sealed sum over {P} members leaves {max(P - colluding, 0)} honest ones if "
                f"{colluding} collude; the plan needs {planned.honest}: nothing is sent"
            )
        if planned.partners < P - 1 and (planned.partners % 2 or planned.partners <= colluding):
            raise DeclarationError(
                f"{planned.partners} partners do not keep {P} members together without any "
                f"{colluding} of them"
            )

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        """All pairs (p, j), p < j, that share masks."""
        P = len(self.members)
        near = min(self.sealing.partners // 2, P - 1)
        everybody = self.sealing.partners >= P - 1
        for p in range(P):
            for j in range(p + 1, P):
                if everybody or j - p <= near or P - (j - p) <= near:
                    yield p, j

    @property
    def hash(self) -> bytes:
        """SHA-256 of the members, in order."""
        return hashlib.sha256(canonical_json(list(self.members)).encode()).digest()


class Masks:
    """The masks of some nodes of a process, for one run.

    Parameters
    ----------
    graph
        Who shares masks with whom.
    pairs
        Their keys.
    seeded
        Whether keys came from a seed: then masks hide nothing.

    Attributes
    ----------
    transcript
        Hash of all sums so far.
    spares
        How many spare attempts were taken.
    """

    def __init__(self, graph: MaskGraph, pairs: PairKeys, *, seeded: bool = False) -> None:
        self.graph, self._pairs, self.seeded = graph, pairs, seeded
        self.transcript, self.spares = _ZERO, 0

    @classmethod
    def in_process(
        cls,
        members: Sequence[str],
        sealing: Sealing,
        draws: Draws,
        consortium: str = "",
        run: str = "",
        secrets: Mapping[str, bytes] | None = None,
    ) -> "Masks":
        """Make the masks of a process that holds all members.

        Parameters
        ----------
        members, sealing
            As of :class:`MaskGraph`.
        draws
            Where keys come from.
        consortium, run
            For which they are.
        secrets
            The keys of a run that goes on; None to draw them.
        """
        keys = {
            node: RunKey(node, secrets[node]) if secrets else RunKey.draw(node, draws)
            for node in members
        }
        publics = {node: key.public_bytes for node, key in keys.items()}
        graph = MaskGraph(tuple(members), sealing)
        return cls(graph, PairKeys(keys, publics, consortium, run), seeded=draws.seeded)

    def among(self, members: Sequence[str]) -> None:
        """Go on with these members alone; refused where they are too few for h and c."""
        self.graph = MaskGraph(tuple(members), self.graph.sealing)

    def begin_again(self, members: Sequence[str]) -> None:
        """Go back to before the first sum, with the same keys."""
        self.transcript, self.spares = _ZERO, 0
        self.among(members)

    def sealed(self, k: Integers, nodes: Sequence[str], n: int, attempt: int = 0) -> Words:
        """Return the letters of these nodes in sum n, P x d; k is overwritten.

        Parameters
        ----------
        k
            k_p of each of these nodes, P x d whole numbers.
        nodes
            All nodes of this process.
        n, attempt
            Which sum, and under which number this attempt at it is entered: no two of a run have
            the same.
        """
        here = {node: i for i, node in enumerate(nodes)}
        out: Words = k.astype(np.int64).view(np.uint64)
        k[...] = 0
        label = Label(self.graph.hash, n, attempt, self.transcript)
        members = self.graph.members
        pairs = [(members[p], members[j]) for p, j in self.graph.pairs]
        pairs = [(a, b) for a, b in pairs if a in here or b in here]
        masks = streams((self._pairs.of(a, b) for a, b in pairs), label, out.shape[-1])
        for (a, b), r in zip(pairs, masks, strict=True):
            if a in here:
                out[here[a]] += r
            if b in here:
                out[here[b]] -= r
        return out

    def follow(self, n: int, total: Array) -> None:
        """Note a decoded sum, which labels all streams after it."""
        content = np.ascontiguousarray(total, "<f8").tobytes()
        self.transcript = transcript_of(self.transcript, n, content)

    def forget(self) -> None:
        """Overwrite all keys."""
        self._pairs.forget()


def is_sealed(noise: RoundNoise) -> TypeGuard[GaussianNoise]:
    """Whether the noise is that of a sealed sum."""
    return isinstance(noise, GaussianNoise) and noise.sealing is not None


class SealedSum:
    """sum_p w_p V_p from the letters of all members: what everybody learns.

    Parameters
    ----------
    noises
        Of each round.
    """

    def __init__(self, noises: Sequence[RoundNoise]) -> None:
        self.noises = noises

    def __call__(self, n: int, V: Any) -> Array:
        """Return the sum, K x d."""
        noise = self.noises[n - 1]
        assert is_sealed(noise)
        return decoded(V, noise)


def decoded(letters: Words, noise: GaussianNoise) -> Array:
    """h sum_p k_p from all members' letters, P x K x d; or from sums of them.

    Raises
    ------
    SumSpoiled
        If the sum is longer than honest letters give: one is missing, was changed, or was made for
        other members, another attempt or another past.
    """
    with np.errstate(over="ignore"):
        summed = letters.sum(axis=0, dtype=np.uint64).view(np.int64)
    total = summed * noise.step[0][:, None]
    if (np.linalg.norm(total, axis=-1) > noise.radius[0]).any():
        raise SumSpoiled(
            "the sum of all letters is longer than honest ones can make it: a letter is missing, "
            "was spoiled, or belongs to other members, another attempt or other sums before it"
        )
    return np.asarray(total)
