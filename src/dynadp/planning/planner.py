"""From a total (epsilon, delta) to everything that a private run needs, by rules of public numbers
alone (maths.md 5).

The constants of the rules were found on census-like rows that are made here (``make plan-study``
finds them again); rows of the run itself have no part in them. docs/results.md says how far they
are from the best choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array
from dynadp.consensus import ReleasePlan, Topology
from dynadp.data import Schema
from dynadp.errors import DeclarationError
from dynadp.mechanisms import (
    Mechanism,
    NoProtection,
    PublicNumbers,
    Sum,
    centring_events,
    mechanism_for,
    mechanism_names,
)
from dynadp.planning.parts import Consortium, Protection, Settings, check_counts
from dynadp.planning.plans import Plan
from dynadp.planning.reasons import (
    asked,
    burdens,
    class_reasons,
    loss_words,
    span,
    warnings_about,
)
from dynadp.planning.strength import admm_signal, row_mus
from dynadp.planning.sum_planner import plan_sums
from dynadp.planning.sums import SumConstants
from dynadp.privacy import (
    Event,
    Unit,
    by_node,
    calibrate,
    check_delta,
    check_epsilon,
    per_node,
    upper_bound,
)
from dynadp.problem import (
    EVEN,
    ClassWeights,
    Logistic,
    Loss,
    Weights,
    check_class_weights,
    default_loss,
    shares,
)

C = 1.0  # only C/q counts
BINS = 32  # of a histogram of scores
TARGET_PULL = 5.0  # k for targets
DEFAULT = "sum"  # whatever nodes, rows and totals are
WHY_DEFAULT = (
    "no mechanism was named, so it is sum: on census rows, with 1 to 200 nodes and epsilon 0.1 to "
    "8, sum was never clearly less accurate than ADMM, and far more accurate where nodes are many "
    "or unequal (docs/results.md)"
)
_ROUNDING = 1e-9  # by which libraries may differ in what they compute for the same plan


@dataclass(frozen=True)
class Constants:
    """The constants of the rules, from a study on census rows.

    Attributes
    ----------
    rounds
        T.
    pull
        k in q = k T/(B mu sqrt(P)).
    ridge
        rho/q.
    margin
        m of the loss ln(1 + e^(m - z)).
    centring
        The centring round's share of the sum of alpha^2/d; 0 for none.
    """

    rounds: int = 20
    pull: float = 0.7
    ridge: float = 0.002
    margin: float = 3.0
    centring: float = 0.1

    @classmethod
    def of(cls, loss: Loss) -> Self:
        """The constants for this loss: those of residuals were found on census rows too."""
        return cls(pull=TARGET_PULL) if loss.residual else cls()


def plan(
    counts: Sequence[float],
    topology: Topology,
    dimension: int,
    *,
    epsilon: float | Mapping[str, float],
    delta: float,
    mechanism: str | Mechanism | None = None,
    algorithm: str | None = None,
    centring: bool = True,
    features: int | None = None,
    weights: Weights = "rows",
    constants: Constants | SumConstants | None = None,
    problems: int = 1,
    unit: Unit | None = None,
    calibration: bool = False,
    class_weights: ClassWeights = EVEN,
    positives: float | None = None,
    classes: int = 2,
    loss: Loss | None = None,
) -> Plan:
    """Algorithm "sum": :func:`~dynadp.planning.sum_planner.plan_sums`. ADMM: q = rho + 2 eta N =
    k T/(B mu sqrt(P)), constant alpha by :func:`~dynadp.privacy.inverse.calibrate`.

    The rest is about ADMM. mu is that of the Gaussian mechanism with this total. Each released
    coordinate then carries noise of about 2 sqrt(P/T)/k, the same for all totals: the pull towards
    0 and the noise stay in proportion. Where nodes differ, 1/(B mu)^2 is the mean over nodes, as
    the noise of a mean over nodes is.

    Parameters
    ----------
    counts
        B_p of each node, in the topology's order: public.
    topology
        The network.
    dimension
        d, with the intercept.
    epsilon, delta
        The total that nobody of the unit, by default nobody with a row at one node, may lose more
        of; epsilon may differ from node to node.
    mechanism
        ``sum``, ``primal`` or ``dual``, another one's name, or the mechanism itself.
    algorithm
        ``admm`` or ``sum``, where no mechanism is given; by default ``sum``, as it was
        nowhere less accurate in the study.
    centring
        Whether rows can be centred first: not where the schema has a public centre already.
    features
        Columns without the intercept, whose means a centring round releases; d - 1 by default.
    weights
        ``rows``: every row of the network weighs the same; of sums, those of large nodes weigh more
        (:func:`~dynadp.planning.sums.weigh_nodes`). ``equal``: every node weighs the same, as in
        the paper; a small node then brings much noise.
    constants
        Of the rules of the algorithm; by default as found on census rows.
    problems
        K problems on the same rows, one after the other, that share the total.
    unit
        Whose total it is: a person with up to so many rows at a node, at up to so many nodes.
    calibration
        Whether the last round of sums releases a histogram of the model's scores by label, within
        the total: probabilities, thresholds and measures follow from it.
    class_weights, positives
        What rows of the negative and of the positive label weigh, and the declared share of
        positive ones (:class:`~dynadp.planning.parts.Settings`).
    classes
        How many values the label has; more than two for algorithm ``sum`` alone. 0 for a target.
    loss
        L of a target, one of residuals; by default
        :func:`~dynadp.problem.targets.default_loss`. That of labels follows from the constants.
    """
    whom = check_unit(unit, topology)
    nodes, P = topology.nodes, len(topology.nodes)
    totals = _totals(epsilon, delta, nodes)
    named = mechanism is not None or algorithm is not None
    if not named:
        algorithm = "admm" if isinstance(constants, Constants) else DEFAULT
    chosen = mechanism_for(mechanism, algorithm)
    assert chosen is not None
    own = SumConstants if chosen.algorithm == "sum" else Constants
    if constants is not None and not isinstance(constants, own):
        raise DeclarationError(
            f"constants are {type(constants).__name__}; algorithm {chosen.algorithm!r} has "
            f"{own.__name__}"
        )
    if isinstance(chosen, NoProtection):
        raise DeclarationError(
            f"mechanism is 'none', which protects nothing; expected one of "
            f"{', '.join(mechanism_names())}"
        )
    if calibration:
        chosen = with_histogram(chosen)
    if classes != 2 and (calibration or class_weights != EVEN or positives is not None):
        raise DeclarationError(
            "calibration, class_weights and positives are for labels of two values, and this label "
            f"has {classes or 'none: a number is predicted'}; leave them out"
        )
    if isinstance(chosen, Sum):
        sums = plan_sums(
            Consortium(topology, tuple(int(b) for b in counts), dimension, features, classes),
            totals,
            delta,
            chosen,
            centring=centring,
            weights=weights,
            constants=constants if isinstance(constants, SumConstants) else None,
            problems=problems,
            unit=whom,
            class_weights=class_weights,
            positives=positives,
            loss=loss,
        )
        require_promise(sums)
        return sums if named else replace(sums, reasons=(WHY_DEFAULT, *sums.reasons))
    if loss is None and classes == 0:
        loss = default_loss("numbers", chosen.algorithm)
    if not isinstance(constants, Constants):
        constants = Constants() if loss is None else Constants.of(loss)
    loss = loss or Logistic(constants.margin)
    those = Consortium(topology, tuple(int(b) for b in counts), dimension, features, classes)
    those.require_kind(loss, chosen.algorithm)
    # a problem may use mu/sqrt(K): K T for T, and k/sqrt(K) for k
    T, pull = problems * constants.rounds, constants.pull / sqrt(problems)
    B = check_counts(counts, P)
    mus = row_mus(totals, delta, chosen, whom)
    shared = shares(C, B, weights)
    weighed = Settings(class_weights=class_weights, positives=positives)
    N = admm_signal(B, mus, weights)
    q = pull * T / (N * weighed.row_weight)
    rho = constants.ridge * q
    eta = (q - rho) / (2 * float(topology.degrees.mean()))
    features = dimension - 1 if features is None else features
    share = constants.centring if centring and features else 0.0
    # alpha of the centring round over alpha
    weight = sqrt(share / (1 - share) * T)
    if chosen.noise == "l2-laplace":
        weight *= sqrt(features / dimension)

    def events(alpha: float, p: int) -> list[Event]:
        public = public_numbers(
            B[[p]], topology.degrees[[p]], dimension, shared[[p]], rho, eta, loss, whom
        )
        centre = [weight * alpha] if share else []
        made = planned_events(chosen, public, T, [nodes[p]], alpha, centre, features)
        return list(whom.declared(made))

    # nodes that are alike spend alike
    kinds: dict[tuple[float, ...], list[int]] = {}
    for p, kind in enumerate(zip(totals, B.tolist(), topology.degrees.tolist(), strict=True)):
        kinds.setdefault(kind[:1] if chosen.by_alpha_alone else kind, []).append(p)
    alphas = np.empty(P)
    for (most, *_), alike in kinds.items():
        alphas[alike] = calibrate(partial(events, p=alike[0]), most, delta)
    made = Plan(
        settings=replace(weighed, loss=loss, C=C, weights=weights, rho=rho, eta=eta),
        protection=Protection(
            mechanism=chosen,
            schedule=per_node(dict(zip(nodes, alphas.tolist(), strict=True))),
            centring=tuple((weight * alphas).tolist()) if share else (),
            delta=delta,
            epsilon=tuple(totals),
            unit=whom,
        ),
        rounds=T,
        consortium=those,
    )
    total, scale = made.total, "alpha" if chosen.noise == "l2-laplace" else "mu"
    reasons = (
        f"{chosen.name} perturbation: {chosen.why}",
        f"{T} rounds with the same {scale} = {span(alphas, upper_bound)}: accuracy depends only on "
        "rounds / penalty, so spending unevenly would not help",
        f"penalty q = {q:.3g} (eta = {eta:.3g}, rho = {rho:.2g}): in proportion to the noise that "
        f"{asked(totals)}, delta = {delta:g} ask for, which a Gaussian mechanism with mu = "
        f"{span(mus)} has; C = {C:g}, since only C/q counts",
        loss_words(loss),
        *class_reasons(made.settings),
        f"a centring round with {scale} = {span(weight * alphas, upper_bound)}, {share:.0%} of the "
        "budget: centred rows are easier to tell apart"
        if share
        else "no centring round: none was asked for, or the schema has a public centre",
        "the model is the mean of all nodes' messages of the last half of the rounds; a mean "
        "of what was released costs no privacy",
        f"in total epsilon = {upper_bound(total.epsilon)} at delta = {delta:g} for anybody with "
        f"{whom.words}",
        *warnings_about(delta, counts),
        *burdens(nodes, shared, (shared / (B * mus)) ** 2),
    )
    if not made.release_plan.final:  # whose output the caller still has to choose
        require_promise(made)
    return with_reasons(made, reasons)


def with_histogram(mechanism: Mechanism, bins: int = BINS) -> Sum:
    """Return the mechanism with a last round that releases a histogram of scores."""
    if not isinstance(mechanism, Sum):
        raise DeclarationError(
            f"mechanism is {mechanism.name!r}, whose messages go to neighbours alone, and the "
            "histogram that calibration needs is a sum over all nodes: take mechanism sum or "
            "sealed, or leave calibration out and release one for each node with dynadp evaluate "
            "--ledger FILE --mu M --calibrate"
        )
    return mechanism if mechanism.histogram else replace(mechanism, histogram=bins)


def class_weights_of(
    given: Mapping[Any, float] | str | None, label: Sequence[Any], positives: float | None
) -> ClassWeights:
    """Return ``(w_-, w_+)`` of what a user gives: a number for each label value, or ``balanced``.

    Parameters
    ----------
    given
        By label value; ``balanced`` for (1/(1 - p), 1/p), p the declared share; None for 1 each.
    label
        The label values, the negative one of two first.
    positives
        p, declared: it is never counted, as that would be a release.
    """
    if given is None:
        return EVEN
    if len(label) != 2:
        raise DeclarationError(
            f"class_weight is given, and the label has {len(label) or 'no'} classes; it is for two"
        )
    if given == "balanced":
        if positives is None or not 0 < positives < 1:
            raise DeclarationError(
                f"class_weight is 'balanced' and positives is {positives!r}; declare the share of "
                "rows with the positive label, between 0 and 1, as it is known without these rows: "
                "counting them would be a release"
            )
        return check_class_weights((1 / (1 - positives), 1 / positives))
    if not isinstance(given, Mapping) or {str(key) for key in given} != set(map(str, label)):
        raise DeclarationError(
            f"class_weight is {given!r}; expected 'balanced', or a number for each of the label "
            f"values {label[0]!r} and {label[1]!r}"
        )
    by_text = {str(key): weight for key, weight in given.items()}
    return check_class_weights([by_text[str(value)] for value in label])


def require_two_classes(schema: Schema, what: str) -> None:
    """Refuse a label that has not two values, for which ``what`` is."""
    if len(schema.label.classes) != 2:
        raise DeclarationError(
            f"{what} is for labels of two values, and column {schema.label.name!r} declares "
            f"{len(schema.label.classes) or 'a number'}; leave it out"
        )


def unit_of(schema: Schema) -> Unit:
    """Whose privacy a schema declares."""
    m, s = schema.rows_per_person, schema.silos_per_person
    return Unit(m, s, schema.adjacency, limited=schema.person is not None)


def require_unit(plan: Plan, schema: Schema) -> None:
    """Refuse a plan that was made for people with fewer rows, or at fewer nodes, than the schema
    declares.
    """
    declared, planned = unit_of(schema), plan.unit
    if planned.rows < declared.rows or planned.silos < declared.silos:
        raise DeclarationError(
            f"the plan is for anybody with {planned.words}, and the schema declares "
            f"{declared.words}: plan again, with unit = {declared!r}"
        )
    if planned.limited and not declared.limited:
        raise DeclarationError(
            "the plan says that the software leaves out further rows of a person, and the schema "
            f"names no column of people: name it (person), or plan again, with unit = {declared!r}"
        )
    if planned.adjacency != declared.adjacency:
        raise DeclarationError(
            f"the plan is for adjacency {planned.adjacency!r}, and the schema declares "
            f"{declared.adjacency!r}: plan again, with unit = {declared!r}"
        )


def check_unit(unit: Unit | None, topology: Topology) -> Unit:
    """Return the unit; refuse one of more nodes than there are."""
    whom = unit or Unit()
    if whom.silos > len(topology):
        raise DeclarationError(
            f"silos_per_person is {whom.silos} and the network has {len(topology)} nodes; expected "
            "at most as many"
        )
    return whom


def require_promise(plan: Plan) -> None:
    """Refuse a plan that costs a node more than promised, or charges what it does not use."""
    if plan.protection and plan.release_plan.final and plan.output != "last":
        raise DeclarationError(
            f"output is {plan.output!r}, and a final release makes each node's own model: it would "
            "be charged and not used; take output = 'last', or leave final_release out"
        )
    if plan.protection is None or not plan.protection.epsilon:
        return
    promised = dict(zip(plan.bound.nodes, plan.protection.epsilon, strict=True))
    if plan.total.epsilon <= min(promised.values()):
        return
    for node, total in by_node(plan.events, plan.delta).items():
        if total.epsilon > promised[node]:
            raise DeclarationError(
                f"the plan costs node {node!r} epsilon = {total.epsilon:g} at delta = "
                f"{plan.delta:g}, more than the total {promised[node]:g} that it was made for: it "
                "was made for another network, other numbers of rows or other columns; plan again"
            )


def with_reasons(made: Plan, reasons: Sequence[str]) -> Plan:
    """The plan with these reasons, and one more: what the solver's certificate costs."""
    cost = made.release_plan.inflation - 1
    words = f"{cost:.2g}" if cost < 1e-4 else f"{cost:.2%}"
    reason = (
        f"the solver's certified error lengthens the noise by {words}: it covers whatever "
        "neighbours may send"
    )
    object.__setattr__(made, "reasons", (*reasons, reason))  # what was computed of it stays
    return made


def planned_events(
    mechanism: Mechanism,
    public: PublicNumbers,
    rounds: int,
    names: Sequence[str],
    alphas: ArrayLike,
    centrings: Sequence[float],
    features: int,
) -> list[Event]:
    """List everything that these nodes will spend: the centring round where there is one, and all
    rounds of training.
    """
    given = np.asarray(alphas, dtype=float).reshape(len(names), 1, -1)  # by node, or by round too
    table = np.broadcast_to(given, (len(names), 1, rounds))
    noises, spares = mechanism.plan(public, table), mechanism.spare_attempts(public, table)
    releases = ReleasePlan(
        tuple(names), mechanism, public, noises, rounds, np.zeros(table.shape[:2]), spares
    )
    noise, sealing = mechanism.noise, mechanism.sealing
    centring = centring_events(names, centrings, features, noise, seeded=False, sealing=sealing)
    return [*centring, *releases.events(seeded=False)]


def recorded(chosen: Plan, record: Mapping[str, Any]) -> Plan:
    """Return the plan with the numbers of its record, to the last bit.

    Those are reserved, whatever other versions of libraries compute now.

    Parameters
    ----------
    chosen
        The same plan, made anew.
    record
        What :meth:`~dynadp.planning.plans.Plan.to_json` gave when the run began.

    Returns
    -------
    Plan
        ``chosen`` as it is where the record is of another plan.
    """
    s, now, steps = chosen.settings, chosen.table()[:, 0], chosen.steps
    names = ("C", "rho") if steps else ("C", "rho", "eta")
    try:
        numbers: dict[str, Any] = {name: float(record[name]) for name in names}
        pull = [float(record["steps"]["pull"])] if steps else []
        rows = [np.broadcast_to(alpha, chosen.rounds) for alpha in record["alphas"]]
        table = np.array(rows, dtype=float)
        centring = _recorded_centrings(record, table)
        new = [*numbers.values(), *table.ravel(), *centring, *pull]
    except (KeyError, TypeError, ValueError):
        return chosen
    own = [getattr(s, name) for name in names]
    own += [*now.ravel(), *chosen.centrings, *([steps.pull] if steps else [])]
    if len(new) != len(own) or not np.allclose(new, own, rtol=_ROUNDING, atol=0):
        return chosen
    assert chosen.protection is not None
    schedule = per_node(dict(zip(chosen.bound.nodes, table.tolist(), strict=True)))
    return replace(
        chosen,
        settings=replace(s, **numbers),
        steps=replace(steps, pull=pull[0]) if steps else None,
        protection=replace(chosen.protection, schedule=schedule, centring=centring),
    )


def _recorded_centrings(record: Mapping[str, Any], table: Array) -> tuple[float, ...]:
    """Return alpha of each node's centring round; version 0.1.0 recorded the largest alone."""
    if "centrings" in record:
        return tuple(float(alpha) for alpha in record["centrings"])
    if record["centring"] is None:
        return ()
    return tuple((record["centring"] * (table[:, 0] / record["alpha"])).tolist())


def public_numbers(
    counts: Array,
    degrees: Array,
    dimension: int,
    C: Array,
    rho: float,
    eta: float,
    loss: Loss,
    unit: Unit,
    vectors: int = 1,
) -> PublicNumbers:
    """Return the public numbers of a calibration; no event depends on gamma, so any will do."""
    gamma = np.full((len(counts), 1), 1e-9)
    given = counts, degrees, dimension, C, rho, np.array([eta]), gamma, loss
    return PublicNumbers(*given, moves=unit.moves, vectors=vectors)


def _totals(
    epsilon: float | Mapping[str, float], delta: float, nodes: Sequence[str]
) -> list[float]:
    check_delta(delta)
    if not delta:
        raise DeclarationError(
            "delta is 0; plans need one above 0, well below one over the number of rows, such as "
            "1e-5"
        )
    if isinstance(epsilon, Mapping):
        if set(epsilon) != set(nodes):
            raise DeclarationError(
                f"epsilon is given for {sorted(epsilon)}; expected one for each node: "
                f"{', '.join(nodes)}"
            )
        totals = [epsilon[p] for p in nodes]
    else:
        totals = [epsilon] * len(nodes)
    for total in set(totals):
        check_epsilon(total)
    return totals
