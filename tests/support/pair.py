"""Two silos of one process with real links on loopback."""

import contextlib
import socket
from datetime import UTC, datetime
from threading import Event, Thread

from dynadp.runs.authorities import make_authority, make_node
from dynadp.runs.silo import SiloRun
from support.memory import (
    SMALL,
    memory,
    small_tables,
)


@contextlib.contextmanager
def two_silos():
    """Two silos of one process on loopback: NODE.toml and all that it names. ``go`` runs both and
    tells how they ended.
    """
    now = datetime.now(UTC)
    with memory() as folder, contextlib.ExitStack() as held:
        make_authority(folder / "ca", "c", now)
        ports = [
            held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for _ in "ab"
        ]
        held.close()
        nodes = ""
        for i, (p, table) in enumerate(small_tables("ab").items()):
            found = make_node(folder / "ca", p, ["127.0.0.1"], folder / f"id-{p}", now, 10)
            rows = zip(*table.values(), strict=True)
            (folder / f"{p}.csv").write_text(
                "age,sex,ill\n" + "".join(f"{a},{s},{y}\n" for a, s, y in rows)
            )
            nodes += f'[[nodes]]\nname = "{p}"\nrows = {30 + i}\nkey = "{found.public}"\n'
            nodes += f'endpoint = "127.0.0.1:{ports[i]}"\n'
            own = f'run = "run.toml"\nnode = "{p}"\nidentity = "id-{p}"\nfile = "{p}.csv"\n'
            own += f'out = "out-{p}"\npatience = 60\n'
            (folder / f"{p}.toml").write_text(own)
        (folder / "schema.json").write_text(SMALL.model_dump_json())
        (folder / "run.toml").write_text(
            f'[data]\nschema = "schema.json"\n{nodes}[privacy]\nepsilon = 1.0\ndelta = '
            f'1e-5\n[run]\nname = "pair"\n'
        )
        yield folder


def go(folder, **at):
    """Both at once; whoever ends badly is started no more, and the other is stopped then."""
    stop, ends = Event(), {}

    def one(p):
        try:
            ends[p] = (
                SiloRun.load(folder / f"{p}.toml")
                .run(who="test", stop=stop, checkpoint=at.get(p, lambda point: None))
                .state
            )
        except BaseException as error:
            ends[p] = error
            stop.set()

    threads = [Thread(target=one, args=(p,)) for p in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends
