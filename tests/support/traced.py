"""What processes read of files, as the kernel has it: `strace`, one file of calls for each thread,
so that no call is written in two halves.
"""

import re
from dataclasses import dataclass, field

READERS = (
    *("read", "pread64", "readv", "preadv", "preadv2", "sendfile", "splice", "tee"),
    *("copy_file_range", "mmap", "io_uring_setup", "process_vm_readv"),
)
STARTS = ("execve", "clone", "clone3", "fork", "vfork")
ONE_BYTE = re.compile(r'^read\(\d+<([^>]+)>, "((?:[^"\\]|\\.)*)", 1\) += ([01])$')
NAMED = re.compile(r"<([^<>]+)>")
CHILD = re.compile(r"^(?:clone3?|v?fork)\((.*)\) += (\d+)")
CODES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


def tracer(folder):
    """The beginning of a command line that is traced into a folder."""
    folder.mkdir()
    calls = ",".join((*READERS, *STARTS))
    # -D: the command keeps its own place as our child
    return ("strace", "-D", "-ff", "-y", "-qq", "-s", "4096", "-o", folder / "calls", "-e", calls)


@dataclass
class Command:
    """A process.

    Attributes
    ----------
    line
        What it was started as, as strace writes it; empty where it is its parent's copy.
    bytes
        What was read byte by byte of each file, in order, by each thread.
    more
        Calls that read a file in any other way, or could.
    """

    line: str = ""
    bytes: dict[tuple[str, int], str] = field(default_factory=dict)
    more: list[str] = field(default_factory=list)


def commands(folder, ending=".csv"):
    """Return all processes that were traced, with what they read of files with this ending."""
    calls = {int(path.suffix[1:]): path for path in folder.glob("calls.*")}
    lines = {tid: path.read_text(errors="replace").splitlines() for tid, path in calls.items()}
    parents = {}
    for tid, those in lines.items():
        for line in those:
            if (made := CHILD.match(line)) and "CLONE_THREAD" in made[1]:
                parents[int(made[2])] = tid
    found = {}
    for tid, those in lines.items():
        process = tid
        while process in parents:
            process = parents[process]
        _read(found.setdefault(process, Command()), tid, those, ending)
    return list(found.values())


def _read(command, tid, lines, ending):
    for line in lines:
        if line.startswith("execve(") and line.endswith("= 0"):
            command.line = line
        if line.startswith("io_uring_setup("):
            command.more.append(line)  # what it reads no tracer sees
        if line.startswith(STARTS) or not any(
            name.endswith(ending) for name in NAMED.findall(line)
        ):
            continue
        if not (one := ONE_BYTE.match(line)):
            command.more.append(line)
            continue
        text = re.sub(r"\\(.)", lambda code: CODES[code[1]], one[2])
        key = one[1], tid
        command.bytes[key] = command.bytes.get(key, "") + text
