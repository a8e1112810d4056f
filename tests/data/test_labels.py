"""Labels of two values, of several classes, and targets: one reading in memory, from files,
streamed, filled up and limited.
"""

import json
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp.data.columns import Categorical, Numeric
from dynadp.data.labels import Classes, Label, Target
from dynadp.data.loading import load_shard
from dynadp.data.node_rows import NodeRows, StreamedShard
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.schema import Schema
from dynadp.data.shard import Shard, require_signs
from dynadp.data.survey import survey
from dynadp.errors import CellError, ConfigError, DataError, DeclarationError
from dynadp.problem.integer_rows import Resolution, integer_rows_of
from dynadp.problem.losses import Logistic
from dynadp.problem.regularizers import SquaredL2
from dynadp.problem.streamed import chunks, local_problem
from dynadp.runs.run_file import load_schema

COLUMNS = (
    Numeric(name="age", low=0, high=100, missing="drop"),
    Categorical(name="kind", values=("x", "y")),
)
CLASSES = Classes(name="t", values=("fir", "oak", 3))
TARGET = Target(name="t", low=-10, high=30)
NAN = float("nan")


def schema(label, **more):
    return Schema(columns=COLUMNS, label=label, **more)


def rows(label, count=60, seed=0):
    rng = np.random.default_rng(seed)
    if isinstance(label, Target):
        answers = rng.uniform(-20, 40, count)
    else:
        answers = rng.choice(np.array(["fir", "oak", "3"]), count).astype(object)
    return {
        "age": np.where(rng.random(count) < 0.1, np.nan, rng.uniform(0, 100, count)),
        "kind": rng.choice(["x", "y", "z"], count).astype(object),
        "t": answers,
        "who": rng.integers(0, count // 2, count),
    }


def expected(label, cells):
    if isinstance(label, Target):
        return np.clip((2 * cells.astype(float) - 20) / 40, -1, 1)
    return np.array([["fir", "oak", "3"].index(cell) for cell in cells], dtype=float)


def dense(shard):
    return np.asarray(shard.signed.toarray() if hasattr(shard.signed, "toarray") else shard.signed)


@pytest.mark.parametrize("label", [CLASSES, TARGET], ids=["classes", "target"])
@pytest.mark.parametrize("centre", [None, (0.1, 0.2, 0.3)])
def test_every_reading_has_the_same_answers(tmp_path, label, centre):
    """x itself and y, in memory, from files and streamed, row by row."""
    plain, table = schema(label, centre=centre), rows(label)
    stay = plain.kept(table)
    kept = {name: cells[stay] for name, cells in table.items()}
    y, X = expected(label, kept["t"]), plain.rows(kept)
    X = X.toarray() if hasattr(X, "toarray") else X
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({n: pa.array(c.tolist()) for n, c in table.items()}), path)
    for shard in (plain.shard(table), load_shard(plain, table, size=7), load_shard(plain, path)):
        assert shard.kind == label.kind
        np.testing.assert_array_equal(shard.y, y)
        np.testing.assert_allclose(dense(shard), X, rtol=1e-12)
        assert shard.answers is shard.y
    streamed = StreamedShard.of(plain, source(path, memory=LEAST_MEMORY))
    assert streamed.kind == label.kind
    for size in (None, 7):
        blocks = list(chunks(streamed, size))
        np.testing.assert_array_equal(np.concatenate([b.answers for b in blocks]), y)
        np.testing.assert_allclose(np.hstack([b.dense() for b in blocks]).T, X, rtol=1e-12)
    held = next(chunks(plain.shard(table)))
    np.testing.assert_array_equal(held.answers, y)


@pytest.mark.parametrize("label", [CLASSES, TARGET], ids=["classes", "target"])
def test_null_rows_and_people(tmp_path, label):
    table, declared = rows(label), 70
    secret = schema(label, adjacency="add-remove")
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({n: pa.array(c.tolist()) for n, c in table.items()}), path)
    stay = secret.kept(table)
    shard = secret.shard(table, rows=declared)
    assert (shard.rows, shard.kind) == (declared, label.kind)
    np.testing.assert_array_equal(shard.y[: stay.sum()], expected(label, table["t"][stay]))
    assert not shard.y[stay.sum() :].any()
    assert not dense(shard)[stay.sum() :].any()
    null = Shard.null(4, 3, "n", label.kind)
    assert (null.kind, null.y.tolist()) == (label.kind, [0.0] * 4)
    streamed = StreamedShard.of(secret, source(path, memory=LEAST_MEMORY), rows=declared)
    found = np.concatenate([block.answers for block in streamed])
    np.testing.assert_array_equal(found, shard.y)
    limited = schema(label, person="who", rows_per_person=1)
    used = limited.used(table)
    np.testing.assert_array_equal(limited.shard(table).y, expected(label, table["t"][used]))
    streamed = StreamedShard.of(limited, source(path, memory=LEAST_MEMORY))
    found = np.concatenate([block.answers for block in streamed])
    np.testing.assert_array_equal(found, limited.shard(table).y)


@pytest.mark.parametrize(
    ("label", "bad", "says"),
    [
        (CLASSES, "beech-1867", "t, row 4: the label is none of the 3 declared classes"),
        (CLASSES, None, "t, row 4: the label is none of the 3 declared classes"),
        (TARGET, "1867a", "column 't', row 4: the value is not a number"),
        (TARGET, NAN, "column 't', row 4: the value is infinite or not a number"),
        (TARGET, float("inf"), "column 't', row 4: the value is infinite or not a number"),
        (TARGET, None, "column 't', row 4: the value is not a number"),
        (TARGET, "", "column 't', row 4: the value is not a number"),
    ],
)
def test_a_bad_answer_is_named_by_its_row(tmp_path, label, bad, says):
    table = rows(label, 9)
    table["age"] = np.full(9, 50.0)
    table["t"] = table["t"].astype(object)
    table["t"][4] = bad
    plain = schema(label)
    for read in (lambda: plain.shard(table), lambda: load_shard(plain, table)):
        with pytest.raises(DataError) as caught:
            read()
        assert says in str(caught.value)
        assert "1867" not in str(caught.value)
    (mistake,) = survey(plain, table).mistakes
    assert mistake.row == 4
    if isinstance(bad, str) and isinstance(label, Target):
        return  # a file's column holds texts then, or numbers
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({n: pa.array(c.tolist()) for n, c in table.items()}), path)
    given = source(path, memory=LEAST_MEMORY)
    (mistake,) = survey(plain, given).mistakes
    assert mistake.row == 4
    with pytest.raises(CellError, match="row 4"):
        StreamedShard.of(plain, given)


def test_targets_among_texts_are_read_alike(tmp_path):
    """A file may hold a target as text, which streams as codes."""
    table = rows(TARGET, 30)
    texts = {**table, "t": [repr(float(v)) for v in table["t"]]}
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({n: pa.array(list(c)) for n, c in texts.items()}), path)
    stay = schema(TARGET).kept(table)
    y = expected(TARGET, table["t"][stay])
    streamed = StreamedShard.of(schema(TARGET), source(path, memory=LEAST_MEMORY))
    np.testing.assert_array_equal(np.concatenate([b.answers for b in streamed]), y)
    np.testing.assert_array_equal(load_shard(schema(TARGET), path).y, y)


@given(st.floats(-1e150, 1e150), st.floats(0, 1e150).filter(bool), st.floats(allow_nan=False))
def test_a_target_stays_in_its_interval(low, width, cell):
    high = low + width
    if not low < high or high > 1e150:
        return
    label = Target(name="t", low=low, high=high)
    (t,) = label.read(np.array([np.clip(cell, -1e300, 1e300)]))
    assert -1 <= t <= 1
    c = Fraction(min(max(cell, low), high))
    exact = (2 * c - Fraction(low) - Fraction(high)) / (Fraction(high) - Fraction(low))
    scale = max(1.0, (abs(low) + abs(high)) / (high - low))
    assert abs(t - float(exact)) <= 1e-14 * scale


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"label": {"name": "t", "values": ["a", "b"]}}, "expected three or more"),
        ({"label": {"name": "t", "values": ["a", 1, "1"]}}, "a cell could be two of its values"),
        ({"label": {"name": "t", "values": ["a", "b", "c"], "low": 1}}, "no such key"),
        ({"label": {"name": "t"}}, "declare both values (negative and positive), or three or more"),
        ({"target": {"name": "t", "low": 1}}, "declare low and high"),
        ({"target": {"name": "t"}}, "declare low and high"),
        ({"target": {"name": "t", "low": 2, "high": 2}}, "low must be below"),
        ({"target": {"name": "t", "low": 0, "high": 1e200}}, "overflow"),
        ({"target": {"name": "age", "low": 0, "high": 1}}, "declared as a column too"),
        (
            {
                "target": {"name": "t", "low": 0, "high": 1},
                "label": {"name": "y", "negative": 0, "positive": 1},
            },
            "label and target are both declared",
        ),
        ({}, "label: is missing"),
    ],
)
def test_declarations_are_checked_in_words(tmp_path, given, says):
    columns = [{"kind": "numeric", "name": "age", "low": 0, "high": 1}]
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"columns": columns, **given}))
    with pytest.raises(ConfigError) as caught:
        load_schema(path)
    assert says in str(caught.value)


@pytest.mark.parametrize("label", [CLASSES, TARGET, Label(name="t", negative=0, positive=1)])
def test_a_schema_comes_back_from_its_file(tmp_path, label):
    made = schema(label)
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(made.model_dump(mode="json")))
    found = load_schema(path)
    assert found == made
    assert type(found.label) is type(label)
    assert found.digest() == made.digest()
    assert ("target" in made.model_dump()) == isinstance(label, Target)
    assert ("label" in made.model_dump()) != isinstance(label, Target)


def test_digests_of_schemas_with_two_labels_stay():
    made = Schema(
        columns=(Numeric(name="age", low=0, high=1),),
        label=Label(name="y", negative=0, positive=1),
    )
    assert made.digest() == "660e193ad507682a69df838462b4604ca0eef33d3f4c3edf721834c6e2b8644e"


def test_toml_declares_both_kinds(tmp_path):
    columns = '[[columns]]\nkind = "numeric"\nname = "age"\nlow = 0\nhigh = 1\n'
    (tmp_path / "a.toml").write_text(columns + '[label]\nname = "t"\nvalues = ["a", "b", "c"]\n')
    (tmp_path / "b.toml").write_text(columns + '[target]\nname = "t"\nlow = 0\nhigh = 9.5\n')
    assert load_schema(tmp_path / "a.toml").label == Classes(name="t", values=("a", "b", "c"))
    assert load_schema(tmp_path / "b.toml").label == Target(name="t", low=0, high=9.5)


@pytest.mark.parametrize("label", [CLASSES, TARGET], ids=["classes", "target"])
def test_what_separates_two_classes_refuses_others(label):
    shard = schema(label).shard(rows(label))
    resolution = Resolution.of(shard.rows, shard.dimension)
    for use in (
        lambda: local_problem([shard], Logistic(), SquaredL2(), 1.0, 0.1),
        lambda: integer_rows_of([shard], resolution, Logistic()),
        lambda: require_signs([shard], "this"),
        lambda: schema(label).require_two_values("this"),
    ):
        with pytest.raises(DeclarationError, match="separates two"):
            use()


@pytest.mark.parametrize(
    ("y", "more", "says"),
    [
        ([0.5, 1.5], {"classes": None}, "row 1: the target is no number in [-1, 1]"),
        ([0.5, NAN], {"classes": None}, "row 1: the target is no number in [-1, 1]"),
        (["a", "b"], {"classes": None}, "row 0: the target is no number in [-1, 1]"),
        (["a", "d"], {"classes": ("a", "b", "c")}, "row 1: the label is none of the 3"),
    ],
)
def test_ready_rows_are_checked(y, more, says):
    with pytest.raises(DataError) as caught:
        Shard.of(np.eye(2) / 2, y, **more)
    assert says in str(caught.value)


def test_ready_rows_have_classes_or_numbers():
    X = np.array([[0.6, 0.0], [0.0, -1.0], [0.3, 0.3]])
    classes = Shard.of(X, ["c", "a", "b"], classes=("a", "b", "c"))
    assert (classes.kind, classes.y.tolist()) == ("classes", [2, 0, 1])
    numbers = Shard.of(X, [0.5, -1, 1], classes=None)
    assert (numbers.kind, numbers.y.tolist()) == ("numbers", [0.5, -1, 1])
    for shard in (classes, numbers):
        np.testing.assert_allclose(shard.signed, X, rtol=1e-12)
        assert not shard.y.flags.writeable


def test_the_seal_of_a_target_compares_numbers(tmp_path):
    """1, 1.0 and "1" are one target, and have one seal in every form."""
    made = schema(TARGET)
    forms = ([1.0, 2.5], ["1", "2.50"], np.array([1, 2.5], dtype=object))
    found = {
        survey(made, {"age": [1.0, 2.0], "kind": ["x", "y"], "t": t}, seal=True).digest
        for t in forms
    }
    assert len(found) == 1
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"age": [1.0, 2.0], "kind": ["x", "y"], "t": [1.0, 2.5]}), path)
    assert {NodeRows(made, source(path, memory=LEAST_MEMORY), "n").digest} == found
