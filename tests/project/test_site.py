"""The documentation site: it builds without a warning, leads nowhere that is not there, and loads
nothing from elsewhere.
"""

import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import click
import pytest
import yaml

import dynadp
from dynadp.cli import main
from support.pages import PAGES, ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
OUT = "docs/_build/html"
LOADS = {
    "script",
    "img",
    "iframe",
    "source",
    "video",
    "audio",
    "embed",
    "object",
    "track",
}  # and most links in a head
OPENS = {"a", "area"}
NO_LOAD = {"index", "search", "next", "prev", "author", "copyright", "canonical"}


class Page(HTMLParser):
    """A built page: names of its places, where it leads, and what it loads."""

    def __init__(self, file):
        super().__init__()
        self.places, self.leads, self.loads, self.text, self.links = {""}, [], [], [], {}
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places |= {given.get("id"), given.get("name") if tag == "a" else None}
        if tag in OPENS and given.get("href"):
            self.leads.append(given["href"])
            self.links.setdefault(given.get("title"), given["href"])
        loaded = [
            given.get("src"),
            given.get("poster"),
            given.get("data") if tag == "object" else None,
        ]
        if tag == "link" and given.get("rel") not in NO_LOAD:
            loaded.append(given.get("href"))
        self.loads += [target for target in loaded if target]
        for part in (given.get("srcset") or "").split(","):
            self.loads += part.split()[:1]
        self.loads += re.findall(r"url\(['\"]?([^)'\"]+)", given.get("style") or "")

    def handle_data(self, data):
        self.text.append(data)


def recipe(target):
    """The one command of a target, by which Python's programs are found beside the interpreter."""
    (line,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[0].splitlines()
    return line.strip().replace("$(BIN)", str(Path(sys.executable).parent)).split()


def build(folder):
    """The site, by the command of the Makefile: its pages by name, and where they lie."""
    command = [part.replace("docs/_build", str(folder)) for part in recipe("docs")]
    assert {"-W", "-E"} <= set(command)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    html = folder / "html"
    return {str(file.relative_to(html)): Page(file) for file in sorted(html.rglob("*.html"))}, html


def dead_links(pages, html):
    """Links and loads of built pages to a file or a place that is not there."""
    dead = []
    for name, page in pages.items():
        for target in (*page.leads, *page.loads):
            parts = urlsplit(target)
            if parts.scheme in {"http", "https", "mailto", "data"} or parts.netloc:
                continue
            path = unquote(urlsplit(urljoin(name, parts.path) if parts.path else name).path)
            path = f"{path}index.html" if path.endswith("/") or not path else path
            place = unquote(parts.fragment)
            if not (html / path).is_file() or (path in pages and place not in pages[path].places):
                dead.append(f"{name}: {target}")
    return dead


def foreign_loads(pages, html):
    """What a page, or a style, would fetch from another host."""
    found = [
        f"{name}: {target}"
        for name, page in pages.items()
        for target in page.loads
        if urlsplit(target).netloc
    ]
    for style in html.rglob("*.css"):
        urls = re.findall(
            r"(?:url\(|@import\s*)['\"]?((?:https?:)?//[^)'\"]+)", style.read_text(encoding="utf-8")
        )
        found += [f"{style.name}: {url}" for url in urls]
    for script in html.rglob("*.js"):
        urls = re.findall(
            r"\b(?:fetch|import|importScripts)\(\s*['\"]((?:https?:)?//[^'\"]+)",
            script.read_text(encoding="utf-8"),
        )
        found += [f"{script.name}: {url}" for url in urls]
    return found


def commands(command, names=("dynadp",)):
    yield names, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*names, name))


@pytest.mark.slow
def test_site_builds(tmp_path):
    pages, html = build(tmp_path)
    assert {page[5:-3] + ".html" for page in PAGES if page.startswith("docs/")} <= set(pages)
    assert f"dynadp {version('dynadp')}" in "".join(pages["index.html"].text)
    assert sum(len(page.leads) for page in pages.values()) > 1000
    assert dead_links(pages, html) == []
    assert all(page.loads for page in pages.values())
    assert foreign_loads(pages, html) == []
    formulas = (html / "maths.html").read_text(encoding="utf-8")
    assert formulas.count("<math ") > 2000
    assert "$" not in re.sub(r"<code.*?</code>", "", formulas, flags=re.DOTALL)
    assert "mathjax@" not in formulas
    every_command_is_in(pages["cli.html"])
    every_public_name_is_in(pages)
    for name in ("SECURITY", "CHANGELOG", "CONTRIBUTING"):
        for heading in re.findall(
            r"^#+ (.*)$", (ROOT / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE
        ):
            assert heading in "".join(pages[f"{name.lower()}.html"].text)


def every_command_is_in(page):
    text = re.sub(r"\s+", " ", "".join(page.text))
    for names, command in commands(main):
        assert f"{' '.join(names)} [OPTIONS]" in text
        assert "-".join(names) in page.places
        for parameter in command.params:
            assert (parameter.envvar or "") in text
            if isinstance(parameter, click.Option):
                assert (
                    f"cmdoption-{'-'.join(names)}-{parameter.opts[-1].lstrip('-')}" in page.places
                )


def every_public_name_is_in(pages):
    for name in set(dynadp.__all__) - {"__version__"}:
        thing = getattr(dynadp, name)
        home = f"{thing.__module__}.{thing.__qualname__}"
        assert home in pages["api.html"].links, name
        assert home in pages[f"generated/{thing.__module__}.html"].places, name


def test_the_reference_names_every_exit_code_and_other_variable():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "130",
        "143",
    ]
    options = {parameter.envvar for _, command in commands(main) for parameter in command.params}
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    assert set(re.findall(r"DYNADP_\w+", source)) - options <= set(re.findall(r"DYNADP_\w+", text))


def test_the_workflow_builds_what_it_publishes():
    """The command that it runs and the folder that it uploads are the Makefile's."""
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text(encoding="utf-8"))
    assert set(flow[True]) == {"push", "workflow_dispatch"}  # YAML 1.1 reads "on" so
    assert flow["permissions"] == {"contents": "read"}
    assert flow["jobs"]["publish"]["permissions"] == {"pages": "write", "id-token": "write"}
    assert flow["jobs"]["publish"]["needs"] == "build"
    steps = flow["jobs"]["build"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make docs"]
    (upload,) = [
        step["with"]["path"] for step in steps if "upload-pages-artifact" in step.get("uses", "")
    ]
    assert upload == OUT == recipe("docs")[-1]
    assert "docs/_build/" in (ROOT / ".gitignore").read_text(encoding="utf-8")


def test_the_workflow_tests_every_python_that_is_listed():
    """Both tiers, as the Makefile has them; classifiers name what is tried, and nothing else."""
    flow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    )
    assert set(flow[True]) == {"push", "pull_request", "workflow_dispatch"}
    assert flow["permissions"] == {"contents": "read"}
    first, second = flow["jobs"]["first"], flow["jobs"]["second"]
    assert [step["run"] for job in (first, second) for step in job["steps"] if "run" in step] == [
        "make test",
        "make test-slow",
    ]
    assert {"test", "test-slow"} <= set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line)
        for line in project["classifiers"]
    ]
    listed = [match[1] for match in found if match]
    (setup,) = [step["with"] for step in first["steps"] if "setup-python" in step.get("uses", "")]
    assert setup == {"python-version": "${{ matrix.python }}"}
    assert first["strategy"]["matrix"]["python"] == listed
    assert project["requires-python"] == f">={listed[0]}"
    (one,) = [
        step["with"]["python-version"]
        for step in second["steps"]
        if "setup-python" in step.get("uses", "")
    ]
    assert one in listed


def test_a_dead_link_and_a_foreign_load_are_found(tmp_path):
    """The checks themselves."""
    (tmp_path / "a.html").write_text(
        '<h1 id="x">x</h1><a href="b.html#y">b</a><a href="#x">a</a><a '
        'href="https://a.example">c</a>'
    )
    (tmp_path / "b.html").write_text(
        '<a href="a.html#z">a</a><a href="c.html">c</a><img src="//a.example/p.png">'
    )
    (tmp_path / "s.css").write_text(
        "@font-face { src: url(https://a.example/f.woff) } a { background: url(p.png) }"
    )
    pages = {name: Page(tmp_path / name) for name in ("a.html", "b.html")}
    assert dead_links(pages, tmp_path) == ["a.html: b.html#y", "b.html: a.html#z", "b.html: c.html"]
    assert foreign_loads(pages, tmp_path) == [
        "b.html: //a.example/p.png",
        "s.css: https://a.example/f.woff",
    ]
