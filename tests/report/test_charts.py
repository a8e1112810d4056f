"""Pictures: real files that need nothing from elsewhere."""

import json
import sys
from html.parser import HTMLParser

import pytest

from dynadp.consensus.topology import Topology
from dynadp.errors import DeclarationError
from dynadp.report import charts

ROWS = [
    {"round": n, "series": node, "error": 0.3 / n + 0.01 * p, "disagreement": 0.5**n + 0.001 * p}
    for n in range(1, 6)
    for p, node in enumerate(("north", "south"))
]
REFERENCES = [{"name": "centralised optimum", "error": 0.05}]
SOURCE = "census, made here, seed 0 (synthetic)"


class Outside(HTMLParser):
    """Collects every address that a page would load, and the length of its own scripts."""

    def __init__(self):
        super().__init__()
        self.addresses, self.tags, self.script = [], [], 0

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [
            value for name, value in attributes if name in ("src", "href", "srcset", "data")
        ]

    def handle_data(self, data):
        self.script += len(data) if self.tags and self.tags[-1] == "script" else 0


def text_of(chart):
    return json.dumps(chart.to_dict())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("charts")
    made = {
        "convergence": charts.convergence(ROWS, REFERENCES, SOURCE),
        "network": charts.network(
            Topology.family("star", 6), [f"{p} rows" for p in range(6)], SOURCE
        ),
    }
    return folder, made, {name: charts.save(chart, folder / name) for name, chart in made.items()}


@pytest.mark.parametrize("name", ["convergence", "network"])
def test_saved_files_are_what_they_say(saved, name):
    folder, _, files = saved
    png, html = files[name]
    assert (png, html) == (folder / f"{name}.png", folder / f"{name}.html")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    page = html.read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert SOURCE in page


@pytest.mark.parametrize("name", ["convergence", "network"])
def test_page_loads_nothing_from_elsewhere(saved, name):
    page = Outside()
    page.feed(saved[2][name][1].read_text(encoding="utf-8"))
    assert page.addresses == []
    assert not {"link", "iframe", "img", "object", "embed"} & set(page.tags)
    assert page.script > 100_000  # the drawing library itself is in the page


def test_dot_in_a_name_stays(saved, tmp_path):
    files = charts.save(saved[1]["network"], tmp_path / "alpha-0.5")
    assert [p.name for p in files] == ["alpha-0.5.png", "alpha-0.5.html"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alpha-0.5.html", "alpha-0.5.png"]


def test_convergence_shows_every_point_and_reference(saved):
    text = text_of(saved[1]["convergence"])
    for part in (
        "north",
        "south",
        "centralised optimum",
        SOURCE,
        *(str(row["disagreement"]) for row in ROWS),
    ):
        assert part in text


def test_convergence_axes_hold_all_points(saved):
    top, bottom = saved[1]["convergence"].to_dict()["vconcat"]
    low, high = top["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert low < 0.05
    assert high > 0.31
    low, high = bottom["encoding"]["y"]["scale"]["domain"]
    assert low <= min(row["disagreement"] for row in ROWS)
    assert high >= max(row["disagreement"] for row in ROWS)


def test_series_have_their_own_colours_and_many_are_no_problem():
    rows = [row | {"series": f"node {i}"} for i, row in enumerate(ROWS)]
    scale = charts.convergence(rows, [], SOURCE).to_dict()["vconcat"][1]["encoding"]["color"][
        "scale"
    ]
    assert scale["domain"] == [f"node {i}" for i in range(10)]
    assert len(set(scale["range"][:7])) == 7
    assert len(scale["range"]) == 10


@pytest.mark.parametrize(
    ("family", "nodes"), [("ring", 5), ("complete", 4), ("grid", 6), ("path", 2), ("star", 1)]
)
def test_network_draws_every_node_and_edge_once(family, nodes):
    topology = Topology.family(family, nodes)
    found = charts.network(topology, [f"label {p}" for p in range(nodes)], SOURCE).to_dict()
    wires, circles = (found["datasets"][layer["data"]["name"]] for layer in found["layer"][:2])
    assert len(wires) == len(topology.edges)
    assert [(c["name"], c["label"]) for c in circles] == [
        (str(p), f"label {p}") for p in range(nodes)
    ]
    at = [(c["x"], c["y"]) for c in circles]
    assert len(set(at)) == nodes
    assert [((w["x"], w["y"]), (w["x2"], w["y2"])) for w in wires] == [
        (at[a], at[b]) for a, b in topology.edges
    ]
    assert max(abs(v) for place in at for v in place) <= 1.5
    assert found["title"]["text"] == f"{family}: {nodes} nodes, {len(topology.edges)} edges"


def test_network_picture_is_the_same_every_time():
    draw = [
        text_of(charts.network(Topology.family("grid", 6), ["x"] * 6, SOURCE)) for _ in range(2)
    ]
    assert json.loads(draw[0])["layer"][1]["data"] == json.loads(draw[1])["layer"][1]["data"]


@pytest.mark.parametrize("absent", ["altair", "vl_convert"])
def test_missing_extra_says_what_to_install(monkeypatch, absent):
    monkeypatch.setitem(sys.modules, absent, None)
    for draw in (
        lambda: charts.convergence(ROWS, [], SOURCE),
        lambda: charts.network(Topology.family("ring", 3), "abc", SOURCE),
    ):
        with pytest.raises(
            DeclarationError, match=rf"pictures need {absent}: install dynadp\[report\]"
        ):
            draw()
