"""Folders as runs leave them: a run in one process with its ledgers, and a launched network."""

import json
import shlex

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.planning.planner import plan
from dynadp.runs.folder import RunFolder
from dynadp.runs.record import RunRecord
from support.run_files import write_plain
from support.typed import dynadp

NODES = ("north", "south", "west")
SEALED = '{ name = "sealed", honest = 2 }'
COLUMNS = (
    "--label income --negative low --positive high --numeric age:17:90 --numeric schooling:0:20 "
    "--numeric hours:0:99 "
    "--categorical sex=female,male"
)


def write_rows(path, table, rows):
    names = ("age", "schooling", "hours", "sex", "income")
    lines = [",".join(names), *(",".join(str(table[name][i]) for name in names) for i in rows)]
    path.write_text("\n".join(lines) + "\n")


def make_job(folder, *, seed=None, public=False, cap=3.0, rows=600, extra="", mechanism=None):
    """A run file with three nodes of census rows, and their ledgers."""
    made = census(rows, seed=4, nodes=3)
    for node, table in made.tables(NODES).items():
        write_rows(folder / f"{node}.csv", table, range(len(table["age"])))
    write_rows(folder / "public.csv", made.test, range(len(made.test["age"])))
    files = " ".join(f"--node {node}={folder}/{node}.csv" for node in NODES)
    line = f"init {folder} {files} {COLUMNS} --epsilon 2" + (
        "" if seed is None else f" --seed {seed}"
    )
    result = dynadp(*shlex.split(line))
    assert result.exit_code == 0, result.output
    write_plain(folder)
    text = (folder / "run.toml").read_text() + extra
    if mechanism is not None:
        value = mechanism if mechanism.startswith("{") else f'"{mechanism}"'
        text = text.replace('# mechanism = "sum"', f"mechanism = {value}")
    (folder / "run.toml").write_text(
        text + ('[evaluation]\nfile = "public.csv"\npublic = true\n' if public else "")
    )
    if seed is None:
        for node in NODES:
            made_cap = dynadp(
                "ledger",
                "cap",
                folder / f"{node}.sqlite",
                "--node",
                node,
                "--epsilon",
                cap,
                "--delta",
                1e-5,
            )
            assert made_cap.exit_code == 0, made_cap.output
    return folder / "run.toml"


def make_run(folder, **given):
    """A finished run in FOLDER/runs/first."""
    out = folder / "runs" / "first"
    result = dynadp("train", make_job(folder, **given), "--out", out)
    assert result.exit_code == 0, result.output
    return out


def make_network(folder, finished=True, rounds=5, counts=(100, 100, 100), mechanism="primal"):
    """A launch folder as silos leave it: three nodes with a record, lines and a state each."""
    made = census(300, seed=1, nodes=3)
    ring = Topology.family("ring", 3).named(NODES)
    chosen = plan(counts, ring, made.schema.dimension, epsilon=1.0, delta=1e-5, mechanism=mechanism)
    record = RunRecord.of(
        kind="network",
        name="trial",
        run_id="trial 0123456789abcdef",
        created="2026-01-01T00:00:00+00:00",
        simulation=False,
        source="rows: 300 rows at 3 nodes",
        topology=ring,
        rows=dict(zip(NODES, counts, strict=True)),
        schema=made.schema,
        plan=chosen.to_json(),
    )
    for i, node in enumerate(NODES):
        home = RunFolder.create(folder / node, record)
        home.append(
            {
                "round": n,
                "node": node,
                "alpha": chosen.alpha,
                "disagreement": 1.0 / n + i,
                "change": 0.1 / n,
            }
            for n in range(1, rounds + 1)
        )
        state = {
            "format": "dynadp-status",
            "version": 1,
            "run": "trial",
            "node": node,
            "state": "parted" if finished else "running",
            "round": rounds,
            "rounds": chosen.rounds,
            "neighbours": {p: "up" for p in NODES if p != node},
            "rejected": {},
            "waiting": "",
            "ledger": None,
            "pid": 1,
        }
        (folder / node / "status.json").write_text(json.dumps(state))
    return folder, chosen


def make_long_run(folder, nodes=50, rounds=1000):
    """The folder of a run of ADMM that goes on: many nodes, many rounds."""
    web = Topology.family("small_world", nodes, seed=1)
    made = census(300, seed=1, nodes=3)
    chosen = plan(
        [400] * nodes, web, made.schema.dimension, epsilon=1.0, delta=1e-5, mechanism="primal"
    )
    record = RunRecord.of(
        kind="one process",
        name="long",
        run_id="long 0123456789abcdef",
        created="2026-01-01T00:00:00+00:00",
        simulation=True,
        source="rows: 20,000 rows at 50 nodes",
        topology=web,
        rows=dict.fromkeys(web.nodes, 400),
        schema=made.schema,
        plan=chosen.to_json(),
    )
    home = RunFolder.create(folder, record)
    for n in range(1, rounds + 1):
        home.append(
            {
                "round": n,
                "node": node,
                "alpha": chosen.alpha,
                "disagreement": (1 + (7 * i + n) % 5) / n**0.5,
                "change": (1 + (3 * i + n) % 4) / n,
            }
            for i, node in enumerate(web.nodes)
        )
    return folder
