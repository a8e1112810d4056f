"""The paper's claims, each judged from the numbers of :mod:`dynadp.research.reproduction`, none by
hand.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import inf, log
from operator import lt
from typing import Any

from dynadp.planning import PrivacyUtility

Numbers = Mapping[str, Any]
Table = dict[str, dict[float, float]]  # algorithm -> alpha or margin -> value
HOLDS, FAILS = "holds", "does not hold"
LEVEL = 0.01  # medians closer than this share of the smaller one are level
FITS = 0.95  # share of the variance that a form must explain
SMALL = 0.1  # margins up to this are small


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the verdict, and the numbers.

    Attributes
    ----------
    claim
        In the paper's sense.
    verdict
        ``holds``, ``does not hold``, or ``only`` and under what.
    measure
        How it is judged.
    seen
        The numbers, in words.
    """

    claim: str
    verdict: str
    measure: str
    seen: str

    def to_json(self) -> dict[str, str]:
        """For the record."""
        return asdict(self)


def judge(cases: Mapping[str, Mapping[str, bool]]) -> str:
    """``holds`` if all cases do, ``does not hold`` if none does, else ``only`` with the cases that
    do.
    """
    flat = [true for inner in cases.values() for true in inner.values()]
    if all(flat):
        return HOLDS
    if not any(flat):
        return FAILS
    parts = []
    for name, inner in cases.items():
        good = [at for at, true in inner.items() if true]
        bad = [at for at, true in inner.items() if not true]
        if good and len(bad) < len(good):
            parts.append(f"{name} except at {_listed(bad)}" if bad else name)
        elif good:
            parts.append(f"{name} at {_listed(good)}")
    return "only " + "; ".join(parts)


def _listed(cases: list[str]) -> str:
    """alpha = 0.1, 0.2 for alpha = 0.1, alpha = 0.2."""
    what = cases[0].rpartition(" = ")[0]
    return ", ".join(cases[:1] + [case.removeprefix(f"{what} = ") for case in cases[1:]])


def judge_claims(result: Numbers) -> list[Claim]:
    """All of the paper's claims, judged."""
    return [
        _larger(result),
        _compare(
            "DVP has a smaller variance of the loss than PVP",
            "standard deviation of the loss over draws, last round, DVP's below PVP's",
            _last_round(result, "deviation"),
            lt,
        ),
        _compare(
            "DVP is more robust to noise at equal alpha",
            "median loss of the last round, DVP's below PVP's (Algorithm 1: "
            f"{result['plain']['losses'][-1]:.3g})",
            _last_round(result, "median"),
            _clearly_less,
        ),
        _compare(
            "PVP's final output is slightly better in empirical loss",
            "median loss of the final output (PVP: its last release by Algorithm 2; DVP: its last "
            "message), PVP's below DVP's",
            _table({**row, **row["loss"]} for row in result["final"]),
            lambda ours, theirs: _clearly_less(theirs, ours),
            word="for",
        ),
        _exponential(result),
        _compare(
            "DVP is preferred for small margins",
            f"made separable rows, margins up to {SMALL:g}: median test error of the last "
            f"messages, DVP's below PVP's",
            _table(result["margins"], axis="margin"),
            _clearly_less,
            axis="margin",
            most=SMALL,
        ),
    ]


def _larger(result: Numbers) -> Claim:
    last = result["settings"]["rounds"]
    begin, end = (
        _table(row for row in result["convergence"] if row["round"] == n) for n in (1, last)
    )
    cases, seen = {}, []
    for name, losses in end.items():
        alphas = sorted(losses)
        cases[f"for {name}"] = {
            f"alpha = {b:g} after {a:g}": losses[b] < losses[a] * (1 + LEVEL)
            for a, b in pairwise(alphas)
        }
        shown = ", ".join(f"{losses[a]:.3g}" for a in alphas)
        down = ", ".join(f"{a:g}" for a in alphas if losses[a] < begin[name][a]) or "none"
        seen.append(f"{name}: {shown}; the loss falls from round 1 to {last} at alpha = {down}")
    grid = ", ".join(f"{a:g}" for a in alphas)
    measure = f"median loss after round {last} does not grow from one alpha to the next of {grid}"
    return Claim("Larger alpha converges better", judge(cases), measure, ". ".join(seen))


def _clearly_less(a: float, b: float) -> bool:
    return a < b * (1 - LEVEL)


def _compare(
    claim: str,
    measure: str,
    table: Table,
    holds: Callable[[float, float], bool],
    *,
    word: str = "against",
    axis: str = "alpha",
    most: float = inf,
) -> Claim:
    """Compare DVP with every other algorithm of the table, at each point of the axis up to
    ``most``.
    """
    ours = table["DVP"]
    cases = {
        f"{word} {name}": {
            f"{axis} = {at:g}": holds(ours[at], theirs[at]) for at in ours if at <= most
        }
        for name, theirs in table.items()
        if name != "DVP"
    }
    rows = [
        f"{name} {', '.join(f'{value:.3g}' for value in row.values())}"
        for name, row in table.items()
    ]
    grid = ", ".join(f"{at:g}" for at in ours)
    return Claim(claim, judge(cases), measure, f"at {axis} = {grid}: {'; '.join(rows)}")


def _last_round(result: Numbers, key: str) -> Table:
    """DVP, both forms of PVP and the control against alpha, after the last round."""
    last = [row for row in result["tradeoff"] if row["round"] == result["settings"]["rounds"]]
    points = [
        {"algorithm": row["algorithm"], **point}
        for row in (*last, result["control"])
        for point in row["points"]
    ]
    return _table(points, key=key)


def _table(rows: Iterable[Numbers], axis: str = "alpha", key: str = "median") -> Table:
    table: Table = {}
    for row in rows:
        table.setdefault(row["algorithm"], {})[row[axis]] = row[key]
    return table


def _exponential(result: Numbers) -> Claim:
    forms: dict[str, dict[str, bool]] = {}
    constants: dict[str, dict[str, bool]] = {}
    seen = []
    for row in result["tradeoff"]:
        fit, name, at = row["fit"], f"for {row['algorithm']}", f"t = {row['round']}"
        algorithm, errors = result["algorithms"][row["algorithm"]], _errors(fit)
        shape = fit["r2"] >= FITS and fit["r2"] >= row["power_r2"]
        near, words = [], []
        # the paper's loss is C times the mean over rows, and so is its c4
        units = {"c4": ("C c4", algorithm["C"]), "c5": ("c5", 1.0)}
        for (key, (label, unit)), stated in zip(units.items(), algorithm["stated"], strict=True):
            value, error = unit * fit[key], errors[key] and unit * errors[key]
            near.append(error is not None and abs(value - stated) <= 2 * error)
            words.append(f"{label} = {_plus_minus(value, error)} (stated {stated:g})")
        forms.setdefault(name, {})[at] = shape
        constants.setdefault(name, {})[at] = shape and all(near)
        seen.append(
            f"{row['algorithm']}, {at}: {', '.join(words)}, R² = {fit['r2']:.3f} (power law "
            f"{row['power_r2']:.3f})"
        )
    verdict, form = judge(constants), judge(forms)
    if verdict == FAILS and form != FAILS:
        verdict = "only in form" + ("" if form == HOLDS else f", {form.removeprefix('only ')}")
    measure = (
        f"c4 exp(-c5 alpha) + c6 explains {FITS:.0%} of the medians' variance, and no less than a "
        f"power law; the stated c4 and c5 lie within two standard errors of the fitted ones, c4 in "
        f"the paper's units: C times that of mean losses"
    )
    return Claim(
        "L_acc is exponential, with the stated constants", verdict, measure, ". ".join(seen)
    )


def _plus_minus(value: float, error: float | None) -> str:
    return f"{value:.3g}" + ("" if error is None else f" ± {error:.2g}")


def _errors(fit: Numbers) -> dict[str, float | None]:
    """Standard errors of the fitted constants; None where they are not known."""
    return dict(zip(("c4", "c5", "c6"), fit["errors"] or [None] * 3, strict=True))


def page(result: Numbers, judged: list[Claim]) -> str:
    """claims.md: settings, verdicts, and the tables behind them."""
    s = result["settings"]
    lines = [
        "# The paper's claims beside what was seen",
        "",
        f"Data: {result['source']}. **SIMULATION**: noise is seeded (seed {s['seed']}) and "
        f"protects nobody; losses may be shown because the rows are published or made.",
        "",
        f"{s['rounds']} rounds, {s['draws']} draws of the noise for each point; the split of the "
        f"rows is fixed. Ours, because the paper names none: {s['nodes']} nodes on a {s['graph']}, "
        f"eta = {s['eta']:g}. (rho, C) as in the paper: "
        + ", ".join(
            f"{name} ({a['rho']:.3g}, {a['C']:g})" for name, a in result["algorithms"].items()
        )
        + ". Noise is that of the corrected algorithms. *As printed*: a node's own vector without "
        "its noise in the augmented term, with the sensitivity that this needs; *public*: its own "
        "message. A control has PVP with DVP's (rho, C). Losses are means over rows.",
        "",
        "| claim | verdict | judged by |",
        "|---|---|---|",
        *(f"| {c.claim} | **{c.verdict}** | {c.measure} |" for c in judged),
        "",
        "## What was seen",
        "",
        *(f"- *{c.claim}*: {c.seen}." for c in judged),
        "",
        "## Where noise enters: the paper's Figures 1 and 2",
        "",
        "![A round of DVP and of PVP](flow.png)",
        "![The final iteration](final_flow.png)",
        "",
        "## Which alpha: the measured one with the best U_priv - loss, and fitted L_acc beside it",
        "",
        "Losses are means over rows, so c4 and c6 are comparable between algorithms; the paper's "
        "are C times as large. The "
        "fit's maximum is where the curve has one; measured there is the value at the nearest "
        "alpha that was measured.",
        "",
        "| algorithm | t | best measured alpha | U_priv - loss | as good within errors | c4 | c5 "
        "| c6 | R² | the fit's maximum |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(_fit_row, result["tradeoff"]),
        "",
        f"## After {s['rounds']} rounds",
        "",
        f"Medians. Without privacy {result['plain']['error']:.1%} test error, majority class "
        f"{result['majority_error']:.1%}. "
        f"epsilon is the total at delta = {s['delta']:g}, with system entropy: of the "
        f"{s['rounds']} rounds' messages beside "
        "the errors, and beside the final output with PVP's last release, which only that one "
        "needs.",
        "",
        "| algorithm | alpha | epsilon | error, last message | error, network mean | epsilon, "
        "final output | its loss |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {r['algorithm']} | {r['alpha']:g} | {r['epsilon']:.3g} | "
            f"{r['error']['median']:.1%} | "
            f"{r['network_error']['median']:.1%} | {r['final_epsilon']:.3g} | "
            f"{r['loss']['median']:.3g} |"
            for r in result["final"]
        ),
        "",
        f"## Choice of rho at alpha = {s['rho_alpha']:g}, after {s['rho_rounds']} rounds",
        "",
        "| algorithm | the paper's rho | least loss here at |",
        "|---|---|---|",
        *(
            f"| {name} | {a['rho']:.3g} | {_best_rho(result, name)} |"
            for name, a in result["algorithms"].items()
        ),
        "",
        "Choosing rho by the loss of private rows, as the paper does, would be a release; here "
        "the rows are public.",
        "",
        f"## Schedules at one total: epsilon = {result['schedules']['epsilon']:g}, delta = "
        f"{result['schedules']['delta']:g}",
        "",
        f"Data: {result['schedules']['source']}. All else as planned for a constant alpha.",
        "",
        "| schedule | smallest and largest alpha | error, last message | error, network mean |",
        "|---|---|---|---|",
        *(
            f"| {r['schedule']} | {min(r['alphas']):.3g}, {max(r['alphas']):.3g} | "
            f"{r['last']['median']:.1%} | "
            f"{r['network']['median']:.1%} |"
            for r in result["schedules"]["rows"]
        ),
    ]
    return "\n".join(lines) + "\n"


def _fit_row(row: Numbers) -> str:
    fit, chosen = row["fit"], row["recommended"]
    end = ", an end" if chosen["end"] else ""
    near = ", ".join(f"{alpha:g}" for alpha in chosen["near"]) or "none"
    constants = " | ".join(_plus_minus(fit[c], error) for c, error in _errors(fit).items())
    return (
        f"| {row['algorithm']} | {row['round']} | {chosen['alpha']:g}{end} | "
        f"{chosen['value']:.3g} | {near} | {constants} | {fit['r2']:.3f} | {_peak(row)} |"
    )


def _peak(row: Numbers) -> str:
    """The fit's maximum, and what was measured nearest to it."""
    fitted = row["recommended"]["fitted"]
    if fitted is None or not fitted["interior"]:
        return "none" if fitted else "the loss does not fall"
    nearest = min(row["points"], key=lambda point: abs(log(point["alpha"] / fitted["alpha"])))
    value = float(PrivacyUtility()(nearest["alpha"])) - nearest["median"]
    return f"{fitted['alpha']:.3g}; measured {value:.3g} at {nearest['alpha']:g}"


def _best_rho(result: Numbers, name: str) -> str:
    losses = _table(result["rho"], axis="rho")[name]
    best = min(losses, key=lambda rho: losses[rho])
    return f"{best:.3g}" + (", an end of those tried" if best in (min(losses), max(losses)) else "")
