"""Attacks on the messages of Algorithms 1, 2 and 3, for demonstrations on rows made here
(docs/attacks.md).

The adversary of differential privacy knows every public number, the law of the noise, and all rows
but one. What it finds is told beside what guessing finds and what (epsilon, delta) allows; an
attack that fails proves nothing about better ones.
"""

from dynadp.research.attacks.gallery import run_gallery
from dynadp.research.attacks.inference import Membership, membership
from dynadp.research.attacks.reconstruction import Reconstruction, reconstruct, small_node
from dynadp.research.attacks.transcript import Setting

__all__ = [
    "Membership",
    "Reconstruction",
    "Setting",
    "membership",
    "reconstruct",
    "run_gallery",
    "small_node",
]
