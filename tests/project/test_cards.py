"""Cards by which notebooks show objects; whole ones in a real notebook."""

import re
from html import escape
from html.parser import HTMLParser

import pytest

from dynadp import Ledger, Plan, Topology, census, plan, train
from dynadp._cards import card, curve, graph, table
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.planning.parts import Consortium
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.summary import LedgerSummary
from support.browser import Opened, chromium, faults, keep
from support.run_folders import make_run

AT = {"who": "ada", "at": "2026-03-01T12:00:00+00:00"}


class Balanced(HTMLParser):
    """Every element that is opened is closed, and none loads or runs anything."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "style", "link", "img", "iframe")
        assert not {name for name, _ in attributes} & {"src", "href", "onclick", "onload"}
        if tag not in ("line", "circle", "polyline", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("line", "circle", "polyline"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def words(thing):
    return " ".join(" ".join(Balanced(thing._repr_html_()).text).split())


@pytest.fixture(scope="module")
def trained():
    data = census(rows=600, nodes=3)
    ring = Topology.family("ring", 3).named(["north", "<b>south</b>", "west"])
    return train(data.schema, data.tables(ring.nodes), ring, epsilon=1.0, delta=1e-5)


def test_cards_say_what_their_objects_say(trained):
    total = trained.total
    for thing in (total, trained):
        assert total.guarantee in words(thing)
    shown = words(trained.plan)
    assert "This will cost" in shown
    for reason in trained.plan.reasons:
        assert " ".join(reason.split()) in shown
    assert f"rounds {len(trained.run.rounds)}" in words(trained.run)
    for column in trained.schema.columns:
        assert f"{column.name} {column.kind}" in words(trained.schema)
    shown = words(trained.run.topology)
    assert "nodes 3 edges 3" in shown
    assert "<b>south</b>" in shown  # as text


def test_a_plan_that_is_not_bound_and_one_that_protects_nobody():
    assert "Not bound to a consortium yet" in words(Plan())
    ring = Topology.family("ring", 3)
    data = census(rows=90, nodes=3)
    assert "Messages reveal rows." in words(Plan().on(Consortium(ring, (30,) * 3, 51)))
    bound = plan([30] * 3, ring, 51, epsilon=1.0, delta=1e-5)
    seeded = simulate(data.shards(), ring, bound, draws=SeededEntropy(1))
    assert "protects nobody" in words(seeded)


def test_ledgers(tmp_path):
    with Ledger.create(tmp_path / "n.sqlite", "north", **AT) as ledger:
        assert "cap none" in words(ledger)
        assert "No cap is set." in words(LedgerSummary.of(ledger))
        ledger.set_cap(Cap.of(2.0, 1e-5), **AT)
        events = [L2Laplace("north", n, "primal", 0.1, 5) for n in (1, 2)]
        ledger.reserve("first", events, dataset="wards", **AT)
        ledger.spend("first", 1, events[:1], b"message", **AT)
        assert "first open 1 of 2" in words(ledger)
        assert "epsilon = 0.1 of 2 at delta = 1e-05" in words(LedgerSummary.of(ledger))


def test_whatever_stands_in_a_card_is_text():
    shown = card("<i>", {"<script>": '"&'}, ["<img src=x>"], table(["<a>"], [["<td>"]]))
    assert Balanced(shown).text[0] == "<i>"
    for raw in ("<script>", "<img", "<a>", "<i>"):
        assert raw not in shown


@pytest.mark.parametrize("count", [1, 2, 16, 17, 500])
def test_networks_of_any_size(count):
    names = [f"n{i}" for i in range(count)]
    drawn = graph(names, [(i, i + 1) for i in range(count - 1)])
    Balanced(drawn)
    assert drawn.count("<circle") == count
    assert ("<text" in drawn) is (count <= 16)


def test_curves_that_cannot_be_drawn():
    assert curve([0.0, 0.0], "x") == curve([1.0], "x") == ""
    assert "polyline" in curve([1.0, 0.0, 2.0], "x")
    assert "and 60 more" in table(["a"], [[i] for i in range(100)])


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """What a real notebook shows, cell by cell: by kind of content."""
    import nbformat  # seconds, in a first tier that does not need them
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    run = make_run(folder)
    cells = [
        "from dynadp import Ledger, Topology, census, train",
        "data = census(rows=600, nodes=3)\nring = Topology.family('ring', 3)",
        "trained = train(data.schema, data.tables(ring.nodes), ring, epsilon=1.0, delta=1e-5)",
        "trained",
        "trained.total",
        "trained.plan",
        "trained.run",
        "data.schema",
        "ring",
        "Ledger.create('n.sqlite', 'n', who='ada', at='2026-03-01T12:00:00+00:00')",
        f"ledger = Ledger.open({str(folder / 'north.sqlite')!r}, read_only=True)\nledger",
        "from dynadp.privacy import LedgerSummary\nLedgerSummary.of(ledger)",
        "census(90, nodes=3, classes=4).schema",
        "census(90, nodes=3, target=True).schema",
        "import altair\nfrom dynadp.report import charts_of_run",
        "enabled = altair.renderers.enable('svg')  # drawn here, loads nothing",
        f"charts = charts_of_run({str(run)!r})",
        "charts['change']",
        "charts['totals'].properties(title='mine')",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    book.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python",
        "language": "python",
    }
    at = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=120, resources=at).execute()
    return [
        (cell.source, output.data)
        for cell in book.cells
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]


@pytest.mark.slow
def test_a_real_notebook_shows_cards_and_charts(notebook):
    shown = [data for _, data in notebook]
    drawn = [one["image/svg+xml"] for one in shown if "image/svg+xml" in one]
    assert len(drawn) == 2
    assert "total epsilon" in drawn[1]
    assert ">mine<" in drawn[1]
    cards = [one["text/html"] for one in shown if "text/html" in one]
    assert [re.search(r"<strong>([^<]*)", one)[1] for one in cards] == [
        "Trained over a network",
        "Total privacy loss",
        "Plan",
        "Run",
        "Public declarations",
        "Network: ring",
        "Ledger of node n",
        "Ledger of node north",
        "Ledger of node north",
        "Public declarations",
        "Public declarations",
    ]
    assert "group-4" in cards[-2]  # what is declared of the answer too
    assert "0 to 100" in cards[-1]
    assert len(shown) == len(drawn) + len(cards)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["wide", "narrow-dark"])
def test_what_a_notebook_shows_fits_and_is_accessible(notebook, tmp_path, view):
    """In a page that lays outputs out as a notebook does, light and dark."""
    parts = []
    for source, data in notebook:
        shown = data.get("text/html") or f"<figure>{data['image/svg+xml']}</figure>"
        line = escape(source.splitlines()[-1])
        parts.append(f"<section><pre>{line}</pre><div class=out>{shown}</div></section>")
    page = tmp_path / "notebook.html"
    page.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><title>notebook</title>"
        "<meta name=viewport content='width=device-width'><link rel=icon href='data:,'>"
        "<style>:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;margin:1rem}"
        ".out{overflow-x:auto}pre{margin:1.2em 0 .4em;white-space:pre-wrap;"
        "overflow-wrap:anywhere}svg{max-width:100%}"
        "figure{background:#fff;display:inline-block;margin:0}main{max-width:47em}</style>"
        f"<main><h1>Cells and what they show</h1>{''.join(parts)}</main></html>"
    )
    with chromium() as browser, Opened(browser, view) as opened:
        opened.page.goto(page.as_uri())
        cards = opened.page.locator(".dynadp-card")
        assert cards.count() == 11
        for card in cards.all():
            assert card.bounding_box()["height"] > 60
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert [url for url in opened.asked if not url.startswith(("file:", "data:,"))] == []
        assert faults(opened.page) == []
        assert opened.errors == []
        if view == "wide":
            keep(opened.page, f"notebook-{view}", of="main")
