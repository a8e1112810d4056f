"""The site: ``make docs`` builds it from these pages, files at the root and docstrings, without a
network.
"""

import inspect
import os
import pkgutil
import re
import sys
from importlib import import_module, metadata
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent))
from file_reference import node_file, run_file, schema

import dynadp
from dynadp.cli import main

DOCS = Path(__file__).parent
ROOT = DOCS.parent
AT_ROOT = {
    "README": "index",
    "CHANGELOG": "changelog",
    "CONTRIBUTING": "contributing",
    "SECURITY": "security",
}

project = "dynadp"
release = metadata.version("dynadp")
language = "en"
smartquotes = False  # L'' has two primes
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_click",
    "sphinx_copybutton",
    "mathml",
]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", "NoneType|FieldInfo"),  # of pydantic's, as signatures show them
    (
        "py:(class|data|obj)",
        r"(?!dynadp\.)\w+\..*",
    ),  # types of other packages: nothing is fetched, so nothing can be linked
    (
        "py:class",
        r"dynadp\.(research\.audit\.verdict\.Data|runs\.fields\.Model|problem\.threads\.T|data\.contributions\._Cells|privacy\.events\._Kind)",
    ),  # type variables
]

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_space = False  # as code hosts read dollars
myst_update_mathjax = False
html_math_renderer = "mathml"
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
numpydoc_show_class_members = False
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "EOF"

html_theme = "furo"
html_title = f"dynadp {release}"
html_copy_source = False
html_use_index = html_domain_indices = False  # there is a search
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]


def site_links(text: str, folder: Path) -> str:
    """Links as a code host follows them, in a file in ``folder``, as links of the site.

    A file at the root that is a page here becomes that page, a folder becomes text, any other file
    a download.
    """

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found.groups()
        path = (folder / target).resolve()
        if not target or re.match(r"\w+:", target) or not path.exists():
            return found[0]  # what leads nowhere is left to the build, which refuses it
        if path.is_dir():
            return words[1:-1]
        if path.suffix == ".md" and words[1:-1] in (target, path.name):
            words = "[]"  # its title, which a code host would not show
        if path.parent == ROOT and path.stem in AT_ROOT:
            path = DOCS / f"{AT_ROOT[path.stem]}.md"
        return f"{words}({os.path.relpath(path, DOCS)}{anchor or ''})"

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [
        re.sub(r"(\[[^][]*\])\(([^)#\s]*)(#[^)\s]*)?\)", link, part) for part in parts[::2]
    ]
    return "".join(parts)


def write_generated(app):
    """A page for every module, a table of them, one of environment variables, and those of files,
    in ``docs/generated``.
    """
    (folder := DOCS / "generated").mkdir(exist_ok=True)
    found = pkgutil.walk_packages(dynadp.__path__, "dynadp.")
    names = sorted(
        module.name for module in found if not re.search(r"\.cli\b|__main__", module.name)
    )
    pages = {f"{name}.md": f"# {name}\n\n{module_page(name)}" for name in names}
    pages |= {"modules.txt": table(names), "variables.txt": variables(main)}
    files = {"run-file": run_file, "node-file": node_file, "schema": schema}
    pages |= {f"{name}.txt": made() for name, made in files.items()}
    for old in folder.iterdir():
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text:
            (folder / name).write_text(text, encoding="utf-8")


def variables(commands):
    """Which environment variable stands for which option of which commands."""
    found, context = {}, click.Context(commands)
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        for option in command.params:
            if option.envvar:
                found.setdefault((option.envvar, option.opts[0]), []).append(f"`{command.name}`")
    rows = [
        f"| `{variable}` | `{option}` of {', '.join(names)} |\n"
        for (variable, option), names in sorted(found.items())
    ]
    return "| variable | instead of |\n|---|---|\n" + "".join(rows)


def table(names):
    """Names with their first sentences."""
    listed = "".join(f"   {name}\n" for name in names)
    return f"```{{eval-rst}}\n.. py:currentmodule:: None\n\n.. autosummary::\n   :nosignatures:\n\n{listed}```\n"


def module_page(name):
    """What a module says of itself and of what it defines; what it offers from elsewhere, as links."""
    module = import_module(name)
    homes = [home(getattr(module, public)) for public in getattr(module, "__all__", ())]
    elsewhere = [f"~{there}" for there in homes if there and there.rpartition(".")[0] != name]
    own = f"```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n   :ignore-module-all:\n```\n"
    return own + ("\n" + table(elsewhere) if elsewhere else "")


def home(thing):
    """Where a class or function of dynadp is defined."""
    module, name = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", None)
    return f"{module}.{name}" if name and module.startswith("dynadp.") else None


def find_home(app, env, node, content):
    """A name that its module imports: the place where it is defined."""
    place, _, name = node["reftarget"].rpartition(".")
    for module in (place, node.get("py:module"), node["refdoc"].removeprefix("generated/")):
        there = home(getattr(sys.modules.get(module), name, None))
        if there and there != node["reftarget"]:
            return env.get_domain("py").resolve_xref(
                env, node["refdoc"], app.builder, "obj", there, node, content
            )
    return None


def shorter_signatures(app, what, name, thing, options, signature, returns):
    """Arrays by the name that people use; sections of files by the names of their fields."""
    if what == "class" and hasattr(thing, "model_fields"):
        fields = [
            field.replace(annotation=field.empty)
            for field in inspect.signature(thing).parameters.values()
        ]
        return str(inspect.Signature(fields)), None
    array = r"~numpy\.ndarray\[tuple\[[^][]*\], ~numpy\.dtype\[[^][]*\]\]"
    texts = (
        text and re.sub(array, "~numpy.ndarray", re.sub(r"= <[^<>]*>", "= ...", text))
        for text in (signature, returns)
    )
    return tuple(texts)


def skip_others(app, what, name, thing, skip, options):
    """What other packages bring in."""
    others = (getattr(thing, "__module__", None) or "").startswith("sklearn") or inspect.isbuiltin(
        thing
    )
    return True if others or name == "model_config" else None


def setup(app):
    """The steps above."""
    app.connect("autodoc-process-signature", shorter_signatures)
    app.connect("autodoc-skip-member", skip_others)
    app.connect("missing-reference", find_home)
    app.connect("builder-inited", write_generated)
    app.connect(
        "source-read", lambda app, name, text: text.__setitem__(0, site_links(text[0], DOCS))
    )
    app.connect(
        "include-read", lambda app, path, name, text: text.__setitem__(0, site_links(text[0], ROOT))
    )
