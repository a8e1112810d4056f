"""A relay, for nodes that cannot reach each other."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import zenoh

from dynadp.engines.zenoh.config import denying, link_settings
from dynadp.engines.zenoh.gates import opened
from dynadp.engines.zenoh.log import LOG, RateLimitedLog


def relay(identity: Path, listen: str, stop: Event, out: Iterable[str] = ()) -> None:
    """Carry letters between nodes that cannot reach each other, until it is asked to stop.

    Parameters
    ----------
    identity, listen, stop
        The relay's folder, ``host:port`` to listen on, and what is set to stop it.
    out
        Names that the authority has revoked: their links carry nothing.

    TLS ends here, and letters travel in envelopes that only their readers can open: a relay, and
    every member of the consortium that asks it, sees who sends when and how much. It can drop and
    delay letters; it can change or forge none, for the nodes check signatures.
    """
    log = RateLimitedLog()
    config = {**link_settings("router", identity, [listen], ()), **denying(out)}
    session, gates = opened(config, log)
    with session, ExitStack() as stack:
        for gate in gates:
            stack.callback(gate.close)
        LOG.info("a relay on %s, for whoever has a certificate of the consortium", listen)

        def on_link(event: zenoh.LinkEvent) -> None:
            up = event.kind == zenoh.SampleKind.PUT
            log(f"{event.link.auth_identifier} is {'up' if up else 'away'}")

        listener = session.info.declare_link_events_listener(on_link, history=True)
        stop.wait()
        del listener
