"""Three hospitals with Parquet files and ledgers: messages are entered before they are sent, and a
second run is refused.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from dynadp import Cap, Ledger, Topology, census, train
from dynadp.engines import LedgerJournal, now
from dynadp.errors import BudgetRefused

HOSPITALS = ("north", "south", "west")
data = census(rows=6_000, nodes=3, heterogeneity=0.5)  # stands for the hospitals' rows
network = Topology.family("ring", 3).named(HOSPITALS)

with TemporaryDirectory() as place:
    files, ledgers = {}, {}
    for name, rows in data.tables(HOSPITALS).items():
        files[name] = Path(place, f"{name}.parquet")
        pq.write_table(pa.table(rows), files[name])
        ledgers[name] = Ledger.create(Path(place, f"{name}.sqlite"), name, who="example", at=now())
        ledgers[name].set_cap(Cap.of(1.0, 1e-5), who="example", at=now())

    def run(name: str) -> None:
        journal = LedgerJournal(ledgers, name, dataset="wards 2026", who="example")
        trained = train(data.schema, files, network, epsilon=1.0, delta=1e-5, journal=journal)
        print(f"{name}: epsilon = {trained.total.epsilon:.3f}, entered at every hospital")

    run("first")
    try:
        run("second")
    except BudgetRefused as refusal:
        print(f"second: refused before anything was computed from rows ({refusal})")
    for ledger in ledgers.values():
        print(
            f"{ledger.node}: {len(ledger.rounds('first'))} messages entered, head "
            f"{ledger.head[:16]}..."
        )
        ledger.close()
