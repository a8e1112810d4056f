"""Differentially private machine learning over a network: consensus ADMM among nodes that keep
their rows.

The names of this package are its public interface, with those of its rooms: :mod:`dynadp.data`,
:mod:`dynadp.problem`, :mod:`dynadp.privacy`, :mod:`dynadp.mechanisms`, :mod:`dynadp.consensus`,
:mod:`dynadp.planning`, :mod:`dynadp.engines`, :mod:`dynadp.runs`, :mod:`dynadp.estimators`,
:mod:`dynadp.research` and :mod:`dynadp.report`. Each name is imported when it is first used.
"""

from logging import NullHandler, getLogger
from typing import Any

import lazy_loader

_lazy, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]

getLogger("dynadp").addHandler(NullHandler())  # silent, unless a program asks for it


def __getattr__(name: str) -> Any:
    if name == "__version__":  # reading it takes longer than all the rest
        from importlib.metadata import version

        return version("dynadp")
    return _lazy(name)


def __dir__() -> list[str]:
    return sorted(__all__)
