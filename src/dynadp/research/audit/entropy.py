"""Where the audit's many draws come from, and whether a source of draws repeats itself."""

from dynadp.mechanisms import Draws, OrderedDraws, entropy_for


class Stream(OrderedDraws):
    """One generator for a hundred thousand releases, in the order of asking.

    Without a seed the generator has its key from the operating system.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(entropy_for(seed).generator("audit", "", 0), seed is not None)


def repeats_itself(draws: Draws, generators: int = 2**18) -> bool:
    """Whether two of so many generators begin with the same 64-bit word.

    A source with keys of k bits repeats itself about generators^2/2^{k+1} times: 8 times for 32
    bits and 2^18 generators, once in 2^29 audits for the 64 bits that can be seen. A test of the
    key's length: a good source passes; so may a bad one.
    """
    seen: set[int] = set()
    for k in range(generators):
        seen.add(int(draws.generator("audit", "", 0, k).bit_generator.random_raw()))
        if len(seen) <= k:
            return True
    return False
