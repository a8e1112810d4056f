"""The audit, turned on peers that make the same kind of claim: diffprivlib's logistic regression,
beside our own mechanisms.

Each setting is a claim that the peer makes by its documented interface (an epsilon and a public
``data_norm``), with two data sets that differ in one row and hold both classes. The peer fits each
of them many times in an environment of its own (``DYNADP_DIFFPRIVLIB_PYTHON`` names an interpreter
that has it); the bound is computed here, by ``dynadp.research.audit``.
"""

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count as counter
from pathlib import Path

import numpy as np
from scipy.special import expit

from benchmarks.environment import PATIENCE, interpreter
from benchmarks.measure import Report, main, table
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.research.audit import Audit, Stream, audit, audit_mechanism

DIFFPRIVLIB = ("diffprivlib", "scikit-learn<1.6")
DRAWS = 30_000
Data = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Setting:
    """What a peer is asked to fit, and the claim that goes with it.

    Attributes
    ----------
    name
        In words.
    epsilon, data_norm, C, intercept
        Arguments of diffprivlib's LogisticRegression.
    pair
        (X, y) of D and of D'.
    """

    name: str
    epsilon: float
    data_norm: float
    C: float
    intercept: bool
    pair: tuple[Data, Data] = field(repr=False)


def rows(first: tuple[float, int], others: list[tuple[float, int]]) -> Data:
    """(X, y) of one column."""
    both = [first, *others]
    return np.array([[x] for x, _ in both]), np.array([y for _, y in both])


QUIET, CROWD = [(0.0, 0), (0.0, 1), (0.0, 0)], [(1.0, 0), (1.0, 1), (1.0, 0)]
SETTINGS = (
    Setting(
        "no intercept, data_norm = 1",
        1.0,
        1.0,
        1.0,
        False,
        (rows((1.0, 1), QUIET), rows((-1.0, 1), QUIET)),
    ),
    Setting(
        "no intercept, data_norm = 10",
        1.0,
        10.0,
        0.16,
        False,
        (rows((10.0, 1), QUIET), rows((0.0, 1), QUIET)),
    ),
    Setting(
        "with its intercept (the default), data_norm = 1",
        1.0,
        1.0,
        1.0,
        True,
        (rows((1.0, 1), CROWD), rows((-1.0, 1), CROWD)),
    ),
)


def run() -> Report:
    """Lower bounds on epsilon beside the claims, for us and for a peer."""
    found = {
        f"dynadp, {type(m).__name__.lower()} perturbation, d = {d}": audit_mechanism(
            m, 1.0, d, source=Stream(d)
        )
        for m in (Primal(), Dual())
        for d in (1, 2)
    }
    python = interpreter("diffprivlib", DIFFPRIVLIB, "DYNADP_DIFFPRIVLIB_PYTHON")
    text = ""
    if isinstance(python, Path):
        found |= {f"diffprivlib, {setting.name}": peer(python, setting) for setting in SETTINGS}
    else:
        text = python + "\n\n"
    lines = [
        (name, f"{a.alpha_claimed:g}", f"{a.epsilon_lower:.2f}", a.verdict, a.draws)
        for name, a in found.items()
    ]
    text += table(
        ("release", "epsilon claimed", "epsilon at least (99.9%)", "verdict", "draws of each"),
        lines,
    )
    return Report(
        "peers_audit", [], text, {"audits": {name: a.to_json() for name, a in found.items()}}
    )


def peer(python: Path, setting: Setting, draws: int = DRAWS) -> Audit:
    """The audit of diffprivlib in a setting."""
    seeds = counter(1)

    def release(data: Data, count: int) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "data.npz", Path(folder) / "fits.npy"
            np.savez(
                source,
                X=data[0],
                y=data[1],
                epsilon=setting.epsilon,
                data_norm=setting.data_norm,
                C=setting.C,
                intercept=setting.intercept,
                count=count,
                seed=next(seeds),
            )
            worker = Path(__file__).with_name("peers_audit_worker.py")
            subprocess.run(
                [str(python), str(worker), str(source), str(target)],
                check=True,
                timeout=2 * PATIENCE,
            )
            return np.load(target)

    return audit(release, setting.pair, setting.epsilon, draws=draws, score=log_ratio(setting))


def log_ratio(setting: Setting) -> Callable[[np.ndarray], np.ndarray]:
    """ln p_D(f) - ln p_D'(f) of an exact minimiser under noise exp(-||e||/scale): a statistic,
    valid whatever it is worth.
    """
    norm = float(np.hypot(setting.data_norm, 1.0)) if setting.intercept else setting.data_norm
    share = setting.epsilon - 2 * np.log1p(
        0.25 * norm * setting.C
    )  # as in diffprivlib's Vector mechanism
    assert share > 0
    scale = 2 * norm / share

    def density(data: Data, F: np.ndarray) -> np.ndarray:
        X = np.hstack([data[0], np.ones((len(data[0]), 1))]) if setting.intercept else data[0]
        ridge = np.append(1 / setting.C, 0.0)[: X.shape[1]]
        s = expit(F @ X.T)
        e = (s - data[1]) @ X + ridge * F
        H = np.einsum("ni,id,ie->nde", s * (1 - s), X, X) + np.diag(ridge)
        return np.linalg.slogdet(H)[1] - np.linalg.norm(e, axis=1) / scale

    def ratio(F: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # far out nothing curves under either
            return np.nan_to_num(density(setting.pair[0], F) - density(setting.pair[1], F))

    return ratio


if __name__ == "__main__":
    main(run)
