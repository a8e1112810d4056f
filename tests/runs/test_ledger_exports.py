"""Signed exports of ledgers: what they prove, and what is found to be wrong with them."""

import base64
import json
import shutil
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from dynadp.cli import main
from dynadp.errors import DeclarationError, LedgerDamaged, RecordError
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.entries import START
from dynadp.privacy.ledger.exports import exported_entries, replayed
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.runs.authorities import make_authority, make_node
from dynadp.runs.exports import export_ledger, verify_export
from dynadp.runs.identities import signing_key

STAMP = {"who": "anna", "at": "2026-03-01T12:00:00+00:00"}


def event(n):
    return L2Laplace("north", n, "primal", 0.25, 1)


@pytest.fixture
def home(tmp_path):
    now = datetime.now(UTC)
    make_authority(tmp_path / "ca", "consortium", now)
    for name in ("north", "south"):
        make_node(tmp_path / "ca", name, ["localhost"], tmp_path / name, now, 10)
    with Ledger.create(tmp_path / "north.sqlite", "north", **STAMP) as ledger:
        ledger.set_cap(Cap.of(3.0, 1e-5), **STAMP)
        ledger.reserve("run 1", [event(1), event(2)], dataset="rows", **STAMP)
        ledger.spend("run 1", 1, [event(1)], b"a message of round 1", **STAMP)
    return tmp_path


@pytest.fixture
def exported(home):
    export_ledger(home / "north.sqlite", home / "north", home / "north.json")
    return home / "north.json"


def public(home, name="north"):
    from dynadp.runs.identities import public_text

    return public_text(signing_key(home / name / "sign.key").public_key())


def signed_again(home, path, change, name="north"):
    """A change by somebody who has a key: by the silo itself, or by another."""
    from dynadp.runs.signing import _signed

    content = json.loads(path.read_text())
    del content["signature"]
    key = signing_key(home / name / "sign.key")
    content["key"] = public(home, name)
    change(content)
    content["signature"] = base64.b64encode(key.sign(_signed(content))).decode()
    path.write_text(json.dumps(content))


def test_an_export_says_what_its_ledger_says(home, exported):
    with Ledger.open(home / "north.sqlite", read_only=True) as ledger:
        summary = LedgerSummary.of(ledger)
    found = verify_export(exported, key=public(home), head=summary.head)
    assert found.summary.to_json() == summary.to_json()
    assert (found.node, found.known) == ("north", True)
    assert not verify_export(exported).known


def test_it_holds_no_release(home, exported):
    text = exported.read_text()
    assert "a message" not in text
    assert base64.b64encode(b"a message of round 1").decode()[:20] not in text


def test_every_entry_is_replayed_by_the_rules(home):
    with Ledger.open(home / "north.sqlite", read_only=True) as ledger:
        entries = exported_entries(ledger)
    for i, entry in enumerate(entries):
        for name, value in entry.items():
            changed = {**entry, name: "other" if isinstance(value, str) else 7}
            with pytest.raises(LedgerDamaged):
                replayed([*entries[:i], changed, *entries[i + 1 :]])
        with pytest.raises(LedgerDamaged):
            replayed([*entries[:i], {**entry, "more": 1}, *entries[i + 1 :]])
    for i in range(len(entries) - 1):
        with pytest.raises(LedgerDamaged):
            replayed(entries[:i] + entries[i + 1 :])
    replayed(entries[:-1])  # a cut at the end does not show by itself
    with pytest.raises(LedgerDamaged, match="does not contain the head"):
        replayed(entries[:-1], entries[-1]["hash"])
    for nothing in ([], [1], [None]):
        with pytest.raises(LedgerDamaged):
            replayed(nothing)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(node="south"),
        lambda content: content.update(made="2020-01-01T00:00:00+00:00"),
        lambda content: content["entries"].pop(),
        lambda content: content["entries"][2].update(who="bob"),
        lambda content: content.update(signature="AAAA"),
        lambda content: content.update(signature="not base64!"),
        lambda content: content.update(signature=3),
        lambda content: content.update(key="ed25519:rubbish"),
        lambda content: content.update(entries={}),
        lambda content: content.pop("signature"),
        lambda content: content.update(more=1),
    ],
)
def test_a_change_after_the_signature_is_found(exported, change):
    content = json.loads(exported.read_text())
    change(content)
    exported.write_text(json.dumps(content))
    with pytest.raises(LedgerDamaged, match="the signature does not fit"):
        verify_export(exported)


def test_whoever_signs_cannot_invent_a_ledger_under_anothers_name(home, exported):
    signed_again(home, exported, lambda content: None, "south")
    assert verify_export(exported).key == public(home, "south")
    with pytest.raises(LedgerDamaged, match="somebody else made it"):
        verify_export(exported, key=public(home))


def test_a_silo_that_leaves_a_release_out_breaks_the_chain(home, exported):
    def drop(content):
        del content["entries"][2]

    signed_again(home, exported, drop)
    with pytest.raises(LedgerDamaged, match="some are missing"):
        verify_export(exported, key=public(home))


def test_a_silo_that_writes_its_past_anew_lacks_an_earlier_head(home, exported):
    """Chained and signed as it should be; only a head from before finds it."""
    with Ledger.open(home / "north.sqlite", read_only=True) as ledger:
        head = ledger.head
    other = home / "other"
    with Ledger.create(other, "north", **STAMP, anchored=False) as ledger:
        ledger.set_cap(Cap.of(3.0, 1e-5), **STAMP)
        entries = exported_entries(ledger)
    signed_again(home, exported, lambda content: content.update(entries=entries))
    assert verify_export(exported, key=public(home)).summary.length == 2
    with pytest.raises(LedgerDamaged, match="does not contain the head"):
        verify_export(exported, key=public(home), head=head)
    signed_again(home, exported, lambda content: content.update(node="south"))
    with pytest.raises(LedgerDamaged, match="the entries are of 'north', the file of 'south'"):
        verify_export(exported)


def test_only_the_nodes_own_identity_signs(home):
    with pytest.raises(DeclarationError, match=r"ledger of 'north', and .* identity of 'south'"):
        export_ledger(home / "north.sqlite", home / "south", home / "x.json")
    export_ledger(home / "north.sqlite", home / "north", home / "x.json")
    with pytest.raises(RecordError, match="nothing is overwritten"):
        export_ledger(home / "north.sqlite", home / "north", home / "x.json")


# --------------------------------------------------------------------------------------------------
# command line


def call(*words, code=0):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.output


def test_the_command_line(home):
    ledger, run_file = home / "north.sqlite", home / "run.toml"
    told = call("ledger", "export", ledger, "--identity", home / "north")
    assert "north.sqlite.export.json holds 4 entries, signed. Head " in told
    path, head = home / "north.sqlite.export.json", told.split("Head ")[1].strip()
    told = call("verify", path)
    assert "Sound: 4 entries of the ledger of north" in told
    assert "give --run RUN.toml or --key" in told
    assert "epsilon = 0.25 of its cap 3" in told
    told = call("verify", path, "--key", public(home), "--head", head)
    assert ", the key of north." in told
    nodes = "".join(
        f'[[nodes]]\nname = "{name}"\nkey = "{public(home, name)}"\nrows = 9\n'
        f'endpoint = "localhost:{port}"\n'
        for name, port in (("north", 7447), ("south", 7448))
    )
    run_file.write_text(
        f'[run]\nname = "a"\n[data]\nschema = "s.toml"\n{nodes}'
        "[privacy]\nepsilon = 1.0\ndelta = 1e-5\n"
    )
    assert ", the key of north." in call("verify", path, "--run", run_file)
    found = json.loads(call("verify", path, "--run", run_file, "--json"))
    assert (found["sound"], found["key_known"], found["ledger"]["head"]) == (True, True, head)
    told = call("verify", path, "--key", public(home, "south"), code=5)
    assert "NOT SOUND: " in told
    assert "not both" in call("verify", path, "--run", run_file, "--key", "x", code=2)
    assert "NOT SOUND" in call("verify", path, "--head", START, code=5)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": 3}', "rubbish", "[" * 20_000])
def test_files_that_are_not_signed_files(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    assert "is not a file of dynadp that names its format" in call(
        "verify", tmp_path / "x.json", code=2
    )


def test_files_of_another_format(tmp_path):
    (tmp_path / "x.json").write_text('{"format": "dynadp-model"}')
    told = call("verify", tmp_path / "x.json", code=2)
    assert (
        "is of format 'dynadp-model'; dynadp verify checks dynadp-approval, dynadp-certificate"
        in told
    )
    assert "cannot read" in call("verify", tmp_path / "none.json", code=2)


def test_a_damaged_ledger_is_not_signed(home):
    copy = home / "copy.sqlite"
    shutil.copy(home / "north.sqlite", copy)
    content = copy.read_bytes()
    copy.write_bytes(content.replace(b"run 1", b"run 2", 1))
    with pytest.raises(LedgerDamaged):
        export_ledger(copy, home / "north", home / "x.json")
    assert not (home / "x.json").exists()
