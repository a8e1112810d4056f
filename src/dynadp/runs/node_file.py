"""NODE.toml: what one silo keeps to itself, beside the run file that all share."""

from pathlib import Path

from dynadp.runs.fields import Above0, Address, File, Line, Memory, Section, checked, read_tables


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
    out
        The run folder, with model, record, letters and log.
    listen
        Where to listen, if not on its endpoint.
    patience
        Seconds that a neighbour may stay away before this node stops, to be started again.
    memory
        What its rows may take here, if not what the run file says.
    """

    run: File
    node: Line
    identity: File
    file: File
    ledger: File | None = None
    out: File
    listen: Address | None = None
    patience: Above0 = 600.0
    memory: Memory | None = None


def load_node_file(path: str | Path) -> NodeFile:
    """Read and check a NODE.toml."""
    return checked(NodeFile, read_tables(Path(path)), path)
