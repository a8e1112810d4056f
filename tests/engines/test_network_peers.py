"""What neighbours and strangers can do to a node: nothing that ends it, fills its disk or makes it
release what it would not have released.
"""

import pytest

from dynadp.privacy.ledger.file import Ledger
from support.networks import Network, until

pytestmark = pytest.mark.slow


# Checked before anybody hears of a node.


def entries(network, name):
    with Ledger.open(network.ledger(name), read_only=True) as ledger:
        return [entry.kind for entry in ledger.entries()]


def spoil_a_cell(network, name):
    file = network.home / f"{name}.csv"
    lines = file.read_text().splitlines()
    cells = lines[20].split(",")
    cells[lines[0].split(",").index("schooling")] = "rubbish"
    lines[20] = ",".join(cells)
    file.write_text("\n".join(lines) + "\n")


def lower_the_cap(network, name):
    from support.typed import dynadp

    lowered = "ledger", "cap", network.ledger(name), "--epsilon", 0.01, "--delta", 1e-5
    assert dynadp(*lowered).exit_code == 0


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [(spoil_a_cell, 2, "schooling"), (lower_the_cap, 3, "do not fit under the cap")],
)
def test_what_a_node_refuses_is_found_before_its_neighbours_reserve(
    tmp_path, nursery, spoil, code, words
):
    network = Network.make(tmp_path / "home", nursery)
    spoil(network, "west")
    others = {name: network.start(name) for name in ("north", "south")}
    for name in others:
        until(lambda at=name: "west" in network.status(at).get("waiting", ""), f"{name} to wait for west")
    refused = network.start("west")
    assert refused.wait() == code, network.said("west")
    assert words in network.said("west")
    assert network.status("west")["state"].startswith("failed: ")
    for name in network.names:
        assert "reserve" not in entries(network, name)
        assert not network.letters(name)
    for name in others:
        assert "west is up" not in network.log(name)
