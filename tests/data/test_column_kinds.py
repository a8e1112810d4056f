"""Kinds of columns: what cells become, and how far replacing them moves features: never further
than declared, and as far as that.
"""

import gzip
from datetime import date, datetime
from hashlib import sha256

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp.data.columns import Bins, Categorical, Cross, Date, Fourier, Hashed, Numeric, Vector
from dynadp.data.datasets.synthetic import census
from dynadp.data.loading import load_shard
from dynadp.data.schema import Label, Schema
from dynadp.data.survey import feature_sums, survey
from dynadp.errors import CellError, DataError
from dynadp.mechanisms.centring import possible_mean, private_centre
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.runs.run_file import load_schema

LABEL = Label(name="y", negative="no", positive="yes")
SECRET = "Maria-Sklodowska-1867"
DAYS = {"name": "day", "first": "2020-01-01", "last": "2024-12-31"}
JOB = {"kind": "categorical", "name": "job", "values": ["clerk", "cook"]}
AGE = {"kind": "bins", "name": "age", "edges": [30, 50]}


def features(column, table):
    """The column's own features, unscaled and dense."""
    table = table if isinstance(table, dict) else {column.name: table}
    return Schema(columns=(column,), label=LABEL).only_features().rows(table).toarray()


# --------------------------------------------------------------------------------------------------
# how far

NUMBER = st.one_of(st.floats(-1e4, 1e4), st.sampled_from([-1e300, -100.0, 0.0, 100.0, 1e300]))
TEXT = st.sampled_from([f"v{i}" for i in range(40)])
DAY = st.dates(date(2010, 1, 1), date(2030, 1, 1))
ENDS = {"first": date(2020, 1, 1), "last": date(2024, 12, 31)}
KINDS = {  # a column, and what its cells are; two rows that are as far apart as any
    "signed log": (
        Numeric(name="a", low=-10, high=100, transform="signed_log"),
        {"a": NUMBER},
        {"a": [-1e9, 1e9]},
    ),
    "date": (Date(name="a", **ENDS, weight=1.5), {"a": DAY}, {"a": ["2001-02-03", "2031-01-01"]}),
    "unsigned date": (
        Date(name="a", **ENDS, signed=False),
        {"a": DAY},
        {"a": ["2001-02-03", "2031-01-01"]},
    ),
    "parts of dates": (
        Date(name="a", **ENDS, encode=("month", "linear", "weekday"), weight=0.7),
        {"a": DAY},
        {"a": ["2001-02-03", "2031-01-01"]},  # a Saturday, and a Wednesday
    ),
    "bins": (Bins(name="a", edges=(0, 7)), {"a": NUMBER}, {"a": [-1, 9]}),
    "hashed": (Hashed(name="a", buckets=5, weight=2), {"a": TEXT}, {"a": ["v1", "v3"]}),
    "cross": (
        Cross(name="x", parts=(AGE | {"name": "a"}, JOB), weight=0.5),
        {"a": NUMBER, "job": st.sampled_from(["clerk", "cook", "none"])},
        {"a": [1, 99], "job": ["cook", "clerk"]},
    ),
    "vector": (
        Vector(name="v", columns=("a", "b"), norm=3.0, weight=0.5),
        {"a": NUMBER, "b": NUMBER},
        {"a": [3.0, -1e300], "b": [0.0, 0.0]},
    ),
    "fourier, one pair": (
        Fourier(name="f", parts=(Numeric(name="a", low=-100, high=100),), pairs=1, width=0.01),
        {"a": NUMBER},
        None,
    ),
    "fourier": (
        Fourier(
            name="f",
            parts=(Numeric(name="a", low=-100, high=100), Numeric(name="b", low=0, high=1)),
            pairs=3,
            width=0.5,
            weight=2,
        ),
        {"a": NUMBER, "b": NUMBER},
        None,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_no_row_moves_features_further_than_declared(kind, data):
    column, cells, _ = KINDS[kind]
    rows = data.draw(st.lists(st.fixed_dictionaries(cells), min_size=2, max_size=20))
    found = features(column, {name: [row[name] for row in rows] for name in cells})
    apart = np.square(found[:, None] - found[None]).sum(axis=-1)
    assert apart.max() <= column.diameter2 * (1 + 1e-9)
    assert np.square(found - column.middle).sum(axis=1).max() <= column.radius2 * (1 + 1e-9)
    assert np.square(found).sum(axis=1).max() <= column.diameter2 * (1 + 1e-9)
    mean = found.mean(axis=0)
    np.testing.assert_allclose(column.project(mean), mean, atol=1e-9)  # all means are possible
    far = column.project(mean + 50 * np.random.default_rng(0).normal(size=len(mean)))
    np.testing.assert_allclose(column.project(far), far, atol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind, (*_, far) in KINDS.items() if far])
def test_two_rows_are_as_far_apart_as_declared(kind):
    column, _, far = KINDS[kind]
    found = features(column, far)
    assert np.square(found[0] - found[1]).sum() == pytest.approx(column.diameter2, rel=1e-12)
    lies = np.square(found - column.middle).sum(axis=1).max()
    assert lies == pytest.approx(column.radius2, rel=1e-12)


@pytest.mark.parametrize("pairs", [1, 4])
def test_a_pair_of_waves_goes_from_one_end_of_its_circle_to_the_other(pairs):
    part = Numeric(name="a", low=-1, high=1)
    column = Fourier(name="f", parts=(part,), pairs=pairs, width=0.05, weight=3)
    found = features(column, {"a": np.linspace(-1, 1, 4001)})
    apart = np.square(found[:1] - found).sum(axis=1).max()
    assert apart <= column.diameter2
    assert apart >= (0.999 if pairs == 1 else 0.5) * column.diameter2
    lengths = np.square(found).sum(axis=1)
    np.testing.assert_allclose(lengths, column.radius2, rtol=1e-9)


ALL = Schema(
    columns=(
        Date(**DAYS, encode=("linear", "weekday")),
        Hashed(name="town", buckets=8),
        Categorical(name="job", values=("clerk", "cook")),
        {"kind": "cross", "name": "job by age", "parts": ["job", AGE]},
        {"kind": "cross", "name": "job in town", "parts": ["job", "town"]},
        Vector(name="ready", columns=("e1", "e2"), norm=2.0),
        Numeric(name="gain", low=-1e3, high=1e4, transform="signed_log"),
        {"kind": "fourier", "name": "waves", "parts": ["gain"], "pairs": 2},
    ),
    label=LABEL,
)


def table(rows, seed):
    rng = np.random.default_rng(seed)
    return {
        "day": [f"202{n % 5}-0{n % 9 + 1}-1{n % 7}" for n in rng.integers(0, 999, rows)],
        "town": [f"t{n}" for n in rng.integers(0, 99, rows)],
        "job": rng.choice(["clerk", "cook", "judge"], rows).tolist(),
        "age": rng.integers(17, 80, rows),
        "e1": rng.normal(size=rows),
        "e2": rng.normal(size=rows),
        "gain": rng.normal(0, 500, rows),
        "y": rng.choice(["no", "yes"], rows).tolist(),
    }


@pytest.mark.parametrize("noise", ["l2-laplace", "gaussian"])
def test_a_replaced_row_moves_a_centring_round_by_no_more_than_its_noise_covers(noise):
    B, alpha, first, worst = 10, 0.7, table(10, 0), 0.0
    D = np.sqrt(sum(column.diameter2 for column in ALL.columns))
    for seed in range(20):
        more = table(1, 100 + seed)
        other = {name: [*more[name], *list(cells)[1:]] for name, cells in first.items()}
        sent = [
            private_centre(
                ALL, [feature_sums(ALL, rows)], ["n"], alpha, SeededEntropy(5), noise
            ).messages[0]
            for rows in (first, other)
        ]
        worst = max(worst, np.linalg.norm(sent[0] - sent[1]))
    bound = D / B if noise == "l2-laplace" else D
    assert 0.4 * bound < worst <= bound * 1.01  # the grid rounds by a thousandth of the noise


def test_the_centre_of_all_kinds_is_a_possible_mean():
    found = possible_mean(ALL, np.random.default_rng(0).normal(size=ALL.feature_count) * 9)
    np.testing.assert_allclose(possible_mean(ALL, found), found, atol=1e-12)
    centred = ALL.model_copy(update={"centre": tuple(found.tolist()), "scaling": "unit"})
    assert np.linalg.norm(centred.rows(table(9, 1)), axis=1) == pytest.approx(1)


def test_a_row_is_the_same_whoever_stands_beside_it():
    some, other = table(30, 0), table(30, 1)
    mixed = {name: [*list(some[name])[:7], *list(other[name])[7:]] for name in some}
    a, b = (ALL.rows(rows).toarray() for rows in (some, mixed))
    np.testing.assert_array_equal(a[:7], b[:7])
    for row in range(7):
        alone = ALL.rows({name: [list(cells)[row]] for name, cells in some.items()}).toarray()
        np.testing.assert_array_equal(alone[0], a[row])


# --------------------------------------------------------------------------------------------------
# what cells become


def test_signed_log_is_the_formula():
    column = Numeric(name="a", low=-9, high=99, transform="signed_log", signed=False)
    v = np.array([-1e9, -9, -1, 0, 1, 99, 1e9])
    t = np.sign(np.clip(v, -9, 99)) * np.log1p(np.abs(np.clip(v, -9, 99)))
    expected = (t + np.log(10)) / (np.log(100) + np.log(10))
    np.testing.assert_allclose(features(column, v)[:, 0], expected, rtol=1e-14, atol=1e-15)
    for low, high in ((0, 5), (-5, 0), (1, 5)):
        with pytest.raises(ValueError, match=r"'signed_log' is for numbers on both sides of 0"):
            Numeric(name="a", low=low, high=high, transform="signed_log")


DAYS_AS = {
    "texts": ["2020-01-01", " 2024-12-31T23:59", "2022-07-02 08:00:00"],
    "days": [date(2020, 1, 1), date(2024, 12, 31), date(2022, 7, 2)],
    "times": [datetime(2020, 1, 1, 3), datetime(2024, 12, 31), datetime(2022, 7, 2)],
    "numpy": np.array(["2020-01-01T05", "2024-12-31T01", "2022-07-02T00"], dtype="datetime64[s]"),
    "pandas": pd.Series(pd.to_datetime(["2020-01-01", "2024-12-31", "2022-07-02"])),
}


@pytest.mark.parametrize("kind", DAYS_AS)
def test_days_of_any_type_are_the_same_features(kind):
    column = Date(**DAYS, encode=("linear", "weekday", "month"))
    found = features(column, {"day": DAYS_AS[kind]})
    assert found[:, 0] == pytest.approx([-1, 1, 0], abs=1e-3)
    assert found[:, 1:8].argmax(axis=1).tolist() == [2, 1, 5]  # Wednesday, Tuesday, Saturday
    assert found[:, 8:].argmax(axis=1).tolist() == [0, 11, 6]
    assert found[:, 1:].sum() == 6
    assert column.features[1] == "day:Mon"
    assert column.features[-1] == "day:12"


@given(st.dates(), st.sampled_from(["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d"]))
def test_days_are_read_as_they_are_spelled(day, spelling):
    text = spelling
    for part, number in (("%Y", f"{day.year:04}"), ("%m", f"{day:%m}"), ("%d", f"{day:%d}")):
        text = text.replace(part, number)
    column = Date(name="day", first=date.min, last=date.max, encode=("weekday",), format=spelling)
    assert features(column, [text])[0].argmax() == day.weekday()


@pytest.mark.parametrize("cell", [SECRET, "2020-02-30", "31.01.2020", 20200101, 3.5, "2020-01-01x"])
def test_what_is_no_day_is_refused_by_its_row(cell):
    with pytest.raises(CellError, match=r"column 'day', row 1: the value is no day") as refused:
        features(Date(**DAYS), ["2020-01-01", cell])
    assert str(cell) not in str(refused.value)


def test_a_missing_day_is_what_was_declared():
    column = Date(**DAYS, missing=date(2024, 12, 31))
    np.testing.assert_array_equal(features(column, {"day": ["2020-01-01", None]})[:, 0], [-1, 1])
    np.testing.assert_array_equal(
        features(column, {"day": np.array(["NaT", "2020-01-01"], dtype="datetime64[s]")})[:, 0],
        [1, -1],
    )
    schema = Schema(columns=(Date(**DAYS, missing="drop"),), label=LABEL)
    assert schema.kept({"day": ["", "2020-01-01"], "y": ["no"] * 2}).tolist() == [False, True]


def test_bins_have_their_edges_on_the_left():
    column = Bins(name="a", edges=(0, 7.5), missing="other")
    found = features(column, [-1e300, -0.1, 0, 7.4, 7.5, 1e300, None])
    assert found.argmax(axis=1)[:-1].tolist() == [0, 0, 1, 1, 2, 2]
    assert found[-1].tolist() == [0, 0, 0]
    assert column.features == ("a<0", "a:0..7.5", "a>=7.5")
    assert features(Bins(name="a", edges=(1,), missing=5), [None, 0]).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        (["1", 1, 1.0, "1.0", " 1 "], "1"),
        (np.array([7.0, 7.0]), "7"),
        (np.array([7, 7]), "7"),
        (["Zürich", b"Z\xc3\xbcrich"], "Zürich"),
        (["01", "01.0"], "01"),
        (["1.5", 1.5], "1.5"),
        (["St."], "St."),
    ],
)
def test_a_bucket_is_that_of_the_documented_hash(cells, word):
    column = Hashed(name="a", buckets=1000, salt="2024")
    digest = sha256(b"2024\0" + word.encode()).digest()
    bucket = int.from_bytes(digest[:8], "big") % 1000
    assert set(features(column, cells).argmax(axis=1).tolist()) == {bucket} == {column.bucket(word)}


def test_buckets_are_written_down():
    """Another machine or version has to find the same ones."""
    column = Hashed(name="zip", buckets=16, salt="s")
    assert [column.bucket(v) for v in ("8001", "8002", 10115, "Bern")] == PINNED_BUCKETS
    assert column.features[-1] == "zip#15"


def test_frequencies_are_written_down():
    parts = (Numeric(name="a", low=0, high=1), Numeric(name="b", low=0, high=1))
    made = Fourier(name="f", parts=parts, pairs=2, width=0.5, seed="s").frequencies
    assert made.tolist() == PINNED_FREQUENCIES
    many = Fourier(name="f", parts=parts, pairs=3000, width=2.0, seed="t").frequencies
    assert many.std() == pytest.approx(0.5, rel=0.02)
    assert many.mean() == pytest.approx(0, abs=0.02)


def test_waves_approximate_the_gaussian_kernel():
    parts = (Numeric(name="a", low=-1, high=1), Numeric(name="b", low=-1, high=1))
    column = Fourier(name="f", parts=parts, pairs=4000, width=0.8)
    u = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    found = features(column, {"a": u[:, 0], "b": u[:, 1]})
    apart = np.square(u[:, None] - u[None]).sum(axis=-1)
    np.testing.assert_allclose(found @ found.T, np.exp(-apart / (2 * 0.8**2)), atol=0.06)


def test_a_cross_has_a_feature_for_each_pair():
    column = Cross(name="x", parts=(JOB | {"other": "column"}, AGE | {"missing": "other"}))
    assert column.features[:4] == (
        "job=clerk & age<30",
        "job=clerk & age:30..50",
        "job=clerk & age>=50",
        "job=cook & age<30",
    )
    found = features(column, {"job": ["cook", "judge", "clerk"], "age": [30, 99, None]})
    assert found.argmax(axis=1)[:2].tolist() == [4, 8]
    assert found.sum(axis=1).tolist() == [1, 1, 0]
    assert not column.full


def test_a_cross_takes_parts_by_their_names():
    job = Categorical(name="job", values=("clerk", "cook"), missing="drop", other="column")
    made = Schema(columns=(job, {"kind": "cross", "name": "x", "parts": ["job", AGE]}), label=LABEL)
    assert made.columns[1].parts[0] == job
    assert made.raw_columns == ("job", "age", "y")
    assert made.dropping_columns == ("job",)
    assert made.number_columns == {"age"}
    again = Schema.model_validate_json(made.model_dump_json())
    assert again == made
    assert again.digest() == made.digest()


def test_ready_numbers_are_shortened_to_the_ball():
    column = Vector(name="v", columns=("a", "b"), norm=5.0, missing=0)
    found = features(column, {"a": [3.0, 30.0, 1e300, None], "b": [4.0, 40.0, -1e300, 5.0]})
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.6, 0.8], [half, -half], [0, 1]], atol=1e-15)


# --------------------------------------------------------------------------------------------------
# what is refused


@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        (Date, {"name": "d"}, "has no public ends"),
        (Date, {**DAYS, "last": "2019-01-01"}, "first must be before last"),
        (Date, {**DAYS, "encode": ()}, "at least one feature, each once"),
        (Date, {**DAYS, "encode": ("month", "month")}, "at least one feature, each once"),
        (Date, {**DAYS, "format": "%d.%m.%y"}, "expected %Y, %m and %d"),
        (Bins, {"name": "a"}, "has no public edges"),
        (Bins, {"name": "a", "edges": (2, 1)}, "edges must increase"),
        (Hashed, {"name": "a", "buckets": 1}, "greater than or equal to 2"),
        (Cross, {"name": "x", "parts": (JOB, JOB)}, "expected two columns"),
        (Cross, {"name": "age", "parts": (JOB, AGE)}, "the name of a column that it reads"),
        (
            Cross,
            {"name": "x", "parts": (JOB, {"kind": "hashed", "name": "t", "buckets": 1 << 16})},
            "expected at most 65536",
        ),
        (Vector, {"name": "v", "columns": ("a",)}, "has no public norm"),
        # numbers whose squares vanish would keep their length, and be divided by less
        (Vector, {"name": "v", "columns": ("a",), "norm": 1e-200}, "expected 1e-90 or more"),
        # where they meet a hat would be no number
        (
            Numeric,
            {
                **{"name": "a", "low": -1e150, "high": 1e150, "transform": "log1p"},
                **{"encode": ("hats",), "knots": (0.0, 1.0)},
            },
            "two knots are one number",
        ),
        (Vector, {"name": "v", "columns": ("a", "a"), "norm": 1}, "one is listed twice"),
        (Vector, {"name": "a", "columns": ("a",), "norm": 1}, "name of a column that it reads"),
        (
            Fourier,
            {"name": "f", "parts": [{"kind": "numeric", "name": "a"}], "pairs": 1},
            "no public bounds",
        ),
        (
            Fourier,
            {"name": "f", "parts": [Numeric(name="a", low=0, high=1)] * 2, "pairs": 1},
            "one is there twice",
        ),
    ],
)
def test_a_declaration_is_refused_with_what_to_declare(kind, more, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(**more)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([{"kind": "cross", "name": "x", "parts": ["job", "age"]}], "which is not declared"),
        (
            [
                Numeric(name="age", low=0, high=9),
                JOB,
                {"kind": "cross", "name": "x", "parts": ["job", "age"]},
            ],
            r'crossed in public bins: \{kind = "bins"',
        ),
        ([Vector(name="y", columns=("a",), norm=1)], "the label 'y' is declared as a column"),
        ([Vector(name="v", columns=("y",), norm=1)], "the label 'y' is declared as a column"),
        (
            [
                Vector(name="job", columns=("a",), norm=1),
                {"kind": "cross", "name": "x", "parts": [JOB, AGE]},
            ],
            "'job' has the name of a column of the rows",
        ),
    ],
)
def test_a_schema_is_refused_with_what_to_declare(columns, sentence):
    with pytest.raises(ValueError, match=sentence):
        Schema(columns=columns, label=LABEL)


def test_errors_name_the_column_and_the_row_alone():
    rows = table(5, 0)
    for name, cell in (("e2", SECRET), ("gain", SECRET), ("day", SECRET), ("age", SECRET)):
        bad = {**rows, name: [*list(rows[name])[:4], cell]}
        with pytest.raises(CellError, match=f"column '{name}', row 4: ") as refused:
            ALL.rows(bad)
        assert SECRET not in str(refused.value)
        (mistake,) = survey(ALL, {**bad, "y": rows["y"]}, "north").mistakes
        assert f"'{name}'" in str(mistake)
    for name in ("e1", "town", "age"):
        with pytest.raises(CellError, match=f"column '{name}', row 4: the value is missing"):
            ALL.rows({**rows, name: [*list(rows[name])[:4], None]})


# --------------------------------------------------------------------------------------------------
# formats


@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet", "pandas", "polars", "memory"])
def test_every_format_gives_the_same_rows(form, tmp_path):
    rows = table(40, 3)
    frame = pl.DataFrame(rows)
    expected = ALL.shard(rows).signed.toarray()
    path = tmp_path / f"rows.{form}"
    if form == "csv":
        frame.write_csv(path)
    elif form == "csv.gz":
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    elif form == "parquet":
        frame.with_columns(pl.col("day").str.to_date()).write_parquet(path)
    data = {
        "pandas": frame.to_pandas().assign(day=lambda t: pd.to_datetime(t["day"])),
        "polars": frame.with_columns(pl.col("day").str.to_datetime()),
        "memory": rows,
    }.get(form, path)
    found = load_shard(ALL, data)
    np.testing.assert_array_equal(found.signed.toarray(), expected)


def test_times_with_a_zone_are_refused():
    zoned = pl.DataFrame(table(4, 0)).with_columns(
        pl.col("day").str.to_datetime(time_zone="Europe/Zurich")
    )
    with pytest.raises(DataError, match=r"column 'day' is of type Datetime.*convert it first"):
        load_shard(ALL, zoned)


def test_a_schema_file_declares_every_kind(tmp_path):
    (tmp_path / "schema.toml").write_text(TOML)
    made = load_schema(tmp_path / "schema.toml")
    assert [column.kind for column in made.columns] == [
        "date",
        "hashed",
        "categorical",
        "numeric",
        "cross",
        "vector",
        "fourier",
    ]
    assert made.columns[0].missing == date(2022, 1, 1)
    assert made.feature_count == 1 + 7 + 64 + 2 + 1 + 6 + 2 + 10


TOML = """
[label]
name = "y"
negative = "no"
positive = "yes"
[[columns]]
kind = "date"
name = "day"
first = 2020-01-01
last = 2024-12-31
encode = ["linear", "weekday"]
missing = 2022-01-01
[[columns]]
kind = "hashed"
name = "town"
buckets = 64
salt = "2024"
[[columns]]
kind = "categorical"
name = "job"
values = ["clerk", "cook"]
[[columns]]
kind = "numeric"
name = "gain"
low = -1000
high = 10000
transform = "signed_log"
[[columns]]
kind = "cross"
name = "job by age"
parts = ["job", { kind = "bins", name = "age", edges = [30, 50] }]
[[columns]]
kind = "vector"
name = "ready"
columns = ["e1", "e2"]
norm = 2.0
[[columns]]
kind = "fourier"
name = "waves"
parts = ["gain"]
pairs = 5
"""


def test_old_schemas_keep_their_digests():
    assert census(10).schema.digest() == CENSUS


CENSUS = "e1ba5d3d170d49ea9997a421044452d68dc053948caa4511ffc7b676f576838c"
PINNED_BUCKETS = [8, 5, 2, 6]
PINNED_FREQUENCIES = [
    [-1.030827522277832, -0.5578861236572266],
    [0.29431629180908203, 2.025920867919922],
]
