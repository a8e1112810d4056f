"""Attacks on the messages of Algorithms 1, 2 and 3 and "sum", for demonstrations on rows made here
(docs/attacks.md).

The adversary of differential privacy knows every public number, the law of the noise, and all rows
but one. Each result shows what the attack recovers, what guessing recovers and what (epsilon,
delta) allows. An attack that fails proves nothing about better ones.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
