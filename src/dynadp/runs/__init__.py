"""What a user starts: files that declare a run, its preparation, its folder, its model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
