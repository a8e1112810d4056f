"""Points on which the declared bounds of a loss or a regulariser are tried, and how a broken one is
told.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.errors import DynadpError


class BoundCheck:
    """A grid over [-1e6, 1e6], fine around 0, for functions of one number that somebody wrote.

    Parameters
    ----------
    who, variable
        For messages: ``loss 'mine'`` and ``z``, say.
    error
        What is raised.

    Attributes
    ----------
    at, step
        The points, and the distances between them.
    """

    def __init__(self, who: str, variable: str, error: type[DynadpError]) -> None:
        self.who, self.variable, self.error = who, variable, error
        tails = np.geomspace(50.0, 1e6, 100)
        self.at: Array = np.concatenate(
            [-tails[::-1], np.linspace(-50.0, 50.0, 4_001)[1:-1], tails]
        )
        self.step: Array = np.diff(self.at)

    def values(self, functions: Mapping[str, Callable[[Array], Array]]) -> list[Array]:
        """What each gives at all points: one finite number for each, or it is refused by its name."""
        out = []
        for name, function in functions.items():
            with np.errstate(all="ignore"):
                found = np.asarray(function(self.at.copy()))
            if found.shape != self.at.shape:
                raise self.error(
                    f"{self.who}: {name} of {self.at.size} numbers has shape {found.shape}; "
                    f"expected one each"
                )
            self.refute(f"'{name} is finite'", ~np.isfinite(found), found)
            out.append(found)
        return out

    def refute(self, bound: str, broken: NDArray[np.bool_], shown: Array) -> None:
        """Name a bound that is broken somewhere, and the first point where."""
        if broken.any():
            i = int(np.argmax(broken))
            raise self.error(
                f"{self.who} breaks {bound} at {self.variable} = {self.at[i]:g}, where it gives "
                f"{shown[i]:g}"
            )
