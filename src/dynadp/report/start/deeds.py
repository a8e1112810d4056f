"""What the wizard does: it writes the two files, and starts the commands that it shows."""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal

from dynadp.errors import DeclarationError
from dynadp.runs import Start, require_new

State = Literal["waiting", "running", "done", "failed"]
LONGEST = 20_000  # letters of a command's output that are kept
_COMMAND = (sys.executable, "-c", "from dynadp.cli import main; main()")


@dataclass
class Deed:
    """One thing to do.

    Attributes
    ----------
    name, title
        What it is called, by the page and to people.
    command
        What is typed after ``dynadp``; empty where files are written.
    reads
        What of rows it reads, in words.
    state
        How far it is.
    output
        What was printed.
    """

    name: str
    title: str
    command: tuple[str, ...]
    reads: str
    state: State = "waiting"
    output: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what the page needs."""
        return {
            "name": self.name,
            "title": self.title,
            "command": shlex.join(("dynadp", *self.command)) if self.command else "",
            "reads": self.reads,
            "state": self.state,
            "output": self.output,
        }


@dataclass
class Deeds:
    """What is done with the answers of one folder, one after the other.

    Attributes
    ----------
    folder
        Where files are written.
    all
        In order.
    files
        Texts of the files that were written, by name.
    """

    folder: Path
    all: list[Deed] = field(default_factory=list)
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._running: subprocess.Popen[str] | None = None

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "runs" / "first"

    @property
    def report(self) -> Path:
        """The report."""
        return self.run / "report.html"

    def write(self, start: Start) -> None:
        """Write the files, and plan what follows.

        Files of older answers are replaced until the run begins. Files that say just this already,
        as after the server was started again, are taken as they are.
        """
        with self._lock:
            if any(deed.state == "running" for deed in self.all):
                raise DeclarationError("something is being done; wait until it ends")
            if self._same(start.texts):
                did = "Found"
            else:
                self._remove()
                require_new(self.folder)
                start.write(self.folder)
                did = "Wrote"
            self.files = start.texts
            those = " and ".join(str(self.folder / name) for name in self.files)
            first = Deed("write", "Write the files", (), "headers", "done", f"{did} {those}.")
            self.all = [first, *self._plan(start)]
            for deed in self.all[: self._went]:
                deed.state = "done"
            self._go_on()

    def _same(self, texts: Mapping[str, str]) -> bool:
        """Whether the files are there and say this."""
        return all(_said(self.folder / name) == text for name, text in texts.items())

    def _remove(self) -> None:
        """Remove files of older answers, where nobody changed them and no run rests on them."""
        if not self.files:
            return
        if self._begun:
            raise DeclarationError(
                f"the run of the files in {self.folder} was begun already; choose another folder, "
                "so that they stay as they were"
            )
        for name, text in self.files.items():
            if _said(self.folder / name) not in (text, None):
                raise DeclarationError(
                    f"{self.folder / name} was changed since it was written; choose another folder"
                )
        for name in self.files:
            (self.folder / name).unlink(missing_ok=True)

    @property
    def _begun(self) -> bool:
        """Whether a run was begun, finished or not."""
        return (self.run / "run.json").exists()

    @property
    def _went(self) -> int:
        """How many deeds are done already, as the run folder has it."""
        if not self._begun:
            return 1
        names = [deed.name for deed in self.all]
        if not (self.run / "model.json").exists():
            return names.index("run")
        return len(names) if self.report.exists() else names.index("report")

    def _plan(self, start: Start) -> list[Deed]:
        file, run = str(self.folder / "run.toml"), str(self.run)
        found = []
        if start.seed is None:
            budget = "--epsilon", f"{start.cap:.6g}", "--delta", f"{start.delta:g}"
            caps = ("ledger", "cap", "--run", file, *budget)
            found.append(Deed("cap", "Make the ledgers", caps, "no row"))
        if start.counts:
            headers = ("check", file, "--headers")
            found.append(Deed("check", "Check, without rows", headers, "headers"))
        else:
            reads = "all rows, once: it counts them and finds cells that do not fit"
            found.append(Deed("check", "Check", ("check", file), reads))
        train = ("train", file, "--out", run)
        found.append(Deed("run", "Run", train, "all rows; noisy sums over them are released"))
        found.append(Deed("report", "Write the report", ("report", run), "no row"))
        return found

    def do(self, name: str) -> None:
        """Start one; the one before has to be done."""
        with self._lock:
            names = [deed.name for deed in self.all]
            if name not in names[1:]:
                raise DeclarationError(f"there is nothing to do that is called {name!r}")
            at = names.index(name)
            if any(deed.state == "running" for deed in self.all):
                raise DeclarationError("something is being done; wait until it ends")
            if self.all[at].state == "done":
                raise DeclarationError(f"{self.all[at].title} is done already")
            if self.all[at - 1].state != "done":
                raise DeclarationError(f"first comes: {self.all[at - 1].title}")
            deed = self.all[at]
            deed.state, deed.output = "running", ""
        Thread(target=self._carry_out, args=(deed,), daemon=True).start()

    def _carry_out(self, deed: Deed) -> None:
        with subprocess.Popen(
            [*_COMMAND, *deed.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            self._running = process
            for line in process.stdout or ():
                deed.output = (deed.output + line)[-LONGEST:]
        self._running = None
        deed.state = "failed" if process.returncode else "done"
        self._go_on()

    def _go_on(self) -> None:
        """A run that was begun and did not end is resumed: it has its folder already."""
        for deed in self.all:
            ended = deed.name != "run" or deed.state == "done" or "--resume" in deed.command
            if not ended and self._begun:
                deed.command = (*deed.command, "--resume")

    def close(self) -> None:
        """Interrupt what runs, as Ctrl-C would: a run can be resumed."""
        if (process := self._running) is not None:
            process.send_signal(2)
            process.wait()

    def to_json(self) -> Sequence[dict[str, Any]]:
        """Return all, in order."""
        return [deed.to_json() for deed in self.all]


def _said(path: Path) -> str | None:
    """What stands in a file; None where there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
