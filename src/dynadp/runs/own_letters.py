"""A node's own signed letters in post offices: its own run folders, or copies from neighbours."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dynadp.engines import Letter, Verifier, released_letters, run_id
from dynadp.errors import LedgerDamaged, RecordError
from dynadp.privacy import Ledger, recovery
from dynadp.runs.status import SHOWN


def post_offices(place: str | Path) -> list[Path]:
    """Return the post offices of a run folder, or in folders inside it; or the given one."""
    place = Path(place)
    if place.is_file():
        return [place]
    found = sorted([*place.glob("letters-*.sqlite"), *place.glob("*/letters-*.sqlite")])
    if not found:
        raise RecordError(
            f"{place} holds no letters: there is no letters-*.sqlite; give a run folder of a "
            "network's node, or such a file"
        )
    return found


def own_letters(
    office: Path, node: str, key: Verifier, last: int | None = None
) -> Iterator[Letter]:
    """Yield the releases that a node signed, the latest rounds first; forged ones are passed over.

    Parameters
    ----------
    office
        A file of letters.
    node, key
        Whose, and its public signing key.
    last
        How many, if not all.
    """
    for number, letter in enumerate(released_letters(office, {node: key})):
        if last is not None and number >= last:
            return
        yield letter


def ledger_run(runs: Sequence[str], letter: Letter) -> str | None:
    """Return the run of a ledger that a letter belongs to: of its name and configuration."""
    for run in runs:
        name, _, config = run.rpartition(" ")
        if config == letter.config.hex()[:SHOWN] and run_id(name) == letter.run:
            return run
    return None


def require_entered(ledger: Ledger, folders: Sequence[Path], node: str, key: Verifier) -> None:
    """Raise if earlier run folders of this node hold a letter that its ledger does not know.

    The last two of each are looked at, a round's and a spare attempt's: a ledger that knows them is
    no older than they are.
    """
    runs = list(ledger.state().runs)
    for office in (file for folder in folders for file in sorted(folder.glob("letters-*.sqlite"))):
        for letter in own_letters(office, node, key, 16):
            run = ledger_run(runs, letter)
            if run is None or ledger.message(run, letter.round) != letter.body:
                raise LedgerDamaged(
                    f"{office} holds a message of round {letter.round} with this node's signature "
                    f"that the ledger {ledger.path} does not know: the ledger was rolled back to "
                    f"an older copy, or replaced. {recovery(ledger.path)}"
                )
