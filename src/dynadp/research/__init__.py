"""Theorems, trade-offs, the paper's figures, audits, attacks; no private run needs them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
