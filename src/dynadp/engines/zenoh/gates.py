"""A gate in front of a node's listener: what is no TLS greeting never gets to it.

Zenoh rests for a tenth of a second after each handshake that fails, so ten bad connections in a
second keep everybody out. The gate takes connections first. One that does not say a whole TLS
greeting within some seconds is closed; those that do are handed on, as bytes, and from one
address only so many in a second. TLS itself is between the two ends: a gate reads nothing more.
"""

import asyncio
import json
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from typing import Any

import zenoh

WAIT, PENDING = 3.0, 256  # seconds for the first bytes; connections that may be waited for
EACH = 64  # of them, from one address
BURST, RATE = 20.0, 2.0  # handshakes from one address: at once, and in a second after that
_ADDRESSES, _TRIES = 4096, 3  # that are told apart; of a session to find a port
_BLOCK, _LINES = 2**16, 128
_HEAD, _LONGEST = 11, 2**14  # bytes that tell a TLS greeting from rubbish; of its first record


class Gate:
    """Listens on an address and hands connections on to a port of this machine.

    Parameters
    ----------
    address
        ``host:port`` to listen on.
    warn
        Told of what is turned away.
    """

    def __init__(self, address: str, warn: Callable[[str], None]) -> None:
        host, _, port = address.rpartition(":")
        self._warn, self._pending = warn, Counter[str]()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._socket = _listening(host.strip("[]"), int(port))
        self.inner = free_port()
        self._loop = asyncio.new_event_loop()
        self._ready = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """Close the gate and all that goes through it."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._enter, sock=self._socket, limit=_BLOCK)
        self._ready.set()
        await self._stop.wait()
        server.close()
        for _ in range(4):  # connections that were just accepted begin a task in the next turn
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)  # those that were aborted are closed by the loop itself

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await self._greeting(reader, writer)
            if first is not None:
                await self._carry(first, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _greeting(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """Return the first bytes of a connection that may go on; None for any other."""
        address = str((writer.get_extra_info("peername") or ("nowhere",))[0])
        if (count := self._pending[address]) >= EACH:
            self._warn(f"turned {address} away: {count} connections of it have said nothing yet")
            return None
        if self._pending.total() >= PENDING:
            self._warn(f"turned {address} away: {PENDING} connections have said nothing yet")
            return None
        self._pending[address] += 1
        try:
            first = await asyncio.wait_for(_hello(reader), WAIT)
        except (TimeoutError, asyncio.IncompleteReadError):
            first = None
        finally:
            self._pending[address] -= 1
            self._pending += Counter()  # forgets addresses that nothing is waited for of
        if first is None:
            self._warn(f"turned {address} away: it began no TLS handshake")
            return None
        if not self._admits(address):
            self._warn(f"turned {address} away: more than {RATE:g} handshakes in a second")
            return None
        return first

    def _admits(self, address: str) -> bool:
        """Whether an address may begin one more handshake now."""
        now = monotonic()
        left, then = self._buckets.pop(address, (BURST, now))
        left = min(BURST, left + RATE * (now - then))
        self._buckets[address] = (left - 1 if left >= 1 else left), now
        while len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return left >= 1

    async def _carry(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        inside, out = await asyncio.open_connection("127.0.0.1", self.inner, limit=_BLOCK)
        for one in (writer, out):
            link = one.get_extra_info("socket")
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            out.write(first)
            ways = [
                asyncio.ensure_future(_pump(*pair)) for pair in ((reader, out), (inside, writer))
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            out.transport.abort()


async def _hello(reader: asyncio.StreamReader) -> bytes | None:
    """Return a client's whole first record, of TLS 1.2 or 1.3; None where it is another thing."""
    head = await reader.readexactly(_HEAD)  # type, version, length; type, length, version
    length = int.from_bytes(head[3:5])
    inside = 5 + length - _HEAD
    if not (head[:2] == b"\x16\x03" and head[5] == 1 and head[9:] == b"\x03\x03"):
        return None
    if inside < 0 or length > _LONGEST or int.from_bytes(head[6:9]) + 4 < length:
        return None
    return head + await reader.readexactly(inside)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(_BLOCK):
        writer.write(some)
        await writer.drain()
    with suppress(OSError):
        await writer.drain()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=_LINES)


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def gated(config: dict[str, Any], warn: Callable[[str], None]) -> list[Gate]:
    """Put a gate in front of every TLS listener of a Zenoh configuration; it then listens behind
    them.
    """
    gates = list[Gate]()
    try:
        for i, endpoint in enumerate(config["listen"]["endpoints"]):
            kind, _, address = endpoint.partition("/")
            if kind == "tls":
                gates.append(Gate(address, warn))
                config["listen"]["endpoints"][i] = f"tls/127.0.0.1:{gates[-1].inner}"
    except BaseException:
        for gate in gates:
            gate.close()
        raise
    return gates


def opened(config: dict[str, Any], warn: Callable[[str], None]) -> tuple[Any, list[Gate]]:
    """Open a session behind gates; on another port behind them where somebody just took it."""
    left = _TRIES
    while True:
        left -= 1
        behind = json.loads(json.dumps(config))
        gates = gated(behind, warn)
        try:
            return zenoh.open(zenoh.Config.from_json5(json.dumps(behind))), gates
        except BaseException as error:
            for gate in gates:
                gate.close()
            if not (gates and left and isinstance(error, zenoh.ZError)):
                raise
