"""One of five silos leaves for good in a run that waits for everybody: what was released becomes a
model, and what was not released pays for the next run.
"""

import re

import numpy as np
import pytest

from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.runs.model import load_model
from support.networks import Network
from support.typed import dynadp

pytestmark = pytest.mark.slow
CAP, FIRST, NEXT = 1.2, 1.15, 0.5
EPSILONS = {"mechanism": "sum", "epsilon": FIRST, "delta": 1e-5}
DUAL = {"mechanism": "dual", "epsilon": FIRST, "delta": 1e-5}


def begin_another(network, gone, *, epsilon):
    """A later run of the others, with a smaller total."""
    network.run["run"]["name"] = "later"
    network.run["nodes"] = [one for one in network.run["nodes"] if one["name"] != gone]
    network.run["privacy"]["epsilon"] = epsilon
    network.names = tuple(one["name"] for one in network.run["nodes"])
    network.write_run()
    for name in network.names:
        network.change(name, out=f"{name}-later")


def open_run(network, name):
    with Ledger.open(network.ledger(name), read_only=True) as ledger:
        (run,) = ledger.state().runs
    return run


@pytest.mark.parametrize("privacy", [EPSILONS, DUAL], ids=["sum", "dual"])
def test_a_lost_member_does_not_burn_the_caps_of_the_others(tmp_path, nursery, privacy):
    network = Network.make(
        tmp_path / "home", nursery, nodes=5, privacy=dict(privacy), cap=CAP, patience=6
    )
    gone, *rest = network.names
    children = network.start_all("--delay", "noted:0.2", pinned=None)
    network.in_round(gone, 3)
    children[gone].kill()
    children[gone].wait()
    assert {children[name].wait() for name in rest} == {4}
    for name in rest:
        assert "(dynadp model) and close the run (dynadp ledger close)" in network.said(name)
        made = dynadp("model", network.folder(name))
        assert made.exit_code == 0, made.output
        rounds = int(re.match(r"A model of (\d+) of", made.output)[1])
        assert 3 <= rounds < network.silo(name).plan.rounds
        assert np.isfinite(load_model(network.folder(name) / "partial-model.json").coef).all()
    begin_another(network, gone, epsilon=NEXT)
    for name in rest:
        # as long as the run is open its whole plan counts
        assert dynadp("check", network.file(name)).exit_code == 3
        closed = dynadp("ledger", "close", network.ledger(name), open_run(network, name))
        assert closed.exit_code == 0, closed.output
        assert dynadp("check", network.file(name)).exit_code == 0
    network.finish(network.start_all(pinned=None))
    later = [load_model(network.out / f"{name}-later") for name in rest]
    assert len({model.coef.tobytes() for model in later}) == 1
    for name in rest:
        assert dynadp("ledger", "verify", network.ledger(name)).exit_code == 0
        with Ledger.open(network.ledger(name), read_only=True) as ledger:
            assert [run.closed for run in ledger.state().runs.values()] == ["stopped", "finished"]
            assert LedgerSummary.of(ledger).lost <= CAP
