"""Linear graph surgery.

onnx-graphsurgeon compares nodes and tensors by value, so ``list.index``, ``in`` and ``remove`` on them are slow and
may hit an equal neighbour. Everything here goes by identity, and the node list is rebuilt once for all insertions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from onnx import NodeProto, helper

from amct_onnx.graph.model import Graph, Model
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.protos import copy_fields


class Editor:
    """Collects insertions and removals in one model, then applies them in one walk.

    Node order stays topological as long as each new node is inserted before what reads it.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._before: dict[int, list[Node]] = {}
        self._after: dict[int, list[Node]] = {}
        self._removed: dict[int, Node] = {}
        self._main_outputs = {id(tensor) for tensor in model.graph.outputs}
        self._body_outputs: dict[int, list[tuple[Graph, int]]] = {}
        for graph in model.graphs():
            for index, tensor in enumerate(graph.outputs if graph is not model.graph else ()):
                self._body_outputs.setdefault(id(tensor), []).append((graph, index))

    def insert_before(self, anchor: Node, nodes: Sequence[Node]) -> None:
        """Place `nodes`, in order, directly before `anchor` (behind what was placed there earlier)."""
        self._before.setdefault(id(anchor), []).extend(nodes)

    def insert_after(self, anchor: Node, nodes: Sequence[Node]) -> None:
        """Place `nodes`, in order, directly after `anchor` (behind what was placed there earlier)."""
        self._after.setdefault(id(anchor), []).extend(nodes)

    def remove(self, node: Node) -> None:
        """Detach `node` from its tensors and drop it."""
        self._removed[id(node)] = node
        for tensor in node.inputs:
            _discard(tensor.outputs, node)
        for tensor in node.outputs:
            _discard(tensor.inputs, node)
        list.clear(node.inputs)
        list.clear(node.outputs)

    def move_consumers(self, old: Tensor, new: Tensor, consumers: Iterable[Node] | None = None) -> None:
        """Let `consumers` (all readers, outputs of bodies included, when None) read `new` wherever they read `old`."""
        for node in list(old.outputs) if consumers is None else list(consumers):
            for index, tensor in enumerate(node.inputs):
                if tensor is old:
                    replace_input(node, index, new)
        if consumers is None:
            for graph, index in self._body_outputs.pop(id(old), ()):
                graph.outputs[index] = new
                self._body_outputs.setdefault(id(new), []).append((graph, index))

    def is_private(self, tensor: Tensor) -> bool:
        """Whether one node reads it, once, and it leaves no graph."""
        return len(tensor.outputs) == 1 and not self.is_output(tensor) and not self.is_body_output(tensor)

    def is_output(self, tensor: Tensor) -> bool:
        """Whether `tensor` leaves the main graph."""
        return id(tensor) in self._main_outputs

    def is_body_output(self, tensor: Tensor) -> bool:
        """Whether `tensor` is an output of a control-flow body."""
        return id(tensor) in self._body_outputs

    def commit(self) -> None:
        """Rebuild the node lists that changed; new nodes whose name is taken get a suffix.

        Raises:
            LookupError: a node was to be placed beside one that is not in the model.
        """
        self._name_new_nodes()
        if self._before or self._after or self._removed:
            for graph in self._model.graphs():
                graph.nodes = list(self._merged(graph))
                graph.control_nodes = [node for node in graph.control_nodes if id(node) not in self._removed]
        if self._before or self._after:
            raise LookupError("a node was to be placed beside one that is not in the model")
        self._removed = {}

    def _name_new_nodes(self) -> None:
        """Runtimes refuse two nodes of one name, and the source may have any."""
        free = self._model.node_names
        for node in self._removed.values():
            free.release(node.name)
        for new in (*self._before.values(), *self._after.values()):
            for node in new:
                name = free.like(node.name)
                if name != node.name:
                    node.name = name

    def _merged(self, graph: Graph) -> Iterator[Node]:
        for node in graph.nodes:
            yield from self._before.pop(id(node), ())
            if id(node) not in self._removed:
                yield node
            yield from self._after.pop(id(node), ())


def replace_input(node: Node, index: int, tensor: Tensor) -> None:
    """Make `tensor` the input `index` of `node`."""
    old = node.inputs[index]
    list.__setitem__(node.inputs, index, tensor)
    _discard(old.outputs, node)
    list.append(tensor.outputs, node)


def append_input(node: Node, index: int, tensor: Tensor, empty: Tensor) -> None:
    """Make `tensor` the optional input `index`, filling the inputs before it with `empty`."""
    while len(node.inputs) < index:
        node.inputs.append(empty)
    if len(node.inputs) == index:
        node.inputs.append(tensor)
    else:
        replace_input(node, index, tensor)


def drop_last_input(node: Node) -> None:
    """Take the last input from `node`."""
    tensor = list.pop(node.inputs)
    _discard(tensor.outputs, node)


def replace_output(node: Node, index: int, tensor: Tensor) -> None:
    """Make `node` produce `tensor` at output `index`."""
    old = node.outputs[index]
    list.__setitem__(node.outputs, index, tensor)
    _discard(old.inputs, node)
    list.append(tensor.inputs, node)


def drop_attributes(node: Node, names: Collection[str]) -> None:
    """Take attributes from `node`, in its source proto as well, so that all else about it is written unchanged."""
    node.attrs = {name: value for name, value in node.attrs.items() if name not in names}
    origin = node.origin
    if origin is not None:
        node.origin = NodeProto()
        copy_fields(origin, node.origin, leave=("attribute",))
        node.origin.attribute.extend(attribute for attribute in origin.attribute if attribute.name not in names)


def set_attribute(node: Node, name: str, value: object) -> None:
    """Give `node` an attribute, or another value of it, in its source proto as well."""
    drop_attributes(node, (name,))
    node.attrs = {**node.attrs, name: value}
    if node.origin is not None:
        node.origin.attribute.append(helper.make_attribute(name, value))


def _discard(items: list[Node], node: Node) -> None:
    """Remove one occurrence of `node` from a graphsurgeon list, by identity and without its synchronisation."""
    for position, item in enumerate(items):
        if item is node:
            list.__delitem__(items, position)
            return
