"""Several runs beside each other: which settings differ, what each cost, and how good it is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from dynadp._intervals import NOISY, ONE, written
from dynadp.errors import DeclarationError
from dynadp.privacy import upper_bound
from dynadp.report.accuracy import Accuracy, public_accuracy
from dynadp.report.budgets import planned_cost
from dynadp.report.record_view import RunView

NAMES = ("run.name",)  # what a run is called is no setting


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs.

    Attributes
    ----------
    label
        What it is called here: its folder, as short as it can be.
    settings
        Everything that was decided, one name for each.
    epsilon, delta
        The total of the costliest node; None where nothing is protected.
    protected
        Whether noise came from the system, on rows of people.
    finished
        Whether it has its model.
    accuracy
        On public rows, or by a histogram that the run released; or why there is none.
    """

    label: str
    settings: Mapping[str, Any] = field(repr=False)
    epsilon: float | None
    delta: float | None
    protected: bool
    finished: bool
    accuracy: Accuracy = field(repr=False)

    @classmethod
    def of(cls, path: str | Path, label: str) -> "ComparedRun":
        """Read a run folder."""
        view = RunView.read(path)
        _, total = planned_cost(view)
        return cls(
            label,
            settings_of(view),
            total.epsilon if total is not None and isfinite(total.epsilon) else None,
            None if view.plan is None else view.plan.delta,
            view.plan is not None and not view.simulation,
            view.finished,
            public_accuracy(view),
        )

    @property
    def cost(self) -> str:
        """The total, in words."""
        if self.delta is None:
            return "nothing is protected"
        words = f"epsilon = {upper_bound(self.epsilon)} at delta = {self.delta:g}"
        return words if self.protected else f"SIMULATION, protects nobody; {words}"

    @property
    def measures(self) -> dict[str, tuple[float, float, float]]:
        """Value and 95% interval of each measure; none where there are none."""
        one = self.accuracy
        labels = one.accuracy is not None  # and no number that is predicted
        found = {"accuracy": (one.accuracy or 0.0, one.low, one.high)} if labels else {}
        return found | {name: (value, low, high) for name, value, low, high in one.others}

    def to_json(self) -> dict[str, Any]:
        """Return what is compared, as JSON."""
        names = ("epsilon", "delta", "protected", "finished")
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        found["measures"] = {
            name: dict(zip(("value", "low", "high"), values, strict=True))
            for name, values in self.measures.items()
        }
        return {"run": self.label, **found, "measured_on": self.accuracy.note}


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other.

    Attributes
    ----------
    runs
        In the order in which they were named.
    """

    runs: tuple[ComparedRun, ...]

    @property
    def differences(self) -> dict[str, list[Any]]:
        """Settings that are not the same in all runs: a value for each run, None where it has
        none.
        """
        names = dict.fromkeys(name for run in self.runs for name in run.settings)
        values = {name: [run.settings.get(name) for run in self.runs] for name in names}
        return {
            name: each for name, each in values.items() if any(one != each[0] for one in each[1:])
        }

    @property
    def measures(self) -> list[str]:
        """Names of all measures that any run has."""
        return list(dict.fromkeys(name for run in self.runs for name in run.measures))

    @property
    def interval(self) -> str:
        """What all intervals are for, in words."""
        noisy = any(run.measures and run.accuracy.interval == NOISY for run in self.runs)
        return f"{ONE}{', and for the noise where a histogram was released' if noisy else ''}"

    def to_json(self) -> dict[str, Any]:
        """Return the differing settings by run, and what each run cost and reached."""
        labels = [run.label for run in self.runs]
        differences = {
            name: dict(zip(labels, values, strict=True))
            for name, values in self.differences.items()
        }
        return {"differences": differences, "runs": [run.to_json() for run in self.runs]}

    def lines(self) -> Iterator[str]:
        """Yield the comparison as text."""
        number, found = len(self.runs), self.differences
        settings = "setting" if len(found) == 1 else "settings"
        yield f"{number} runs, which differ in {len(found) or 'no'} {settings}"
        wide = max(len(run.label) for run in self.runs)
        for name, values in found.items():
            yield f"{name}"
            for run, value in zip(self.runs, values, strict=True):
                yield f"  {run.label:{wide}}  {'not given' if value is None else value}"
        yield "cost"
        for run in self.runs:
            yield f"  {run.label:{wide}}  {run.cost}{'' if run.finished else ', not finished'}"
        if self.measures:
            yield f"measures, each with a {self.interval}"
        for name in self.measures:
            yield name
            for run in self.runs:
                one = run.measures.get(name)
                shown = (
                    "not measured" if one is None else "{} ({} to {})".format(*map(written, one))
                )
                yield f"  {run.label:{wide}}  {shown}"
        for note in dict.fromkeys(run.accuracy.note for run in self.runs):
            those = [run.label for run in self.runs if run.accuracy.note == note]
            word = "Measured on" if self._measured(note) else "Not measured"
            yield f"{word}{'' if self._measured(note) else ':'} {note} ({', '.join(those)})"

    def _measured(self, note: str) -> bool:
        return any(run.measures for run in self.runs if run.accuracy.note == note)


def compare(paths: Sequence[str | Path]) -> Comparison:
    """Read runs and put them beside each other; at least two."""
    if len(paths) < 2:
        raise DeclarationError(
            f"{len(paths)} run was given; expected two or more to compare with each other"
        )
    labels = _labels([Path(path) for path in paths])
    return Comparison(
        tuple(ComparedRun.of(path, label) for path, label in zip(paths, labels, strict=True))
    )


def settings_of(view: RunView) -> dict[str, Any]:
    """Return everything that was decided about a run, flat; what follows from it is left out."""
    record = view.record
    if record.file is not None:
        decided = dict(record.file)
        decided["nodes"] = {node["name"]: node for node in decided.get("nodes", ())}
    else:
        plan = view.plan
        decided = {"rows": record.made}
        if plan is not None:
            mechanism = {"name": plan.mechanism, **plan.parameters}
            given = {"epsilon": plan.total["epsilon"], "delta": plan.delta, "rounds": plan.rounds}
            decided["privacy"] = {"mechanism": mechanism, **given}
    decided["seed"] = record.seed
    decided["node_rows"] = dict(record.rows)
    decided["edges"] = [sorted(edge) for edge in record.graph.edges]
    if record.declared_schema is not None:
        schema = record.declared_schema.model_dump(mode="json", exclude={"centre"})
        columns = {one.get("name", str(i)): one for i, one in enumerate(schema.pop("columns"))}
        decided["schema"] = {**schema, "columns": columns}
    flat = dict(_flat(decided))
    return {name: value for name, value in flat.items() if name not in NAMES}


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value under its whole name; None says nothing."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", value


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return names of folders, with so many of those above that all differ."""
    for depth in range(1, max(len(path.resolve().parts) for path in paths) + 1):
        labels = ["/".join(path.resolve().parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    raise DeclarationError("a run is named twice; name each once")
