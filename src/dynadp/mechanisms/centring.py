"""A private centring round: every node releases the means of its features once, charged like any
other release.

Rows that are centred before they are scaled to norm 1 leave less of that norm to what all rows
share, so more of it tells them apart. Replacing a row moves a node's means by at most D/B_p, D^2
the sum of the columns' squared diameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array
from dynadp.data import FeatureSums, Schema
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.sampling import grid_step, l2_laplace, power_of_two, to_grid
from dynadp.privacy import Event, centring_events


@dataclass(frozen=True)
class Centring:
    """What a centring round released and made of it.

    Attributes
    ----------
    messages
        Each node's noisy means, P x (d - 1): what was sent.
    centre
        Their mean, weighed by the public B_p and brought back to where means can lie: free
        post-processing.
    events
        What it cost each node.
    seeded
        Whether noise came from a seed: then it protects nobody.
    """

    messages: Array = field(repr=False)
    centre: Array = field(repr=False)
    events: tuple[Event, ...] = field(repr=False)
    seeded: bool

    def applied(self, schema: Schema) -> Schema:
        """The schema with this centre, and rows scaled to norm 1."""
        return schema.model_copy(update={"centre": tuple(self.centre.tolist()), "scaling": "unit"})


def private_centre(
    schema: Schema,
    sums: Sequence[FeatureSums],
    names: Sequence[str],
    alpha: ArrayLike,
    draws: Draws,
) -> Centring:
    """V_p = Round(mean of phi + e), e l2-Laplace with zeta = alpha B_p/D: alpha-DP for each node.

    Parameters
    ----------
    schema
        Without a centre yet.
    sums, names
        Each node's number of rows and sums of features, from one pass over its rows
        (:func:`~dynadp.data.survey.feature_sums`); and its name.
    alpha
        The loss of this one release, round 0: a number, or one for each node.
    draws
        Where noise comes from.
    """
    if schema.centre is not None:
        raise DeclarationError(
            "the schema has a centre already; a private centring round makes one"
        )
    losses = np.broadcast_to(np.asarray(alpha, dtype=float), len(sums))
    if not (np.isfinite(losses).all() and (losses > 0).all()):
        raise DeclarationError(
            f"alpha is {alpha!r}; expected a finite number above 0, or one for each node"
        )
    counts = np.array([float(each.rows) for each in sums])
    means = np.array([each.total for each in sums]) / counts[:, None]
    zeta, step, radius = centring_grid(schema, counts, losses)
    noise = l2_laplace(draws, "centring", names, 0, 1, means.shape[1])[:, 0] / zeta[:, None]
    return centre_of(
        schema, counts, to_grid(means + noise, step, radius), names, losses, seeded=draws.seeded
    )


def centring_grid(schema: Schema, counts: Array, alpha: Array) -> tuple[Array, Array, Array]:
    """zeta = alpha B_p/D of each node's noise, and the step and radius of the public grid that its
    message lies on.
    """
    features = schema.feature_count
    D = float(np.sqrt(sum(column.diameter2 for column in schema.columns))) * (1 + 1e-9)
    zeta = alpha * counts / D
    step = grid_step(np.sqrt(features + 1) / zeta)
    radius = power_of_two(1e3 * (D * np.sqrt(len(schema.columns)) + features / zeta))
    return zeta, step, radius


def centre_of(
    schema: Schema,
    counts: ArrayLike,
    messages: Array,
    names: Sequence[str],
    alpha: ArrayLike,
    *,
    seeded: bool,
) -> Centring:
    """Make the centre of the released means: their mean weighed by B_p, brought back to where means
    can lie.
    """
    counts = np.asarray(counts, dtype=float)
    mean = counts @ messages / counts.sum()
    parts = np.split(mean, np.cumsum([len(column.features) for column in schema.columns])[:-1])
    centre = np.concatenate(
        [column.project(part) for column, part in zip(schema.columns, parts, strict=True)]
    )
    losses = np.broadcast_to(np.asarray(alpha, dtype=float), len(names)).tolist()
    events = centring_events(names, losses, messages.shape[1], seeded=seeded)
    return Centring(messages, centre, events, seeded)
