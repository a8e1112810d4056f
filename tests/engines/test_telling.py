"""What a node's log says: words for what happened on links, at growing intervals, and standard
output left alone.
"""

import logging
import os
import subprocess
import sys

import pytest

from dynadp.engines.zenoh.log import ENGINE, RateLimitedLog, explain

WHEN, WHERE = "2026-11-15T16:33:52.5Z", "acc-0 ThreadId(05) zenoh_link_tls::unicast:"
HINT = "Hint: increase the system open file limit."
NOT_OURS = "refused a link: its certificate was not signed by this consortium's authority"
BLOCKED = (
    "TRACE  rx-0 ThreadId(14) zenoh::net::routing::interceptor::access_control: daa9 on "
    "Interface(lo)+CertCommonName(b)+Transport(Tls)+daa9 is unauthorized to "
)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{WHEN}  WARN {WHERE} invalid peer certificate: UnknownIssuer. {HINT}", NOT_OURS),
        (f"{WHEN}  WARN {WHERE} invalid peer certificate: BadSignature. {HINT}", NOT_OURS),
        (
            f"{WHEN}  WARN {WHERE} invalid peer certificate: certificate expired: verification "
            f"time 1794760434 (UNIX), but "
            f"certificate is not valid after 1794328431 (432003 seconds ago). {HINT}",
            "refused a link: its certificate has expired",
        ),
        (
            f"{WHEN}  WARN {WHERE} peer sent no certificates. {HINT}",
            "refused a link: it showed no certificate",
        ),
        (
            f"{WHEN}  WARN {WHERE} invalid peer certificate: certificate not valid for name "
            f'"localhost"; NotValidForName',
            "refused a link: the certificate of the dialled node names another host",
        ),
        (
            f"{WHEN}  WARN {WHERE} received fatal alert: unknown certificate authority",
            "was refused by the other side: it does not know this node's authority",
        ),
        (
            f"{WHEN} {BLOCKED}Put (ingress) on dynadp/ab12/c/letter/message/3/c",
            "blocked b: it tried to send under dynadp/ab12/c/letter/message/3/c, a name that is "
            "not its own",
        ),
        (f"{WHEN}  WARN {WHERE} Something new. {HINT}", "link: Something new."),
        (
            f"{WHEN} ERROR net-0 ThreadId(02) zenoh::net::runtime: Unable to bind",
            "link: Unable to bind",
        ),
    ],
    ids=["issuer", "signature", "expired", "none", "host", "alert", "blocked", "new", "error"],
)
@pytest.mark.parametrize("coloured", [False, True])
def test_lines_and_what_they_mean(line, words, coloured):
    if coloured:
        line = "".join(
            f"\x1b[{i % 7}m\x1b[1;3{i % 8}m{word}\x1b[0m " for i, word in enumerate(line.split(" "))
        )
        line = " ".join(line.split())
    assert explain(line + "\n") == words


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "a line of nobody",
        f"{WHEN}  INFO {WHERE} invalid peer certificate: UnknownIssuer",
        f"{WHEN} DEBUG {WHERE} peer sent no certificates",
        f"{WHEN} TRACE {WHERE} all is well",
        f"{WHEN}  WARN main ThreadId(01) zenoh::net::runtime: Gossip is disabled, so nothing is "
        f"found",
        f"{WHEN} {BLOCKED}Query (ingress) on dynadp/ab12/**",
        f"{WHEN} {BLOCKED}DeclareSubscriber (ingress) on dynadp/ab12/c/letter/**",
        f"{WHEN} {BLOCKED}Put (egress) on dynadp/ab12/c/letter/message/3/c",
        f"{WHEN} {BLOCKED}Put (ingress) on dynadp/ab12/c/alive",
    ],
)
def test_lines_that_mean_nothing(line):
    assert explain(line) is None


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (
            'certificate not valid for name "x"',
            "refused a link with h:7447: its certificate names another host",
        ),
        (
            "invalid peer certificate: UnknownIssuer",
            NOT_OURS.replace("a link", "a link with h:7447"),
        ),
        (
            "peer certificate: certificate expired: verification",
            "refused a link with h:7447: its certificate has expired",
        ),
        (
            "received fatal alert: CertificateExpired",
            "refused by h:7447: this node's certificate has expired",
        ),
        (
            "received fatal alert: UnknownCA",
            "refused by h:7447: it does not know the authority of this node's certificate",
        ),
        (
            "received fatal alert: BadCertificate",
            "refused by h:7447: it does not believe this node's certificate",
        ),
        ("Connection refused (os error 111)", None),  # it is not up yet
    ],
)
def test_why_nobody_can_be_dialled(why, words):
    place = "zenoh::net::runtime::orchestrator"
    event = "Unable to connect to configured peer tls/h:7447!"
    line = f"{WHEN} DEBUG net-0 ThreadId(02) {place}: {event}"
    assert explain(f"{line} Can not create a new TLS session: {why}. {HINT}") == words


def test_names_are_told_as_they_are():
    line = f"{WHEN} {BLOCKED}Put (ingress) on dynadp/x/St.%20Mary/letter/mean/3/a".replace(
        "(b)", "(St. Mary's Köln (2))"
    )
    assert explain(line).startswith(
        "blocked St. Mary's Köln (2): it tried to send under dynadp/x/St.%20Mary/letter/mean/3/a"
    )


def test_what_a_stranger_writes_into_a_line_cannot_move_a_terminal():
    words = explain(
        f"{WHEN} {BLOCKED}Put (ingress) on "
        f"dynadp/x/\x1b]0;owned\x07\x1b[2J\u202e/letter/message/3/c"
    )
    assert words.isprintable()
    assert explain(f"{WHEN}  WARN {WHERE} \x1b[2J\x9b2Jhello").isprintable()


# --------------------------------------------------------------------------------------------------
# how often


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "dynadp.node")
    return caplog


def test_the_same_thing_is_told_at_growing_intervals(log):
    tell = RateLimitedLog()
    for _ in range(1234):
        tell("a knock")
    tell("another", logging.INFO)
    assert [record.getMessage() for record in log.records] == [
        "a knock",
        "a knock (10 times)",
        "a knock (100 times)",
        "a knock (1000 times)",
        "another",
    ]
    assert [record.levelname for record in log.records] == ["WARNING"] * 4 + ["INFO"]


def test_many_different_things_fill_neither_disk_nor_memory(log):
    tell = RateLimitedLog(limit=5)
    for i in range(1000):
        tell(f"thing {i}")
    told = [record.getMessage() for record in log.records]
    assert told == [
        *(f"thing {i}" for i in range(5)),
        "more things than can be told apart",
        "more things than can be told apart (10 times)",
        "more things than can be told apart (100 times)",
    ]
    assert len(tell._counts) <= 6
    tell("thing 0")  # still told apart
    assert tell._counts["thing 0"] == 2


# --------------------------------------------------------------------------------------------------
# the engine's log

SCRIPT = """
import logging, os, sys
from dynadp.engines.zenoh.log import engine_log
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
before = sys.stdout
print("before")
for i in range(2):
    try:
        with engine_log():
            print("inside", i)
            line = b"WARN a zenoh_link_tls::x: invalid peer certificate: UnknownIssuer\\n"
            os.write(1, (b"2026-11-15T16:33:52.5Z  " + line) * 11)
            os.write(1, b"noise of nobody\\n\\xff\\xfe\\n")
            os.write(1, b"2026-11-15T16:33:52.5Z  WARN a zenoh::x: strange")
            if i:
                raise KeyError("as if something failed")
    except KeyError:
        print("failed")
assert sys.stdout is before
os.write(1, b"after\\n")
print("last")
"""


def test_standard_output_is_left_as_it_was():
    """What the engine writes there is told in words in the log; what the program prints arrives, in
    order, and nothing else.
    """
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.stdout.splitlines() == ["before", "inside 0", "inside 1", "failed", "after", "last"]
    once = [f"WARNING {NOT_OURS}", f"WARNING {NOT_OURS} (10 times)", "INFO link: strange"]
    assert done.stderr.splitlines() == once * 2


HARD = """
import logging, os, sys, time
from dynadp.engines.zenoh.log import engine_log
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
class Broken(logging.Filter):
    def filter(self, record):
        if "break" in record.getMessage():
            raise KeyError("a filter of somebody's")
        return True
logging.getLogger("dynadp.node").addFilter(Broken())
ACL = "zenoh::net::routing::interceptor::access_control"
with engine_log():
    os.write(1, b"2026-11-15T16:33:52.5Z  WARN a zenoh::x: break\\n")
    time.sleep(0.3)
    for _ in range(2000):  # more than the pipe holds
        line = f"TRACE a {ACL}: n1 is authorized to Put {'x' * 1000}\\n"
        os.write(1, f"2026-11-15T16:33:52.5Z {line}".encode())
    who = "n1 on Interface(lo)+CertCommonName(mallory)+Transport(Tls)"
    key = "dynadp/1/bob/letter/ is authorized to /x"
    line = f"TRACE a {ACL}: {who} is unauthorized to Put (ingress) on {key}\\n"
    os.write(1, f"2026-11-15T16:33:52.5Z {line}".encode())
"""


def test_nothing_that_is_logged_stops_the_engine_or_hides_whom_it_blocks():
    done = subprocess.run(
        [sys.executable, "-c", HARD], capture_output=True, text=True, timeout=60, check=True
    )
    assert "blocked mallory: it tried to send under dynadp/1/bob/letter/" in done.stderr
    assert "authorized to Put" not in done.stderr


def test_the_engine_is_asked_for_what_is_told():
    asked = dict(part.partition("=")[::2] for part in ENGINE.split(","))
    assert (
        asked["zenoh::net::routing::interceptor::access_control"] == "trace"
    )  # where it says whom it blocked
    assert (
        asked["zenoh::net::runtime::orchestrator"] == "debug"
    )  # where it says why nobody can be dialled
    assert "warn" in asked  # and of the rest no more: its lower levels may quote what was sent
    assert len(asked) == 3
