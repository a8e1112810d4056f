"""An audit: a claimed loss, the lower bound from draws, and the verdict."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Draws, Mechanism, NoProtection
from dynadp.privacy import total
from dynadp.research.audit.bounds import FEWEST, Bound, Score, check, lower_bound
from dynadp.research.audit.cases import Case, random_cases, worst_cases
from dynadp.research.audit.entropy import Stream
from dynadp.research.audit.node import AuditedNode

Data = TypeVar("Data")
PILOT = 4_000  # releases of each data set with which a pair is tried
SEARCHED = 6  # random pairs that are tried besides the constructed ones
DRAWS = 100_000
CONSISTENT, REFUTED = "consistent with the claim", "claim refuted"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """epsilon >= epsilon_lower, with this confidence, beside the claim.

    Attributes
    ----------
    alpha_claimed, delta
        The claim: at most this loss, but for a chance of delta. For one release its alpha; for
        several, in spite of the name, the epsilon of all of them together.
    epsilon_lower, confidence
        The lower bound at that delta, and its confidence.
    draws
        Releases of each data set, without those of the search.
    pair, direction, statistic
        The data sets, which of them is P, and the statistic that distinguishes them.
    largest_log_ratio, log_ratio_bound
        Largest exact ``|ln p_D/p_D'|`` among all draws where densities are known, and its limit;
        else None.
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
    setting: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refuted(self) -> bool:
        """Whether the bound, or an exact ratio, is above the claim."""
        return self.epsilon_lower > self.alpha_claimed or self.refuted_exactly

    @property
    def refuted_exactly(self) -> bool:
        """Whether a single output is likelier under one data set than its bound allows; no chance
        is involved.
        """
        largest, most = self.largest_log_ratio, self.log_ratio_bound
        return largest is not None and most is not None and largest > most * (1 + 1e-9)

    @property
    def verdict(self) -> str:
        """``consistent with the claim`` or ``claim refuted``."""
        return REFUTED if self.refuted else CONSISTENT

    def to_json(self) -> dict[str, Any]:
        """Version 1."""
        fields = {**vars(self)}
        del fields["setting"]
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

    worst, lower = _search(named, bound, delta, draws, confidence)
    return _audit_of(worst, lower, claimed)


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
) -> Audit:
    """Try to refute that one node's releases lose at most what the accountant claims: alpha in one
    round, its total in several.

    The adversary picks the data sets and all neighbours' messages; the most distinguishable pair of
    a pilot is drawn from anew. The exact log-likelihood ratio serves as statistic beside the learnt
    ones, and is checked on every draw by itself.

    Parameters
    ----------
    mechanism, alpha
        What is audited, and the loss of each round that it is given.
    dimension, rounds
        d and T.
    delta
        Of the total; 0 compares with the sum of alpha.
    draws, confidence
        As for :func:`audit`.
    source
        Where noise comes from; by default a :class:`Stream` under a key from the operating system.
    cases
        Data sets to try, instead of :func:`worst_cases` and a few at random.
    """
    if isinstance(mechanism, NoProtection):
        raise DeclarationError(
            "mechanism 'none' claims nothing, so there is nothing to refute; give Dual() or "
            "Primal()"
        )
    chosen = source or Stream()
    if cases is None:
        cases = worst_cases(dimension, alpha)
        cases += random_cases(chosen.generator("audit", "search", 0), dimension, alpha, SEARCHED)
    nodes = {case.name: AuditedNode(case, mechanism, alpha, rounds) for case in cases}
    largest = dict.fromkeys(nodes, 0.0)

    def bound(name: str, count: int, confidence: float) -> Bound:
        node, sent = nodes[name], []
        for rows in (node.case.rows, node.case.other):
            points, messages = node.transcript(rows, count, chosen)
            ratios = np.abs(node.log_ratio(points, messages))
            largest[name] = max(largest[name], float(ratios.max()))
            sent.append(messages.reshape(count, -1))

        def exact(outputs: Array) -> Array:
            messages = outputs.reshape(len(outputs), -1, node.releases.public.dimension)
            # where it is flat, rounding must not make up an order
            return np.round(node.log_ratio(messages, messages), 9)

        scores = {"log-likelihood ratio": exact}
        return lower_bound(*sent, delta=delta, confidence=confidence, scores=scores)

    worst, lower = _search(nodes, bound, delta, draws, confidence)
    node = nodes[worst]
    return _audit_of(
        worst,
        lower,
        total(node.events, delta).epsilon,
        largest_log_ratio=largest[worst],
        log_ratio_bound=node.log_ratio_bound,
        setting={
            "mechanism": mechanism.name,
            "alpha": alpha,
            "dimension": node.releases.public.dimension,
            "rounds": rounds,
            "seeded": chosen.seeded,
        },
    )


def _search(
    pairs: Collection[str],
    bound: Callable[[str, int, float], Bound],
    delta: float,
    draws: int,
    confidence: float,
) -> tuple[str, Bound]:
    """Try each pair with a few draws, and bound the most distinguishable with new ones."""
    _require.whole("draws", draws, 2 * FEWEST, f", better {DRAWS:,}")
    check(delta, confidence)
    if not pairs:
        raise DeclarationError("no pair of data sets was given; expected at least one")
    worst = next(iter(pairs))
    if len(pairs) > 1:
        worst = max(pairs, key=lambda name: bound(name, PILOT, 0.9).epsilon)
    return worst, bound(worst, draws, confidence)


def _audit_of(pair: str, bound: Bound, claimed: float, **more: Any) -> Audit:
    return Audit(
        alpha_claimed=claimed,
        delta=bound.delta,
        epsilon_lower=bound.epsilon,
        confidence=bound.confidence,
        draws=bound.draws,
        pair=pair,
        direction=bound.direction,
        statistic=bound.statistic,
        **more,
    )
