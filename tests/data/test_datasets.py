"""Adult from wherever it lies, census rows with a known truth, and splits over nodes."""

import hashlib
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from dynadp.data.datasets import uci
from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.synthetic import census, census_schema
from dynadp.data.datasets.uci import adult, adult_schema
from dynadp.errors import DatasetError, DeclarationError, DynadpError

# --------------------------------------------------------------------------------------------------
# Adult


def test_adult_has_the_published_rows_and_columns(adult_data):
    schema = adult_data.schema
    rows = [schema.rows(table) for table in (adult_data.train, adult_data.test)]
    assert [r.shape for r in rows] == [(30_162, 106), (15_060, 106)]
    assert schema.features[-1] == "(intercept)"
    seen = sum(abs(r).sum(axis=0) for r in rows) > 0
    assert np.flatnonzero(~seen).tolist() == [schema.features.index("workclass=Never-worked")]
    assert [int((schema.labels(t) > 0).sum()) for t in (adult_data.train, adult_data.test)] == [
        7_508,
        3_700,
    ]


def test_adult_first_row_is_read_right(adult_data):
    row = dict(
        zip(
            adult_data.schema.features,
            adult_data.schema.rows(adult_data.train).toarray()[0],
            strict=True,
        )
    )
    scale = row["(intercept)"]
    assert row["age"] / scale == pytest.approx((39 - 17) / 73)
    assert row["capital_gain"] / scale == pytest.approx(2174 / 99_999)
    listed = {name for name, value in row.items() if "=" in name and value}
    assert {"workclass=State-gov", "education=Bachelors", "native_country=United-States"} < listed
    assert len(listed) == 8
    assert all(value == scale for name, value in row.items() if name in listed)


def test_adult_shards_need_parts(adult_data):
    with pytest.raises(
        DeclarationError, match="adult does not say which node holds which row; give parts"
    ):
        adult_data.shards()
    shards = adult_data.shards([[0, 1, 2], [5]], names=["north", "south"])
    assert [(s.name, s.rows, s.dimension) for s in shards] == [("north", 3, 106), ("south", 1, 106)]


LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, "
)
FILES = {
    "adult.data": f"{LINE}United-States, <=50K\n{LINE}?, >50K\n{LINE}Cuba, >50K\n\n".encode(),
    "adult.test": f"|1x3 Cross validator\n{LINE}Cuba, <=50K.\n".encode(),
}


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A published Adult of three rows and no place to find it yet: no variable, an empty cache, no
    server.
    """
    monkeypatch.setattr(
        uci, "ADULT_SHA256", {name: hashlib.sha256(c).hexdigest() for name, c in FILES.items()}
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("DYNADP_DATA", raising=False)
    with socket.socket() as deaf:  # bound, but it does not listen
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setattr(uci, "ADULT_URL", f"http://127.0.0.1:{deaf.getsockname()[1]}/")
        yield tmp_path


def put(folder, damage=b""):
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content + damage)
    return folder


@pytest.fixture
def serve(small, monkeypatch):
    """Serve a folder, as adult's address."""
    servers = []

    def start(folder, handler=SimpleHTTPRequestHandler):
        quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(folder))))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.01}).start()
        monkeypatch.setattr(uci, "ADULT_URL", f"http://127.0.0.1:{servers[-1].server_port}/")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def is_small(data):
    return (len(data.train["age"]), len(data.test["age"]), data.train["native_country"][-1]) == (
        2,
        1,
        "Cuba",
    )


@pytest.mark.parametrize("inner", ["", "adult"])
def test_given_folder_comes_first(small, monkeypatch, inner):
    put(small / "cache/dynadp/adult", b"damaged")
    monkeypatch.setenv("DYNADP_DATA", str(put(small / "named", b"damaged")))
    put(small / "given" / inner)
    assert is_small(adult(small / "given"))
    with pytest.raises(
        DatasetError, match=r"named/adult.data is not the published adult.data: its SHA-256 is"
    ):
        adult()


def test_variable_comes_before_cache_and_cache_before_download(small, monkeypatch, serve):
    serve(put(small / "server", b"damaged"))
    put(small / "cache/dynadp/adult")
    assert is_small(adult())
    monkeypatch.setenv("DYNADP_DATA", str(small / "nowhere"))
    with pytest.raises(
        DatasetError,
        match=r"no file adult.data in \S*nowhere and \S*nowhere/adult; put the UCI Adult files",
    ):
        adult()


def test_download_is_kept_in_the_cache(small, serve):
    server = put(small / "server")
    serve(server)
    assert is_small(adult())
    assert sorted(p.name for p in (small / "cache/dynadp/adult").iterdir()) == sorted(FILES)
    for name in FILES:
        (server / name).unlink()
    assert is_small(adult())


class Cut(SimpleHTTPRequestHandler):
    def do_GET(self):  # promises more than it sends
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"half")


class Mute(SimpleHTTPRequestHandler):
    def do_GET(self):  # hangs up without a word
        self.close_connection = True


@pytest.mark.parametrize("handler", [None, SimpleHTTPRequestHandler, Cut, Mute])
def test_failed_download_says_what_to_do(small, serve, handler):
    if handler:
        serve(small, handler)
    with pytest.raises(
        DatasetError,
        match=r"no file adult.data in .* could not be downloaded .* with --data or DYNADP_DATA",
    ) as refusal:
        adult()
    assert getattr(refusal.value.__cause__, "closed", True)  # the server's answer, where it came
    assert not (small / "cache").exists()


def test_download_is_checked_and_can_be_forbidden(small, serve):
    serve(put(small / "server", b"damaged"))
    with pytest.raises(
        DatasetError,
        match=r"^http://127\S+/adult.data is not the published adult.data: its SHA-256 is \w{64}, "
        r"expected \w{64}",
    ):
        adult()
    with pytest.raises(DatasetError, match=r"no file adult.data in \S*cache/dynadp/adult; put"):
        adult(download=False)
    assert not (small / "cache").exists()


# --------------------------------------------------------------------------------------------------
# census


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_census_has_the_shape_asked_for():
    data = census(103, nodes=5, test_rows=7)
    assert np.bincount(data.node).tolist() == [21, 21, 21, 20, 20]
    assert {len(cells) for cells in data.train.values()} == {103}
    assert {len(cells) for cells in data.test.values()} == {7}
    assert [s.rows for s in data.shards()] == [21, 21, 21, 20, 20]
    assert [s.name for s in data.shards()] == list("01234")
    assert data.schema == census_schema()
    assert data.schema.dimension == len(data.truth) == 51
    assert len(census(100).test["age"]) == 1000
    assert len(census(8000).test["age"]) == 2000
    assert len(census(5, test_rows=0).test["age"]) == 0


def test_census_rows_keep_to_their_declarations(census5):
    for column in census5.schema.columns:
        cells = np.concatenate([census5.train[column.name], census5.test[column.name]])
        if column.kind == "numeric":
            assert column.low <= cells.min() <= cells.max() <= column.high
        else:
            assert set(cells) <= set(column.values)


def test_census_is_a_function_of_its_arguments():
    one, again, other = (census(200, seed=seed, heterogeneity=0.5) for seed in (3, 3, 4))
    assert same(one.train, again.train)
    assert same(one.test, again.test)
    assert not same(one.train, other.train)
    assert not same(one.train, one.test)
    np.testing.assert_array_equal(one.truth, other.truth)


def unlikeness(data, name="trade"):
    """Largest distance in total variation between a node's shares and everybody's."""
    values, codes = np.unique(data.train[name], return_inverse=True)
    shares = np.array(
        [np.bincount(codes[data.node == p], minlength=len(values)) for p in range(5)], dtype=float
    )
    shares /= shares.sum(axis=1, keepdims=True)
    return np.abs(shares - shares.mean(axis=0)).sum(axis=1).max() / 2


@pytest.mark.parametrize("name", ["trade", "region", "sector", "urban"])
def test_heterogeneity_makes_nodes_unlike(name):
    alike, unlike = (unlikeness(census(20_000, heterogeneity=h), name) for h in (0, 1))
    assert alike < 0.05
    assert unlike > 0.15


def test_truth_made_the_labels():
    data = census(40_000, seed=5, test_rows=10_000)
    plain = data.schema.model_copy(update={"norm": 1.0, "scaling": "none"})
    X, Z = plain.rows(data.train), plain.rows(data.test)
    high = data.schema.labels(data.train) > 0
    chance = 1 / (1 + np.exp(-(Z @ data.truth)))
    wrong = np.mean((chance > 0.5) != (data.schema.labels(data.test) > 0))
    assert 0.22 < high.mean() < 0.28
    assert 0.14 < wrong < 0.18

    def distance(rows):
        fit = LogisticRegression(C=100, fit_intercept=False, max_iter=2000).fit(
            X[:rows], high[:rows]
        )
        return np.abs(fit.predict_proba(Z)[:, 1] - chance).mean()

    assert distance(40_000) < distance(2_000) / 2
    assert distance(40_000) < 0.015


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rows": 4}, "census of 4 rows over 5 nodes; expected at least one node and one row each"),
        ({"nodes": 0}, "over 0 nodes"),
        ({"heterogeneity": 1.1}, r"heterogeneity is 1.1; expected a number in \[0, 1\]"),
        ({"heterogeneity": float("nan")}, "heterogeneity is nan"),
    ],
)
def test_census_refusals(more, message):
    with pytest.raises(DeclarationError, match=message):
        census(**more)


# --------------------------------------------------------------------------------------------------
# partition

SPLITS = st.integers(1, 8).flatmap(lambda nodes: st.tuples(st.integers(nodes, 60), st.just(nodes)))


@given(
    SPLITS,
    st.sampled_from(["even", "sized", "column", "label_skew"]),
    st.integers(0, 9),
    st.floats(1e-3, 1e3),
)
def test_every_split_is_disjoint_complete_and_leaves_nobody_empty(shape, how, seed, number):
    rows, nodes = shape
    values = np.random.default_rng(seed).integers(3, size=rows)
    more = {
        "sizes": number ** np.arange(nodes),
        "column": values,
        "labels": values,
        "concentration": number,
        "seed": seed,
    }
    parts = partition(rows, nodes, how, **more)
    assert len(parts) == nodes
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(rows))
    assert all(map(np.array_equal, parts, partition(rows, nodes, how, **more)))


def test_even_and_sized_have_the_sizes_asked_for():
    assert sorted(map(len, partition(103, 5))) == [20, 20, 21, 21, 21]
    assert [len(part) for part in partition(1003, 3, "sized", sizes=[1, 2, 7])] == [101, 201, 701]
    assert not all(map(np.array_equal, partition(103, 5), partition(103, 5, seed=1)))


def test_column_split_cuts_the_sorted_column():
    column = np.random.default_rng(0).normal(size=50)
    parts = partition(50, 4, "column", column=column)
    assert all(column[a].max() <= column[b].min() for a, b in pairwise(parts))
    assert [len(part) for part in parts] == [12, 13, 12, 13]


def test_label_skew_follows_its_concentration():
    labels = np.repeat([0, 1], 1000)
    spread = [
        np.ptp(
            [
                labels[p].mean()
                for p in partition(2000, 4, "label_skew", labels=labels, concentration=c)
            ]
        )
        for c in (0.1, 1e6)
    ]
    assert spread[0] > 0.5
    assert spread[1] < 0.01


def test_label_skew_loses_no_row_whose_label_is_missing():
    try:
        parts = partition(8, 2, "label_skew", labels=[0.0, float("nan")] * 4)
    except DynadpError:
        return
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 2, "nodes": 3}, "2 rows cannot be split over 3 nodes"),
        ({"nodes": 0}, "cannot be split over 0 nodes"),
        ({"how": "odd"}, "unknown way to split 'odd'; expected even, sized, column or label_skew"),
        ({"how": "sized"}, "'sized' needs sizes: 3 numbers above 0, one a node"),
        ({"how": "sized", "sizes": [1, 2]}, "'sized' needs sizes"),
        ({"how": "sized", "sizes": [1, 0, 2]}, "'sized' needs sizes"),
        ({"how": "sized", "sizes": [1, float("inf"), 2]}, "'sized' needs sizes"),
        ({"how": "column"}, "this split needs column: one value for each of the 9 rows"),
        (
            {"how": "label_skew", "labels": [1, 2]},
            "this split needs labels: one value for each of the 9 rows",
        ),
        (
            {"how": "label_skew", "labels": [1] * 9, "concentration": 0},
            "concentration is 0; expected a finite number above 0",
        ),
    ],
)
def test_partition_refusals(arguments, message):
    with pytest.raises(DeclarationError, match=message):
        partition(**({"rows": 9, "nodes": 3} | arguments))


@pytest.mark.parametrize("change", [{"seed": -1}, {"test_rows": -1}])
def test_census_refuses_negative_numbers(change):
    with pytest.raises(DynadpError, match="expected 0 or above"):
        census(50, **change)


def test_names_and_parts_must_match():
    with pytest.raises(DynadpError, match="1 names for 2 parts"):
        census(50, nodes=2).shards(names=["one"])


def test_values_that_cannot_be_compared_are_refused():
    with pytest.raises(DynadpError, match="can be compared"):
        partition(3, 2, "label_skew", labels=[1.0, None, "a"])


def test_rich_columns_of_adult_come_from_the_same_description():
    paper, rich = adult_schema("paper"), adult_schema("rich")
    assert (paper.dimension, rich.dimension) == (106, 117)
    assert [column.name for column in rich.columns] == [column.name for column in paper.columns]
    assert {
        "age^2",
        "hours_per_week^2",
        "capital_gain~0",
        "capital_gain~99999",
        "capital_loss~5000",
    } <= set(rich.features)
    with pytest.raises(DeclarationError, match="columns is 'wide'"):
        adult_schema("wide")
