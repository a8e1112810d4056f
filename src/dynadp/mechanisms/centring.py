"""A private centring round: every node releases the means of its features once, charged like any
other release.

Rows that are centred before they are scaled to norm 1 leave less of that norm to what all rows
share, so more of it tells them apart. Replacing a row moves a node's sums by at most D, D^2 the sum
of the columns' squared diameters, and by what rounding each feature adds. Where rows are added and
removed, features are summed up from a public point amid them, the schema's ``offset``, and one row
adds at most D, D^2 the sum of the columns' squared radii about it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array
from dynadp.data import FEATURE_STEP, FeatureSums, Schema, Target
from dynadp.errors import DeclarationError
from dynadp.mechanisms.base import Sealing
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.gaussian import (
    FINE,
    LARGEST,
    GaussianNoise,
    noise_step,
    sealed_distance,
)
from dynadp.mechanisms.sampling import grid_step, l2_laplace, power_of_two, to_grid
from dynadp.mechanisms.sealed import WIDER, sealed_numbers
from dynadp.privacy import (
    Event,
    Gaussian,
    L2Laplace,
    SealedGaussian,
    Unit,
    distance_to_rounded_normal,
)

_SPREAD = 32  # D^2 over the squared length of centred features that is made room for


@dataclass(frozen=True)
class Centring:
    """What a centring round released and made of it.

    Attributes
    ----------
    messages
        What was sent: each node's noisy means, P x (d - 1); with Gaussian noise its sums, or its
        sealed letters.
    centre
        The mean over all rows, brought back to where means can lie: free post-processing.
    events
        What it cost each node.
    seeded
        Whether noise came from a seed: then it protects nobody.
    """

    messages: Any = field(repr=False)
    centre: Array = field(repr=False)
    events: tuple[Event, ...] = field(repr=False)
    seeded: bool

    def applied(self, schema: Schema) -> Schema:
        """The schema with this centre, and rows bounded about it."""
        return centred(schema, self.centre)


def centred(schema: Schema, centre: Array) -> Schema:
    """Return the schema with this centre, and rows scaled to norm 1.

    The size of a number that is answered is in its row's length, which must not be lost: with a
    target only rows longer than sqrt(k^2 + D^2/32), k the intercept, or than a longer ``norm``, are
    shortened.
    """
    bounded: dict[str, Any] = {"centre": tuple(centre.tolist()), "scaling": "unit"}
    if isinstance(schema.label, Target) and schema.scaling != "unit":
        squares = sum(column.diameter2 for column in schema.columns)
        usual = sqrt(schema.intercept**2 + squares / _SPREAD)
        bounded |= {"scaling": "clip", "norm": max(schema.norm, usual)}
    return schema.model_copy(update=bounded)


def private_centre(
    schema: Schema,
    sums: Sequence[FeatureSums],
    names: Sequence[str],
    alpha: ArrayLike,
    draws: Draws,
    noise: str = "l2-laplace",
    unit: Unit | None = None,
) -> Centring:
    """V_p = Round(mean of phi + e), e l2-Laplace with zeta = alpha B_p/D: alpha-DP for each node.

    With Gaussian noise V_p = h (sum of phi/h + e), e discrete Gaussian with s = D/(mu h).

    Parameters
    ----------
    schema
        Without a centre yet.
    sums, names
        Each node's number of rows and sums of features, from one pass over its rows
        (:func:`~dynadp.data.survey.feature_sums`); and its name.
    alpha
        The loss of this one release, round 0, or mu: a number, or one for each node.
    draws
        Where noise comes from.
    noise
        ``l2-laplace`` or ``gaussian``.
    unit
        Whose loss its events are about; by default that of a row.
    """
    if schema.centre is not None:
        raise DeclarationError(
            "the schema has a centre already; a private centring round makes one"
        )
    if (unit or Unit()).added != schema.hides_counts:
        raise DeclarationError(
            f"the schema's adjacency is {schema.adjacency!r}, and the release would be accounted "
            "for the other one: give unit= with the adjacency of the schema"
        )
    losses = np.broadcast_to(np.asarray(alpha, dtype=float), len(sums))
    if not (np.isfinite(losses).all() and (losses > 0).all()):
        raise DeclarationError(
            f"alpha is {alpha!r}; expected a finite number above 0, or one for each node"
        )
    counts = np.array([float(each.rows) for each in sums])
    totals = np.array([each.total for each in sums])
    if noise == "gaussian":
        made = _gaussian(schema, counts, losses).release(totals[:, None], draws, names, 0)[:, 0]
    else:
        zeta, step, radius = _laplace(schema, counts, losses)
        e = l2_laplace(draws, "centring", names, 0, 1, totals.shape[1])[:, 0] / zeta[:, None]
        made = to_grid(totals / counts[:, None] + e, step, radius)
    return centre_of(schema, counts, made, names, losses, noise, seeded=draws.seeded, unit=unit)


def centring_grid(
    schema: Schema, counts: Array, alpha: Array, noise: str = "l2-laplace"
) -> tuple[Array, Array]:
    """Step and radius of the public grid that each node's message lies on."""
    if noise == "gaussian":
        made = _gaussian(schema, counts, alpha)
        return made.step[:, 0], made.radius[:, 0]
    return _laplace(schema, counts, alpha)[1:]


def _moved(schema: Schema) -> float:
    """D: how far one row moves a sum of features, with what rounding features adds."""
    if schema.hides_counts:
        squares = sum(column.radius2 for column in schema.columns)
    else:
        squares = sum(column.diameter2 for column in schema.columns)
    # two features, or a feature and the offset, are rounded by half a step each
    return float(np.sqrt(squares)) * (1 + 1e-9) + FEATURE_STEP * sqrt(schema.feature_count)


def _laplace(schema: Schema, counts: Array, alpha: Array) -> tuple[Array, Array, Array]:
    """zeta = alpha B_p/D, and step and radius of the grid."""
    D, features = _exactly_moved(schema, counts), schema.feature_count
    zeta = alpha * counts / D
    step = grid_step(np.sqrt(features + 1) / zeta)
    radius = power_of_two(1e3 * (D * np.sqrt(len(schema.columns)) + features / zeta))
    return zeta, step, radius


def sealed_centring(
    schema: Schema, counts: Array, mu: Array, sealing: Sealing, purpose: str = "centring"
) -> GaussianNoise:
    """The noise of sealed sums of features."""
    D, features = _exactly_moved(schema, counts), schema.feature_count
    longest = D * float(np.sqrt(len(schema.columns)))
    numbers = sealed_numbers(
        sealing, counts, mu[:, None], D, FEATURE_STEP, features, sqrt(features), longest=longest
    )
    numbers["radius"] = WIDER * numbers["radius"]  # a spare attempt may have more noise
    return GaussianNoise(purpose=purpose, **numbers)


def _exactly_moved(schema: Schema, counts: Array) -> float:
    """D, where sums of features are exact."""
    D = _moved(schema)
    longest = 2 * D if schema.hides_counts else D  # no feature is longer
    if counts.max() * longest >= 2.0**53 * FEATURE_STEP:
        raise DeclarationError(
            f"features of {counts.max():,.0f} rows cannot be added exactly; lower the weights of "
            "columns, or split the node's rows"
        )
    return D


def _gaussian(schema: Schema, counts: Array, mu: Array) -> GaussianNoise:
    """The noise of sums of features."""
    D, features = _exactly_moved(schema, counts), schema.feature_count
    deviation = (D / mu)[:, None]
    step = noise_step(deviation, FEATURE_STEP)
    longest = counts[:, None] * D * np.sqrt(len(schema.columns)) + deviation * np.sqrt(features)
    return GaussianNoise(
        phi=np.zeros(step.shape),
        step=step,
        radius=np.minimum(power_of_two(1e3 * longest), LARGEST * step),
        mu=mu[:, None],
        parameter=deviation / step * (1 + 1e-12),
        purpose="centring",
    )


def centring_events(
    names: Sequence[str],
    alphas: Sequence[float],
    features: int,
    noise: str = "l2-laplace",
    *,
    seeded: bool,
    sealing: Sealing | None = None,
    unit: Unit | None = None,
) -> tuple[Event, ...]:
    """List what a centring round costs each node; nothing where there are no alphas."""
    made: Iterable[Event]
    given = zip(names, map(float, alphas), strict=len(alphas) > 0)
    if sealing is not None:
        distance = sealed_distance(sealing, features)
        those = sealing.accounted
        made = (
            SealedGaussian(node, 0, "centring", mu, features, distance, seeded, *those)
            for node, mu in given
        )
    elif noise == "gaussian":
        distance = features * distance_to_rounded_normal(2.0**FINE)
        made = (Gaussian(node, 0, "centring", mu, features, distance, seeded) for node, mu in given)
    else:
        made = (L2Laplace(node, 0, "centring", alpha, features, seeded) for node, alpha in given)
    return (unit or Unit()).declared(made)


def centre_of(
    schema: Schema,
    counts: ArrayLike,
    messages: Array,
    names: Sequence[str],
    alpha: ArrayLike,
    noise: str = "l2-laplace",
    *,
    seeded: bool,
    unit: Unit | None = None,
) -> Centring:
    """Make the centre of what was released: the mean over all rows, brought back to where means can
    lie.
    """
    counts = np.asarray(counts, dtype=float)
    weights = counts if noise == "l2-laplace" else np.ones(len(counts))
    centre = possible_mean(schema, weights @ messages / counts.sum())
    losses = np.broadcast_to(np.asarray(alpha, dtype=float), len(names)).tolist()
    events = centring_events(names, losses, messages.shape[1], noise, seeded=seeded, unit=unit)
    return Centring(messages, centre, events, seeded)


def possible_mean(schema: Schema, mean: Array) -> Array:
    """Bring a noisy mean of features, which counts from the schema's offset, back to where means
    can lie: free post-processing.
    """
    mean = schema.offset + mean
    parts = np.split(mean, np.cumsum([len(column.features) for column in schema.columns])[:-1])
    return np.concatenate(
        [column.project(part) for column, part in zip(schema.columns, parts, strict=True)]
    )
