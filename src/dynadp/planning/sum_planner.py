"""From a total (epsilon, delta) to a plan of algorithm "sum", by rules of public numbers alone
(maths.md 12).
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import ReleasePlan, Steps
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Sealed, Sum, centring_events
from dynadp.planning.parts import Consortium, Protection, Settings, check_counts
from dynadp.planning.plans import Plan
from dynadp.planning.reasons import (
    asked,
    burdens,
    class_reasons,
    loss_words,
    some_names,
    span,
    warnings_about,
)
from dynadp.planning.strength import row_mus
from dynadp.planning.sums import (
    SumConstants,
    sealed_signal,
    signal,
    weigh_nodes,
    weigh_sealed,
)
from dynadp.privacy import Event, Unit, calibrate, collusion_words, per_node, upper_bound
from dynadp.problem import (
    EVEN,
    ClassWeights,
    Logistic,
    Loss,
    Softmax,
    SquaredL2,
    Terms,
    Weights,
    default_loss,
)


def plan_sums(
    consortium: Consortium,
    totals: Sequence[float],
    delta: float,
    mechanism: Sum,
    *,
    centring: bool = True,
    weights: Weights = "rows",
    constants: SumConstants | None = None,
    problems: int = 1,
    unit: Unit | None = None,
    class_weights: ClassWeights = EVEN,
    positives: float | None = None,
    loss: Loss | None = None,
) -> Plan:
    """q = k T/N, N = sum w B/sqrt(sum (w/mu)^2); equal mu for all gradients.

    Parameters
    ----------
    consortium
        Nodes, numbers of rows and columns.
    totals, delta
        The epsilon of each node, and delta.
    mechanism
        Its second moment is released where N is large, unless it says so or not.
    centring
        Whether rows can be centred first.
    weights
        ``rows`` or ``equal``.
    constants
        Of the rules; by default as found on census rows.
    problems
        K problems that share the total; the rounds of one follow those of the other.
    unit
        Whose total it is; by default that of a row at one node.
    class_weights, positives
        As of :class:`~dynadp.planning.parts.Settings`.
    loss
        L; by default the logistic loss, with the margin of the constants.
    """
    whom = unit or Unit()
    if loss is None and consortium.classes == 0:
        loss = default_loss("numbers", "sum")
    rules = constants or SumConstants.of(consortium.classes, loss)
    nodes, features = consortium.nodes, consortium.features
    width = consortium.dimension - 1 if features is None else features
    B = check_counts(consortium.counts, len(nodes))
    mechanism, spares = mechanism.among(len(nodes)), 0
    most = 1 if mechanism.weighed else whom.rows
    mus = row_mus(totals, delta, mechanism, whom)
    if loss is None:
        loss = Softmax(rules.margin) if consortium.vectors > 1 else Logistic(rules.margin)
    mus /= loss.slope_bound
    if isinstance(mechanism, Sealed):
        # what one problem reserves and does not use, the next one could not take over
        spares = mechanism.spares if problems == 1 else 0
        mechanism = replace(mechanism, spares=spares)
    if mechanism.sealing:
        weighed = weigh_sealed(B, mus, weights)
        N = sealed_signal(B, mus, np.array(weighed), mechanism.sealing) / sqrt(problems)
    else:
        weighed = weigh_nodes(B, mus, weights)
        N = signal(B, mus, np.array(weighed)) / sqrt(problems)
    moment = mechanism.second_moment
    if moment and problems > 1:
        raise DeclarationError(
            f"{problems} problems share the plan, and each would release the second moment; leave "
            "second_moment out"
        )
    if mechanism.histogram and problems > 1:
        raise DeclarationError(
            f"{problems} problems share the plan, and a histogram of scores is of one; leave "
            "calibration (histogram) out"
        )
    settings = Settings(
        loss=loss,
        weights=weights,
        class_weights=class_weights,
        positives=positives,
    )
    N *= settings.row_weight
    if moment is None:
        # rows that are weighed count less: by the root of their number where they point apart
        moment = problems == 1 and rules.moment_from <= N / sqrt(whom.rows / most)
    moved = rules.moment_rounds if moment else rules.rounds
    centred = rules.centring if centring and width else 0.0
    features_mu = sqrt(centred) * most / whom.rows  # of one row, over that of a gradient
    cells = rules.histogram if mechanism.histogram else 0.0
    rest = 1 - centred - cells - (rules.moment if moment else 0.0)
    each = [sqrt(rules.moment)] * moment + [sqrt(rest / (moved + spares))] * moved
    if cells:  # all rows of a person are in it, weighed or not
        each.append(sqrt(cells) * most / whom.rows)
    shares = [share / sqrt(problems) for share in each] * problems

    least = 0.0 if moment else rules.least_pull
    chosen = replace(mechanism, second_moment=moment)
    counts = B if chosen.sealing else B.max(keepdims=True)  # the largest node, or all of one sum
    terms = Terms(counts, consortium.dimension, loss, SquaredL2(), np.ones(len(counts)), 1.0)

    def events(mu: float) -> list[Event]:
        """What one node spends, steps and distances among it."""
        table = mu * np.array([[shares]] * len(counts))
        nameless = [""] * len(counts)
        every = ReleasePlan.sums(nameless, terms, chosen, table, whom, consortium.vectors)
        releases = every.some(slice(0, 1))
        centre = [mu * features_mu] if centred else []
        centring = centring_events(
            [""], centre, width, "gaussian", seeded=False, sealing=chosen.sealing
        )
        return [*whom.declared(centring), *releases.events(seeded=False)]

    found = {total: calibrate(events, total * (1 - 1e-9), delta) for total in set(totals)}
    mus = np.array([found[total] for total in totals])
    table = {p: [mu * share for share in shares] for p, mu in zip(nodes, mus.tolist(), strict=True)}
    made = Plan(
        settings=settings,
        steps=Steps(
            pull=max((rules.moment_pull if moment else rules.pull) * moved / N, least),
            momentum=rules.momentum,
            curvature=rules.curvature,
            node_weights=weighed,
        ),
        protection=Protection(
            mechanism=chosen,
            schedule=per_node(table),
            centring=tuple((mus * features_mu).tolist()) if centred else (),
            delta=delta,
            epsilon=tuple(totals),
            unit=whom,
        ),
        rounds=len(shares),
        consortium=consortium,
    )
    return replace(made, reasons=_reasons(made, totals, mus, N, rules, centred))


def _reasons(
    made: Plan,
    totals: Sequence[float],
    mus: Array,
    N: float,
    rules: SumConstants,
    centred: float,
) -> tuple[str, ...]:
    delta, steps, counts = made.delta, made.steps, made.bound.counts
    those = list(made.senders)
    assert steps is not None
    nodes, w = made.bound.nodes, np.array(steps.node_weights)
    cells = made.mechanism.histogram if isinstance(made.mechanism, Sum) else 0
    steps_made = made.rounds - bool(cells)
    if isinstance(made.mechanism, Sum) and made.mechanism.second_moment:
        how = (
            f"{steps_made - 1} steps that know the rows' second moment, which is released first, "
            f"with {rules.moment:.0%} of the budget: it pays from N = {rules.moment_from:g}"
        )
    else:
        how = (
            f"{steps_made} steps with momentum {rules.momentum:g}: below N = "
            f"{rules.moment_from:g} a second moment would be mostly noise"
        )
    if centred:
        centring = (
            f"a centring round with mu = {span(np.array(made.centrings)[those])}, {centred:.0%} of "
            "the budget: centred rows are easier to tell apart"
        )
    else:
        centring = "no centring round: none was asked for, or the schema has a public centre"
    senders = "1 node" if len(made.senders) == 1 else f"{len(made.senders)} nodes"
    if made.sealing:
        senders += f", of which each adds 1/sqrt({made.sealing.honest}) of what hides a row"
    return (
        f"algorithm sum: {made.mechanism.why}",
        *_sealed(made),
        f"signal over noise is N = {N:.4g}: rows times mu = {span(mus)}, which {asked(totals)}, "
        f"delta = {delta:g} allow, over the noise of {senders}; each gradient has mu = "
        f"{span(made.gradient_mus[those])}",
        f"{how}; pull q = {steps.pull:.3g}, in proportion to the noise",
        *_people(made),
        loss_words(made.settings.loss),
        *_classes(made),
        centring,
        *class_reasons(made.settings),
        *(
            (
                f"a last round with mu = {span(made.table()[those, 0, -1])}, "
                f"{rules.histogram:.0%} of the budget: how many rows of each label have their "
                f"score in each of {cells} bins; probabilities, thresholds and measures follow "
                "from it",
            )
            if cells
            else ()
        ),
        "the model is the mean of the common point over the last half of the steps; a mean of "
        "what was released costs no privacy",
        f"in total epsilon = {upper_bound(made.total.epsilon)} at delta = {delta:g} for anybody "
        f"with {made.unit.words}",
        *warnings_about(delta, counts),
        *(burdens(nodes, w * counts, (w / mus) ** 2) if made.settings.weights == "equal" else ()),
        *_silent([nodes[p] for p in np.flatnonzero(w == 0)]),
    )


def _classes(made: Plan) -> tuple[str, ...]:
    """How several classes are learned."""
    if made.bound.vectors == 1:
        return ()
    return (
        f"one model of {made.bound.classes} classes: a row moves a sum by its slopes for all of "
        f"them together, which are no longer than {made.settings.loss.slope_bound:g}, whatever "
        "their number",
    )


def _people(made: Plan) -> tuple[str, ...]:
    """How the rows of a person count, where she may have several."""
    if made.release_plan.weighed:
        return (
            "the rows of each person are weighed, so that together they count no more than one row "
            "may: noise is that of one row, but for the centring round; N is less where people "
            "have several rows",
        )
    if made.unit.limited and made.unit.rows > 1:
        return (
            f"noise is {made.unit.rows} times that of one row: with weighed = true in the "
            "mechanism a person's rows would count as one row may, which was more accurate "
            "wherever people have several",
        )
    return ()


def _sealed(made: Plan) -> tuple[str, ...]:
    """Who must be honest, and what spares are for."""
    if not isinstance(made.mechanism, Sealed) or made.sealing is None:
        return ()
    h, P, spares = made.sealing.honest, made.sealing.members, made.mechanism.spares
    away = made.sealing.away
    if P == 1:
        return ("the node is alone: nobody helps to hide its rows, and none is needed to",)
    rests = (
        f"{h} of {P} nodes must be honest: they add their noise and keep their keys. Whoever looks "
        "is not among them"
    )
    if away:
        rests += f", and of the {P - away} that remain where {away} stay away as many"
    if worse := collusion_words(made.collusion):
        rests += f". If more of the others collude, epsilon grows: {worse}"
    if not spares:
        return (rests,)
    some = "1 spare attempt is" if spares == 1 else f"{spares} spare attempts are"
    lost = ", or that nodes stay away from" if away else ""
    return (rests, f"{some} reserved, for sums that a spoiled letter makes unreadable{lost}")


def _silent(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    one = len(names) == 1
    return (
        f"{some_names(names)} {'sends' if one else 'send'} nothing and "
        f"{'spends' if one else 'spend'} nothing: beside noise that hides a row, so few rows "
        "bring next to nothing; the model comes there all the same",
    )
