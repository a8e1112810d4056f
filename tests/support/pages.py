"""A page of Markdown, carried out: what CONTRIBUTING.md says under "How to write a page"."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
)
LANGUAGES = {"python", "console", "toml", "json", "csv", "text", "ini", "sql", "yaml", "dockerfile"}
PATIENCE = 300  # seconds that one command may take


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line of its fence, and the comment above it."""

    language: str
    text: str
    line: int
    comment: str

    def said(self, what: str) -> str | None:
        """What stands after `what:` in the comment, if it is such a comment."""
        found = re.fullmatch(rf"<!--\s*{what}(?::\s*(.*?))?\s*-->", self.comment)
        return None if found is None else found[1] or ""


@dataclass(frozen=True)
class Command:
    """A line at a prompt, with its continuation; what it shows, and how it ends."""

    text: str
    shown: str
    code: int


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a page. Commands outside of them, and fences without a language, are
    refused.
    """
    out, lines, at = [], text.splitlines(), 0
    while at < len(lines):
        fence = re.match(r"( *)(`{3,}|~{3,}|:{3,})(.*)$", lines[at])
        if not fence:
            assert not re.match(r"\s*(\$|>>>) ", lines[at]), (
                f"line {at + 1}: a command outside of a console block"
            )
            at += 1
            continue
        end = next(
            (
                i
                for i in range(at + 1, len(lines))
                if re.fullmatch(rf" *{fence[2][0]}{{{len(fence[2])},}} *", lines[i])
            ),
            None,
        )
        assert end is not None, f"line {at + 1}: a block without an end"
        language = fence[3].strip()
        above = next((line.strip() for line in reversed(lines[:at]) if line.strip()), "")
        body = "".join(line.removeprefix(fence[1]) + "\n" for line in lines[at + 1 : end])
        if not language.startswith("{"):  # else: a directive of the site
            assert language in LANGUAGES, (
                f"line {at + 1}: {language!r} is none of {', '.join(sorted(LANGUAGES))}"
            )
            prompts = re.search(r"^(\$|>>>) ", body, re.MULTILINE)
            assert language == "console" or not prompts, (
                f"line {at + 1}: a prompt, but not a console block"
            )
            out.append(Block(language, body, at + 1, above if above.startswith("<!--") else ""))
        else:
            assert not language.startswith(("{code", "{doctest", "{literal")), (
                f"line {at + 1}: {language} would not be run"
            )
        at = end + 1
    return out


def commands(text: str) -> list[Command]:
    """The commands of a console block: `$ ` begins one; `> `, a backslash or a here-document goes
    on with it.
    """
    out, lines = [], text.splitlines()
    assert lines, "an empty console block"
    assert lines[0].startswith("$ "), f"a console block begins with a prompt, not with {lines[0]!r}"
    while lines:
        typed = [lines.pop(0).removeprefix("$ ")]
        here = re.search(r"<<-?\s*(['\"]?)(\w+)\1", typed[0])
        while lines and (
            typed[-1] != here[2]
            if here
            else typed[-1].endswith("\\") or re.match(r">( |$)", lines[0])
        ):
            typed.append(re.sub(r"^> ?", "", lines.pop(0)))
        shown = []
        while lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        code = re.fullmatch(r"\[exit code (\d+)\]", shown[-1]) if shown else None
        out.append(
            Command(
                "\n".join(typed),
                "\n".join(shown[:-1] if code else shown),
                int(code[1]) if code else 0,
            )
        )
    return out


def matches(shown: str, printed: str) -> bool:
    """Line by line the same, but for blanks at ends of lines; `...` is any text in a line, alone in
    a line any lines.
    """
    pattern = ""
    for line in shown.strip("\n").splitlines():
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += (
                "[^\n]*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n"
            )
    return (
        re.fullmatch(pattern, "".join(line + "\n" for line in printed.strip("\n").splitlines()))
        is not None
    )


class Runner:
    """One page in one folder: blocks in order, one namespace, commands that find this Python's
    programs first.
    """

    def __init__(self, folder: Path, name: str = "page.md") -> None:
        self.folder, self.name = folder, name
        self.names = {"__name__": "__main__"}
        self.printed = ""  # by all Python blocks
        self.last = None  # printed by the last one
        self.done, self.groups = 0, []  # commands so far; processes that may still run

    def run(self, text: str) -> None:
        """Carry out a page."""
        try:
            for block in blocks(text):
                self.block(block)
        finally:
            for group in self.groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)

    def block(self, block: Block) -> None:
        where = f"{self.name}, line {block.line}"
        if block.language == "toml":
            tomllib.loads(block.text)
        if block.language == "json":
            json.loads(block.text)
        if block.said("not run") is not None:
            return
        if (file := block.said("file")) is not None:
            path = (self.folder / file).resolve()
            assert file, f"{where}: which file?"
            assert path.is_relative_to(self.folder.resolve()), (
                f"{where}: {file} lies outside of the page's folder"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.said("prints") is not None:
            assert self.last is not None, f"{where}: no Python block above"
            assert matches(block.text, self.last), (
                f"{where}: the Python block above printed\n{self.last}"
            )
        elif block.language == "python":
            self.python(block)
        elif block.language == "console":
            for command in commands(block.text):
                self.command(command, where)

    def python(self, block: Block) -> None:
        """Line numbers in a traceback are those of the page."""
        code = compile("\n" * block.line + block.text, self.name, "exec")
        said = io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(said),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error")
            exec(code, self.names)
        self.last = said.getvalue()
        self.printed += self.last

    def command(self, command: Command, where: str) -> None:
        """By `bash -eu`, into a file: what stays in the background must not be waited for."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        self.done += 1
        log = self.folder.with_name(f"{self.folder.name}-{self.done}.log")
        with log.open("wb") as out:
            started = subprocess.Popen(
                ["bash", "-euc", command.text],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.groups.append(started.pid)
            code = started.wait(timeout=PATIENCE)
        try:
            os.killpg(started.pid, 0)
        except ProcessLookupError:  # nothing was left in the background
            self.groups.remove(started.pid)
        printed = log.read_text(encoding="utf-8")
        assert code == command.code, f"{where}: exit code {code} of $ {command.text}\n{printed}"
        if command.shown.strip():
            assert matches(command.shown, printed), f"{where}: $ {command.text} printed\n{printed}"
