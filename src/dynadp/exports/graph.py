"""An ONNX graph in float64 that grows node by node."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

from dynadp.errors import DataError

_OPSET = 20  # the first with RegexFullMatch
_IR = 9
OUTPUTS = ("label", "score", "probability", "prediction")


class Graph:
    """A graph that grows; calling it adds a node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes, self.constants = list[NodeProto](), dict[str, TensorProto]()
        self.inputs, self.outputs = dict[str, int](), list[Any]()

    def __call__(self, kind: str, *given: str, **attributes: Any) -> str:
        """Add a node."""
        name = f"dynadp/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(given), [name], **attributes))
        return name

    def cast(self, flag: str) -> str:
        """0 or 1."""
        return self("Cast", flag, to=TensorProto.DOUBLE)

    def number(self, name: str) -> str:
        """A column of numbers."""
        return self._input(name, TensorProto.DOUBLE)

    def text(self, name: str) -> str:
        """A column of texts."""
        return self._input(name, TensorProto.STRING)

    def _input(self, name: str, kind: int) -> str:
        if name in OUTPUTS:
            raise DataError(
                f"column {name!r} has the name of an output of the graph; rename it in the "
                "schema, or export to json, sql or sklearn instead"
            )
        if self.inputs.setdefault(name, kind) != kind:
            raise DataError(
                f"column {name!r} is read as text by one column of the schema and as a number, or "
                "a day, by another; an input of a graph has one type: export to json, sql or "
                "sklearn instead"
            )
        return name

    def one_hot(self, place: str, width: int) -> str:
        """1 at the place, 0 elsewhere."""
        return self.cast(self("Equal", place, self.floats(np.arange(width))))

    def any(self, flags: Sequence[str]) -> str:
        """Whether one of them holds."""
        found = flags[0]
        for other in flags[1:]:
            found = self("Or", found, other)
        return found

    def modulo(self, v: str, period: float) -> str:
        """V - period floor(v/period)."""
        whole = self("Floor", self("Div", v, self.floats(period)))
        return self("Sub", v, self("Mul", whole, self.floats(period)))

    def output(self, name: str, value: str, *width: int, text: bool = False) -> None:
        """Give numbers, or texts, back."""
        kind = TensorProto.STRING if text else TensorProto.DOUBLE
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
        inputs = [
            helper.make_tensor_value_info(name, kind, ["rows", 1])
            for name, kind in self.inputs.items()
        ]
        graph = helper.make_graph(
            self.nodes, "dynadp", inputs, self.outputs, list(self.constants.values())
        )
        opset = [helper.make_opsetid("", _OPSET)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=_IR, producer_name="dynadp")
        checker.check_model(made, full_check=True)
        return made
