"""A run as its folders show it: one folder, or those of a network's nodes.

Only public things are read: declarations, what was released, ledger events and the states of nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynadp._files import digest
from dynadp.consensus import Topology
from dynadp.errors import RecordError
from dynadp.runs import Kind, RecordedPlan, RunRecord, load_run, read_status

MADE_BY = "give a folder that `dynadp train`, `demo`, `node` or `launch` made"


class NotYet(RecordError):
    """A folder that is to hold a run does not yet."""


@dataclass(frozen=True)
class RunView:
    """What the folders hold, apart from what still grows.

    Attributes
    ----------
    folders
        Where each node's lines and state are; in one process all nodes share one.
    record
        run.json of the first folder.
    """

    folders: Mapping[str, Path]
    record: RunRecord

    @classmethod
    def read(cls, path: str | Path) -> "RunView":
        """Read a run folder, or the folder of a network's nodes."""
        homes = run_folders(Path(path))
        record = load_run(homes[0])
        nodes = record.topology.nodes
        network = record.kind == "network"
        return cls(_homes(homes, nodes) if network else dict.fromkeys(nodes, homes[0]), record)

    @property
    def kind(self) -> Kind:
        """What kind of run it is."""
        return self.record.kind

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.record.name

    @property
    def simulation(self) -> bool:
        """Whether nobody is protected, because noise is seeded or rows are synthetic."""
        return self.record.simulation

    @property
    def topology(self) -> Topology:
        """Who exchanges messages with whom."""
        return self.record.topology

    @property
    def rows(self) -> Mapping[str, int]:
        """B_p of each node."""
        return self.record.rows

    @property
    def plan(self) -> RecordedPlan | None:
        """The plan; None where nothing is protected."""
        return self.record.planned

    @property
    def home(self) -> Path:
        """The first folder with a record."""
        return next(iter(self.folders.values()))

    @property
    def homes(self) -> tuple[Path, ...]:
        """All folders, each once."""
        return tuple(dict.fromkeys(self.folders.values()))

    @property
    def near(self) -> list[Path]:
        """Where files that a run file names may lie: the three folders above, and here."""
        return [*self.home.resolve().parents[:3], Path.cwd()]

    @property
    def key(self) -> str:
        """Eight letters that another run in the same place does not share."""
        return digest([self.record.config_hash, self.record.created])[:8]

    @property
    def finished(self) -> bool:
        """Whether every folder has its model."""
        return all((home / "model.json").exists() for home in self.homes)


def run_folders(path: Path) -> list[Path]:
    """The folder itself, or the folders of one run's nodes in it."""
    if not path.is_dir():
        raise RecordError(f"{path} is not a folder; {MADE_BY}")
    if (path / "run.json").exists():
        return [path]
    found = sorted(file.parent for file in path.glob("*/run.json"))
    if not found:
        states = {
            file.parent.name: read_status(file.parent).get("state")
            for file in sorted(path.glob("**/status.json"))
        }
        if states:
            words = "; ".join(f"{node}: {state}" for node, state in states.items())
            raise NotYet(
                f"the nodes in {path} have not agreed on a run yet, so there is no run.json "
                f"({words})"
            )
        raise NotYet(f"{path} has no run.json, nor has a folder in it; {MADE_BY}")
    if len(found) > 1 and len({load_run(one).config_hash for one in found}) > 1:
        names = ", ".join(one.name for one in found)
        raise RecordError(
            f"{path} holds {len(found)} different runs ({names}); name one of them, such as "
            f"{found[-1]}"
        )
    return found


def _homes(homes: Sequence[Path], nodes: Sequence[str]) -> dict[str, Path]:
    """Folders by node, in the network's order: status.json names the node."""
    found = {}
    for home in homes:
        try:
            found[str(read_status(home)["node"])] = home
        except RecordError:
            found[home.name] = home
    return {p: found[p] for p in nodes if p in found} or {home.name: home for home in homes}
