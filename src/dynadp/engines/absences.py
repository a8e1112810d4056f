"""Rounds of a simulation in which some nodes stay away, and what the others take home (maths.md
16).
"""

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import AwaySums, Output, RoundProgress, Rounds, SumRounds, enough_of


class RoundsWithAbsences:
    """Rounds in which some nodes stay away: they release nothing, and stand where they stood."""

    def __init__(self, absences: AwaySums, rounds: Rounds | SumRounds) -> None:
        assert isinstance(rounds, Rounds)
        self.absences, self.rounds = absences, rounds
        absences.begin(rounds.solver.eta, rounds.V.shape)
        self._sum = np.zeros(rounds.V.shape)
        self._count = np.zeros((len(rounds.V), 1, 1))

    def round(self, log: list[RoundProgress]) -> Array:
        """Carry out one round; return where all nodes stand."""
        rounds, before = self.rounds, self.rounds.V
        made = rounds.release()
        here = self.absences.present[rounds.n - 1][:, None, None]
        rounds.V = np.where(here, made, before)
        log.append(rounds.receive(*self.absences(rounds.n, rounds.V)))
        if rounds.n > rounds.total // 2:
            self._sum += here * rounds.V
            self._count += here
        return rounds.V

    @property
    def tail(self) -> Array:
        """Each node's mean over the averaged rounds that it took part in; NaN without any."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self._sum / self._count)


def models_of_those_present(absences: AwaySums, V: Array, tail: Array, output: Output) -> Array:
    """Return what each node takes home, P x K x d; NaN for those that did not finish.

    Parameters
    ----------
    absences
        Who took part in which round.
    V, tail
        Last messages, and means of messages over the averaged rounds.
    output
        Which mean becomes the model.
    """
    present, labels = absences.present, absences.components()
    half = len(present) // 2
    counts = present[half:].sum(axis=0)
    enough = np.array([enough_of(int(k), len(present) - half) for k in counts])
    models = np.full(tail.shape, np.nan)
    for p in np.flatnonzero(labels >= 0):
        near = np.isin(np.arange(len(labels)), [p, *absences.topology.neighbours(int(p))])
        among = (labels == labels[p]) & (near if output == "neighbours" else True)
        chosen = among & enough if (among & enough).any() else among
        if output in ("network", "neighbours"):
            models[p] = tail[chosen].mean(axis=0)
        else:
            models[p] = V[p] if output == "last" else tail[p]
    return models
