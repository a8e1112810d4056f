"""Try to refute the declared bounds of a loss or a regulariser on a grid of points."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.errors import DynadpError


class BoundCheck:
    """A grid over [-1e6, 1e6], fine around 0, on which functions of one number are checked.

    Parameters
    ----------
    who, variable
        For messages, such as ``loss 'mine'`` and ``z``.
    error
        The type of error to raise.

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
        """The values of each function at all points; a value that is not finite is refused."""
        out = []
        for name, function in functions.items():
            with np.errstate(all="ignore"):
                values = np.asarray(function(self.at.copy()))
            if values.shape != self.at.shape:
                raise self.error(
                    f"{self.who}: {name} of {self.at.size} numbers has shape {values.shape}; "
                    f"expected one each"
                )
            self.refute(f"'{name} is finite'", ~np.isfinite(values), values)
            out.append(values)
        return out

    def refute(self, bound: str, broken: NDArray[np.bool_], shown: Array) -> None:
        """Raise the error for a bound that is broken, with the first point where it is."""
        if broken.any():
            i = int(np.argmax(broken))
            raise self.error(
                f"{self.who} breaks {bound} at {self.variable} = {self.at[i]:g}, where it gives "
                f"{shown[i]:g}"
            )
