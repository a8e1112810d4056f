"""Options that several commands share."""

from math import isfinite
from typing import Any

import click


class Positive(click.ParamType):  # type: ignore[type-arg]
    """A finite number above 0."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse what is not."""
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not (isfinite(number) and number > 0):
            self.fail(f"{value!r} is not a finite number above 0.", param, ctx)
        return number


DELTA = click.option(
    "--delta",
    type=click.FloatRange(0, 1, max_open=True),
    required=True,
    help="Chance left to worse luck; below 1/rows.",
)
MECHANISM = click.option(
    "--mechanism", type=click.Choice(["primal", "dual"]), help="Algorithm 3 or 2."
)
DIMENSION = click.option(
    "--dimension", type=click.IntRange(min=1), help="Columns of the rows, with the intercept."
)
SHARE = click.option(
    "--jacobian-share",
    type=click.FloatRange(0, 1, max_open=True),
    help="abar/alpha of dual perturbation, such as 0.01.",
)
ROUNDS = click.IntRange(1, 1_000_000)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
LEDGER = click.argument("ledger_file", metavar="FILE", type=click.Path(dir_okay=False))
WHO = click.option("--who", help="Who does this, for the ledger; by default the user's login name.")
RUN_FILE = click.argument("run_file", metavar="RUN.toml", type=click.Path(dir_okay=False))
