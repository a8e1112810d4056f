"""Attacks on the messages of Algorithms 1, 2 and 3, for demonstrations on rows made here
(docs/attacks.md).

The adversary of differential privacy knows every public number, the law of the noise, and all rows
but one. Each result shows what the attack recovers, what guessing recovers and what (epsilon,
delta) allows. An attack that fails proves nothing about better ones.
"""

from dynadp.research.attacks.gallery import run_gallery
from dynadp.research.attacks.inference import Interval, Membership, membership
from dynadp.research.attacks.reconstruction import Reconstruction, reconstruct, small_node
from dynadp.research.attacks.transcript import Setting

__all__ = [
    "Interval",
    "Membership",
    "Reconstruction",
    "Setting",
    "membership",
    "reconstruct",
    "run_gallery",
    "small_node",
]
