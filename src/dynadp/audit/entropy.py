"""Where the audit's many draws come from, and whether a source of draws repeats itself."""

import numpy as np

from dynadp.noise import Draws, Keyed, System


class Stream:
    """One generator for all purposes, nodes, rounds and replicas: a hundred thousand releases at a fifth of the cost.

    The laws of the draws are those of any other source, and nothing is drawn twice; but what is drawn depends on the order of
    asking, so this is for audits alone. Without a seed the generator has its key from the operating system.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seeded = seed is not None
        self._generator = (System() if seed is None else Keyed(seed)).generator("audit", "", 0)

    def generator(self, purpose: str, node: str, round_: int, replica: int = 0) -> np.random.Generator:
        """The one generator; the arguments are not used."""
        return self._generator


def repeats_itself(draws: Draws, generators: int = 2**18) -> bool:
    """Whether two of so many generators begin with the same 64-bit word.

    A source with keys of k bits repeats itself about generators^2/2^{k+1} times: 8 times for 32 bits and 2^18 generators,
    once in 2^29 audits for the 64 bits that can be seen. A test of the key's length: a good source passes; so may a bad one.
    """
    seen: set[int] = set()
    for k in range(generators):
        word = int(draws.generator("audit", "", 0, k).bit_generator.random_raw())
        if word in seen:
            return True
        seen.add(word)
    return False
