"""People at silos: each silo's own names and limits."""

import re

import numpy as np
import pytest

from dynadp.data.columns import Numeric
from dynadp.data.node_rows import NodeRows
from dynadp.data.schema import Label, Schema
from dynadp.errors import ConfigError
from dynadp.runs.node_file import NodeFile

BARE = Schema(
    columns=(Numeric(name="v", low=0, high=1),), label=Label(name="y", negative=0, positive=1)
)


def people(**more):
    return Schema(**{**dict(BARE), "person": "who", "rows_per_person": 3, **more})


def silo(**more):
    return NodeFile(run="run.toml", node="a", identity="a", file="a.csv", out="out", **more)


def rows(ids, name="who"):
    at = np.arange(len(ids))
    return {"v": at / len(ids), "y": at % 2, name: ids}


@pytest.mark.parametrize(
    ("given", "schema", "stay"),
    [
        ({"person": "patient"}, people(), 3),
        ({"person": "patient", "rows_per_person": 2}, people(), 2),
        ({"person": "patient"}, people(person=None), 3),  # the run declares; this silo limits
        ({"person": "patient"}, BARE, 1),
    ],
)
def test_a_silo_has_its_own_name_and_limit(given, schema, stay):
    ids = ["ann"] * 6 + ["bob"] * stay
    made = NodeRows(schema, rows(ids, "patient"), "a", own=silo(**given).own(schema))
    assert made.survey.rows == made.count == 2 * stay
    assert made.schema == schema
    centred = schema.model_copy(update={"centre": (0.5,), "scaling": "unit"})
    shard = made.shard(centred)
    assert len(shard.y) == 2 * stay
    assert NodeRows.of(schema, made, "a") is made  # as a run takes it
    limited = NodeRows(schema, rows(["ann"] * stay + ["bob"] * stay), "a").shard(centred)
    assert shard.signed.shape == limited.signed.shape


def test_a_silo_that_says_nothing_has_the_schema_of_all():
    schema = people()
    assert silo().own(schema) is schema


@pytest.mark.parametrize(
    ("given", "schema", "words"),
    [
        ({"rows_per_person": 4}, people(), "is 4 here, and noise is made for 3"),
        ({"rows_per_person": 1}, people(person=None), "nothing can be limited; give person"),
        ({"person": "v"}, people(), "is declared as a column or as the label too"),
    ],
)
def test_silos_that_cannot_be(given, schema, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        silo(**given).own(schema)
