"""Schema and shard: bounded rows, each made by itself, and refusals that show no value."""

import math
import traceback
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array, csr_array, issparse

from dynadp.data.columns import Categorical, Numeric
from dynadp.data.schema import Label, Schema
from dynadp.data.shard import Shard, check_shards
from dynadp.errors import DataError, DeclarationError
from dynadp.mechanisms.centring import centred as private_centred

NAN = float("nan")
SECRET = "Maria-1867"
LABEL = Label(name="ill", negative="no", positive="yes")
AGE = Numeric(name="age", low=0, high=100, signed=False)
TRADE = Categorical(name="trade", values=("craft", "care"))
WIDE = (
    Numeric(name="age", low=0, high=100, encode=("linear", "square", "hats"), knots=(20, 50, 80)),
    Numeric(name="gain", low=0, high=1e5, transform="log1p", missing=0.0),
    Categorical(name="trade", values=("craft", "care"), other="column", missing="other", weight=2),
    Categorical(name="code", values=(3, 1, 2), missing={"value": 2}),
)
TABLE = {"age": [50.0, 100.0], "trade": ["craft", "care"], "ill": ["yes", "no"]}


def schema(*columns, **more):
    return Schema(columns=columns or (AGE, TRADE), label=LABEL, **more)


def dense(rows):
    return rows.toarray() if issparse(rows) else np.asarray(rows)


def true_square(row):
    """||row||^2 without rounding."""
    return sum(Fraction(float(v)) ** 2 for v in row)


# --------------------------------------------------------------------------------------------------
# schema


def test_intercept_counts_in_the_norm():
    found = dense(schema(intercept=2.0).rows(TABLE))
    whole = np.array([[0.5, 1, 0, 2], [1, 0, 1, 2]])
    np.testing.assert_allclose(
        found, whole / np.linalg.norm(whole, axis=1, keepdims=True), rtol=1e-15
    )


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"norm": 3.0},
            [[0.5 / 3, 1 / 3, 0, 1 / 3], [1 / 3, 0, 1 / 3, 1 / 3]],
        ),  # short enough: divided, not clipped
        (
            {"norm": 1.6},
            [[0.3125, 0.625, 0, 0.625], [3**-0.5, 0, 3**-0.5, 3**-0.5]],
        ),  # clipped where too long
        (
            {"norm": 3.0, "scaling": "unit"},
            [[1 / 3, 2 / 3, 0, 2 / 3], [3**-0.5, 0, 3**-0.5, 3**-0.5]],
        ),
        ({"norm": 0.5, "scaling": "none"}, [[1, 2, 0, 2], [2, 0, 2, 2]]),
        ({"norm": 2.0, "intercept": 0}, [[0.25, 0.5, 0], [0.5, 0, 0.5]]),
        ({"norm": 2.0, "centre": (0.5, 1, 0.5)}, [[0, 0, -0.25, 0.5], [0.25, -0.5, 0.25, 0.5]]),
        (
            {"intercept": 0, "centre": (0.5, 1, 0), "scaling": "unit"},
            [[0, 0, 0], [1 / 3, -2 / 3, 2 / 3]],
        ),
    ],
)
def test_rows_are_centred_divided_and_scaled(more, expected):
    rows = schema(**more).rows(TABLE)
    assert issparse(rows) == ("centre" not in more)
    np.testing.assert_allclose(dense(rows), expected, rtol=1e-15, atol=1e-16)


def test_names_and_dimension_with_and_without_intercept():
    names = (
        "age",
        "age^2",
        "age~20",
        "age~50",
        "age~80",
        "gain",
        "trade=craft",
        "trade=care",
        "trade=(other)",
    )
    names += ("code=3", "code=1", "code=2")
    assert schema(*WIDE).features == (*names, "(intercept)")
    assert schema(*WIDE).dimension == 13
    assert schema(*WIDE, intercept=0).features == names
    assert schema(*WIDE, intercept=0).dimension == 12


@given(
    place=st.integers(0, 5),
    age=st.floats(allow_nan=False, allow_infinity=False),
    trade=st.text(st.characters(codec="ascii"), max_size=30) | st.none(),
    code=st.sampled_from([1e300, -7, 2, NAN]),
    more=st.sampled_from([{}, {"scaling": "unit"}, {"norm": 2.5}, {"centre": (0.1,) * 12}]),
)
def test_replacing_a_row_leaves_the_others_as_they_were(place, age, trade, code, more):
    plan = schema(*WIDE, **more)
    table = {
        "age": np.array([17, 35.5, 90, 61, 20, 3.0]),
        "gain": np.array([0, 10, 1e4, 2, 7e4, 12.0]),
        "trade": np.array(["craft", "care", "?", "craft", "", "care"]),
        "code": np.array([1, 2, 3, 1, 4, 2]),
        "ill": np.array(["no", "yes", "no", "no", "yes", "yes"]),
    }
    outlier = {name: list(cells) for name, cells in table.items()}
    for name, cell in {"age": age, "gain": -age, "trade": trade, "code": code}.items():
        outlier[name][place] = cell
    outlier["trade"] = np.array(outlier["trade"], dtype=object if trade is None else str)
    before, after = (plan.shard(t) for t in (table, outlier))
    others = np.arange(6) != place
    for a, b in ((plan.rows(table), plan.rows(outlier)), (before.signed, after.signed)):
        assert dense(a)[others].tobytes() == dense(b)[others].tobytes()
    assert before.y.tobytes() == after.y.tobytes()
    assert max(map(true_square, dense(after.signed))) <= 1


@pytest.mark.parametrize(
    ("label", "cells"),
    [
        ((0, 1), [1, 0]),
        ((0, 1), [1.0, 0.0]),
        ((0, 1), np.array([1, 0], dtype=object)),
        ((0, 1), np.array([1.0, 0.0], dtype=object)),
        ((0, 1), ["1", "0"]),
        ((0, 1), [" 1.0", "0.00"]),
        ((0, 1), np.array(["1.0", 0], dtype=object)),
        ((0, 1), np.array([b"1.0", b"0.0"])),
        ((0.0, 1.0), ["1", "0"]),
        ((-1, 1), ["+1", "-1.0"]),
        ((0.5, 1.5), ["1.50", "5e-1"]),
        ((10**20, 10**20 + 1), ["100000000000000000001.0", "1e20"]),
        ((-1, 1), [1, -1]),
        ((0.5, 1.5), [1.5, 0.5]),
        (("no", "yes"), ["yes", " no "]),
        (("no", "yes"), np.array(["yes", "no"], dtype=object)),
        ((False, True), [True, False]),
    ],
)
def test_labels_become_signs(label, cells):
    plan = Schema(columns=(AGE,), label=Label(name="ill", negative=label[0], positive=label[1]))
    np.testing.assert_array_equal(plan.labels({"ill": cells}), [1.0, -1.0])


@pytest.mark.parametrize(
    ("label", "cell"),
    [
        (("0", "1"), "+1"),  # declared as texts, which may be codes
        (("0", "1"), "01"),
        (("0.0", "1.0"), "1"),
        ((0, 1), "1.0000000000000000000001"),
        ((0, 1), "1_0"),
        ((0, 10), "1_0"),
        ((0, 1), "0x1"),
        ((0, 1), "\u0661"),  # a digit, but not one of ours
        ((0, 1), "true"),
        ((0, 1), "nan"),
        ((0, 1), "1e999999999999999999999"),
        ((0, 1), ""),
        ((0, 1), SECRET),
        ((10**20, 10**20 + 2), "100000000000000000001"),
    ],
)
def test_other_labels_are_refused_without_showing_them(label, cell):
    plan = Schema(columns=(AGE,), label=Label(name="ill", negative=label[0], positive=label[1]))
    with pytest.raises(DataError, match="row 1: the label is neither") as refusal:
        plan.labels({"ill": [str(label[0]), cell]})
    assert SECRET not in str(refusal.value)


def test_rows_with_missing_cells_are_dropped_before_they_are_counted():
    plan = schema(
        AGE, Categorical(name="trade", values=("craft",), missing="drop"), missing_values=("", "?")
    )
    table = {
        "age": [1, 2, 3, 4],
        "trade": ["craft", " ? ", "", "care"],
        "ill": ["yes", "no", "no", "no"],
    }
    np.testing.assert_array_equal(plan.kept(table), [True, False, False, True])
    shard = plan.shard(table, "north", rows=2)
    assert (shard.rows, shard.name, shard.dimension) == (2, "north", 3)
    np.testing.assert_array_equal(shard.y, [1, -1])
    with pytest.raises(
        DataError,
        match=r"column 'trade', row 1: .* missing = 'drop'; drop such rows first with kept\(\)",
    ):
        plan.rows(table)


def test_a_refusal_counts_rows_as_they_were_given():
    plan = schema(Numeric(name="w", low=0, high=1, missing="drop"), AGE)
    table = {
        "w": [NAN, 0.5, 0.5],
        "age": np.array([1, 2, SECRET], dtype=object),
        "ill": ["no", "no", "yes"],
    }
    with pytest.raises(DataError, match="column 'age', row 2"):
        plan.shard(table)


DROP = schema(
    Numeric(name="age", low=0, high=1, missing="drop"),
    Numeric(name="w", low=0, high=1, missing="drop"),
)


@pytest.mark.parametrize(
    ("plan", "change", "message"),
    [
        (schema(), {"trade": None}, "column 'trade' of the schema is not in the rows"),
        (schema(), {"ill": None}, "column 'ill' of the schema is not in the rows"),
        (schema(), {"trade": ["care"] * 3}, "column 'trade' has 3 rows, 'age' has 2"),
        (
            schema(),
            {"age": [[1.0], [2.0]]},
            "column 'age' has 2 dimensions; expected one value a row",
        ),
        (
            schema(),
            {"ill": ["no"] * 3},
            "2 rows but labels of shape (3,); expected one label a row",
        ),
        (
            schema(),
            {"ill": ["no", SECRET]},
            "ill, row 1: the label is neither 'no' nor 'yes', the two declared ones",
        ),
        (schema(), {"ill": np.array(["no", None])}, "ill, row 1: the label is neither"),
        (schema(), {"age": [SECRET, 2]}, "column 'age', row 0: the value is not a number"),
        (schema(scaling="none"), {}, "node 'node', row 1: its norm with the intercept is above 1"),
        (DROP, {"w": [0.5, NAN, 0.5]}, "'w'"),
        (DROP, {"w": [0.5, NAN], "ill": ["no"] * 3}, "label"),
        (DROP, {"w": [0.5, NAN], "ill": None}, "column 'ill' of the schema is not in the rows"),
    ],
)
def test_rows_that_break_the_schema_are_refused(plan, change, message):
    table = {name: cells for name, cells in (TABLE | change).items() if cells is not None}
    with pytest.raises(DataError) as refusal:
        plan.shard(table)
    assert message in str(refusal.value)
    assert "1867" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"label": {"name": "ill"}}, "declare both values"),
        ({"label": {"name": "ill", "positive": 1}}, "declare both values"),
        ({"label": {"name": "ill", "negative": 1, "positive": 1.0}}, "could be both 1 and 1.0"),
        ({"label": {"name": "ill", "negative": 1, "positive": "1"}}, "could be both 1 and '1'"),
        ({"label": {"name": "ill", "negative": 1, "positive": "01"}}, "could be both 1 and '01'"),
        (
            {"label": {"name": "age", "negative": 0, "positive": 1}},
            "the label 'age' is declared as a column too",
        ),
        ({"columns": ()}, "declare at least one column"),
        ({"columns": (AGE, TRADE, AGE)}, r"columns \['age'\] are declared twice"),
        ({"centre": (0.0,)}, "centre has 1 numbers; expected one for each of the 3 features"),
        ({"centre": (0.0,) * 4}, r"centre has 4 numbers; .* \(the intercept is not centred\)"),
        ({"norm": 0}, "greater than 0"),
        ({"norm": math.inf}, "finite number"),
        ({"intercept": -1}, "greater than or equal to 0"),
        ({"scaling": "max"}, "'clip', 'unit' or 'none'"),
    ],
)
def test_schema_is_refused_with_what_to_declare(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        Schema(**({"columns": (AGE, TRADE), "label": LABEL} | change))


def test_all_mistakes_are_reported_at_once():
    columns = [{"kind": "numeric", "name": "age"}, {"kind": "categorical", "name": "trade"}]
    with pytest.raises(ValueError, match="no public bounds") as refusal:
        Schema.model_validate({"columns": columns, "label": {"name": "ill"}, "norm": -1})
    for part in (
        "columns.0",
        "columns.1",
        "no public vocabulary",
        "declare both values",
        "norm",
        "greater than 0",
    ):
        assert part in str(refusal.value)


# --------------------------------------------------------------------------------------------------
# shard

KINDS = pytest.mark.parametrize("kind", [np.array, csr_array, csc_array])


@KINDS
def test_rows_are_recovered_from_signed_rows(kind):
    X = np.array([[0.6, 0, 0.5], [-0.1, 0.2, 0.0], [0, 0, 0]])
    shard = Shard.of(kind(X), ["a", "b", "a"], classes=("b", "a"), name="north", rows=3)
    np.testing.assert_array_equal(shard.y, [1, -1, 1])
    np.testing.assert_array_equal(shard.y[:, None] * dense(shard.signed), X)
    assert (shard.rows, shard.dimension, shard.name) == (3, 3, "north")
    assert "0.6" not in repr(shard)


@KINDS
def test_shard_is_a_read_only_copy(kind):
    X = kind(np.array([[0.6, 0.0], [0.1, 0.2]]))
    shard = Shard.of(X, [1, -1])
    parts = (
        [shard.signed.data, shard.signed.indices, shard.signed.indptr]
        if issparse(shard.signed)
        else [shard.signed]
    )
    for array in (*parts, shard.y):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    np.testing.assert_array_equal(dense(X), [[0.6, 0.0], [0.1, 0.2]])


@pytest.mark.parametrize("label", [-1, 1])
def test_node_with_one_label_is_accepted(label):
    np.testing.assert_array_equal(Shard.of([[0.5], [0.2]], [label, label]).y, [label, label])


def test_duplicate_entries_of_a_sparse_row_add_up():
    twice = csr_array((np.array([0.6, 0.6]), np.array([0, 0]), np.array([0, 2])), shape=(1, 2))
    with pytest.raises(DataError, match="row 0: its norm with the intercept is above 1"):
        Shard.of(twice, [1])


@KINDS
@given(
    st.lists(
        st.lists(st.floats(-1, 1), min_size=7, max_size=7).filter(any), min_size=1, max_size=5
    ),
    st.sampled_from([1 - 2**-40, 1.0, 1 + 2**-52, 1 + 1e-12, 1 + 9e-10]),
)
def test_row_near_the_bound_has_true_norm_at_most_1(kind, X, size):
    X = np.array(X)
    X /= np.abs(X).max(axis=1, keepdims=True)
    X *= size / np.linalg.norm(X, axis=1, keepdims=True)
    shard = Shard.of(kind(X), np.ones(len(X)))
    assert max(map(true_square, dense(shard.signed))) <= 1
    np.testing.assert_allclose(dense(shard.signed), X, rtol=2e-9)


@KINDS
@pytest.mark.parametrize("long", [1 + 2e-9, 1.5, 1e200])
def test_longer_row_is_refused(kind, long):
    with pytest.raises(
        DataError,
        match="node 'north', row 2: its norm with the intercept is above 1; scale rows by a public",
    ):
        Shard.of(kind([[0.5, 0], [0, 1.0], [0, long]]), [1, 1, -1], name="north")


@KINDS
@pytest.mark.parametrize("bad", [NAN, np.inf, -np.inf])
def test_value_that_is_no_number_is_refused_by_position(kind, bad):
    with pytest.raises(
        DataError, match="node 'north', row 1, column 2: the value is NaN or infinite"
    ):
        Shard.of(kind([[0.1, 0.2, 0.3], [0, 0, bad]]), [1, -1], name="north")


@pytest.mark.parametrize(
    ("X", "y", "more", "message"),
    [
        (np.zeros((0, 3)), [], {}, "node 'n' is empty (0 rows)"),
        (csr_array((0, 3)), [], {}, "node 'n' is empty (0 rows)"),
        (np.zeros((2, 0)), [1, 1], {}, "node 'n' is empty (2 rows, 0 columns)"),
        (np.zeros((0, 3)), [], {"rows": 0}, "node 'n' is empty"),
        ([[0.1]], [1], {"rows": 0}, "node 'n' holds 1 rows but declared B_p = 0"),
        (
            [[0.1], [0.2]],
            [1, 1],
            {"rows": 3},
            "node 'n' holds 2 rows but declared B_p = 3; B_p is public",
        ),
        ([0.1, 0.2], [1, 1], {}, "node 'n': rows have 1 dimensions; expected a B x d matrix"),
        (np.zeros((1, 1, 1)), [1], {}, "rows have 3 dimensions"),
        (
            [[0.1], [0.2]],
            [1],
            {},
            "node 'n': 2 rows but labels of shape (1,); expected one label a row",
        ),
        ([[0.1], [0.2]], [[1], [1]], {}, "labels of shape (2, 1)"),
        ([[0.1], [0.2]], [1, 1867], {}, "label of node n, row 1: the label is neither -1 nor 1"),
        ([[0.1], [0.2]], [1, NAN], {}, "row 1: the label is neither -1 nor 1"),
        (
            [[0.1], [0.2]],
            ["no", SECRET],
            {"classes": ("no", "yes")},
            "row 1: the label is neither 'no' nor 'yes'",
        ),
        ([["0.1", SECRET]], [1], {}, "node 'n'"),
        ([[0.1], [0.1, 0.2]], [1, 1], {}, "node 'n'"),
    ],
)
def test_shard_is_refused_without_showing_a_value(X, y, more, message):
    with pytest.raises(DataError) as refusal:
        Shard.of(X, y, name="n", **more)
    assert message in str(refusal.value)
    assert "1867" not in "".join(traceback.format_exception(refusal.value))


def test_shards_must_fit_the_network_and_each_other():
    one, two = Shard.of([[0.1]], [1], name="a"), Shard.of([[0.1, 0.2]], [1], name="b")
    assert check_shards([one, one], ("a", "b")) == 1
    with pytest.raises(
        DeclarationError, match="2 nodes but 1 shards were given; expected one each"
    ):
        check_shards([one], ("a", "b"))
    with pytest.raises(
        DataError, match="node 'b' has 2 columns, node 'a' has 1; all nodes must use one schema"
    ):
        check_shards([one, two], ("a", "b"))


def test_lists_of_different_length_are_refused_without_showing_them():
    with pytest.raises(DataError, match="column 'age' holds lists of different length"):
        schema(AGE).rows({"age": [[1867.0], [3.0, 4.0]]})
    with pytest.raises(DataError, match="labels are lists of different length"):
        Shard.of(np.zeros((2, 2)), [[1], [1, -1]])


def test_a_changed_copy_has_its_own_features():
    plan = schema(AGE)
    assert plan.features[-1] == "(intercept)"
    assert plan.model_copy(update={"intercept": 0.0}).features == plan.features[:-1]


def test_a_huge_whole_number_does_not_change_its_neighbours():
    plan = schema(Categorical(name="code", values=(9007199254740993, 1), missing="refuse"))
    for last in (1, 2**63, 2**70):
        rows = plan.rows({"code": [9007199254740993, 1, last]})
        assert (
            rows.toarray()[0].tolist()
            == plan.rows({"code": [9007199254740993]}).toarray()[0].tolist()
        )


class Unsure:
    """Like pandas' NA: neither equal nor unequal to itself."""

    def __ne__(self, other):
        return self

    def __bool__(self):
        raise TypeError("ambiguous")


def test_a_cell_that_is_neither_equal_nor_unequal_to_itself_is_missing():
    plan = schema(Numeric(name="age", low=0, high=1, missing=0.5))
    rows = plan.rows({"age": np.array([0.5, Unsure()], dtype=object)}).toarray()
    np.testing.assert_array_equal(rows[0], rows[1])


# --- norm: one definition


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
@pytest.mark.parametrize("width", [1, 40, 10_000])
def test_a_wide_row_is_scaled_by_itself(width, kind):
    """To the last bit, wherever it stands: beyond 8,192 numbers products of libraries are not."""
    row = np.random.default_rng(0).normal(size=width)
    row /= np.linalg.norm(row)
    found = {
        line.tobytes()
        for rows in (1, 2, 3, 8)
        for line in dense(Shard.of(kind(np.tile(row, (rows, 1))), np.ones(rows)).signed)
    }
    assert len(found) == 1


def test_norm_is_the_length_to_which_rows_are_shortened():
    """x = v / max(norm, ||v||), and where rows have norm 1 anyway it has no say."""
    columns = (Numeric(name="a", low=-9, high=9, weight=9), Numeric(name="b", low=-9, high=9))
    label = Label(name="y", negative=0, positive=1)
    cells = {"a": [9.0, 0.5, 0.0], "b": [-9.0, 0.5, 0.0]}
    bare = Schema(columns=columns, label=label).only_features().rows(cells).toarray()
    v = np.column_stack([bare, np.ones(3)])
    length = np.linalg.norm(v, axis=1, keepdims=True)
    for norm in (0.5, 1.2, 5.0, 20.0):
        made = Schema(columns=columns, label=label, norm=norm)
        np.testing.assert_allclose(made.rows(cells).toarray(), v / np.maximum(norm, length))
        unit = made.model_copy(update={"scaling": "unit"})
        np.testing.assert_allclose(unit.rows(cells).toarray(), v / length)
        plain = made.model_copy(update={"scaling": "none"})
        np.testing.assert_allclose(plain.rows(cells).toarray(), v / norm)
        if norm < length.max():
            with pytest.raises(DataError, match="its norm with the intercept is above 1"):
                plain.shard({**cells, "y": [0, 1, 0]})
        centred = private_centred(made, np.zeros(2))
        np.testing.assert_allclose(centred.rows(cells), v / length)
