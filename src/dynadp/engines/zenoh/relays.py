"""A relay, for nodes that cannot reach each other."""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import zenoh

from dynadp.engines.zenoh.config import denying, link_settings
from dynadp.engines.zenoh.gates import opened
from dynadp.engines.zenoh.log import LOG, RateLimitedLog
from dynadp.errors import ConfigError


@dataclass
class RelayState:
    """How a relay is.

    Attributes
    ----------
    listening
        Whether it carries letters now.
    links
        How many links each member has.
    """

    listening: bool = False
    links: Counter[str] = field(default_factory=Counter)


def relay(
    identity: Path,
    listen: str,
    stop: Event,
    out: Iterable[str] = (),
    state: RelayState | None = None,
) -> None:
    """Carry letters between nodes that cannot reach each other, until it is asked to stop.

    Parameters
    ----------
    identity, listen, stop
        The relay's folder, ``host:port`` to listen on, and what is set to stop it.
    out
        Names that the authority has revoked: their links carry nothing.
    state
        Kept up to date meanwhile, for whoever asks how the relay is.

    TLS ends here, and letters travel in envelopes that only their readers can open: a relay, and
    every member of the consortium that asks it, sees who sends when and how much. It can drop and
    delay letters; it can change or forge none, for the nodes check signatures.
    """
    log, state = RateLimitedLog(), state or RelayState()
    config = {**link_settings("router", identity, [listen], ()), **denying(out)}
    try:
        session, gates = opened(config, log)
    except (zenoh.ZError, OSError) as error:
        raise ConfigError(
            f"cannot listen on {listen}: {error}; give another address, or end what listens there"
        ) from None
    with session, ExitStack() as stack:
        for gate in gates:
            stack.callback(gate.close)
        LOG.info("a relay on %s, for whoever has a certificate of the consortium", listen)

        def on_link(event: zenoh.LinkEvent) -> None:
            who, up = str(event.link.auth_identifier), event.kind == zenoh.SampleKind.PUT
            log(f"{who} is {'up' if up else 'away'}")
            state.links[who] += 1 if up else -1

        listener = session.info.declare_link_events_listener(on_link, history=True)
        state.listening = True
        stop.wait()
        state.listening = False
        del listener
