"""Columns: what a raw cell becomes, and what is refused."""

import itertools
import traceback

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp.data.columns import Categorical, Numeric
from dynadp.data.schema import Label, Schema
from dynadp.errors import DataError

LABEL = Label(name="y", negative="no", positive="yes")
NAN = float("nan")
SECRET = "Maria-Sklodowska-1867"


def features(column, cells):
    """The column's own features, unscaled and dense."""
    return (
        Schema(columns=(column,), label=LABEL, intercept=0, scaling="none")
        .rows({column.name: cells})
        .toarray()
    )


def age(**more):
    return Numeric(**({"name": "age", "low": 20, "high": 100} | more))


def trade(**more):
    return Categorical(**({"name": "trade", "values": ("craft", "sales", "care")} | more))


# --------------------------------------------------------------------------------------------------
# numeric


@pytest.mark.parametrize(
    ("more", "cells", "expected"),
    [
        ({}, [20, 40, 60, 100], [-1, -0.5, 0, 1]),
        ({"signed": False}, [20, 40, 60, 100], [0, 0.25, 0.5, 1]),
        ({}, [-1e300, 19.9, 100.1, 1e300], [-1, -1, 1, 1]),
        ({"signed": False, "weight": 2.5}, [20, 60, 100], [0, 1.25, 2.5]),
        ({"encode": ("square",)}, [20, 40, 60, 100], [1, 0.25, 0, 1]),
        ({"encode": ("square",), "signed": False, "weight": 3}, [20, 40, 100], [0, 3 / 16, 3]),
        ({"transform": "log1p", "signed": False}, [20, 29, 100], [0, np.log(10) / np.log(81), 1]),
        ({"transform": "log1p"}, [0, 28, 1e9], [-1, 0, 1]),  # ln 9 is half of ln 81
        ({"low": -3, "high": 5}, [-3, 1, 5], [-1, 0, 1]),
    ],
)
def test_number_is_clipped_transformed_and_weighted(more, cells, expected):
    np.testing.assert_allclose(features(age(**more), cells)[:, 0], expected, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("kind", [int, np.int8, np.uint16, np.float32, object])
def test_number_of_any_type_is_the_same_feature(kind):
    np.testing.assert_array_equal(
        features(age(), np.array([20, 60, 100], dtype=kind)), [[-1], [0], [1]]
    )


@pytest.mark.parametrize(
    "cells", [["20", " 60", "1e2"], ["20", 60, "100"], np.array(["20", "60", "100"], dtype=object)]
)
def test_number_written_as_text_is_read(cells):
    np.testing.assert_array_equal(features(age(), cells), [[-1], [0], [1]])


def test_truth_values_count_as_0_and_1():
    np.testing.assert_array_equal(
        features(Numeric(name="b", low=0, high=1), [True, False]), [[1], [-1]]
    )


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (20, [1, 0, 0]),
        (30, [1, 0, 0]),  # first knot
        (35, [0.75, 0.25, 0]),
        (50, [0, 1, 0]),  # middle knot
        (65, [0, 0.5, 0.5]),
        (80, [0, 0, 1]),  # last knot
        (95, [0, 0, 1]),
        (1e9, [0, 0, 1]),
    ],
)
def test_hats_at_and_between_knots(cell, expected):
    np.testing.assert_allclose(
        features(age(encode=("hats",), knots=(30, 50, 80)), [cell])[0], expected, atol=1e-15
    )


def test_hats_are_linear_in_the_transformed_number():
    hats = features(
        Numeric(name="v", low=0, high=99, transform="log1p", encode=("hats",), knots=(0, 99)),
        [0, 9, 99],
    )
    np.testing.assert_allclose(hats, [[1, 0], [0.5, 0.5], [0, 1]], atol=1e-15)


@given(
    knots=st.lists(st.floats(-50, 50), min_size=2, max_size=6, unique=True).map(sorted),
    cells=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    transform=st.sampled_from(["none", "log1p"]),
    weight=st.floats(0.1, 10),
)
def test_hats_are_a_partition_of_the_weight(knots, cells, transform, weight):
    if min(b - a for a, b in itertools.pairwise(knots)) < 1e-3:
        knots = [-50.0, 50.0]
    column = Numeric(
        name="v",
        low=-50,
        high=50,
        transform=transform,
        encode=("hats",),
        knots=tuple(knots),
        weight=weight,
    )
    hats = features(column, cells)
    assert hats.min() >= 0
    assert (hats > 0).sum(axis=1).max() <= 2
    np.testing.assert_allclose(hats.sum(axis=1), weight, rtol=1e-14)


@given(
    st.floats(-1e9, 1e9),
    st.floats(1e-3, 1e9),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1),
)
def test_number_never_leaves_its_range(low, width, cells):
    for signed, least in ((True, -1), (False, 0)):
        found = features(Numeric(name="v", low=low, high=low + width, signed=signed), cells)
        assert least <= found.min()
        assert found.max() <= 1


def test_encodings_stand_in_the_order_asked():
    column = age(encode=("square", "hats", "linear"), knots=(20, 100))
    assert column.features == ("age^2", "age~20", "age~100", "age")
    np.testing.assert_allclose(features(column, [40]), [[0.25, 0.75, 0.25, -0.5]])


@pytest.mark.parametrize(("missing", "expected"), [(60.0, 0), (20, -1), (1e6, 1)])
def test_missing_number_takes_the_declared_value(missing, expected):
    np.testing.assert_array_equal(features(age(missing=missing), [NAN, 100]), [[expected], [1]])
    np.testing.assert_array_equal(
        features(age(missing=missing), np.array([None, 100])), [[expected], [1]]
    )


# --------------------------------------------------------------------------------------------------
# categorical


@pytest.mark.parametrize(
    ("other", "expected", "names"),
    [
        ("zero", [0, 0, 0], ("trade=craft", "trade=sales", "trade=care")),
        ("column", [0, 0, 0, 1], ("trade=craft", "trade=sales", "trade=care", "trade=(other)")),
    ],
)
def test_unlisted_value_is_what_was_declared(other, expected, names):
    column = trade(other=other)
    assert column.features == names
    found = features(column, ["care", "unheard-of", " craft ", "sales"])
    one_hot = np.eye(len(expected))
    np.testing.assert_array_equal(found, [one_hot[2], expected, one_hot[0], one_hot[1]])


def test_bytes_match_the_text_they_spell():
    np.testing.assert_array_equal(
        features(trade(other="refuse"), np.array([b"sales", b"craft"])), [[0, 1, 0], [1, 0, 0]]
    )


def test_category_has_its_weight():
    np.testing.assert_array_equal(
        features(trade(weight=0.5), ["sales", "?"]), [[0, 0.5, 0], [0, 0, 0]]
    )


@pytest.mark.parametrize(
    "cells", [[3, 1, 2, 9], np.array([3.0, 1.0, 2.0, 9.0]), np.array([3, 1, 2, 9], dtype=object)]
)
def test_numbers_match_a_vocabulary_of_numbers(cells):
    found = features(Categorical(name="code", values=(1, 3, 2), other="column"), cells)
    np.testing.assert_array_equal(found, np.eye(4)[[1, 0, 2, 3]])


def test_codes_written_as_text_match_a_vocabulary_of_numbers():
    np.testing.assert_array_equal(
        features(Categorical(name="code", values=(1, 2)), ["2", "1"]), [[0, 1], [1, 0]]
    )


def test_texts_match_a_vocabulary_of_numbers_by_value_and_one_of_texts_by_text():
    cells = np.array(["1.0", "01", "1", "2.5", "2.50", "x"])
    numbers = features(Categorical(name="code", values=(1, 2.5, "x")), cells)
    np.testing.assert_array_equal(numbers, np.eye(3)[[0, 0, 0, 1, 1, 2]])
    texts = features(Categorical(name="code", values=("1", "2.5", "x"), other="column"), cells)
    np.testing.assert_array_equal(texts, np.eye(4)[[0, 3, 0, 1, 3, 2]])


def test_unlisted_text_in_a_vocabulary_of_numbers_is_other():
    found = features(
        Categorical(name="code", values=(1, 2), other="column"),
        np.array([2, "unheard-of"], dtype=object),
    )
    np.testing.assert_array_equal(found, [[0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("values", "first"), [(("1", "2"), [1, 2]), ((1, 2), [1, 2]), ((1, 2), [True, 2])]
)
def test_a_missing_code_does_not_change_the_others(values, first):
    column = Categorical(name="code", values=values, missing="other")
    whole = features(column, np.array([*first, 1]))
    for gap in (np.array([*first, NAN]), np.array([*first, None], dtype=object)):
        np.testing.assert_array_equal(features(column, gap)[:2], whole[:2])


@pytest.mark.parametrize(
    ("missing", "other", "expected"),
    [
        ("other", "zero", [0, 0, 0]),
        ("other", "column", [0, 0, 0, 1]),
        ({"value": "sales"}, "zero", [0, 1, 0]),
        ({"value": "sales"}, "refuse", [0, 1, 0]),
    ],
)
@pytest.mark.parametrize("gap", [None, NAN, "", "  "])
def test_missing_category_is_what_was_declared(missing, other, expected, gap):
    found = features(trade(missing=missing, other=other), np.array(["craft", gap], dtype=object))
    np.testing.assert_array_equal(found, [np.eye(len(expected))[0], expected])


def test_missing_value_in_a_list_of_texts_is_seen():
    with pytest.raises(DataError, match=r"column 'trade', row 1: the value is missing"):
        features(trade(), ["craft", NAN])


# --------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize("rule", ["refuse", "drop"])
@pytest.mark.parametrize(("make", "good"), [(age, 30), (trade, "craft")])
def test_missing_cell_is_refused_by_position(rule, make, good):
    with pytest.raises(
        DataError, match=rf"row 2: the value is missing and the schema says missing = '{rule}'"
    ):
        features(make(missing=rule), np.array([good, good, None], dtype=object))


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        (age(), [30, 40, SECRET], "column 'age', row 2: the value is not a number"),
        (
            age(missing=30),
            np.array([None, SECRET, 30], dtype=object),
            "column 'age', row 1: the value is not a number",
        ),
        (age(), ["30", "nan"], "column 'age', row 1: the value is "),
        (
            age(),
            np.array(["1867-11-07"], dtype="datetime64[D]"),
            "column 'age', row 0: the value is ",
        ),
        (age(), [30.0, -np.inf], "column 'age', row 1: the value is infinite"),
        (age(), np.array([30, 1867 * 10**400], dtype=object), "column 'age', row 1: "),
        (
            trade(other="refuse"),
            ["craft", "sales", SECRET],
            "column 'trade', row 2: the value is not in the declared vocabulary",
        ),
        (
            Categorical(name="k", values=(1, 2), other="refuse"),
            [1, 1867],
            "column 'k', row 1: the value is not in the declared",
        ),
    ],
)
def test_refusal_names_the_cell_and_never_shows_it(column, cells, message):
    with pytest.raises(DataError) as refusal:
        features(column, cells)
    assert message in str(refusal.value)
    assert "1867" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    ("make", "more", "sentence"),
    [
        (age, {"low": None}, "has no public bounds: declare low and high"),
        (age, {"high": None}, "has no public bounds: declare low and high"),
        (age, {"low": 100}, "low must be below"),
        (age, {"low": NAN}, "finite number"),
        (age, {"high": np.inf}, "finite number"),
        (age, {"weight": 0}, "greater than 0"),
        (age, {"encode": ()}, "encode must name at least one feature"),
        (age, {"encode": ("linear", "linear")}, "each once"),
        (age, {"encode": ("hats",)}, "'hats' needs at least two public knots"),
        (age, {"encode": ("hats",), "knots": (30,)}, "'hats' needs at least two public knots"),
        (age, {"knots": (30, 40)}, "only 'hats' does"),
        (age, {"encode": ("hats",), "knots": (40, 40)}, "knots must increase"),
        (age, {"encode": ("hats",), "knots": (10, 40)}, r"lie in \[20.0, 100.0\]"),
        (age, {"transform": "sqrt"}, "'none', 'log1p' or 'signed_log'"),
        (age, {"maximum": 3}, "Extra inputs are not permitted"),
        (trade, {"values": ()}, "has no public vocabulary: declare values"),
        (trade, {"values": None}, "has no public vocabulary: declare values"),
        (trade, {"values": ("a", "b", "a")}, "lists a value twice"),
        (trade, {"values": ("a", "a ")}, "lists a value twice"),
        (trade, {"values": (1, "1")}, "lists a value twice"),
        (
            trade,
            {"values": (1, "1.0")},
            "lists a value twice",
        ),  # a cell 1.0 of a file would be the one or the other
        (
            trade,
            {"other": "refuse", "missing": "other"},
            "missing is 'other', but other is 'refuse'",
        ),
        (trade, {"missing": {"value": "unheard-of"}}, "is not in its vocabulary"),
        (trade, {"missing": {}}, "is not in its vocabulary"),
    ],
)
def test_declaration_is_refused_with_what_to_declare(make, more, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(**more)


def test_declaration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        age().low = 0


@pytest.mark.parametrize(("make", "cell"), [(age, 30), (trade, "craft")])
def test_used_declarations_can_be_compared(make, cell):
    one, twin, other = make(), make(), make(weight=2)
    for column in (one, twin, other):
        features(column, [cell])
    assert one == twin
    assert one != other


def test_neighbouring_knots_have_names_of_their_own():
    column = Numeric(name="gain", low=0, high=2e6, encode=("hats",), knots=(1_000_000, 1_000_001))
    assert column.features == ("gain~1000000", "gain~1000001")


def test_a_stand_in_for_missing_cells_may_be_spelled_otherwise():
    column = Categorical(name="code", values=("1", "2"), missing={"value": 2.0})
    np.testing.assert_array_equal(
        features(column, np.array([1, None], dtype=object)), [[1, 0], [0, 1]]
    )


@pytest.mark.parametrize("more", [{"low": -1e308, "high": 1e308}, {"weight": 1e200}])
def test_declarations_that_would_overflow_are_refused(more):
    with pytest.raises(ValueError, match=r"overflow|less than or equal"):
        age(**more)
