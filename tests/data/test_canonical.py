"""One spelling and one hash for a declaration, whoever writes it down."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp._files import canonical_json, digest
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.schema import Label, Schema

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_spelling():
    assert (
        canonical_json({"ß": (1, 0.1), "a": [None, True, "x y"]})
        == '{"a":[null,true,"x y"],"ß":[1,0.1]}'
    )


@given(st.dictionaries(st.text(), VALUES, max_size=6), st.randoms(use_true_random=False))
def test_order_of_keys_does_not_matter(value, random):
    items = list(value.items())
    random.shuffle(items)
    assert canonical_json(dict(items)) == canonical_json(value)


@given(VALUES)
def test_spelling_survives_a_round_trip(value):
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text


@given(
    st.recursive(
        VALUES | st.just("\ud83d\ude00"), lambda inner: st.dictionaries(st.integers(), inner)
    )
)
def test_spelling_is_the_same_in_one_pass_as_in_two(value):
    """Of a text that is two halves of a letter as well."""
    twice = json.dumps(
        json.loads(json.dumps(value)), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    assert canonical_json(value) == twice


def test_keys_that_are_numbers_hash_alike_before_and_after_a_file():
    value = {2: "a", 10: "b"}
    assert digest(json.loads(json.dumps(value))) == digest(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


def test_digest_is_sha256_of_the_spelling():
    assert digest([]) == hashlib.sha256(b"[]").hexdigest()
    assert digest({"b": 1.0, "a": "ß"}) == hashlib.sha256('{"a":"ß","b":1.0}'.encode()).hexdigest()


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), ("1", 1), ([1, 2], [2, 1]), (None, False), ({}, []), ({"a": 1}, {"a": 2})],
)
def test_digest_tells_values_apart(one, other):
    assert digest(one) != digest(other)


# --------------------------------------------------------------------------------------------------
# schemas

AGE = Numeric(name="age", low=0, high=100, signed=False)
HATS = Numeric(name="age", low=0, high=100, encode=("hats",), knots=(0, 50))
TRADE = Categorical(name="trade", values=("craft", "care"))
LABEL = Label(name="ill", negative="no", positive="yes")
PLAIN = Schema(columns=(AGE, TRADE), label=LABEL)

CHANGES = {
    PLAIN: {
        "columns": (TRADE, AGE),
        "label": Label(name="ill", negative="yes", positive="no"),
        "norm": 2.0,
        "intercept": 0.5,
    }
    | {"scaling": "unit", "centre": (0.0, 0.0, 0.0), "missing_values": ("", "?")}
    | {"person": "id", "rows_per_person": 2, "silos_per_person": 2, "adjacency": "add-remove"},
    AGE: {
        "name": "years",
        "low": -1,
        "high": 99,
        "transform": "log1p",
        "encode": ("square",),
        "signed": True,
        "weight": 2.0,
    }
    | {"missing": 0.0},
    HATS: {"knots": (0, 60)},
    TRADE: {
        "name": "job",
        "values": (1, 2.5),
        "other": "column",
        "weight": 2.0,
        "missing": {"value": "care"},
    },
    LABEL: {"name": "sick", "negative": 0, "positive": 1},
}


def changed(part, field):
    new = type(part).model_validate(part.model_dump() | {field: CHANGES[part][field]})
    if isinstance(new, Schema):
        return new
    if isinstance(new, Label):
        return Schema(columns=PLAIN.columns, label=new)
    return Schema(columns=(new, TRADE if part is not TRADE else AGE), label=LABEL)


VARIANTS = {
    f"{type(part).__name__}.{field}": changed(part, field)
    for part in CHANGES
    for field in CHANGES[part]
}


def test_digest_changes_with_every_field():
    fields = {
        f"{kind.__name__}.{field}"
        for kind in (Schema, Numeric, Categorical, Label)
        for field in kind.model_fields
    }
    assert fields - set(VARIANTS) == {"Numeric.kind", "Categorical.kind"}
    bare = [
        PLAIN,
        Schema(columns=(HATS, TRADE), label=LABEL),
        Schema(columns=(TRADE, AGE), label=LABEL),
    ]
    digests = [made.digest() for made in (*bare, *VARIANTS.values()) if made != bare[2]] + [
        bare[2].digest()
    ]
    assert len(set(digests)) == len(digests) == len(VARIANTS) + 2


@pytest.mark.parametrize("name", VARIANTS)
def test_schema_survives_a_file(name):
    made = VARIANTS[name]
    again = Schema.model_validate_json(made.model_dump_json())
    assert (again, again.digest(), again.features) == (made, made.digest(), made.features)


def test_equal_declarations_have_one_digest():
    spelled = {"kind": "numeric", "name": "age", "low": "0", "high": 100, "signed": 0}
    twin = Schema.model_validate({"label": LABEL, "columns": [spelled, TRADE], "norm": 1})
    assert twin == PLAIN
    assert twin.digest() == PLAIN.digest()
