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

from dynadp.engines.bounds import shortened

LOG = getLogger("dynadp.node")
ENGINE = (  # what Zenoh is asked to log
    "warn,zenoh::net::routing::interceptor::access_control=trace,zenoh::net::runtime::orchestrator=debug"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WHERE = re.compile(r"^\S+\s+(?P<level>[A-Z]+) .*?(?P<module>zenoh[\w:]*): (?P<text>.*)$")
_BLOCKED = re.compile(
    r"CertCommonName\((?P<who>.*?)\)\+.* is unauthorized to Put \(ingress\) on "
    r"(?P<key>\S+/letter/\S*)"
)
_DIALLED = re.compile(r"Unable to connect to configured peer tls/(?P<where>\S+)! (?P<why>.*)")
_HINT = " Hint: increase the system open file limit."
_FOREIGN = "its certificate was not signed by this consortium's authority"
_MEANINGS = {
    "UnknownIssuer": f"refused a link: {_FOREIGN}",
    "BadSignature": f"refused a link: {_FOREIGN}",
    "certificate expired": "refused a link: its certificate has expired",
    "peer sent no certificates": "refused a link: it showed no certificate",
    "NotValidForName": "refused a link: the certificate of the dialled node names another host",
    "unknown certificate authority": "was refused by the other side: it does not know this node's "
    "authority",
}
_WHY = {
    "certificate not valid for name": "refused a link with {}: its certificate names another host",
    "peer certificate: UnknownIssuer": f"refused a link with {{}}: {_FOREIGN}",
    "peer certificate: certificate expired": "refused a link with {}: its certificate has expired",
    "alert: CertificateExpired": "refused by {}: this node's certificate has expired",
    "alert: UnknownCA": "refused by {}: it does not know the authority of this node's certificate",
    "alert: ": "refused by {}: it does not believe this node's certificate",
}
_BLOCKS = b" is unauthorized to "  # where a line names whom it blocks
_LEVEL = 64  # how far from a line's start its level may be
_ROOM = 2**20  # bytes in the pipe, where the system grants them
_PAUSE = 0.1  # seconds between two readings
_NOISE = "Gossip is disabled"


class RateLimitedLog:
    """Logs the same thing the 1st, 10th, 100th, ... time only: whoever knocks a million times does
    not fill the disk.

    Parameters
    ----------
    limit
        How many things are told apart; all others count as one.
    free
        How often the same thing is logged every time.
    """

    def __init__(self, limit: int = 200, free: int = 0) -> None:
        self._counts, self._lock = Counter[str](), Lock()
        self._limit, self._free = limit, free

    def __call__(self, text: str, level: int = WARNING) -> None:
        """Log it, or only count it."""
        text = shortened(text)
        with self._lock:
            if text not in self._counts and len(self._counts) >= self._limit:
                text = "more things than can be told apart"
            self._counts[text] += 1
            count = self._counts[text]
        if count <= self._free or str(count).strip("0") == "1":
            LOG.log(level, "%s%s", text, f" ({count} times)" if count > max(self._free, 1) else "")


def explain(line: str) -> str | None:
    """Return what a line of Zenoh's log means; None where it means nothing to anybody."""
    # strangers write part of it
    line = "".join(letter for letter in _COLOUR.sub("", line) if letter.isprintable()).strip()
    if blocked := _BLOCKED.search(line):
        who, key = blocked["who"], blocked["key"]
        return f"blocked {who}: it tried to send under {key}, a name that is not its own"
    if dialled := _DIALLED.search(line):
        words = _meaning(_WHY, dialled["why"])
        return None if words is None else words.format(dialled["where"])
    known = _WHERE.match(line)
    if known is None or known["level"] in ("TRACE", "DEBUG", "INFO") or _NOISE in line:
        return None
    return _meaning(_MEANINGS, line) or f"link: {known['text'].removesuffix(_HINT)}"


def _meaning(meanings: dict[str, str], text: str) -> str | None:
    return next((words for sign, words in meanings.items() if sign in text), None)


@contextmanager
def engine_log() -> Iterator[None]:
    """Read the log that Zenoh writes to standard output, log what it means, and leave standard
    output as it was.
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
    log = RateLimitedLog()

    def hear(line: bytes) -> None:
        if b"TRACE" in line[:_LEVEL] and _BLOCKS not in line:
            return  # each allowed letter has such a line; a quick look will do
        if (words := explain(line.decode(errors="replace"))) is not None:
            log(words, WARNING if words.startswith(("refused", "blocked")) else INFO)

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
