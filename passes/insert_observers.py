"""Side branches that show tensors to a recorder while a user's own loop runs the model.

``amct.customop::Observe(x) -> empty`` stands beside the data path, never in it. ``amct.customop::RunEnd`` takes what
the observers and the control-flow nodes of the main graph give out, so it runs last and marks the end of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from amct_onnx.graph.edit import Editor
from amct_onnx.graph.model import Graph, Model
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.base import PassResult

DOMAIN = "amct.customop"
OBSERVE = "Observe"
RUN_END = "RunEnd"

_NOT_CASTABLE = frozenset({TensorProto.UNDEFINED, TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128})


@dataclass(frozen=True)
class Observation:
    """What to show of a tensor.

    Attributes:
        node: the layer that reads it, or something computed from it; the observer stands before this node.
        is_result: the tensor is a result of `node`, and the observer stands behind it.
        tensor: the tensor.
        key: what the recorder calls it.
        factor: what to multiply the values with first, in a shape that broadcasts; None for nothing.
        channels: number of channels whose extremes are wanted; 0 when it is the distribution of all values.
        axis: the channel axis.
    """

    node: Node
    tensor: Tensor
    key: str
    factor: Array | None = None
    channels: int = 0
    axis: int = 0
    is_result: bool = False


@dataclass(frozen=True)
class InsertObservers:
    """Put an Observe before every layer to watch, and one RunEnd behind everything.

    Attributes:
        recorder: identifies whom the tensors are shown to.
        settings: what that one has to know, carried by RunEnd.
        observations: what to watch.
        types: element types of tensors by name, where they are known.
    """

    recorder: str
    settings: str
    observations: Sequence[Observation]
    types: Mapping[str, int]

    def run(self, model: Model) -> PassResult:
        """Insert the nodes."""
        editor = Editor(model)
        bodies = model.body_node_ids()
        ends: list[Tensor] = []
        for observation in self.observations:
            nodes = self._observers(model, observation)
            place = editor.insert_after if observation.is_result else editor.insert_before
            place(observation.node, nodes)
            if id(observation.node) not in bodies:
                ends.append(nodes[-1].outputs[0])
        for node in model.graph.nodes:
            if any(isinstance(value, Graph) for value in node.attrs.values()):
                marks = self._marks(model, node.name, _sure_results(node))
                editor.insert_after(node, marks)
                ends += [mark.outputs[0] for mark in marks if mark.op == OBSERVE]
        editor.commit()
        if not ends:
            # All observers lie in bodies whose results have no known type; the model's own results come last, too.
            last = self._marks(model, "amct.outputs", model.graph.outputs)
            model.graph.nodes += last
            ends = [mark.outputs[0] for mark in last if mark.op == OBSERVE]
        model.graph.nodes += self._run_end(model, ends)
        model.domains[DOMAIN] = 1
        return PassResult(tuple(observation.key for observation in self.observations))

    def _observers(self, model: Model, observation: Observation) -> list[Node]:
        """The nodes beside one layer, Observe last."""
        name, tensor = f"{observation.key}.observe", observation.tensor
        nodes: list[Node] = []
        if tensor.dtype is None or np.dtype(tensor.dtype) != np.float32:
            nodes.append(self._cast(model, name, tensor))
            tensor = nodes[-1].outputs[0]
        if observation.factor is not None:
            factor = model.add_constant(f"{name}.factor", observation.factor)
            output = model.new_tensor(f"{name}.divided")
            nodes.append(Node("Mul", f"{name}.mul", inputs=[tensor, factor], outputs=[output]))
            tensor = output
        attrs: dict[str, str | int] = {"key": observation.key, "channels": observation.channels}
        return [*nodes, self._observe(model, name, tensor, {**attrs, "axis": observation.axis})]

    def _marks(self, model: Model, owner: str, results: Sequence[Tensor]) -> list[Node]:
        """Observers that show nothing, but run only when these results are there."""
        marks: list[Node] = []
        for index, tensor in enumerate(results):
            if self.types.get(tensor.name, TensorProto.UNDEFINED) in _NOT_CASTABLE:
                continue
            name = f"{owner}.done_{index}"
            if self.types[tensor.name] != TensorProto.FLOAT:
                marks.append(self._cast(model, name, tensor))
                tensor = marks[-1].outputs[0]
            marks.append(self._observe(model, name, tensor, {"key": "", "channels": 0, "axis": 0}))
        return marks

    def _run_end(self, model: Model, ends: list[Tensor]) -> list[Node]:
        name = "amct.run_end"
        nodes: list[Node] = []
        if len(ends) > 1:
            joined = model.new_tensor(f"{name}.input0")
            nodes.append(Node("Concat", f"{name}.join", {"axis": 0}, ends, [joined]))
            ends = [joined]
        attrs = {"recorder": self.recorder, "settings": self.settings}
        output = model.new_tensor(f"{name}.output0")
        return [*nodes, Node(RUN_END, name, attrs, ends, [output], DOMAIN)]

    def _observe(self, model: Model, name: str, tensor: Tensor, attrs: Mapping[str, str | int]) -> Node:
        output = model.new_tensor(f"{name}.output0")
        return Node(OBSERVE, name, {"recorder": self.recorder, **attrs}, [tensor], [output], DOMAIN)

    def _cast(self, model: Model, name: str, tensor: Tensor) -> Node:
        output = model.new_tensor(f"{name}.float")
        return Node("Cast", f"{name}.cast", {"to": int(TensorProto.FLOAT)}, [tensor], [output])


def _sure_results(node: Node) -> list[Tensor]:
    """Results of a control-flow node, but for those that a body lists twice: onnxruntime fills the first alone."""
    bodies = [value for value in node.attrs.values() if isinstance(value, Graph)]
    # Of a Loop or Scan the body's outputs and the node's differ in number; the last ones go together.
    doubled = {
        len(body.outputs) - index
        for body in bodies
        for index, tensor in enumerate(body.outputs)
        if any(tensor is other for other in body.outputs[:index])
    }
    count = len(node.outputs)
    return [tensor for index, tensor in enumerate(node.outputs) if count - index not in doubled]
