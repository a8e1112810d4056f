"""NODE.toml: what one silo keeps to itself, beside the run file that all share."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dynadp.data import Schema
from dynadp.errors import ConfigError
from dynadp.runs.fields import (
    Above0,
    Address,
    File,
    Line,
    Loopback,
    Memory,
    Section,
    SigningKey,
    checked,
    read_tables,
)


class NodeFile(Section):
    """One silo's paths and its patience.

    Attributes
    ----------
    run
        The run file that all nodes share.
    node
        Which of its nodes this is.
    identity
        The folder with ca.pem, tls.pem, tls.key and sign.key.
    file, ledger
        Its rows, and where it enters what it spends; no ledger in a SIMULATION.
    anchor
        Where the ledger's anchor is kept, outside the ledger's folder; by default in this user's
        state folder.
    other_ledgers
        Beginnings of hashes, as a refusal names them, of ledgers that this node had on purpose
        beside this one, such as of a trial on rows of nobody: what neighbours remember of them
        counts for nothing.
    out
        The run folder, with model, record, letters and log.
    listen
        Where to listen, if not on its endpoint.
    patience
        Seconds that a neighbour may stay away before this node stops, to be started again, or goes
        on without it; by default as the run file says.
    memory
        What its rows may take here, if not what the run file says.
    health
        A loopback address on which ``/healthz`` and ``/metrics`` are answered; none by default.
    log
        ``json`` for a log with one JSON object a line.
    consent
        The file of a signed approval, without which the node takes part in nothing.
    approver
        The public key that signs it, if not this node's own.
    person
        What the column that says whose row it is is called in this silo's file, if not as in the
        run file. Where the run file names none, this silo limits its people's rows all the same.
    rows_per_person
        How many rows of a person this silo uses, if fewer than the run file says. Its noise and its
        ledger stay those of the run.
    """

    run: File
    node: Line
    identity: File
    file: File
    ledger: File | None = None
    anchor: File | None = None
    other_ledgers: tuple[Annotated[str, Field(pattern="^[0-9a-f]{16,64}$")], ...] = ()
    out: File
    listen: Address | None = None
    patience: Above0 | None = None
    memory: Memory | None = None
    health: Loopback | None = None
    log: Literal["text", "json"] = "text"
    consent: File | None = None
    approver: SigningKey | None = None
    person: Line | None = None
    rows_per_person: Annotated[int, Field(ge=1)] | None = None

    def own(self, schema: Schema) -> Schema:
        """Return the schema as it is for this silo's file: people are named and limited its way."""
        given = {
            name: value
            for name in ("person", "rows_per_person")
            if (value := getattr(self, name)) is not None
        }
        if not given:
            return schema
        made = checked(Schema, schema.model_dump() | given, "NODE.toml")
        if made.rows_per_person > schema.rows_per_person:
            raise ConfigError(
                f"rows_per_person is {made.rows_per_person} here, and noise is made for "
                f"{schema.rows_per_person}, as the run file says; give at most that"
            )
        if made.person is None:
            raise ConfigError(
                "rows_per_person: neither this file nor the run file names the column that says "
                "whose row it is, so nothing can be limited; give person"
            )
        return made


def load_node_file(path: str | Path) -> NodeFile:
    """Read and check a NODE.toml."""
    content = read_tables(Path(path))
    if isinstance(content, dict) and isinstance(content.get("run"), dict):
        raise ConfigError(
            f"{path} is a run file, which all silos share; give this silo's own NODE.toml, which "
            "names it"
        )
    return checked(NodeFile, content, path)


def is_node_file(path: str | Path) -> bool:
    """Whether a file is a NODE.toml: it names a run file where that one has a table."""
    try:
        content = read_tables(Path(path))
    except ConfigError:
        return False  # whoever reads it next says what is wrong
    return (
        isinstance(content, dict) and "node" in content and not isinstance(content.get("run"), dict)
    )
