"""A node's log: what happened on its links, in words, without rows and secrets."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import INFO, WARNING, getLogger
from threading import Lock, Thread
from time import sleep

LOG = getLogger("dynadp.node")
ENGINE = (  # what Zenoh is asked to tell
    "warn,zenoh::net::routing::interceptor::access_control=trace,zenoh::net::runtime::orchestrator=debug"
)
_COLOUR, _WHERE = (
    re.compile(r"\x1b\[[0-9;]*m"),
    re.compile(r"^\S+\s+(?P<level>[A-Z]+) .*?(?P<module>zenoh[\w:]*): (?P<text>.*)$"),
)
_BLOCKED = re.compile(
    r"CertCommonName\((?P<who>.*?)\)\+.* is unauthorized to Put \(ingress\) on "
    r"(?P<key>\S+/letter/\S*)"
)
_HINT = " Hint: increase the system open file limit."
_MEANINGS = (
    (
        "UnknownIssuer",
        "refused a link: its certificate was not signed by this consortium's authority",
    ),
    (
        "BadSignature",
        "refused a link: its certificate was not signed by this consortium's authority",
    ),
    ("certificate expired", "refused a link: its certificate has expired"),
    ("peer sent no certificates", "refused a link: it showed no certificate"),
    ("NotValidForName", "refused a link: the certificate of the dialled node names another host"),
    (
        "unknown certificate authority",
        "was refused by the other side: it does not know this node's authority",
    ),
)
_DIALLED = re.compile(r"Unable to connect to configured peer tls/(?P<where>\S+)! (?P<why>.*)")
_WHY = (
    (
        "certificate not valid for name",
        "refused a link with {}: its certificate names another host",
    ),
    (
        "peer certificate: UnknownIssuer",
        "refused a link with {}: its certificate was not signed by this consortium's authority",
    ),
    (
        "peer certificate: certificate expired",
        "refused a link with {}: its certificate has expired",
    ),
    ("alert: CertificateExpired", "refused by {}: this node's certificate has expired"),
    (
        "alert: UnknownCA",
        "refused by {}: it does not know the authority of this node's certificate",
    ),
    ("alert: ", "refused by {}: it does not believe this node's certificate"),
)
_BLOCKS, _LEVEL = (
    b" is unauthorized to ",
    64,
)  # where a line says whom it blocks; how far from its start its level may be
_ROOM, _PAUSE = (
    2**20,
    0.1,
)  # bytes in the pipe, where the system grants them; seconds between two readings
_NOISE = ("Gossip is disabled",)


class RateLimitedLog:
    """Tells the same thing the 1st, 10th, 100th, ... time only: whoever knocks a million times does
    not fill the disk.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._counts, self._lock, self._limit = Counter[str](), Lock(), limit

    def __call__(self, text: str, level: int = WARNING) -> None:
        """Tell it, or only count it."""
        with self._lock:
            if text not in self._counts and len(self._counts) >= self._limit:
                text = "more things than can be told apart"
            self._counts[text] += 1
            count = self._counts[text]
        if str(count).strip("0") == "1":
            LOG.log(level, "%s%s", text, f" ({count} times)" if count > 1 else "")


def explain(line: str) -> str | None:
    """What a line of Zenoh's log means; None where it means nothing to anybody."""
    line = "".join(
        letter for letter in _COLOUR.sub("", line) if letter.isprintable()
    ).strip()  # strangers write part of it
    if found := _BLOCKED.search(line):
        who, key = found["who"], found["key"]
        return f"blocked {who}: it tried to send under {key}, a name that is not its own"
    if found := _DIALLED.search(line):
        return next(
            (words.format(found["where"]) for sign, words in _WHY if sign in found["why"]), None
        )
    known = _WHERE.match(line)
    if (
        known is None
        or known["level"] in ("TRACE", "DEBUG", "INFO")
        or any(word in line for word in _NOISE)
    ):
        return None
    for sign, words in _MEANINGS:
        if sign in line:
            return words
    return f"link: {known['text'].removesuffix(_HINT)}"


@contextmanager
def engine_log() -> Iterator[None]:
    """Zenoh tells its log on standard output; this reads it there, tells it in words, and leaves
    standard output as it was.
    """
    import zenoh

    sys.stdout.flush()
    kept, (read, write), room = os.dup(1), os.pipe(), 2**16
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        room = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _ROOM)
    os.dup2(write, 1)
    os.close(write)
    before, sys.stdout = sys.stdout, os.fdopen(os.dup(kept), "w", buffering=1)
    tell = RateLimitedLog()

    def hear(line: bytes) -> None:
        if b"TRACE" in line[:_LEVEL] and _BLOCKS not in line:
            return  # what is allowed is told with every letter; a quick look will do
        if (words := explain(line.decode(errors="replace"))) is not None:
            tell(words, WARNING if words.startswith(("refused", "blocked")) else INFO)

    def listen() -> None:
        rest = b""
        try:
            while some := os.read(read, room):
                *lines, rest = (rest + some).split(b"\n")
                for line in lines:
                    with suppress(Exception):  # a reader that ends would stop the writer
                        hear(line)
                if len(some) < room // 4:
                    sleep(_PAUSE)  # waking up for every line costs more than reading it
            hear(rest)
        finally:
            os.close(read)

    thread = Thread(target=listen, daemon=True)
    thread.start()
    zenoh.init_log_from_env_or(ENGINE)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout.close()
        sys.stdout = before
        os.dup2(kept, 1)  # closes the pipe's last writer, so that the thread ends
        os.close(kept)
        thread.join(timeout=2)
