"""Options of commands that answer with one of two labels: above which score the positive one."""

from typing import Any

import click

from dynadp import runs
from dynadp.cli.options import Positive, option
from dynadp.errors import DeclarationError


class _Threshold(click.ParamType[Any]):
    """A score, or ``balanced``."""

    name = "SCORE|balanced"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read it."""
        if value == runs.BALANCED:
            return value
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a score nor 'balanced'", param, ctx)


THRESHOLD = option(
    "--threshold",
    type=_Threshold(),
    help="Scores above it get the positive label, of a saved NetworkClassifier the last in order; "
    "'balanced' for the largest balanced accuracy. By default the model's own.",
)
COST = option(
    "--cost",
    type=(Positive(), Positive()),
    metavar="FP FN",
    help="What a false positive and a false negative cost: the threshold follows.",
)


def wanted_threshold(threshold: Any, cost: tuple[float, float] | None) -> "runs.Threshold | None":
    """The threshold that the options ask for; None for the model's own."""
    if cost is not None and threshold is not None:
        raise DeclarationError("give --threshold or --cost, from which one follows, not both")
    return threshold if cost is None else runs.Costs(*cost)
