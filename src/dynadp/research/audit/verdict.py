"""An audit: a claimed loss, the lower bound from draws, and the verdict."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Draws, Mechanism, NoProtection
from dynadp.privacy import Event, Gaussian, Unit, joint_mu, total
from dynadp.research.audit.bounds import (
    FEWEST,
    Bound,
    Counted,
    MuBound,
    Score,
    check,
    lower_bound,
    lower_mu,
)
from dynadp.research.audit.cases import Case, random_cases, worst_cases
from dynadp.research.audit.entropy import Stream
from dynadp.research.audit.node import Comparison
from dynadp.research.audit.sealed import AuditedSealed, audited_node
from dynadp.research.audit.sums import worst_class_cases, worst_sum_cases
from dynadp.research.audit.targets import random_target_cases, target_cases

Data = TypeVar("Data")
Lower = TypeVar("Lower")
PILOT = 4_000  # releases of each data set with which a pair is tried
SEARCHED = 6  # random pairs that are tried besides the constructed ones
DRAWS = 100_000
MOST_NUMBERS = 3 * 10**8  # that releases of one data set hold
CONSISTENT, REFUTED = "consistent with the claim", "claim refuted"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """epsilon >= epsilon_lower, with this confidence, beside the claim.

    Attributes
    ----------
    alpha_claimed, delta
        The claim: at most this loss, but for a chance of delta. For one release its alpha; for
        several, in spite of the name, the epsilon of all of them together. For a person with
        several rows, what all her rows lose.
    epsilon_lower, confidence
        The lower bound at that delta, and its confidence.
    draws
        Releases of each data set, without those of the search.
    pair, direction, statistic
        The data sets, which of them is P, and the statistic that distinguishes them.
    largest_log_ratio, log_ratio_bound
        Largest exact ``|ln p_D/p_D'|`` among all draws where densities are known, and its limit;
        else None. Gaussian noise has no limit.
    mu_claimed, mu_lower
        With Gaussian noise: at most that of a Gaussian mechanism with this mu, all rounds together;
        and the lower bound. Else None.
    largest_shift
        With Gaussian noise: the largest mu of a draw, which is known exactly
        (:class:`~dynadp.research.audit.node.Comparison`); else None.
    setting
        Further facts, such as mechanism, dimension and rounds.
    """

    alpha_claimed: float
    delta: float
    epsilon_lower: float
    confidence: float
    draws: int
    pair: str
    direction: str
    statistic: str
    largest_log_ratio: float | None = None
    log_ratio_bound: float | None = None
    mu_claimed: float | None = None
    mu_lower: float | None = None
    largest_shift: float | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refuted(self) -> bool:
        """Whether a bound, an exact ratio or an exact shift is above the claim."""
        mu = self.mu_claimed is not None and (self.mu_lower or 0.0) > self.mu_claimed
        return self.epsilon_lower > self.alpha_claimed or mu or self.refuted_exactly

    @property
    def refuted_exactly(self) -> bool:
        """Whether a single output is likelier under one data set than its bound allows, or comes
        from two vectors that are further apart than noise covers; no chance is involved.
        """
        pairs = (
            (self.largest_log_ratio, self.log_ratio_bound),
            (self.largest_shift, self.mu_claimed),
        )
        return any(
            largest is not None and most is not None and largest > most * (1 + 1e-9)
            for largest, most in pairs
        )

    @property
    def verdict(self) -> str:
        """``consistent with the claim`` or ``claim refuted``."""
        return REFUTED if self.refuted else CONSISTENT

    def to_json(self) -> dict[str, Any]:
        """Version 1; an infinite number is null."""
        fields = {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in vars(self).items()
            if name != "setting"
        }
        return {"version": 1, **fields, "verdict": self.verdict, **self.setting}


def audit(
    release: Callable[[Data, int], Array],
    pairs: Mapping[str, tuple[Data, Data]] | tuple[Data, Data],
    claimed: float,
    *,
    delta: float = 0.0,
    draws: int = DRAWS,
    confidence: float = 0.999,
    score: Score | None = None,
) -> Audit:
    """Try to refute that a release is (claimed, delta)-private: P(S) <= e^claimed Q(S) + delta for
    every set S of outputs.

    Parameters
    ----------
    release
        ``release(data, count)``: so many independent outputs of the release on these data, count x
        m numbers (or count numbers). Whatever is sent belongs to the output: also how many messages
        there are.
    pairs
        Neighbouring data sets (D, D'), or several such pairs by name: each is tried with a few
        draws, and the most distinguishable one is drawn from anew.
    claimed, delta
        The claim.
    draws
        Releases of each data set; half of them choose what to count.
    confidence
        Of the bound.
    score
        A statistic of the outputs to try besides the learnt ones, larger where D is likelier.
    """
    _require.positive("the claimed loss", claimed)
    named = pairs if isinstance(pairs, Mapping) else {"the given pair": pairs}
    scores = {} if score is None else {"given score": score}

    def bound(name: str, count: int, confidence: float) -> Bound:
        x, y = (release(data, count) for data in named[name])
        return lower_bound(x, y, delta=delta, confidence=confidence, scores=scores)

    worst, lower = _search(named, bound, lambda found: found.epsilon, delta, draws, confidence)
    return _audit_of(worst, lower, claimed, delta, lower.epsilon, confidence)


def audit_mechanism(
    mechanism: Mechanism,
    alpha: float,
    dimension: int = 1,
    rounds: int = 1,
    *,
    delta: float = 0.0,
    draws: int = DRAWS,
    confidence: float = 0.999,
    source: Draws | None = None,
    cases: tuple[Case, ...] | None = None,
    nodes: int | None = None,
    colluding: int | None = None,
    rows_per_person: int | None = None,
    silos_per_person: int = 1,
    adjacency: str | None = None,
    classes: int = 2,
    targets: bool = False,
) -> Audit:
    """Try to refute that one node's releases lose at most what the accountant claims: alpha in one
    round, its total in several.

    The adversary picks the data sets and all neighbours' messages; the most distinguishable pair of
    a pilot is drawn from anew. The exact log-likelihood ratio serves as statistic beside the learnt
    ones, and is checked on every draw by itself. With Gaussian noise the claim is mu: releases are
    no better told apart than by :func:`~dynadp.research.audit.bounds.lower_mu`, and in no draw are
    the vectors before noise further apart than mu.

    Parameters
    ----------
    mechanism, alpha
        What is audited, and the loss of each round that it is given, for one row; mu with Gaussian
        noise.
    dimension, rounds
        d and T.
    delta
        Of the total; 0 compares with the sum of alpha, and with mu alone where noise is Gaussian.
    draws, confidence
        As for :func:`audit`.
    source
        Where noise comes from; by default a :class:`Stream` under a key from the operating system.
    cases
        Data sets to try, instead of :func:`worst_cases` or
        :func:`~dynadp.research.audit.sums.worst_sum_cases` and a few at random.
    nodes, colluding
        Of sealed sums: P, and how many of them really collude. The claim is then that for so many;
        by default they are as many as planned, and the claim is the plan's.
    rows_per_person
        m: all rows of a person are replaced at once, and the claim is that of m rows. By default 1,
        or as many as the given cases say.
    silos_per_person
        s: at how many nodes she has them. The claim is that of all these nodes together. Sums that
        are not sealed, and vectors of ADMM, are released by each of them under noise of its own.
    adjacency
        ``replace`` or ``add-remove``: whether her rows are replaced, or there or not. By default
        the first, or as the given cases say.
    classes
        Of sums: how many classes the label has, where no cases are given.
    targets
        Whether rows have a number to predict, where no cases are given
        (:func:`~dynadp.research.audit.targets.target_cases`).
    """
    m = rows_per_person or 1
    if isinstance(mechanism, NoProtection):
        raise DeclarationError(
            "mechanism 'none' claims nothing, so there is nothing to refute; give Sum(), Primal() "
            "or Dual()"
        )
    chosen = source or Stream()
    if cases is None:
        sums = mechanism.algorithm == "sum"
        rng = chosen.generator("audit", "search", 0)
        if targets:
            cases = target_cases(dimension, alpha, m, sums=sums)
            cases += random_target_cases(rng, dimension, alpha, SEARCHED, m)
        elif classes > 2:
            if not sums:
                raise DeclarationError(
                    f"classes is {classes}, and mechanism {mechanism.name!r} separates two; audit "
                    "sum or sealed, which have one release for all classes"
                )
            cases = worst_class_cases(dimension, classes, m)
        else:
            cases = worst_sum_cases(dimension, m) if sums else worst_cases(dimension, alpha, m)
            cases += random_cases(rng, dimension, alpha, SEARCHED, m)
    elif rows_per_person is not None:
        cases = tuple(replace(case, rows_per_person=m) for case in cases)
    if adjacency is not None:
        Unit(adjacency=adjacency)  # refused where there is none of that name
        if adjacency == "add-remove":
            cases = tuple(case.added() for case in cases)
    who = nodes, colluding, silos_per_person
    audited = {case.name: audited_node(case, mechanism, alpha, rounds, *who) for case in cases}
    exact = {name: _Exact() for name in audited}
    numbers = max((node.numbers for node in audited.values()), default=0)
    if numbers * draws > MOST_NUMBERS:
        raise DeclarationError(
            f"{draws:,} releases of {numbers:,} numbers do not fit into memory; take at most "
            f"{MOST_NUMBERS // numbers:,} draws, or a smaller dimension or fewer rounds"
        )

    def bound(name: str, count: int, confidence: float) -> _Found:
        node, sent = audited[name], []
        for rows in (node.case.rows, node.case.other):
            points, messages = node.transcript(rows, count, chosen)
            exact[name].add(node.compare(points, messages))
            sent.append(messages.reshape(count, -1))

        def ratio(outputs: Array) -> Array:
            messages = outputs.reshape(len(outputs), -1, node.width)
            # where it is flat, rounding must not make up an order
            return np.round(node.log_ratio(messages, messages), 9)

        scores = {"log-likelihood ratio": ratio}
        if _mu_of(node.events) is None:
            return _Found(lower_bound(*sent, delta=delta, confidence=confidence, scores=scores))
        half = (1 + confidence) / 2  # two bounds, which hold together with the whole confidence
        lower = lower_bound(*sent, delta=delta, confidence=half, scores=scores)
        return _Found(lower, lower_mu(*sent, confidence=half, scores=scores))

    worst, found = _search(audited, bound, lambda found: found.worth, delta, draws, confidence)
    node, most = audited[worst], audited[worst].log_ratio_bound
    return _audit_of(
        worst,
        found.mu or found.epsilon,
        total(node.events, delta).epsilon,
        delta,
        found.epsilon.epsilon,
        confidence,
        largest_log_ratio=exact[worst].ratio,
        log_ratio_bound=most if isfinite(most) else None,
        mu_claimed=_mu_of(node.events),
        mu_lower=found.mu.mu if found.mu else None,
        largest_shift=exact[worst].shift if found.mu else None,
        setting={
            "mechanism": mechanism.name,
            "noise": mechanism.noise,
            "alpha": alpha,
            "dimension": node.releases.public.dimension,
            "rounds": rounds,
            **({"classes": audited[worst].case.classes} if audited[worst].case.classes > 2 else {}),
            "seeded": chosen.seeded,
            "rows_per_person": node.unit.rows,
            "silos_per_person": node.unit.silos,
            "adjacency": node.unit.adjacency,
            **({"targets": True} if node.case.loss.residual else {}),
            **(_agreed(node) if isinstance(node, AuditedSealed) else {}),
        },
    )


def _agreed(node: AuditedSealed) -> dict[str, int]:
    """Who takes part, who was declared honest, and who really colludes."""
    sealing, spares = node.sealing, len(node.releases.spares)
    agreed = {"nodes": sealing.members, "honest": sealing.honest, "partners": sealing.partners}
    return {**agreed, "spares": spares, "colluding": node.colluding}


class _Found(NamedTuple):
    """Lower bounds from the same draws: on epsilon, and on mu where noise is Gaussian."""

    epsilon: Bound
    mu: MuBound | None = None

    @property
    def worth(self) -> float:
        """What makes a pair more telling than another."""
        return self.mu.mu if self.mu else self.epsilon.epsilon


@dataclass
class _Exact:
    """The largest ratio and shift among all draws of a pair."""

    ratio: float = 0.0
    shift: float = 0.0

    def add(self, found: Comparison) -> None:
        """Look at more draws."""
        self.ratio = max(self.ratio, float(np.abs(found.ratio).max()))
        self.shift = max(self.shift, float(found.shift.max()))


def _mu_of(events: Collection[Event]) -> float | None:
    """Return sqrt(sum mu^2) for whom the events were declared; None where noise is not Gaussian in
    some release.
    """
    if not events or not all(isinstance(event, Gaussian) for event in events):
        return None
    unit = Unit.of(events)
    return joint_mu(events, unit.rows, unit.silos)


def _search(
    pairs: Collection[str],
    bound: Callable[[str, int, float], Lower],
    worth: Callable[[Lower], float],
    delta: float,
    draws: int,
    confidence: float,
) -> tuple[str, Lower]:
    """Try each pair with a few draws, and bound the most distinguishable with new ones."""
    _require.whole("draws", draws, 2 * FEWEST, f", better {DRAWS:,}")
    check(delta, confidence)
    if not pairs:
        raise DeclarationError("no pair of data sets was given; expected at least one")
    worst = next(iter(pairs))
    if len(pairs) > 1:
        worst = max(pairs, key=lambda name: worth(bound(name, PILOT, 0.9)))
    return worst, bound(worst, draws, confidence)


def _audit_of(
    pair: str,
    counted: Counted,
    claimed: float,
    delta: float,
    epsilon: float,
    confidence: float,
    **more: Any,
) -> Audit:
    return Audit(
        alpha_claimed=claimed,
        delta=delta,
        epsilon_lower=epsilon,
        confidence=confidence,
        draws=counted.draws,
        pair=pair,
        direction=counted.direction,
        statistic=counted.statistic,
        **more,
    )
