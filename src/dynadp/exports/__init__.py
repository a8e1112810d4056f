"""Models that predict without dynadp: as plain JSON, SQL, a scikit-learn pipeline, ONNX."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
