"""The scikit-learn face."""

from typing import Any

import lazy_loader

_lazy, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _lazy(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        needed = f"{name} needs scikit-learn: pip install 'dynadp[sklearn]'"
        raise ModuleNotFoundError(needed, name=error.name) from None
