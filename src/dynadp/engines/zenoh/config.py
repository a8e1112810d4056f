"""Zenoh's configuration: only TLS, both sides with certificates, nothing found by itself, nothing
allowed by default.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

RELAY = "relay"  # the common name of a relay's certificate
_LARGEST = 2**26  # bytes of a message that is taken in
_SENDING = ["put", "reply", "liveliness_token", "declare_queryable"]
_ASKING = ["query", "declare_subscriber", "declare_liveliness_subscriber", "liveliness_query"]


@dataclass(frozen=True)
class Site:
    """Where a node stands in the network.

    Attributes
    ----------
    me, neighbours
        Names.
    identity
        Folder with ca.pem, tls.pem and tls.key.
    listen, dial
        ``host:port`` to listen on, and those to dial; the other side of each edge dials where this
        one does not.
    relay
        ``host:port`` of a relay that carries everything instead.
    largest
        Bytes of the largest message that is taken in.
    revoked
        Returns the names that the authority has revoked by now.
    """

    me: str
    neighbours: tuple[str, ...]
    identity: Path
    listen: tuple[str, ...] = ()
    dial: tuple[str, ...] = ()
    relay: str | None = None
    largest: int = _LARGEST
    revoked: Callable[[], frozenset[str]] = field(default=frozenset, repr=False)

    @property
    def members(self) -> tuple[str, ...]:
        """Neighbours that are not out."""
        out = self.revoked()
        return tuple(j for j in self.neighbours if j not in out)


def settings(site: Site, prefix: str) -> dict[str, Any]:
    """Return the configuration of a node: its peers may send under their own names and ask it,
    unless they are out.
    """
    if site.relay:
        links = link_settings("client", site.identity, (), [site.relay], site.largest)
        senders = {RELAY: site.members}
    else:
        links = link_settings("peer", site.identity, site.listen, site.dial, site.largest)
        senders = {peer: (peer,) for peer in site.members}
    both, everything = ["ingress", "egress"], [f"{prefix}/**"]
    rules = [
        _rule("ask", both, _ASKING, everything),
        _rule("send", ["egress"], _SENDING, _under(prefix, [site.me])),
        *(
            _rule(f"from {peer}", ["ingress"], _SENDING, _under(prefix, names))
            for peer, names in senders.items()
        ),
    ]
    policies = [{"rules": ["ask", "send", f"from {peer}"], "subjects": [peer]} for peer in senders]
    return {
        **links,
        "access_control": {
            "enabled": True,
            "default_permission": "deny",
            "rules": rules,
            "subjects": [{"id": peer, "cert_common_names": [peer]} for peer in senders],
            "policies": policies,
        },
    }


def _under(prefix: str, names: Sequence[str]) -> list[str]:
    return [f"{prefix}/{quote(name, safe='')}/**" for name in names]


def _rule(name: str, flows: list[str], messages: list[str], keys: list[str]) -> dict[str, Any]:
    return {
        "id": name,
        "permission": "allow",
        "flows": flows,
        "messages": messages,
        "key_exprs": keys,
    }


def denying(names: Iterable[str]) -> dict[str, Any]:
    """Return a relay's access control: everybody but these names."""
    out = sorted(names)
    if not out:
        return {}
    rule = _rule("out", ["ingress", "egress"], [*_SENDING, *_ASKING], ["**"])
    return {
        "access_control": {
            "enabled": True,
            "default_permission": "allow",
            "rules": [{**rule, "permission": "deny"}],
            "subjects": [{"id": "out", "cert_common_names": out}],
            "policies": [{"rules": ["out"], "subjects": ["out"]}],
        }
    }


def link_settings(
    mode: str,
    identity: Path,
    listen: Sequence[str],
    dial: Sequence[str],
    largest: int = _LARGEST,
) -> dict[str, Any]:
    """Return how a node or a relay listens and dials, and that both sides show certificates."""
    certificate, key = str(identity / "tls.pem"), str(identity / "tls.key")
    return {
        "mode": mode,
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "listen": {"endpoints": [f"tls/{at}" for at in listen]},
        "connect": {
            "endpoints": [f"tls/{at}" for at in dial],
            "timeout_ms": -1 if dial else 0,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 1.5},
        },
        "transport": {
            "shared_memory": {"enabled": False},
            "link": {
                "protocols": ["tls"],
                "rx": {"max_message_size": largest},
                "tls": {
                    "root_ca_certificate": str(identity / "ca.pem"),
                    "listen_certificate": certificate,
                    "listen_private_key": key,
                    "connect_certificate": certificate,
                    "connect_private_key": key,
                    "enable_mtls": True,
                    "verify_name_on_connect": True,
                    "close_link_on_expiration": True,
                },
            },
        },
    }
