"""The algorithm without a process: the network, the two halves of a round, what each round
releases.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
