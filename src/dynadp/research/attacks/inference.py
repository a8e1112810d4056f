"""Membership inference: is a row in the target's data, or its opposite; or is it there at all?"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import Literal

import numpy as np

from dynadp._arrays import Array
from dynadp._intervals import wilson
from dynadp.data import Shard
from dynadp.mechanisms import Mechanism
from dynadp.privacy import total
from dynadp.research.attacks.rows import dense, parted, shard_of, with_other_answer
from dynadp.research.attacks.setting import Interval, Result, Setting
from dynadp.research.attacks.transcript import listen, log_density

View = Literal["neighbour", "transcript"]
FALSE_POSITIVES = np.unique(np.concatenate([np.geomspace(1e-3, 1, 61), np.linspace(0, 1, 51)]))


@dataclass(frozen=True, kw_only=True)
class Membership(Result):
    """How well messages show whether a row, or its opposite, is in the target's data; or whether it
    is there or not, as of ``Setting.unit``.

    Attributes
    ----------
    view
        ``neighbour``: the messages that one neighbour exchanges; of algorithm "sum", which sends
        all messages to all, it is the other view. ``transcript``: everybody's.
    runs
        How many runs with the row, and as many with its opposite, or without it.
    auc
        Chance that a run with the row scores higher than one without; 0.5 is a coin toss.
    right, right_bound
        Share of right answers at even odds; the largest that the accountant allows.
    interval
        Wilson's 95% interval of ``right`` for this many answers. ``right`` may pass
        ``right_bound`` by chance; a lower end above it speaks against the accountant. Without
        noise every run is the same, and both ends are ``right``.
    caught, caught_bound
        True positives at 1% false positives; the largest that the accountant allows.
    odds, odds_high
        Odds for the row after the attack, 1:1 before, in runs that hold it: the median, and what 99
        in 100 runs stay below. e^epsilon bounds them but for chances of about delta.
    false_positives, true_positives, bound
        The curve, and the largest that the accountant allows.
    """

    view: View
    runs: int
    auc: float
    right: float
    right_bound: float
    interval: Interval
    caught: float
    caught_bound: float
    odds: float
    odds_high: float
    false_positives: tuple[float, ...] = field(repr=False)
    true_positives: tuple[float, ...] = field(repr=False)
    bound: tuple[float, ...] = field(repr=False)


def membership(
    shards: Sequence[Shard],
    mechanism: Mechanism | None,
    alpha: float | None = None,
    *,
    setting: Setting | None = None,
    runs: int = 1000,
    seed: int = 0,
) -> dict[View, Membership]:
    """sum_n ln p(V_p(n) | a) - ln p(V_p(n) | -a): by Neyman and Pearson no score of the whole
    transcript is better.

    The target holds the row a = y x of largest norm, or -a: the same attributes with the other
    label, which moves messages more than other replacements. Of several classes the same attributes
    have the next class, of numbers the further end of the bounds. Where rows are there or not, a
    null row is in its place. A neighbour's score is the same with
    messages that it does not see put in by guess, so a better one may exist; its odds are those of
    two normal laws fitted to the scores.

    Parameters
    ----------
    shards
        One for each node of the setting's network.
    mechanism, alpha
        None and None for Algorithm 1.
    setting
        The network.
    runs
        How many with the row, and how many with its opposite or without it.
    seed
        Of the noise.
    """
    s, opposite = setting or Setting(), [*shards]
    own = shards[s.target]
    rows = dense(own)
    row = int(np.argmax(np.linalg.norm(parted(rows, s.loss)[0], axis=1)))
    other = np.zeros_like(rows[row]) if s.unit.added else with_other_answer(rows[row], own)
    pair, rest = np.stack([rows[row], other]), np.delete(rows, row, axis=0)
    changed = rows.copy()
    changed[row] = other
    opposite[s.target] = shard_of(changed, own)
    private = mechanism is not None and not s.silent
    heard = [
        listen(held, mechanism, alpha, s, runs, 2 * seed + k)
        for k, held in enumerate((shards, opposite))
    ]
    deltas = np.geomspace(1e-6, 0.6, 30).tolist() if private else []
    bounds = [(total(heard[0].events, delta).epsilon, delta) for delta in deltas]
    bound = allowed(bounds, FALSE_POSITIVES)
    one, results = np.array([0.01]), {}
    views: dict[View, int | None] = {"neighbour": s.watcher, "transcript": None}
    for view, by in views.items():
        held, not_held = (_ratio(log_density(run, rest, pair, by)) for run in heard)
        if by is not None and mechanism and mechanism.algorithm != "sum":
            held, not_held = _normal_ratio(held, not_held)
        wins = np.mean(held[:, None] > not_held) + np.mean(held[:, None] == not_held) / 2
        with np.errstate(over="ignore"):
            odds, odds_high = np.exp(np.quantile(held, [0.5, 0.99], method="higher")).tolist()
        right = float(np.mean(np.concatenate([held > 0, not_held <= 0])))
        results[view] = Membership(
            **heard[0].facts,
            view=view,
            runs=len(held),
            auc=float(wins),
            right=right,
            right_bound=float((1 + np.max(bound - FALSE_POSITIVES)) / 2),
            interval=Interval(*(wilson(right, 2 * len(held)) if private else (right, right))),
            caught=float(_curve(held, not_held, one)[0]),
            caught_bound=float(allowed(bounds, one)[0]),
            odds=odds,
            odds_high=odds_high,
            false_positives=tuple(FALSE_POSITIVES.tolist()),
            true_positives=tuple(_curve(held, not_held, FALSE_POSITIVES).tolist()),
            bound=tuple(bound.tolist()),
        )
    return results


def allowed(totals: Sequence[tuple[float, float]], false_positives: Array) -> Array:
    """min over (epsilon, delta) of e^epsilon f + delta and 1 - e^-epsilon (1 - f - delta): true
    positives at f, at most.
    """
    f, out = false_positives, np.ones_like(false_positives)
    for epsilon, delta in totals:
        grown = exp(min(epsilon, 700.0))
        out = np.minimum(out, grown * f + delta)
        out = np.minimum(out, 1 - np.maximum(1 - f - delta, 0) / grown)
    return out


def _ratio(densities: Array) -> Array:
    """The log-likelihood ratio of all rounds, K; 0 for a round that fits neither row, because a
    message was put in by guess.
    """
    neither = np.isneginf(densities).all(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(neither, 0.0, densities[:, 0] - densities[:, 1]).sum(axis=-1))


def _normal_ratio(held: Array, not_held: Array) -> tuple[Array, Array]:
    """(s - (m1 + m0)/2)(m1 - m0)/v: the log-likelihood ratio of a score with two normal laws of one
    variance.
    """
    up, down, v = held.mean(), not_held.mean(), (held.var() + not_held.var()) / 2
    pull = max(up - down, 0.0) + 1e-12  # where nothing is learned, the order of scores still counts
    middle = (up + down) / 2
    return (held - middle) * pull / v, (not_held - middle) * pull / v


def _curve(held: Array, not_held: Array, false_positives: Array) -> Array:
    """Share of ``held`` above the score that the share f of ``not_held`` passes."""
    # past the last score everything is let through
    lines = np.append(np.sort(not_held)[::-1], -inf)
    let_through = np.floor(false_positives * len(not_held) + 1e-9).astype(int)
    shares = (held[:, None] > lines[let_through]).mean(axis=0)
    return np.where(let_through == len(not_held), 1.0, shares)
