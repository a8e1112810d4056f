"""Certificates of runs: what they say, who signed, and one page."""

import json
import re
import shutil
from datetime import UTC, datetime

import pytest

from dynadp.errors import DeclarationError, LedgerDamaged, RecordError
from dynadp.privacy import LedgerSummary
from dynadp.privacy.ledger.file import Ledger
from dynadp.report.certificate import certificate, verify_certificate, write_certificate
from dynadp.report.certificate_page import BOTTOM, TALL, svg
from dynadp.report.page import report
from dynadp.runs.authorities import make_authority, make_node
from dynadp.runs.folder import load_run
from dynadp.runs.identities import public_text, signing_key
from support.typed import dynadp


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Identities of a node of the run, and of a stranger."""
    home, now = tmp_path_factory.mktemp("keys"), datetime.now(UTC)
    make_authority(home / "ca", "consortium", now)
    for name in ("north", "stranger"):
        make_node(home / "ca", name, ["localhost"], home / name, now, 10)
    return home


def words(page):
    """The text of a page, line by line."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", page)


def test_it_says_what_report_record_and_ledgers_say(private):
    said, record = certificate(private), load_run(private)
    assert (said["run"]["id"], said["protected"]) == (record.run_id, True)
    assert said["guarantee"] in report(private)
    assert said["epsilon"] == pytest.approx(record.planned.total["epsilon"])
    assert said["hashes"]["configuration"] == record.config_hash
    assert said["declared"]["norm"] == record.declared_schema.norm
    assert [one["name"] for one in said["declared"]["columns"]] == [
        "age",
        "schooling",
        "hours",
        "sex",
    ]
    assert set(said["ledgers"]) == set(record.rows)
    for node, found in said["ledgers"].items():
        with Ledger.open(private.parents[1] / f"{node}.sqlite", read_only=True) as ledger:
            summary = LedgerSummary.of(ledger)
        assert (found["head"], found["lost"]) == (summary.head, summary.lost)
    page = " ".join(words(svg(said)))
    for part in (
        "age from 17 to 90",
        "sex (female, male)",
        "What is predicted: income (low, high).",
        "Who must be honest",
        "Nobody but the node that holds the row.",
        "Nobody signed",
        said["ledgers"]["west"]["head"],
    ):
        assert part in page


@pytest.mark.parametrize(
    ("answer", "declared", "words_of_it"),
    [
        ("label", {"name": "stage", "values": ["I", "II", "III"]}, "stage (I, II, III)"),
        ("label", {"name": "code", "values": list(range(100))}, "code, 100 values"),
        ("target", {"name": "pay", "low": 0.0, "high": 100.0}, "pay from 0 to 100"),
    ],
)
def test_what_is_predicted_is_declared(private, answer, declared, words_of_it):
    said = certificate(private)
    del said["declared"]["label"]
    said["declared"][answer] = declared
    assert f"What is predicted: {words_of_it}." in " ".join(words(svg(said)))


def test_sealed_runs_say_who_must_be_honest(sealed):
    said = certificate(sealed)
    assert (said["honest"]["honest"], said["honest"]["members"]) == (2, 3)
    page = " ".join(words(svg(said)))
    assert "2 of the 3 nodes must be honest" in page
    assert "If more collude, epsilon is" in page
    assert "Nobody but the node" not in page


def test_a_run_that_lost_members_says_whose_model_it_is(private, tmp_path):
    assert certificate(private)["members"] == ""
    folder = tmp_path / "run"
    shutil.copytree(private, folder)
    model = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**model, "members": ["north", "west"]}))
    said = certificate(folder)
    assert said["members"].startswith("The model is of north, west, who were there in the end")
    assert "The model is of north, west" in " ".join(words(svg(said)))


def test_a_simulation_says_that_it_protects_nobody(seeded):
    said = certificate(seeded)
    assert (said["protected"], said["simulation"]) == (False, True)
    assert said["ledgers_not_read"] == ["north", "south", "west"]
    assert "SIMULATION: this run protects nobody." in " ".join(words(svg(said)))


def test_a_silo_signs_and_whoever_changes_it_is_found(private, keys, tmp_path):
    file = tmp_path / "certificate.json"
    made = dynadp("certify", private, "--out", file, "--identity", keys / "north")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "certificate.pdf").read_bytes().startswith(b"%PDF")
    key = public_text(signing_key(keys / "north" / "sign.key").public_key())
    checked = verify_certificate(file, key)
    assert (checked.signer, checked.key, checked.known) == ("north", key, True)
    answer = dynadp("verify", file, "--key", key)
    assert answer.exit_code == 0
    assert f"Sound: signed with {key}, the key of north." in answer.output
    assert "Whose key that is, this file cannot say" in dynadp("verify", file).output

    content = json.loads(file.read_text())
    content["guarantee"] = content["guarantee"].replace("epsilon = ", "epsilon = 0.")
    file.write_text(json.dumps(content))
    changed = dynadp("verify", file)
    assert changed.exit_code == 5
    assert "the signature does not fit" in changed.output
    other = public_text(signing_key(keys / "stranger" / "sign.key").public_key())
    write_certificate(private, tmp_path / "again.json", keys / "north")
    with pytest.raises(LedgerDamaged, match="and the node's key is"):
        verify_certificate(tmp_path / "again.json", other)


def test_nobody_signs_for_a_run_that_it_took_no_part_in(private, keys, tmp_path):
    with pytest.raises(DeclarationError, match="'stranger', which is no node of this run"):
        write_certificate(private, tmp_path / "c.json", keys / "stranger")
    assert not list(tmp_path.iterdir())


def test_without_a_signature_it_is_not_sound(private, tmp_path):
    result = dynadp("certify", private, "--out", tmp_path / "c.json")
    assert "Nobody signed it" in result.output
    answer = dynadp("verify", tmp_path / "c.json", "--json")
    assert answer.exit_code == 5
    assert json.loads(answer.stdout)["problems"] == ["nobody signed it"]


def test_nothing_is_overwritten_and_a_wrong_place_is_refused(private, tmp_path):
    (tmp_path / "c.pdf").write_text("kept")
    with pytest.raises(RecordError, match="exists"):
        write_certificate(private, tmp_path / "c.json")
    assert [one.name for one in tmp_path.iterdir()] == ["c.pdf"]
    with pytest.raises(DeclarationError, match="expected a file for JSON"):
        write_certificate(private, tmp_path / "absent" / "d.json")
    with pytest.raises(DeclarationError, match="expected a file for JSON"):
        write_certificate(private, tmp_path / "d.pdf")


def test_a_file_that_lacks_something_is_no_certificate(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"format": "dynadp-certificate", "version": 1, "run": {"name": "x"}}')
    result = dynadp("verify", file)
    assert result.exit_code == 2
    assert "lacks what a certificate says (began, guarantee, hashes, ledgers)" in result.output


@pytest.mark.parametrize(("nodes", "columns"), [(1, 1), (40, 200), (1000, 5000)])
def test_it_is_one_page_whatever_it_says(private, nodes, columns):
    said = certificate(private)
    ledger = next(iter(said["ledgers"].values()))
    names = [f"hospital number {p} of the region" for p in range(nodes)]
    said["declared"]["rows"] = dict.fromkeys(names, 123_456)
    said["declared"]["columns"] = [
        {"kind": "numeric", "name": f"a long column name {i}", "low": 0, "high": 1}
        for i in range(columns)
    ]
    said["ledgers"] = dict.fromkeys(names, ledger)
    said["hashes"]["models"] = dict.fromkeys(names, "f" * 64)
    page = svg(said)
    assert max(float(y) for y in re.findall(r' y="([\d.]+)"', page)) <= TALL - BOTTOM
    more = " ".join(words(page))
    assert ("more ledgers, in the JSON file" in more) is (nodes > 14)


def test_names_cannot_break_the_page(private):
    said = certificate(private)
    said["run"]["name"] = '<script>"&'
    assert "&lt;script&gt;&quot;&amp;" in svg(said)
