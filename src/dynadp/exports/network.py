"""A model as an ONNX graph, in float64."""

import numpy as np
from onnx import ModelProto, TensorProto

from dynadp.exports.graph import Graph
from dynadp.exports.network_columns import features_of
from dynadp.exports.plain_model import PlainModel


def to_onnx(model: PlainModel) -> ModelProto:
    """Return a graph with one input n x 1 for each raw column: float64 for numbers (NaN is missing)
    and for days, as days since 1970-01-01; text for categories ("" is missing, and the texts that
    are declared to mean it).

    Its outputs are ``label`` (text), ``score`` (n numbers; n x classes of more than two) and, where
    the model has it, ``probability`` of the second class (n x classes of more than two). A row
    without an answer has the label "" and NaN.
    """
    graph, parts, refused = Graph(), list[str](), list[str]()
    for column in model.columns:
        part, bad = features_of(graph, column, model.missing_values)
        parts.append(part)
        refused.append(bad)
    x = graph("Sub", graph("Concat", *parts, axis=1), graph.floats(model.centre))
    bad = graph.any(refused)
    scores = graph("MatMul", x, graph.floats(model.coef.T))
    scores = graph("Add", scores, graph.floats(model.constant * model.intercept))
    scores = graph("Div", scores, _over(graph, model, x))
    scores = graph("Where", bad, graph.floats(np.nan), scores)
    _answer(graph, model, scores, bad)
    return graph.model()


def _over(graph: Graph, model: PlainModel, x: str) -> str:
    """What scores are divided by, n x 1."""
    if model.scaling == "none":
        return graph.floats(model.norm)
    if not model.counts.all():
        x = graph("Mul", x, graph.floats(model.counts))
    squares = graph("ReduceSum", graph("Mul", x, x), graph.whole([1]), keepdims=1)
    length = graph("Sqrt", graph("Add", squares, graph.floats(model.constant**2)))
    if model.scaling == "clip":
        return graph("Max", length, graph.floats(model.norm))
    empty = graph("Equal", length, graph.floats(0.0))
    return graph("Where", empty, graph.floats(1.0), length)


def _answer(graph: Graph, model: PlainModel, scores: str, bad: str) -> None:
    if model.target is not None:
        low, high = model.target
        half, middle = graph.floats(high / 2 - low / 2), graph.floats(low / 2 + high / 2)
        number = graph("Add", graph("Mul", scores, half), middle)
        number = graph("Min", graph("Max", number, graph.floats(low)), graph.floats(high))
        number = graph("Where", bad, graph.floats(np.nan), number)
        number = graph("Squeeze", number, graph.whole([1]))
        graph.output("prediction", number)
        return
    bad = graph("Squeeze", bad, graph.whole([1]))
    if len(model.classes) > 2:
        place = graph(
            "ArgMax",
            graph("Where", graph("IsNaN", scores), graph.floats(0.0), scores),
            axis=1,
            keepdims=0,
        )
        graph.output("score", scores, len(model.classes))
        if model.probability is not None:
            z = graph("Mul", scores, graph.floats(model.probability[0]))
            graph.output("probability", graph("Softmax", z, axis=1), len(model.classes))
    else:
        scores = graph("Squeeze", scores, graph.whole([1]))
        place = graph(
            "Cast", graph("Greater", scores, graph.floats(model.threshold)), to=TensorProto.INT64
        )
        graph.output("score", scores)
        if model.probability is not None:
            a, b = model.probability
            z = graph("Add", graph("Mul", scores, graph.floats(-a)), graph.floats(-b))
            one = graph.floats(1.0)
            p = graph("Div", one, graph("Add", one, graph("Exp", z)))
            graph.output("probability", p)
    labels = graph("Gather", graph.texts([str(value) for value in model.classes]), place)
    label = graph("Where", bad, graph.texts([""]), labels)
    graph.output("label", label, text=True)
