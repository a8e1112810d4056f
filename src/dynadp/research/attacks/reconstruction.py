"""Reconstruction: which attributes of a row do messages give away?"""

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dynadp._arrays import Array
from dynadp._intervals import wilson
from dynadp.data import Dataset, RawTable, Schema, require_signs, spelled
from dynadp.mechanisms import Mechanism
from dynadp.research.attacks.decoding import decode, unknown_row
from dynadp.research.attacks.rows import dense
from dynadp.research.attacks.setting import Interval, Result, Setting
from dynadp.research.attacks.sums import SumTranscript
from dynadp.research.attacks.transcript import Transcript, forces, gradients, listen, log_density


@dataclass(frozen=True, kw_only=True)
class Reconstruction(Result):
    """How many attributes of a row the messages give away, label included.

    Attributes
    ----------
    knows
        ``all other rows`` or ``no row``: of what the adversary knows about the target's rows.
    rows
        How many rows were sought, each in a run of its own with noise of its own.
    attributes
        How many a row has.
    recovered
        How many were right, on average over rows: by algebra without noise, by the likeliest value
        with it.
    algebra
        How many the algebra alone gets right, which takes no account of noise.
    guessing
        How many are right if every attribute is guessed as the commonest value of the population.
    interval, guessing_interval
        Wilson's 95% intervals of ``recovered`` and ``guessing``, for as many answers as rows:
        attributes of one row depend on each other, and a mean of numbers between 0 and 1 varies at
        most as a share of right answers does.
    shares
        For each attribute, the share of rows for which it was recovered, and guessed.
    example
        For each attribute of the first row: truth, what was recovered, and the guess.
    """

    knows: str
    rows: int
    attributes: int
    recovered: float
    algebra: float
    guessing: float
    interval: Interval
    guessing_interval: Interval
    shares: dict[str, tuple[float, float]] = field(repr=False)
    example: dict[str, tuple[str, str, str]] = field(repr=False)


def reconstruct(
    data: Dataset,
    population: RawTable,
    mechanism: Mechanism | None,
    alpha: float | None = None,
    *,
    setting: Setting | None = None,
    rows: int = 20,
    seed: int = 0,
) -> Reconstruction:
    """G(V) = -w L'(a.V) a for the gradient G of the known rows: Algorithm 1 shows the unknown row a
    = y x but for its length.

    The constant intercept then gives the length, and the schema's transforms give the raw cells
    (:mod:`dynadp.research.attacks.decoding`). Against noise: the likeliest value of each attribute,
    with rows of the population as the prior and their exact likelihood (:func:`log_density`).

    Parameters
    ----------
    data
        Raw rows with their nodes and schema; rows of the setting's target are sought, one at a
        time.
    population
        Raw rows of other people, from the same population: what the adversary believes beforehand.
    mechanism, alpha
        None and None for Algorithm 1.
    setting
        The network.
    rows
        How many rows of the target to seek.
    seed
        Of the noise.
    """
    s, shards = setting or Setting(), data.shards()
    held, candidates = dense(shards[s.target]), dense(data.schema.shard(population))
    transcript = listen(shards, mechanism, alpha, s, rows, seed)
    belief = _texts(data.schema, population)
    values = {name: np.unique(cells, return_inverse=True) for name, cells in belief.items()}
    best, plain = [], []
    for i in range(rows):
        own, rest = transcript.replica(i), np.delete(held, i, axis=0)
        plain.append(unknown_row(data.schema, s.loss, *forces(own, rest)))
        if mechanism is None or s.silent:
            continue
        score = log_density(own, rest, candidates)[0].sum(axis=-1)
        weight = np.exp(score - score.max())
        likeliest = {
            name: str(kinds[np.bincount(at, weight).argmax()])
            for name, (kinds, at) in values.items()
        }
        best.append(likeliest)
    return _judged("all other rows", data, population, transcript, best or plain, plain)


def unmix(
    transcript: Transcript | SumTranscript, count: int, seed: int = 0, tries: int = 40
) -> Array:
    """Rows A with w L'(V A^T) A = G in all rounds, count x d: the target's rows from its
    messages alone.

    G(1), ..., G(T) lie in the span of the rows, which their singular vectors Q give; A = M Q is
    then found by least squares over M, count x count, from several starts.
    """
    s = transcript.setting
    V, G, w = gradients(transcript, count)
    Q = np.linalg.svd(G, full_matrices=False)[2][:count]
    V, G = V @ Q.T, G @ Q.T
    scale = np.linalg.norm(G) / np.sqrt(G.size)

    def misfit(M: Array) -> Array:
        A = M.reshape(count, count)
        return np.asarray((w * s.loss.slope(V @ A.T) @ A - G) / scale).ravel()

    rng, best = np.random.default_rng([seed, 0x50F7]), None
    for _ in range(tries):
        start = -G.mean(axis=0) / (w * count) + rng.normal(scale=0.5, size=(count, count))
        end = least_squares(misfit, start.ravel(), xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=300)
        if best is None or end.cost < best.cost:
            best = end
        if best.cost < 1e-16 * G.size:
            break
    assert best is not None
    return np.asarray(best.x.reshape(count, count) @ Q)


def small_node(
    data: Dataset,
    population: RawTable,
    mechanism: Mechanism | None,
    alpha: float | None = None,
    *,
    setting: Setting | None = None,
    seed: int = 0,
) -> Reconstruction:
    """``unmix`` on a target with few rows, of which the adversary knows none; each true row meets
    the nearest recovered one.
    """
    s, shards = setting or Setting(), data.shards()
    require_signs(shards, "this attack")
    signed = dense(shards[s.target])
    transcript = listen(shards, mechanism, alpha, s, 1, seed)
    rows = unmix(transcript, len(signed), seed, tries=40 if mechanism is None else 3)
    nearest = np.linalg.norm(signed[:, None] - rows, axis=-1).argmin(axis=1)
    plain = [decode(data.schema, rows[i]) for i in nearest]
    return _judged("no row", data, population, transcript, plain, plain)


def _judged(
    knows: str,
    data: Dataset,
    population: RawTable,
    transcript: Transcript | SumTranscript,
    best: list[dict[str, str]],
    plain: list[dict[str, str]],
) -> Reconstruction:
    """Compare what was recovered with the truth and with guessing."""
    assert data.node is not None
    names, here = data.schema.raw_columns, data.node == transcript.setting.target
    held = {name: data.train[name][here][: len(best)] for name in names}
    truth = np.column_stack([*_texts(data.schema, held).values()])
    guess = np.array([_commonest(cells) for cells in _texts(data.schema, population).values()])
    pick = itemgetter(*names)
    recovered, algebra = (np.array([pick(row) for row in rows]) for rows in (best, plain))
    hits, lucky = recovered == truth, guess == truth

    def mean_count(right: NDArray[np.bool_]) -> float:
        return float(np.mean(right) * len(names))

    def within(right: NDArray[np.bool_]) -> Interval:
        low, high = wilson(float(np.mean(right)), len(right))
        return Interval(low * len(names), high * len(names))

    shares = zip(hits.mean(axis=0).tolist(), lucky.mean(axis=0).tolist(), strict=True)
    example = zip(truth[0].tolist(), recovered[0].tolist(), guess.tolist(), strict=True)
    return Reconstruction(
        **transcript.facts,
        knows=knows,
        rows=len(best),
        attributes=len(names),
        recovered=mean_count(hits),
        algebra=mean_count(algebra == truth),
        guessing=mean_count(lucky),
        interval=within(hits),
        guessing_interval=within(lucky),
        shares=dict(zip(names, shares, strict=True)),
        example=dict(zip(names, example, strict=True)),
    )


def _texts(schema: Schema, table: RawTable) -> dict[str, Any]:
    return {name: spelled(table[name]) for name in schema.raw_columns}


def _commonest(cells: Any) -> str:
    kinds, counts = np.unique(cells, return_counts=True)
    return str(kinds[counts.argmax()])
