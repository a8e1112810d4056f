"""What tests/privacy/test_ledger.py does to a ledger in other processes: ``python
ledger_worker.py NAME ARGUMENT...``, answer in JSON.

Children are forks, so that a hundred of them cost no more than a hundred spends.
"""

import ctypes
import json
import os
import platform
import resource
import shutil
import signal
import sys
from pathlib import Path

from dynadp.errors import DynadpError
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.identities import public_key
from dynadp.runs.recovery import Anew, recover_ledger

STAMP = {"who": "worker", "at": "2026-03-01T12:00:00+00:00"}
TRACEME, PEEKUSER, SYSCALL = 0, 3, 24  # of ptrace(2)
# Numbers of system calls of x86-64 that change a file or a folder, or make it last: write, pwrite,
# writev, fsync, fdatasync, ftruncate, rename, mkdir, rmdir, link, unlink and their newer forms.
CHANGING = {1, 18, 20, 74, 75, 77, 82, 83, 84, 86, 87, 258, 263, 264, 265, 285, 296, 316}
OPEN, NUMBER, FLAGS = 257, 15 * 8, 12 * 8  # openat; where a call's number and third argument lie


def plan(rounds, alpha=0.125):
    return [L2Laplace("north", n, "primal", alpha, 3) for n in rounds]


def message(n):
    return b"message %d " % n * 1000


ACTIONS = {
    "spend": lambda ledger: ledger.spend("a", 1, plan([1]), message(1), **STAMP),
    "reserve": lambda ledger: ledger.reserve("b", plan(range(30), 0.001), dataset="rows", **STAMP),
    "cap": lambda ledger: ledger.set_cap(Cap(3.0, 0.0, 2.0), **STAMP),
    "close": lambda ledger: ledger.close_run("a", "stopped", **STAMP),
}


def fork(action):
    """Run an action in a child: its pid, and a pipe on which it says what came out."""
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        return pid, os.fdopen(reading)
    try:
        os.write(writing, json.dumps(action()).encode())
    except DynadpError as error:
        os.write(writing, json.dumps(repr(error)).encode())
    finally:
        os._exit(0)


def kill(template, folder, name, where, step=1):
    """SIGKILL an action at its k-th SQL statement or system call, for every k or some: which, and
    whether it had returned.
    """
    out = []
    while not out or out[-1]["killed"]:
        k = len(out) * int(step)
        path = Path(folder, f"{k}.ledger")
        if name != "create":
            shutil.copy(template, path)
        pid, pipe = fork(lambda path=path, k=k: doomed(path, name, where, k))
        out.append(ended(pid, pipe, k, traced=where == "calls"))
    return out


def ended(pid, pipe, k, *, traced, changing=False):
    """Kill a child before or after its k-th system call, if it is traced, or its k-th one that
    changes a file; how it ended.
    """
    _, status = os.waitpid(pid, os.WUNTRACED)
    if traced:
        libc = ctypes.CDLL(None, use_errno=True)
        for _ in range(k):
            while os.WIFSTOPPED(status):
                libc.ptrace(SYSCALL, pid, None, None)
                _, status = os.waitpid(pid, 0)
                if not (changing and os.WIFSTOPPED(status)) or changes(libc, pid):
                    break
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
    with pipe:
        return {"k": k, "killed": os.WIFSIGNALED(status), "returned": pipe.read() == '"returned"'}


def changes(libc, pid):
    """Whether the call at which a child stands changes a file, for all that is known here."""
    if platform.machine() != "x86_64":
        return True
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    number = libc.ptrace(PEEKUSER, pid, NUMBER, None)
    creates = number == OPEN and libc.ptrace(PEEKUSER, pid, FLAGS, None) & (os.O_CREAT | os.O_TRUNC)
    return number in CHANGING or bool(creates)


def trace():
    """Let the parent see all system calls from here on."""
    if ctypes.CDLL(None).ptrace(TRACEME, 0, None, None):
        os._exit(0)  # not allowed here: nothing is killed, and nothing returned
    os.kill(os.getpid(), signal.SIGSTOP)


def recover(template, folder, step):
    """SIGKILL a recovery before or after its k-th system call that changes a file, for some k. The
    template holds what is copied before, and in recovery.json what is recovered from where.
    """
    given = json.loads(Path(template, "recovery.json").read_text())
    out = []
    while not out or out[-1]["killed"]:
        place = Path(folder, str(len(out) * int(step)))
        shutil.copytree(template, place)
        pid, pipe = fork(lambda place=place: trace() or (recovered(place, given) and "returned"))
        out.append(ended(pid, pipe, len(out) * int(step), traced=True, changing=True))
    return out


def recovered(place, given):
    """Recover the ledger in a folder, whose anchor is there too."""
    begin = given["begin"]
    if isinstance(begin, list):
        begin = Anew(begin[0], Cap.of(*begin[1:]))
    return recover_ledger(
        place / "ledger",
        given["from"],
        public_key(given["key"]),
        who="worker",
        anchor=place / "anchor",
        begin=begin,
    )


def doomed(path, name, where, k):
    ledger = None if name == "create" else Ledger.open(path)
    if where == "calls":
        trace()
    else:
        seen = iter(range(k + 1))
        ledger._store.connection.set_trace_callback(
            lambda statement: None if next(seen) < k else os.kill(os.getpid(), signal.SIGKILL)
        )
    if ledger is None:
        ledger = Ledger.create(path, "north", **STAMP)
    else:
        ACTIONS[name](ledger)
    return "returned"


def loop(path):
    """Spend round after round, and say so when each has returned; then wait for the end."""
    with Ledger.open(path) as ledger:
        for n in range(ledger.rounds("a")[-1] + 1 if ledger.rounds("a") else 0, 2000):
            ledger.spend("a", n, plan([n], 1e-6), message(n), **STAMP)
            print(n, flush=True)
        signal.pause()


def race(path, processes, name):
    """All at once: spend every round of a run, or reserve a run each; who won what."""

    def one(number, start):
        with Ledger.open(path) as ledger:
            os.read(start, 1)
            won = []
            for n in range(8):
                try:
                    if name == "spend":
                        ledger.spend("a", n, plan([n]), message(number), **STAMP)
                    else:
                        ledger.reserve(f"{number}-{n}", plan([0, 1]), dataset="rows", **STAMP)
                    won.append(n)
                except DynadpError as error:
                    if type(error).__name__ != "BudgetRefused":
                        raise
            return won

    start, go = os.pipe()
    children = [fork(lambda number=number: one(number, start)) for number in range(int(processes))]
    os.write(go, b"." * int(processes))
    return [(os.waitpid(pid, 0), json.load(pipe))[1] for pid, pipe in children]


def attempt(ledger, n, text):
    try:
        ledger.spend("a", n, plan([n]), text, **STAMP)
    except DynadpError as error:
        return [type(error).__name__, str(error)]
    return "returned"


def limited(path):
    """Spend where no file may grow, and then where it may, with the same object."""
    with Ledger.open(path) as ledger:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path), hard))
        full = attempt(ledger, 0, message(0)), ledger.rounds("a"), ledger.verify()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return [*full, attempt(ledger, 0, message(0)), ledger.rounds("a"), ledger.verify()]


def cramped(path):
    """Make a ledger where files stay too small for one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        Ledger.create(path, "north", **STAMP)
    except DynadpError as error:
        return [type(error).__name__, str(error)]


def fill(path):
    """Spend on a disk that is full, and then has room."""
    ballast = Path(path).with_name("ballast")
    with Ledger.open(path) as ledger, open(ballast, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 512):
                pass
        except OSError:
            full = attempt(ledger, 0, message(0)), ledger.rounds("a"), ledger.verify()
        ballast.unlink()
        file.truncate(0)
        return [*full, attempt(ledger, 0, message(0)), ledger.rounds("a"), ledger.verify()]


def unwritable(path):
    """Read and spend where this process may only read."""
    if os.access(path, os.W_OK):
        os.setuid(65534)
    out = []
    for read_only in (True, False):
        with Ledger.open(path, read_only=read_only) as ledger:
            out.append(
                [
                    attempt(ledger, 0, message(0)),
                    ledger.rounds("a"),
                    ledger.message("a", 7) == message(7),
                    ledger.verify(),
                ]
            )
    return out


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
