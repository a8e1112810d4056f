"""Accuracy on a node's private rows, and their number: drawn, charged to its ledger, then shown."""

from dataclasses import replace
from secrets import token_hex
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp import _require
from dynadp._arrays import Array
from dynadp.data import Schema, count
from dynadp.engines import now
from dynadp.errors import DeclarationError
from dynadp.mechanisms import (
    Draws,
    NoisyAccuracy,
    NoisyCount,
    NoisyErrors,
    NoisyHistogram,
    SystemEntropy,
    error_sums,
    private_accuracy,
    private_answers,
    private_count,
    private_errors,
    private_histogram,
)
from dynadp.planning import unit_of
from dynadp.privacy import Ledger
from dynadp.runs.model import Model
from dynadp.runs.scoring import predicted, require_target, scored, tally


def evaluate_privately(
    model: Model,
    data: Any,
    ledger: Ledger,
    *,
    alpha: float,
    rows: int | None = None,
    dataset: str,
    who: str,
    draws: Draws | None = None,
) -> NoisyAccuracy:
    """Release the accuracy of a model on private rows once, and charge the node's ledger.

    Parameters
    ----------
    model, data
        What answers, and the rows, as :func:`~dynadp.data.readers.source` takes them.
    ledger
        Of the node whose rows they are; it refuses what does not fit under its cap.
    alpha
        The loss of this release.
    rows
        N, public. It is required where the schema drops rows, because how many stay depends on
        cells; the accuracy is then the share of N. Otherwise it is the number of rows, at most m
        of a person where the schema names people. Where the number of rows stays secret there is
        none: right and wrong answers are counted with noise.
    dataset, who
        For the ledger: rows of what, and who asks.
    draws
        Where noise comes from; the operating system.
    """
    if model.target is not None:
        raise DeclarationError(
            "alpha releases how many rows are answered right, and the model answers a number; give "
            "mu, which releases sums of its errors: R2, MAE and RMSE follow from them"
        )
    schema, noise = model.columns, draws or SystemEntropy()
    drops, unit = schema.drops_rows, unit_of(schema)
    if schema.hides_counts:
        if rows is not None:
            raise DeclarationError(
                f"--rows is {rows}, and the model's schema keeps the number of rows secret: right "
                "and wrong answers are both counted with noise; leave out --rows"
            )
        answers = tally(model, data, limited=True)
        wrong = answers.stay - answers.right
        found = private_answers(
            answers.right, wrong, alpha, node=ledger.node, draws=noise, unit=unit
        )
        _charge(ledger, found, dataset, who)
        return found
    if rows is None and schema.drops_missing:
        raise DeclarationError(
            "the model's schema drops rows with missing cells, so how many stay depends on cells "
            "and is private: declare a public number with --rows N (rows=N), such as rows = N of "
            "the run file; accuracy is the share of N"
        )
    answers = tally(model, data, limited=True)
    if rows not in (None, answers.read) and not drops:
        raise DeclarationError(
            f"--rows is {rows}, but {dataset} has {answers.read} rows and none are dropped; leave "
            f"out --rows"
        )
    released = private_accuracy(
        answers.right,
        answers.stay if rows is None else rows,
        alpha,
        node=ledger.node,
        draws=noise,
        unit=unit,
    )
    _charge(ledger, released, dataset, who)
    return released


def measure_privately(
    model: Model,
    data: Any,
    ledger: Ledger,
    *,
    mu: float,
    bins: int = 64,
    dataset: str,
    who: str,
    draws: Draws | None = None,
) -> NoisyHistogram:
    """Release a histogram of scores by label on a node's private rows, and charge its ledger.

    All measures are post-processing of it (:func:`~dynadp.runs.private_measures`), and so are
    probabilities. Bins are public: equally wide between -||f|| and ||f||, where the scores of
    bounded rows lie, with an edge at 0. Of several classes labels and answers are counted: one
    number for each pair, in place of bins.

    Parameters
    ----------
    model, data, ledger, dataset, who, draws
        As for :func:`evaluate_privately`.
    mu
        Of this release, for one row.
    bins
        How many, even.
    """
    _require.whole("bins", bins, least=2)
    if bins % 2:
        raise DeclarationError(f"bins is {bins}; expected an even number, with an edge at 0")
    if model.columns.classes > 2:
        answers = tally(model, data, limited=True)
        assert answers.table is not None
        return _released(model, answers.table, np.zeros(0), ledger, mu, dataset, who, draws)
    reach = float(np.linalg.norm([*model.coef[0], *model.intercept])) or 1.0
    edges = reach * np.linspace(-1, 1, bins + 1)[1:-1]
    edges[bins // 2 - 1] = 0.0
    counts = np.zeros((2, bins), dtype=np.int64)
    for _, scores, y in scored(model, data, limited=True):
        np.add.at(counts, (y.astype(int), np.searchsorted(edges, scores)), 1)
    return _released(model, counts, edges, ledger, mu, dataset, who, draws)


def _released(
    model: Model,
    counts: NDArray[np.int64],
    edges: Array,
    ledger: Ledger,
    mu: float,
    dataset: str,
    who: str,
    draws: Draws | None,
) -> NoisyHistogram:
    released = private_histogram(
        counts,
        edges,
        mu,
        node=ledger.node,
        draws=draws or SystemEntropy(),
        unit=unit_of(model.columns),
    )
    _charge(ledger, released, dataset, who)
    return released


def measure_errors_privately(
    model: Model,
    data: Any,
    ledger: Ledger,
    *,
    mu: float,
    dataset: str,
    who: str,
    draws: Draws | None = None,
) -> NoisyErrors:
    """Release sums of the errors of a model that answers a number, on a node's private rows, and
    charge its ledger.

    R2, MAE and RMSE are post-processing (:func:`~dynadp.runs.noisy_target_measures`). Numbers
    beyond the target's public bounds count as the bound.

    Parameters
    ----------
    model, data, ledger, dataset, who, draws
        As for :func:`evaluate_privately`.
    mu
        Of this release, for one row.
    """
    target, sums = require_target(model), np.zeros(5)
    for answers, actual in predicted(model, data, limited=True):
        within = np.clip(actual, target.low, target.high)
        sums += error_sums(*((y - target.middle) / target.half for y in (answers, within)))
    unit, noise = unit_of(model.columns), draws or SystemEntropy()
    released = private_errors(sums, mu, node=ledger.node, draws=noise, unit=unit)
    _charge(ledger, released, dataset, who)
    return released


def count_privately(
    schema: Schema,
    data: Any,
    ledger: Ledger,
    *,
    alpha: float,
    dataset: str,
    who: str,
    draws: Draws | None = None,
) -> NoisyCount:
    """Release how many rows of a node stay, with noise, and charge the node's ledger.

    It helps to choose the number that a node declares where its own stays secret. The release is
    accounted for rows that are added and removed.

    Parameters
    ----------
    schema, data
        The public declarations, and the rows.
    ledger, alpha, dataset, who, draws
        As for :func:`evaluate_privately`.
    """
    released = private_count(
        count(schema, data),
        alpha,
        node=ledger.node,
        draws=draws or SystemEntropy(),
        unit=replace(unit_of(schema), adjacency="add-remove"),
    )
    _charge(ledger, released, dataset, who)
    return released


def _charge(
    ledger: Ledger,
    released: NoisyAccuracy | NoisyCount | NoisyErrors | NoisyHistogram,
    dataset: str,
    who: str,
) -> None:
    """Enter a release in its node's ledger, as a run of its own, before anybody sees it."""
    assert released.event is not None
    run = f"{released.event.purpose} {now()} {token_hex(4)}"
    ledger.reserve(run, [released.event], dataset=dataset, who=who, at=now())
    ledger.spend(run, 0, [released.event], released.message, who=who, at=now())
    ledger.close_run(run, "finished", who=who, at=now())
