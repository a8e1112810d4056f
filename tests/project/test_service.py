"""A node as a service: the unit's confinement, and the guide typed as root in a new machine that
systemd boots, with nothing in it but Debian.
"""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from dynadp.cli import codes
from dynadp.runs.model import load_model
from support.deployment import write_rows
from support.networks import DYNADP, ports, until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
UNIT = ROOT / "deploy" / "dynadp-node@.service"
RELAY = ROOT / "deploy" / "dynadp-relay.service"
MIRROR = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
PACKAGES = "python3,python3-venv,systemd,systemd-sysv,dbus"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
@pytest.mark.parametrize("unit", [UNIT, RELAY], ids=["node", "relay"])
def test_a_unit_is_confined(tmp_path, unit):
    unit = shutil.copy(unit, tmp_path / unit.name.replace("@", "@north"))
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", shown)
    assert level, shown
    assert float(level[1]) <= 1.5, shown


def test_the_unit_writes_where_it_may_and_nowhere_else():
    """Every folder that the guide has a node write to is one that the unit and tmpfiles open."""
    unit = UNIT.read_text()
    assert "ProtectSystem=strict" in unit
    assert "ReadWritePaths" not in unit
    assert re.findall(r"^StateDirectory=(.*)$", unit, re.MULTILINE) == ["dynadp"]
    folders = (ROOT / "deploy" / "tmpfiles.d" / "dynadp.conf").read_text()
    made = re.findall(r"^d (\S+) (\S+) (\S+) (\S+)$", folders, re.MULTILINE)
    assert ("/var/lib/dynadp", "0700", "dynadp", "dynadp") in made
    assert ("/etc/dynadp", "0750", "root", "dynadp") in made
    node_file = next(text for text in fenced("toml") if 'file = "/srv' in text)
    for name in ("ledger", "out"):
        assert re.search(rf'^{name} = "/var/lib/dynadp/', node_file, re.MULTILINE)
    assert "XDG_STATE_HOME=/var/lib/dynadp/state" in unit


def test_the_unit_starts_again_what_may_pass_and_nothing_else():
    """A neighbour that is away and a full disk pass; what the table of exit codes leaves to a
    person stays down.
    """
    table = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    passing = {int(code) for code, words in table if "start" in words and "again" in words}
    assert passing == {codes.LOST, codes.LATER, 143}
    text = UNIT.read_text()
    (left,) = re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
    assert set(map(int, left.split())) == {int(code) for code, _ in table} - passing - {0}
    assert "\nRestart=on-failure\n" in text
    assert "\nSuccessExitStatus=143\n" in text


def confinement(unit):
    """What a unit takes away from its process."""
    _, _, rest = unit.read_text().partition("\nUMask=")
    return rest.partition("\n[Install]")[0]


def test_a_relay_is_confined_as_a_node_is_and_writes_nothing():
    assert "ProtectSystem=strict" in confinement(RELAY)
    assert confinement(RELAY) == confinement(UNIT)
    assert "\nLimitCORE=0\n" in confinement(UNIT)  # what the watchdog ends leaves no rows behind
    assert not re.search(r"^(StateDirectory|ReadWritePaths)=", RELAY.read_text(), re.MULTILINE)


@pytest.mark.slow
def test_the_relays_unit_starts_a_relay(tmp_path):
    """Its command, with this program, these ports and this folder; the folder stays as it was."""
    for words in (["init", "ca"], ["node", "ca", "relay", "--host", "127.0.0.1"]):
        subprocess.run([DYNADP, "pki", *words], cwd=tmp_path, check=True, capture_output=True)
    before = sorted(tmp_path.rglob("*"))
    letters, health = ports(2)
    (command,) = re.findall(r"^ExecStart=(.*)$", RELAY.read_text(), re.MULTILINE)
    here = {
        "/opt/dynadp/bin/dynadp": str(DYNADP),
        "/etc/dynadp/identities/relay": "relay",
        "0.0.0.0:7447": f"127.0.0.1:{letters}",
        "127.0.0.1:9465": f"127.0.0.1:{health}",
    }
    words = command.split()
    assert set(here) <= set(words)
    process = subprocess.Popen(
        [here.get(word, word) for word in words],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def well():
        with suppress(OSError), urlopen(f"http://127.0.0.1:{health}/healthz", timeout=20) as reply:
            return reply.status == 200
        return process.poll() is not None

    try:
        until(well, "the relay to listen")
    finally:
        process.terminate()
    assert process.wait(60) == 0
    assert sorted(tmp_path.rglob("*")) == before


def fenced(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def as_another(text):
    """What is said of north, said of south."""
    return text.replace("north", "south").replace(":9464", ":9466")


ASK = """\
/opt/dynadp/bin/python -c "from urllib.request import urlopen; \
print(urlopen('http://127.0.0.1:{port}/{path}').read().decode())\""""


def guide():
    """The page's commands, in its order, as one script for a machine."""
    typed = r"<!-- typed as root by test_service\.py -->\n```text\n(.*?)```"
    install, place, relay = re.findall(typed, PAGE, re.DOTALL)
    run_file, _, *_ = fenced("toml")
    service = next(text for text in fenced("toml") if 'file = "/srv' in text)
    commands = [
        line.removeprefix("$ ")
        for block in fenced("console")
        for line in block.splitlines()
        if line.startswith("$ dynadp pki")
    ]
    asked = [f"{line} | tee -a shown" if " request " in line else line for line in commands]
    *steps, status = place.strip().splitlines()
    assert "dynadp status" in status
    lines = [
        "set -euxo pipefail",
        "export PATH=/opt/dynadp/bin:$PATH",
        "cd /src",
        install,
        *asked,
        f"cat >run.toml <<'END'\n{run_file}END",
        "for key in $(grep -o 'ed25519:.*[^\"]' shown); do",
        '  sed -i "0,/ed25519:\\.\\.\\./s|ed25519:\\.\\.\\.|$key|" run.toml',
        "done",
        f"cat >north.toml <<'END'\n{service}END",
        f"cat >south.toml <<'END'\n{as_another(service)}END",
        *steps,
        f"{ASK.format(port=9464, path='metrics')} >metrics",  # while it waits for south
        *map(as_another, steps),
        "for name in north south; do",
        "  for second in $(seq 240); do",
        "    [ -e /var/lib/dynadp/$name-run/model.json ] && break",
        "    sleep 1",
        "  done",
        "  while systemctl is-active dynadp-node@$name; do sleep 1; done",
        "  systemctl show -p Result -p ExecMainStatus -p ExecMainPID dynadp-node@$name >>result",
        "done",
        f"{{ {status}\n{as_another(status)}\n}} >status",
        "ls -lanR /var/lib/dynadp /etc/dynadp >listing",
        "systemd-analyze security --no-pager dynadp-node@north >security",
        "cp -r /var/lib/dynadp written",
        "dynadp pki node authority relay --host relay.example.org",
        relay,
        "for second in $(seq 60); do",
        f"  {ASK.format(port=9465, path='healthz')} >relayed && break",
        "  sleep 1",
        "done",
        "systemctl stop dynadp-relay",
        "systemctl show -p Result -p ExecMainStatus dynadp-relay >>result",
        "touch done",
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A new Debian with systemd, and the package's files on it; its network is a loopback."""
    tools = ("debootstrap", "systemd-nspawn", "apt-get")
    if os.geteuid() or not all(map(shutil.which, tools)):
        pytest.skip("a machine in a folder needs root, debootstrap and systemd-nspawn")
    home = tmp_path_factory.mktemp("machine")
    found = subprocess.run(
        [*MIRROR, "Origin: Debian", "Label: Debian"], capture_output=True, text=True
    )
    mirror = next(iter(found.stdout.splitlines()), "http://deb.debian.org/debian").rstrip("/")
    root = home / "root"
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={PACKAGES}",
        "bookworm",
        root,
        mirror,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    wheels = [sys.executable, ROOT / "scripts" / "wheels.py", "3.11", root / "wheels"]
    subprocess.run(list(map(str, wheels)), check=True)
    (root / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    source = root / "src"
    (source / "dist").mkdir(parents=True)
    shutil.copytree(ROOT / "deploy", source / "deploy")
    wheel = [
        "python3",
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        source / "dist",
        ROOT,
    ]
    subprocess.run(list(map(str, wheel)), check=True)
    yield root
    shutil.rmtree(root, ignore_errors=True)


SERVICE = """\
[Unit]
After=basic.target
SuccessAction=poweroff
FailureAction=poweroff
[Service]
Type=oneshot
ExecStart=/bin/bash /src/guide.sh
StandardOutput=file:/src/log
StandardError=file:/src/log
"""


@pytest.mark.slow
def test_the_guide_makes_a_service_of_two_nodes(machine):
    """Typed from nothing: user, folders, unit, paths; each node ends with the model as its user,
    and a relay is well.
    """
    source = machine / "src"
    write_rows(source)
    (source / "guide.sh").write_text(guide())
    units = machine / "etc" / "systemd" / "system"
    (units / "guide.service").write_text(SERVICE)
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants" / "guide.service").symlink_to("../guide.service")
    boot = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"]
    subprocess.run(
        [*boot, "--directory", str(machine), "--boot"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=900,
    )
    log = (source / "log").read_text(errors="replace")
    assert (source / "done").exists(), log[-4000:]
    result = (source / "result").read_text()
    assert result.count("Result=success") == 3, result
    assert result.count("ExecMainStatus=0") == 3, result
    metrics = (source / "metrics").read_text()
    for number in ("dynadp_rounds", "process_resident_memory_bytes", "process_open_fds"):
        assert re.search(rf"^{number} [1-9]", metrics, re.MULTILINE), metrics
    assert '"healthy": true' in (source / "relayed").read_text()
    assert (source / "status").read_text().count("round 20 of 20") == 2
    written = source / "written"
    models = [load_model(written / f"{name}-run") for name in ("north", "south")]
    assert (models[0].coef == models[1].coef).all()
    assert models[0].privacy["protected"]
    for name in ("north", "south"):
        assert list((written / "state" / "dynadp" / "anchors").glob("*")), "no anchor"
        assert not re.search(
            r"level=|Traceback", (written / f"{name}-run" / "node.log").read_text()
        )
    user = re.search(r"^dynadp:x:(\d+):", (machine / "etc" / "passwd").read_text(), re.MULTILINE)
    state = machine / "var" / "lib" / "dynadp"
    assert state.stat().st_mode & 0o777 == 0o700
    for path in (state, *state.rglob("*")):
        assert path.stat().st_uid == int(user[1]), path
