"""The files that deploy/requirements.txt names, for a Python that need not be here.

``python3 scripts/wheels.py VERSION FOLDER``: pip asks the index that this machine is set up for,
and believes no file without its hash. pip looks at conditions such as ``python_full_version <
'3.12'`` for the Python that runs it, so they are decided here.
"""

import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pip._vendor.packaging.markers import Marker

REQUIREMENTS = Path(__file__).parents[1] / "deploy" / "requirements.txt"


def chosen(text: str, version: str) -> str:
    """Return the requirements for one version of Python, without conditions."""
    here = {"python_full_version": f"{version}.0", "python_version": version}
    kept = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        first, _, hashes = block.partition("\n")
        name, _, condition = first.rstrip(" \\").partition(" ; ")
        if not condition or Marker(condition).evaluate(here):
            kept.append(f"{name} \\\n{hashes}")
    return "\n".join(kept) + "\n"


def main(version: str, folder: str) -> int:
    """Download them."""
    machine = platform.machine()
    tags = ["2014", *(f"_2_{n}" for n in (17, 24, 27, 28, 34))]
    options = [word for tag in tags for word in ("--platform", f"manylinux{tag}_{machine}")]
    for abi in (f"cp{version.replace('.', '')}", "abi3", "none"):
        options += ["--abi", abi]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(chosen(REQUIREMENTS.read_text(), version))
        file.flush()
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--implementation", "cp"]
        pip += ["--python-version", version, "--requirement", file.name, "--dest", folder]
        return subprocess.run([*pip, *options]).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
