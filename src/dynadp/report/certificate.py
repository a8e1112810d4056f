"""A certificate of one run: what it promises, to whom, and what that rests on, as JSON that a silo
may sign, and as one page of PDF.

Everything in it is public: declarations, hashes, what ledgers say. No row and no released vector.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

from dynadp._files import read_file, write_whole
from dynadp.data import Schema
from dynadp.engines import now
from dynadp.errors import DeclarationError, RecordError
from dynadp.privacy import Unit, collusion_words
from dynadp.report.budgets import BudgetView, ledger_files, planned_cost, read_budgets, worst
from dynadp.report.certificate_page import pdf
from dynadp.report.honesty import ASSUMED, DECLARED, Honesty
from dynadp.report.page import guarantee, member_words
from dynadp.report.record_view import RunView
from dynadp.runs import check_signature, owner, sign

FORMAT, VERSION = "dynadp-certificate", 1
NOT_COVERED = (
    "How long computations take is not covered. Nor is what else was released about the same rows, "
    "outside of dynadp. Bounds, numbers of rows and who is honest were declared by people."
)


@dataclass(frozen=True)
class CheckedCertificate:
    """A certificate that was read, and whose signature fits if it has one.

    Attributes
    ----------
    content
        What it says.
    key
        The key that signed it; None where nobody did.
    known
        Whether that key was expected.
    """

    content: Mapping[str, Any]
    key: str | None
    known: bool

    @property
    def signer(self) -> str | None:
        """The node that it says has signed."""
        return None if self.key is None else str(self.content["signer"])


def certificate(path: str | Path) -> dict[str, Any]:
    """Return what a run folder's certificate says, unsigned."""
    view = RunView.read(path)
    events, total = planned_cost(view)
    sentence, _ = guarantee(view, total)
    plan = view.plan
    budgets = read_budgets(view, ledger_files(view))
    honesty = None
    if events and plan:
        honesty = Honesty.of(worst(events, plan.delta)[1], plan.delta)
    record = view.record
    return {
        "format": FORMAT,
        "version": VERSION,
        "made": now(),
        "software": f"dynadp {version('dynadp')}",
        "run": {
            "name": view.name,
            "id": record.run_id,
            "began": record.created,
            "finished": view.finished,
            "kind": view.kind,
            "rows": record.source,
        },
        "protected": plan is not None and not view.simulation,
        "simulation": view.simulation,
        "guarantee": sentence,
        "epsilon": None if total is None else total.epsilon,
        "delta": None if plan is None else plan.delta,
        "unit": None if plan is None else _unit(plan.unit),
        "mechanism": None if plan is None else plan.mechanism,
        "releases": None if total is None else total.releases,
        "honest": None if honesty is None else _honest(honesty),
        "members": member_words(view),
        "declared": _declared(record.declared_schema, view.rows),
        "ledgers": {node: _ledger(found) for node, found in budgets.items()},
        "ledgers_not_read": [p for p in view.topology.nodes if p not in budgets],
        "hashes": {
            "configuration": record.config_hash,
            "schema": record.schema_hash,
            "models": {home.name: _hash(home / "model.json") for home in view.homes},
        },
        "not_covered": NOT_COVERED,
    }


def write_certificate(
    path: str | Path, out: str | Path, identity: str | Path | None = None
) -> tuple[Path, Path]:
    """Write a run's certificate as JSON and as PDF.

    Parameters
    ----------
    path
        The run folder.
    out
        The file of JSON; the PDF lies beside it under the same name. Neither may exist.
    identity
        The folder of the keys of a silo of this run, which signs; without it both say that nobody
        signed.

    Returns
    -------
    tuple
        Where both are.
    """
    out, content = Path(out), certificate(path)
    page = out.with_suffix(".pdf")
    for one in (out, page):
        if one.exists():
            raise RecordError(f"{one} exists; nothing is overwritten, choose another file")
    if out.suffix == ".pdf" or not out.parent.is_dir():
        raise DeclarationError(
            f"{out}: expected a file for JSON, such as certificate.json, in a folder that is there"
        )
    if identity is not None:
        content["signer"] = owner(identity)
        nodes = RunView.read(path).topology.nodes
        if content["signer"] not in nodes:
            raise DeclarationError(
                f"{identity} is the identity of {content['signer']!r}, which is no node of this "
                f"run ({', '.join(nodes)}); a silo signs for a run that it took part in"
            )
        content = sign(content, identity)
    page.write_bytes(pdf(content))
    write_whole(out, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return out, page


def verify_certificate(path: str | Path, key: str | None = None) -> CheckedCertificate:
    """Read a certificate; raise LedgerDamaged where its signature does not fit.

    Parameters
    ----------
    path
        The file of JSON.
    key
        The signing key that is expected.
    """
    content = read_file(Path(path), FORMAT, VERSION)
    try:
        missing = {"guarantee", "ledgers", "hashes"} - set(content)
        missing |= {"name", "began"} - set(content["run"])
        if "signature" in content:
            missing |= {"signer"} - set(content)
    except (KeyError, TypeError):
        missing = {"run"}
    if missing:
        raise RecordError(
            f"{path} lacks what a certificate says ({', '.join(sorted(missing))}); ask for it anew"
        )
    if "signature" not in content:
        return CheckedCertificate(content, None, False)
    return CheckedCertificate(content, check_signature(path, content, key), key is not None)


def _unit(unit: Unit) -> dict[str, Any]:
    return {**asdict(unit), "words": unit.words}


def _honest(honesty: Honesty) -> dict[str, Any]:
    """On whom sealed sums rest, and what is lost if more collude."""
    return {
        "honest": honesty.honest,
        "members": honesty.members,
        "words": f"{honesty.who} {DECLARED} {ASSUMED}",
        "otherwise": collusion_words(honesty.table),
    }


def _declared(schema: Schema | None, rows: Mapping[str, int]) -> dict[str, Any]:
    """Return the public declarations on which the guarantee rests."""
    found: dict[str, Any] = {"rows": dict(rows)}
    if schema is None:
        return found
    content = schema.model_dump(mode="json")
    answer = "target" if "target" in content else "label"
    return found | {
        name: content[name] for name in (answer, "columns", "norm", "person") if name in content
    }


def _ledger(found: BudgetView | str) -> dict[str, Any]:
    """Return what a ledger says of its head, cap and loss; or why it cannot be read."""
    if isinstance(found, str):
        return {"problem": found}
    cap = found.cap
    return {
        "head": found.head,
        "cap": None if cap is None else {"epsilon": cap.epsilon, "delta": cap.delta},
        "lost": found.lost if cap is not None and isfinite(found.lost) else None,
    }


def _hash(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None
