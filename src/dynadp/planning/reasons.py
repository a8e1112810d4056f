"""A plan's choices in words."""

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np

from dynadp._arrays import Array
from dynadp.planning.parts import Settings
from dynadp.problem import EVEN, Loss


def span(values: Array, shown: Callable[[float], str] = "{:.4g}".format) -> str:
    """One number, or the least and the largest."""
    low, high = shown(float(np.min(values))), shown(float(np.max(values)))
    return low if low == high else f"{low} to {high}"


def some_names(names: Sequence[str]) -> str:
    """The first five names, and how many more there are."""
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def asked(totals: Sequence[float]) -> str:
    """The totals that were asked for."""
    least, most = min(totals), max(totals)
    return f"epsilon = {most:g}" if least == most else f"epsilon between {least:g} and {most:g}"


def loss_words(loss: Loss) -> str:
    """Why this loss."""
    if loss.residual:
        return (
            f"loss {loss!r}: residuals beyond the width, of targets that fill [-1, 1], move the "
            "model no further than one at it, so that a row is hidden by as much noise as a label"
        )
    return (
        f"loss {loss!r}: a margin raises the signal for the same sensitivity; scores are then no "
        "log-odds"
    )


def warnings_about(delta: float, counts: Sequence[float]) -> tuple[str, ...]:
    """Warn if delta >= 1/B_p: publishing one random row would satisfy such a delta."""
    least = float(min(counts))
    if delta * least < 1:
        return ()
    return (
        f"DELTA IS LARGE: {delta:g} is not below one over the {least:g} rows of the smallest "
        f"node; give less, as 1e-5",
    )


def burdens(nodes: Sequence[str], signal: Array, noise: Array) -> tuple[str, ...]:
    """Which nodes lower sum(signal)/sqrt(sum(noise)), signal over noise in the sum over nodes: the
    rest would do better alone.

    Where rows weigh the same and all have one total, these are nodes with fewer rows than about
    half of the mean.
    """
    ratio = signal.sum() / sqrt(noise.sum())
    rest, left = signal.sum() - signal, noise.sum() - noise
    worse = np.flatnonzero(rest > ratio * np.sqrt(left)) if len(nodes) > 1 else np.zeros(0, int)
    if not worse.size:
        return ()
    bring = "brings" if len(worse) == 1 else "bring"
    names = some_names([nodes[int(p)] for p in worse])
    return (
        f"{names} {bring} more noise than signal: the model would be more accurate without, or "
        "with more rows there",
    )


def class_reasons(settings: Settings) -> tuple[str, ...]:
    """What rows of either label weigh, where that differs."""
    if settings.class_weights == EVEN:
        return ()
    negative, positive = settings.class_weights
    share = "one half" if settings.positives is None else f"the declared {settings.positives:g}"
    return (
        f"rows of the negative label weigh {negative:.4g}, of the positive one {positive:.4g}: a "
        f"row's sensitivity stays that of weight 1, and the signal is {settings.row_weight:.4g} "
        f"times as large, with {share} of rows positive",
    )
