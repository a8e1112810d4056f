"""The audit: a lower bound on the loss of a release, from draws.

The theorems bound the loss from above; the audit tries to refute them. It draws releases from two
neighbouring data sets, distinguishes them as well as it can, and turns its success into a lower
bound on epsilon with a stated confidence. An audit refutes, it does not prove (docs/audit.md).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
