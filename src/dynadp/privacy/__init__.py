"""What releases cost: events, the distributions of their losses, totals, caps and ledgers. It knows
no mechanism, no rows and no network.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
