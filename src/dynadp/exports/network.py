"""A model as an ONNX graph, in float64."""

import re
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

from dynadp.data import Curves, PlainCategory, PlainNumber, Value, normalise
from dynadp.errors import DataError
from dynadp.exports.plain_model import PlainModel, ReadyNumber

_OPSET = 20  # the first with RegexFullMatch
_IR = 9
_OUTPUTS = ("label", "score", "probability", "prediction")
_BLANK = r"[\s\v\x{1c}-\x{1f}\x{85}\p{Z}]*"  # what str.strip takes off


def to_onnx(model: PlainModel) -> ModelProto:
    """Return a graph with one input n x 1 for each column: float64 for numbers (NaN is missing),
    text for categories ("" is missing, and the texts that are declared to mean it).

    Its outputs are ``label`` (text), ``score`` (n numbers; n x classes of more than two) and, where
    the model has it, ``probability`` of the second class. A row without an answer has the label ""
    and NaN.
    """
    for column in model.columns:
        if column.name in _OUTPUTS:
            raise DataError(
                f"column {column.name!r} has the name of an output of the graph; rename it in the "
                "schema, or export to json, sql or sklearn instead"
            )
    graph, parts, refused = _Graph(), list[str](), list[str]()
    for column in model.columns:
        if isinstance(column, PlainCategory):
            part, bad = _category(graph, column, model.missing_values)
        else:
            part, bad = _number(graph, column)
        parts.append(part)
        refused.append(bad)
    x = graph("Sub", graph("Concat", *parts, axis=1), graph.floats(model.centre))
    bad = refused[0]
    for other in refused[1:]:
        bad = graph("Or", bad, other)
    scores = graph("MatMul", x, graph.floats(model.coef.T))
    scores = graph("Add", scores, graph.floats(model.constant * model.intercept))
    scores = graph("Div", scores, _over(graph, model, x))
    scores = graph("Where", bad, graph.floats(np.nan), scores)
    _answer(graph, model, scores, bad)
    return graph.model()


def _number(graph: "_Graph", column: PlainNumber | ReadyNumber) -> tuple[str, str]:
    """The features of a number, and whether there is none."""
    v = graph.input(column.name, TensorProto.DOUBLE)
    if isinstance(column, PlainNumber) and column.missing is not None:
        v = graph("Where", graph("IsNaN", v), graph.floats(column.missing), v)
    bad = graph("Or", graph("IsNaN", v), graph("IsInf", v))
    if isinstance(column, ReadyNumber):
        return v, bad
    low, high = graph.floats(column.low), graph.floats(column.high)
    t = graph("Min", graph("Max", graph("Where", bad, low, v), low), high)
    if column.transform == "log1p":
        t = graph("Log", graph("Add", graph("Sub", t, low), graph.floats(1.0)))
    made = graph("Concat", *(_curves(graph, curves, t) for curves in column.curves), axis=1)
    return graph("Mul", made, graph.floats(column.weight)), bad


def _curves(graph: "_Graph", curves: Curves, t: str) -> str:
    """y_0 and what each piece between two knots adds, as far as t is through it."""
    knots, gives = np.array(curves.knots), np.array(curves.gives)
    through = graph("Sub", t, graph.floats(knots[:-1]))
    through = graph("Div", through, graph.floats(np.diff(knots)))
    through = graph("Min", graph("Max", through, graph.floats(0.0)), graph.floats(1.0))
    made = graph("MatMul", through, graph.floats(np.diff(gives, axis=1).T))
    made = graph("Add", made, graph.floats(gives[:, 0]))
    return graph("Mul", made, made) if curves.power == 2 else made


def _category(
    graph: "_Graph", column: PlainCategory, missing_values: tuple[str, ...]
) -> tuple[str, str]:
    """weight at the place of a cell, and whether it may not be there."""
    cell = graph.input(column.name, TensorProto.STRING)
    blank = {"", *missing_values} if "" not in column.values else set(missing_values)
    gone = _matches(graph, cell, "|".join(sorted(map(re.escape, blank))) or r"[^\s\S]")
    there = graph.cast(graph("Not", gone))
    found = [graph.cast(_matches(graph, cell, _pattern(value))) for value in column.values]
    hits = graph("Mul", graph("Concat", *found, axis=1), there)
    missing = column.missing
    listed = graph("ReduceSum", hits, graph.whole([1]), keepdims=1)
    unlisted = graph("Sub", there, listed)
    bad = gone if missing is None else graph("And", gone, graph("Not", gone))
    if column.other is None:
        bad = graph("Or", bad, graph("Greater", unlisted, graph.floats(0.5)))
    width = np.arange(column.width)
    made = graph("MatMul", hits, graph.floats(np.eye(len(column.values), column.width)))
    for flag, place in [(unlisted, column.other), (graph.cast(gone), missing)]:
        if place is not None and place >= 0:
            made = graph("Add", made, graph("MatMul", flag, graph.floats([width == place])))
    return graph("Mul", made, graph.floats(column.weight)), bad


def _matches(graph: "_Graph", cell: str, pattern: str) -> str:
    return graph("RegexFullMatch", cell, pattern=f"{_BLANK}(?:{pattern}){_BLANK}")


def _pattern(value: Value) -> str:
    """What :func:`~dynadp.data.values.match` takes for a declared value, but for exponents."""
    word = normalise(value)
    if isinstance(value, str):
        is_whole = re.fullmatch(r"[+-]?\d+", word, re.ASCII)
        return re.escape(word) + (r"(?:\.0*)?" if is_whole else "")
    sign, whole, fraction = _digits(word)
    plus = r"\+?" if sign == "" else "-"
    if not whole.strip("0") and not fraction:
        return r"[+-]?(?:0+(?:\.0*)?|\.0+)"
    number = rf"0*{whole.lstrip('0')}"
    end = rf"\.{fraction}0*" if fraction else r"(?:\.0*)?"
    return rf"{plus}{number}{end}|{re.escape(word)}"


def _digits(word: str) -> tuple[str, str, str]:
    """Sign, whole digits and digits after the point of a number, without zeros at its ends."""
    text = format(Decimal(word), "f")
    sign = "-" if text.startswith("-") else ""
    whole, _, fraction = text.lstrip("+-").partition(".")
    return sign, whole, fraction.rstrip("0")


def _over(graph: "_Graph", model: PlainModel, x: str) -> str:
    """What scores are divided by, n x 1."""
    norm = graph.floats(model.norm)
    if model.scaling == "none":
        return norm
    squares = graph("ReduceSum", graph("Mul", x, x), graph.whole([1]), keepdims=1)
    length = graph("Sqrt", graph("Add", squares, graph.floats(model.constant**2)))
    if model.scaling == "clip":
        return graph("Max", length, norm)
    empty = graph("Equal", length, graph.floats(0.0))
    return graph("Where", empty, graph.floats(1.0), length)


def _answer(graph: "_Graph", model: PlainModel, scores: str, bad: str) -> None:
    if model.target is not None:
        low, high = model.target
        half, middle = graph.floats(high / 2 - low / 2), graph.floats(low / 2 + high / 2)
        number = graph("Add", graph("Mul", scores, half), middle)
        number = graph("Min", graph("Max", number, graph.floats(low)), graph.floats(high))
        number = graph("Where", bad, graph.floats(np.nan), number)
        number = graph("Squeeze", number, graph.whole([1]))
        graph.output("prediction", number, TensorProto.DOUBLE)
        return
    bad = graph("Squeeze", bad, graph.whole([1]))
    if len(model.classes) > 2:
        place = graph(
            "ArgMax",
            graph("Where", graph("IsNaN", scores), graph.floats(0.0), scores),
            axis=1,
            keepdims=0,
        )
        graph.output("score", scores, TensorProto.DOUBLE, len(model.classes))
    else:
        scores = graph("Squeeze", scores, graph.whole([1]))
        place = graph(
            "Cast", graph("Greater", scores, graph.floats(model.threshold)), to=TensorProto.INT64
        )
        graph.output("score", scores, TensorProto.DOUBLE)
        if model.probability is not None:
            a, b = model.probability
            z = graph("Add", graph("Mul", scores, graph.floats(-a)), graph.floats(-b))
            one = graph.floats(1.0)
            p = graph("Div", one, graph("Add", one, graph("Exp", z)))
            graph.output("probability", p, TensorProto.DOUBLE)
    labels = graph("Gather", graph.texts([str(value) for value in model.classes]), place)
    label = graph("Where", bad, graph.texts([""]), labels)
    graph.output("label", label, TensorProto.STRING)


class _Graph:
    """A graph that grows; calling it adds a node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes, self.constants = list[NodeProto](), dict[str, TensorProto]()
        self.inputs, self.outputs = list[Any](), list[Any]()

    def __call__(self, kind: str, *given: str, **attributes: Any) -> str:
        name = f"dynadp/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(given), [name], **attributes))
        return name

    def cast(self, flag: str) -> str:
        """0 or 1."""
        return self("Cast", flag, to=TensorProto.DOUBLE)

    def input(self, name: str, kind: int) -> str:
        """A column of cells."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["rows", 1]))
        return name

    def output(self, name: str, value: str, kind: int, *width: int) -> None:
        """Give a value back."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, kind, ["rows", *width]))

    def floats(self, values: Any) -> str:
        """A constant of float64."""
        return self._constant(np.asarray(values, dtype=np.float64))

    def whole(self, values: Any) -> str:
        """A constant of whole numbers."""
        return self._constant(np.asarray(values, dtype=np.int64))

    def texts(self, values: Any) -> str:
        """A constant of texts."""
        return self._constant(np.asarray(values, dtype=object))

    def _constant(self, values: NDArray[Any]) -> str:
        key = f"dynadp/constant {len(self.constants)}"
        self.constants[key] = numpy_helper.from_array(values, key)
        return key

    def model(self) -> ModelProto:
        """The whole graph, checked."""
        graph = helper.make_graph(
            self.nodes, "dynadp", self.inputs, self.outputs, list(self.constants.values())
        )
        opset = [helper.make_opsetid("", _OPSET)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=_IR, producer_name="dynadp")
        checker.check_model(made, full_check=True)
        return made
