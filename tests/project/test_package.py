"""Trust in the package: requirements with hashes, a bill of materials, an image from nothing but
Debian.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "deploy" / "requirements.txt"
TEXT = REQUIREMENTS.read_text()


def pinned():
    """{name: versions} of the requirements."""
    found = {}
    for line in TEXT.splitlines():
        if (match := re.match(r"([a-z0-9-]+)==(\S+)", line)) is not None:
            found.setdefault(match[1], set()).add(match[2])
    return found


def test_requirements_are_hashes_without_addresses():
    assert not re.search(r"://|--index|--extra|--find|--trusted|(^|\n)-", TEXT)
    for block in re.split(r"\n(?=\S)", TEXT.strip()):
        first, *hashes = block.splitlines()
        assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+( ; .+)? \\", first), first
        assert hashes, first
        for line in hashes:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line


def asked():
    """What pyproject.toml asks for, for a node."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    everything = map(Requirement, [*project["dependencies"], *extras["network"], *extras["data"]])
    return [one for one in everything if one.name != "dynadp"]


def test_requirements_are_those_of_a_node():
    """Each package that pyproject.toml asks for is there, in a version that it admits."""
    found = pinned()
    for requirement in asked():
        versions = found[requirement.name]
        assert all(requirement.specifier.contains(one) for one in versions), requirement


def run(*words, **given):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **given)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment of the hashed requirements and the package, and nothing else."""
    home = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", home / "venv")
    pip = home / "venv" / "bin" / "python", "-m", "pip", "--quiet", "install"
    run(*pip, "--require-hashes", "--only-binary", ":all:", "-r", REQUIREMENTS)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", home / "dist", ROOT)
    (wheel,) = (home / "dist").glob("*.whl")
    run(*pip, "--no-deps", wheel)
    return home


@pytest.mark.slow
def test_hashed_requirements_install_and_are_enough(installed):
    binaries = installed / "venv" / "bin"
    assert run(binaries / "python", "-m", "pip", "check").startswith("No broken requirements")
    assert "dynadp, version" in run(binaries / "dynadp", "--version")
    command = binaries / "python", "-m", "pip", "list", "--not-required", "--format", "json"
    unneeded = {one["name"].replace("_", "-") for one in json.loads(run(*command))}
    needed = {one.name for one in asked()}  # those of an extra count as not required
    assert unneeded <= needed | {"dynadp", "pip", "setuptools"}
    run(binaries / "dynadp", "pki", "init", installed / "ca")
    run(binaries / "python", "-c", "import dynadp.engines.zenoh.links, dynadp.runs.silo, duckdb")


@pytest.mark.slow
def test_another_file_under_a_name_is_refused(installed, tmp_path):
    changed = re.sub(r"(click==[^\n]*\n(?:    --hash=.*\n)*)", spoiled, TEXT, count=1)
    assert changed != TEXT
    (tmp_path / "requirements.txt").write_text(changed)
    pip = [
        installed / "venv" / "bin" / "python",
        "-m",
        "pip",
        "download",
        "--no-deps",
        "-d",
        tmp_path,
    ]
    done = subprocess.run(
        [*map(str, pip), "--require-hashes", "-r", str(tmp_path / "requirements.txt")],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def spoiled(match):
    return re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", match[0])


@pytest.mark.slow
def test_the_bill_of_materials_names_all_that_is_installed(installed, tmp_path):
    pytest.importorskip("cyclonedx_py", reason="cyclonedx-bom is not here")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    python, out = installed / "venv" / "bin" / "python", tmp_path / "dynadp.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    command += ["--pyproject", ROOT / "pyproject.toml", "--output-file"]
    run(*command, out, python)
    text = out.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = {one["name"].lower().replace("_", "-") for one in json.loads(text)["components"]}
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
    there = {one["name"].lower().replace("_", "-") for one in listed}
    assert there - found <= {"dynadp"}  # which is what the bill is about
    assert "file://" not in text  # where it was installed from
    assert str(installed) not in text
    run(*command, tmp_path / "again.json", python)
    assert (tmp_path / "again.json").read_text() == text


# --------------------------------------------------------------------------------------------------
# images


def packed(root, out):
    """The hashes that scripts/oci.py records of an image."""
    run(sys.executable, ROOT / "scripts" / "oci.py", root, out, env={**os.environ, **EPOCH})
    return out.with_name(f"{out.name}.sha256").read_text()


EPOCH = {"SOURCE_DATE_EPOCH": "1790000000"}


def small_root(home):
    (home / "opt" / "dynadp").mkdir(parents=True)
    (home / "etc").mkdir()
    (home / "opt" / "dynadp" / "a").write_text("a")
    (home / "etc" / "b").symlink_to("../opt/dynadp/a")
    return home


def test_an_image_is_its_files_and_nothing_else(tmp_path):
    """Not the hour, nor the folder; and each of its blobs is what its name says."""
    one, other = small_root(tmp_path / "one"), small_root(tmp_path / "two")
    os.utime(other / "opt" / "dynadp" / "a", (1.8e9, 1.8e9))
    for home in (one, other):
        for path in home.rglob("*"):
            if not path.is_symlink() and path.name != "a":
                os.utime(path, (1.8e9, 1.8e9))
    os.utime(one / "opt" / "dynadp" / "a", (1.79e9 + 5, 1.79e9 + 5))
    first = packed(one, tmp_path / "image")
    assert first == packed(other, tmp_path / "image2")
    (other / "opt" / "dynadp" / "a").write_text("b")
    assert first != packed(other, tmp_path / "image3")
    blobs = list((tmp_path / "image" / "blobs" / "sha256").iterdir())
    assert len(blobs) == 3
    for blob in blobs:
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    index = json.loads((tmp_path / "image" / "index.json").read_text())
    assert index["manifests"][0]["digest"].removeprefix("sha256:") in first
    if shutil.which("skopeo"):
        shown = json.loads(run("skopeo", "inspect", f"oci:{tmp_path / 'image'}:latest"))
        assert shown["Os"] == "linux"


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    if os.geteuid() or not shutil.which("debootstrap") or not shutil.which("apt-get"):
        pytest.skip("an image of Debian needs root and debootstrap")
    home = tmp_path_factory.mktemp("image")
    tree = home / "tree"
    shutil.copytree(ROOT / "deploy", tree / "deploy")
    shutil.copytree(ROOT / "scripts", tree / "scripts")
    wheel = sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tree / "dist", ROOT
    run(*wheel)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {**os.environ, **EPOCH, "PATH": path, "SUITE": "bookworm"}
    run(tree / "scripts" / "image.sh", home / "image", env=given)
    yield home / "image"
    shutil.rmtree(home, ignore_errors=True)


def unpacked(image, root):
    """Unpack an image's files; return the hash of its manifest."""
    (manifest,) = json.loads((image / "index.json").read_text())["manifests"]
    name = manifest["digest"].removeprefix("sha256:")
    blobs = image / "blobs" / "sha256"
    (layer,) = json.loads((blobs / name).read_text())["layers"]
    with tarfile.open(blobs / layer["digest"].removeprefix("sha256:")) as tar:
        tar.extractall(root, filter="fully_trusted")
    return name


@pytest.mark.slow
def test_the_image_of_debian_runs_and_names_no_machine(image, tmp_path):
    recorded = image.with_name("image.sha256").read_text()
    root = tmp_path / "root"
    assert recorded.startswith(unpacked(image, root))
    told = run(
        "unshare",
        "--net",
        "chroot",
        "--userspec=dynadp:dynadp",
        root,
        "/opt/dynadp/bin/dynadp",
        "--version",
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "LANG": "C.UTF-8"},
    )
    assert "dynadp, version" in told
    assert (root / "etc" / "hostname").read_text() == "localhost\n"
    assert (root / "etc" / "resolv.conf").read_text() == ""
    assert (
        (root / "etc" / "apt" / "sources.list").read_text().startswith("deb http://deb.debian.org/")
    )
    assert not list((root / "var" / "log").iterdir())
    assert not (root / "opt" / "dynadp" / "bin" / "pip").exists()
    packages = image.with_name("image.packages").read_text()
    assert re.search(r"^python3\t\S+$", packages, re.MULTILINE)
    found = root.glob("opt/dynadp/lib/*/site-packages/*.dist-info")
    there = {path.name.split("-")[0].lower() for path in found}
    bill = json.loads(image.with_name("image.cdx.json").read_text())["components"]
    assert {one["name"].lower().replace("-", "_") for one in bill} == there >= {"dynadp", "numpy"}
    shutil.rmtree(root)


def test_the_container_file_takes_hashes_and_runs_as_nobody_else():
    """What it copies is there, and what it does is what the guide does."""
    text = (ROOT / "deploy" / "Containerfile").read_text()
    assert "--require-hashes" in text
    assert re.search(r"^ARG BASE=python:3\.\d+-slim$", text, re.MULTILINE)
    assert text.index("\nUSER dynadp") < text.index("\nENTRYPOINT")
    for name in re.search(r"^COPY (.*) /src/$", text, re.MULTILINE)[1].split():
        assert (ROOT / name).exists() or name == "dist/*.whl"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("buildah"), reason="no buildah is here")
def test_the_container_file_builds(image, tmp_path):
    """Offline, on a base of Debian with a Python of its own, from the wheels with these hashes."""
    base, context, wheels = tmp_path / "base", tmp_path / "context", tmp_path / "wheels"
    unpacked(image, base)
    for words in ("userdel dynadp", "rm -rf /opt/dynadp", "python3 -m venv /usr/local"):
        run("chroot", base, *words.split(), env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    shutil.copytree(ROOT / "deploy", context / "deploy")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", context / "dist", ROOT)
    run(sys.executable, ROOT / "scripts" / "wheels.py", "3.11", wheels)
    offline = tmp_path / "pip.conf"
    offline.write_text("[global]\nno-index = true\nfind-links = /wheels\n")

    def buildah(*words):
        store = "--root", tmp_path / "store", "--runroot", tmp_path / "runroot"
        given = os.environ | {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
        return run("buildah", *store, *words, env=given).strip()

    scratch = buildah("from", "scratch")
    buildah("add", "--quiet", scratch, base, "/")
    path = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    buildah("config", "--env", path, scratch)
    buildah("commit", "--quiet", scratch, "base")
    beside = "-v", f"{wheels}:/wheels:ro", "-v", f"{offline}:/etc/pip.conf:ro"
    base_is = "--pull-never", "--build-arg", "BASE=localhost/base"
    file = "-f", context / "deploy" / "Containerfile"
    buildah("build", *base_is, *beside, *file, "-t", "dynadp", context)
    made = buildah("from", "--pull-never", "localhost/dynadp")
    assert "dynadp, version" in buildah("run", made, "--", "dynadp", "--version")
    assert buildah("run", made, "--", "id", "-un") == "dynadp"
    shutil.rmtree(tmp_path, ignore_errors=True)
