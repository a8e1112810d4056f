"""Exports and models on the same rows."""

import sqlite3

import duckdb
import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest
from scipy.special import expit, softmax

from dynadp.errors import DataError, DynadpError
from dynadp.exports import PlainModel, export, to_json, to_onnx, to_sql
from support.pages import ROOT, blocks


def answers(model, rows, threshold=0.0):
    """Label, score and probability of each row alone; None where dynadp refuses or drops it."""
    out = []
    for i in range(len(next(iter(rows.values())))):
        row = {name: cells[i : i + 1] for name, cells in rows.items()}
        try:
            if not model.columns.kept(row).all():
                raise DataError("dropped")
            scores = model.decision(row)
        except DynadpError:
            out.append(None)
            continue
        p = model.probabilities(scores)
        label = model.answers(scores - threshold)[0]
        out.append((label, scores[0], None if p is None else p[0]))
    return out


def same(found, expected):
    """Compare triples (label, score, probability) with those of :func:`answers`."""
    given = sum(one is not None for one in expected)
    assert 0 < given < len(expected)
    for got, want in zip(found, expected, strict=True):
        if want is None:
            assert got is None
            continue
        label, score, p = want
        assert str(got[0]) == str(label)
        np.testing.assert_allclose(got[1], score, rtol=1e-9, atol=1e-11)
        if p is not None:
            np.testing.assert_allclose(got[2], p, rtol=1e-9, atol=1e-12)


def run_onnx(model, rows, days=None, **given):
    """Of rows in which days are numbers: what ``days`` has in place of texts."""
    rows = {**rows, **(days or {})}
    graph = to_onnx(PlainModel.of(model, **given)).SerializeToString()
    session = ort.InferenceSession(graph, providers=["CPUExecutionProvider"])
    feeds = {}
    for one in session.get_inputs():
        kind = float if one.type == "tensor(double)" else object
        feeds[one.name] = np.asarray(rows[one.name]).astype(kind)[:, None]
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(None, feeds), strict=True))
    p = found.get("probability", [None] * len(found["label"]))
    return [
        None if label == "" else (label, score, chance)
        for label, score, chance in zip(found["label"], found["score"], p, strict=True)
    ]


def run_sql(model, rows, engine, **given):
    """Answers in the order of a key."""
    query = to_sql(PlainModel.of(model, **given), "my rows", keep=["id"])
    frame = pd.DataFrame({"id": np.arange(len(next(iter(rows.values())))), **rows})
    if engine == "duckdb":
        with duckdb.connect() as book:
            book.register("given", frame)
            book.execute('CREATE TABLE "my rows" AS SELECT * FROM given')
            shown = book.execute(query)
            names, found = [one[0] for one in shown.description], shown.fetchall()
    else:
        with sqlite3.connect(":memory:") as book:
            frame.to_sql("my rows", book, index=False)
            shown = book.execute(query)
            names, found = [one[0] for one in shown.description], shown.fetchall()
    found = [dict(zip(names, row, strict=True)) for row in sorted(found)]
    scores = [name for name in names if name.startswith("score")]
    return [
        None
        if row["label"] is None
        else (
            row["label"],
            row["score"] if scores == ["score"] else [row[name] for name in scores],
            row.get("probability", [row[name] for name in names if "probability_" in name] or None),
        )
        for row in found
    ]


def run_pipeline(pipeline, rows, expected):
    """All rows that have an answer at once, and some of the others alone, as the pipeline refuses
    all rows where it refuses one.
    """
    good = [one is not None for one in expected]
    frame = pd.DataFrame(rows)
    for i in np.flatnonzero(~np.array(good))[:25]:
        with pytest.raises(ValueError, match=r"NaN|infinity|no day|datetime|Datetime"):
            pipeline.predict(frame[i : i + 1])
    held = frame[good]
    labels, scores = pipeline.predict(held), pipeline.decision_function(held)
    two = hasattr(pipeline, "predict_proba")
    p = pipeline.predict_proba(held) if two else [None] * len(held)
    p = p[:, 1] if two and p.shape[1] == 2 else p
    found = iter(zip(labels, scores, p, strict=True))
    return [next(found) if one else None for one in good]


def code_of_the_page():
    """The functions that docs/export.md shows."""
    text, made = (ROOT / "docs/export.md").read_text(encoding="utf-8"), {}
    for block in blocks(text):
        if "def score(m, row)" in block.text or "def derived(m, row)" in block.text:
            exec(block.text, made)
    return made["score"], made["derived"]


def query_of_the_page():
    """The query of the JSON that docs/export.md shows."""
    text = (ROOT / "docs/export.md").read_text(encoding="utf-8")
    return next(block.text for block in blocks(text) if "read_json('scorer.json'" in block.text)


def in_texts(rows):
    """Rows as csv.DictReader has them."""
    names = list(rows)
    return [
        {n: "" if c is None or c != c else str(c) for n, c in zip(names, cells, strict=True)}
        for cells in zip(*rows.values(), strict=True)
    ]


def run_scorer(model, rows, **given):
    """Answers of the functions that the page shows."""
    (score, derived), numbers = code_of_the_page(), to_json(PlainModel.of(model, **given))
    found = []
    for row in in_texts(rows):
        scores = score(numbers, derived(numbers, row))
        if np.isnan(scores).any():
            found.append(None)
            continue
        two, p = len(scores) == 1, None
        place = int(scores[0] > numbers["threshold"]) if two else int(scores.argmax())
        if numbers["probability"]:
            a, b = numbers["probability"]
            p = expit(a * scores[0] + b) if two else softmax(a * scores)
        found.append((numbers["classes"][place], scores[0] if two else scores, p))
    return found


def run_query(model, rows, folder):
    """Scores by the query that the page shows; None for a row without an answer."""
    export(model, "json", folder / "scorer.json")
    frame = pd.DataFrame({"id": range(len(next(iter(rows.values())))), **rows})
    query = query_of_the_page().replace("scorer.json", str(folder / "scorer.json"))
    with duckdb.connect() as book:
        book.register("given", frame)
        book.execute("CREATE TABLE people AS SELECT * FROM given")
        return [score for _, score in book.execute(query).fetchall()]
