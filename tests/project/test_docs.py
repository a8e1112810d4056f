"""What README and the pages in docs show works as shown."""

import re
import subprocess
import sys
from collections import defaultdict

import conf
import mathml
import pytest
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

from support.pages import PAGES, ROOT, Runner, blocks, commands, matches

TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
ELSEWHERE = {
    "docs/first-run.md": "test_docs.py",
    "docs/deployment.md": "test_deployment.py",
}  # pages with a test of their own
SLOW = {
    "docs/audit.md",
    "docs/export.md",
    *(f"docs/tutorial-{whose}.md" for whose in ("data-scientist", "researcher", "silo-engineer")),
}  # several seconds
PRINTS = {"README.md": "would guess right"}  # somewhere in what Python blocks print
NOT_RUN = {
    "README.md": ["both make an environment of their own"],
    "docs/scale.md": ["it needs several hosts"],
    "docs/start.md": ["it serves a page until Ctrl-C"] * 2,
    "docs/tutorial-data-scientist.md": ["it needs a package index"],
    "docs/tutorial-researcher.md": ["it needs UCI Adult's files and a minute and a half"],
    "docs/tutorial-silo-engineer.md": ["it needs a package index"],
}


HERE = [page for page in PAGES if page not in ELSEWHERE]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in HERE]
)
def test_page(page, tmp_path):
    (folder := tmp_path / "page").mkdir()
    runner = Runner(folder, page)
    runner.run(TEXT[page])
    assert PRINTS.get(page, "") in runner.printed


def test_a_page_that_is_not_run_above_has_a_test_of_its_own():
    for page, test in ELSEWHERE.items():
        assert {block.language for block in blocks(TEXT[page])} & {"python", "console"}
        assert page.removeprefix("docs/") in source_of(test)
    assert set(PAGES) >= SLOW | set(PRINTS)


def test_what_is_not_run_is_listed():
    found = defaultdict(list)
    for page in PAGES:
        for block in blocks(TEXT[page]):
            if block.said("not run") is not None:
                found[page].append(block.said("not run"))
    assert found == NOT_RUN


def test_links_lead_somewhere_on_a_code_host():
    for page, text in TEXT.items():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for target, place in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", prose):
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), f"{page}: {target}"
            assert path.stem not in {"changelog", "contributing", "security"}, (
                f"{page}: link to the file at the root"
            )
            assert not place or place in places(path), f"{page}: {target}#{place}"


def places(path):
    """Names that a code host gives to headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tokens(text):
    """A page as the site reads it: pieces of text, and formulas by their kind."""
    reader = create_md_parser(
        MdParserConfig(
            enable_extensions=set(conf.myst_enable_extensions),
            dmath_allow_space=conf.myst_dmath_allow_space,
        ),
        RendererHTML,
    )
    for token in reader.parse(text):
        for piece in token.children or [token]:
            if piece.type in ("text", "math_inline", "math_block"):
                yield piece.type, piece.content


def test_every_formula_is_read():
    formulas = defaultdict(int)
    for page, text in TEXT.items():
        if not page.startswith("docs/"):
            continue
        for kind, content in tokens(text):
            if kind == "text":
                assert "$" not in content, f"{page}: {content}"
            else:
                assert mathml.tree(content, "block" if kind == "math_block" else "inline").tag
                formulas[page] += 1
    assert formulas["docs/maths.md"] > 1500


def test_formulas_have_the_spaces_of_tex():
    def drawn(formula):
        return {leaf.text: leaf for leaf in mathml.tree(formula, "inline").iter() if not len(leaf)}

    assert drawn(r"k \sup_w f")["sup"].get("lspace") == "0.17em"
    assert drawn(r"k \exp(-a)")["exp"].get("rspace") == "0"
    assert drawn(r"\exp(-a)")["−"].get("form") == "prefix"
    assert drawn("a - b")["−"].get("form") is None
    assert drawn("a/b")["/"].get("lspace") == "0"
    assert drawn("a'_k")["′"].tag == "mo"  # beside its letter, at full size
    bars = [leaf.get("form") for leaf in mathml.tree(r"\lVert a \rVert_2 b", "inline").iter("mo")]
    assert bars == ["prefix", "postfix"]
    assert len(mathml.pieces(mathml.tree(r"f(a = b) \le \lvert c + d\rvert", "inline"))) == 2


@pytest.mark.parametrize("formula", [r"\foo x", r"\frac{a}{b", "a_b_c", "a & b", r"\left( a"])
def test_a_formula_that_cannot_be_read_is_refused(formula):
    with pytest.raises(ValueError, match=r"not known|braces|Error"):
        mathml.tree(formula, "block")


def test_a_page_shows_formulas_as_mathml(tmp_path):
    """Without dollars and scripts; one that cannot be read fails the build."""
    settings = "".join(f"{name} = {vars(conf)[name]!r}\n" for name in vars(conf) if "myst_" in name)
    (tmp_path / "conf.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT / 'docs')!r})\n"
        f"extensions = ['myst_parser', 'mathml']\n{settings}"
        f"html_math_renderer = {conf.html_math_renderer!r}\nhtml_theme = 'basic'\n"
    )
    page = (
        "# P\n\nA line with $a_1 \\le b$.\n\n$$\n\\frac{a}{b} = c\n$$ (label)\n\nSee {eq}`label`.\n"
    )

    def build(text):
        (tmp_path / "index.md").write_text(text)
        command = ["sphinx", "-q", "-E", "-W", "-b", "html", str(tmp_path), str(tmp_path / "out")]
        return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)

    done = build(page)
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert html.count("<math") == 3  # a line may end after the relation
    assert "</math>.</span>" in html  # and not before its full stop
    assert '<math display="block">' in html
    assert html.count("(1)") == 2
    assert "$" not in html
    assert "mathjax" not in html.lower()
    done = build(page + r"And $\nothing x$.")
    assert done.returncode != 0
    assert r"\nothing is not known" in done.stderr


def test_every_make_target_that_is_named_exists():
    targets = set(
        re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for page, text in TEXT.items():
        named = re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, page


def source_of(file):
    """The text of a test: `tests/room/test_x.py`, or `test_x.py` in any room."""
    found = [ROOT / file] if "/" in file else list((ROOT / "tests").rglob(file))
    assert len(found) == 1, file
    assert found[0].exists(), file
    return found[0].read_text(encoding="utf-8")


def test_every_test_that_is_named_exists():
    """`test_x.py::test_y`; `::test_z` after it is of the same file."""
    named = 0
    for page, text in TEXT.items():
        source = ""
        for file, test in re.findall(r"`((?:tests/[\w/]*)?test_\w+\.py)?(?:::(\w+))?`", text):
            if file:
                source = source_of(file)
            if test:
                assert re.search(rf"^ *(def|class) {test}\b", source, re.MULTILINE), (
                    f"{page}: {test}"
                )
                named += 1
    assert named > 50


@pytest.mark.slow
def test_the_first_run_is_still_as_the_page_shows(tmp_path):
    """first-run.md: same commands, same exit codes, and the same sentences but for times, hashes
    and noise.
    """
    import make_first_run

    made, shown = make_first_run.page(tmp_path), make_first_run.PAGE.read_text(encoding="utf-8")
    for text in (made, shown):
        assert text.count("[exit code 2]") == 2
        assert text.count("[exit code 3]") == 1
        assert "[exit code 1]" not in text

    def essence(text):
        """The words of each line, without numbers, hashes and times."""
        text = re.sub(r"\b[0-9a-f]{8,64}\b|\d{4}-\d\d-\d\dT\S*|demo-\d{8}-\d{6}", "X", text)
        words = (re.findall(r"[^\W\d_]{2,}", line) for line in text.splitlines())
        return {" ".join(line) for line in words if line}

    lines = [line for line in shown.splitlines() if line.startswith("$ ")]
    assert [line for line in made.splitlines() if line.startswith("$ ")] == lines
    assert essence(made) ^ essence(shown) <= {"low", "high"}  # predictions, which noise decides


def test_the_report_that_the_tutorial_quotes_counts_the_centring_round():
    text = TEXT["docs/tutorial-data-scientist.md"]
    (rounds,) = re.findall(r"^Trained in (\d+) rounds", text, re.MULTILINE)
    (releases,) = re.findall(r"over all (\d+) releases of a node", text)
    assert int(releases) == int(rounds) + 1


# The runner itself: what it must carry out, and what it must not let pass.

SOUND = """
<!-- file: deep/x.toml -->
```toml
a = 1
```

```python
from pathlib import Path
a = Path("deep/x.toml").read_text()
```

1. In a list:

   ```python
   print(a, end="")
   print("b\\nc")
   ```

   <!-- prints -->
   ```text
   a = ...
   ...
   c
   ```

```console
$ cat > y.txt <<'EOF'
one $HOME
two
EOF
$ cat y.txt
one $HOME
two
$ printf '%s\\n' 1 2 \\
>   3
1
...
$ cat <<END
> x
> END
x
$ echo gone; exit 3
go...
[exit code 3]
$ sleep 600 &
$ python -c 'import dynadp, sys; print(sys.prefix)' | grep -c .
1
$ true   # shows nothing, so nothing is asked
```

<!-- not run: there is no such program -->
```console
$ no-such-program
```
"""
BROKEN = {
    "exit code 1": "```console\n$ false\n```\n",
    "exit code 127": "```console\n$ no-such-program | cat; no-such-program\n```\n",
    "exit code 0": "```console\n$ true\n[exit code 2]\n```\n",
    "printed\na": "```console\n$ echo a\nb\n```\n",
    "unbound": "```console\n$ echo $NO_SUCH_NAME\n```\n",
    "printed\n2": "```python\nprint(2)\n```\n<!-- prints -->\n```text\n3\n```\n",
    "no Python block": "<!-- prints -->\n```text\n3\n```\n",
    "outside of the page's folder": "<!-- file: ../x -->\n```text\n```\n",
    "which file": "<!-- file: -->\n```text\n```\n",
    "begins with a prompt": "```console\ndynadp --version\n```\n",
    "outside of a console block": "    $ dynadp --version\n",
    "but not a console block": "```text\n$ dynadp --version\n```\n",
    "is none of": "```bash\ndynadp --version\n```\n",
    "'' is none of": "```\ndynadp --version\n```\n",
    "would not be run": "```{code-block} python\n1 / 0\n```\n",
    "without an end": "```python\n",
}


def test_the_runner_carries_out_a_page(tmp_path):
    (folder := tmp_path / "page").mkdir()
    runner = Runner(folder)
    runner.run(SOUND)
    assert runner.printed == "a = 1\nb\nc\n"
    assert len(runner.groups) == 1  # the sleeping one, which was ended


@pytest.mark.parametrize("complaint", BROKEN)
def test_the_runner_refuses(complaint, tmp_path):
    (folder := tmp_path / "page").mkdir()
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        Runner(folder).run(BROKEN[complaint])


def test_a_python_block_fails_where_the_page_has_it(tmp_path):
    with pytest.raises(ZeroDivisionError) as failed:
        Runner(tmp_path).run("\n\n```python\na = 1\na / 0\n```\n")
    assert failed.traceback[-1].lineno + 1 == 5
    with pytest.raises(UserWarning, match="old"):
        Runner(tmp_path).run("```python\nimport warnings\nwarnings.warn('old')\n```\n")
    with pytest.raises(ValueError, match="line 1"):
        Runner(tmp_path).run("```toml\na = \n```\n")


def test_matching_is_by_lines():
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert matches("a\n...\nb\n", "a\nb\n")
    assert matches("x ... z", "x y y z   ")
    assert not matches("x ... z", "x y\ny z")
    assert not matches("a", "a\nb")
    assert not matches("a\nb", "a")
    assert [command.code for command in commands("$ a\n[exit code 4]\n$ b\n")] == [4, 0]
