"""Sparse constants that layers read become dense ones, which is what runtimes make of them as well."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import SparseTensorProto

from amct_onnx.graph.edit import Editor
from amct_onnx.graph.model import Graph, Model
from amct_onnx.graph.op_table import is_standard, spec_of
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.sparse import dense_values
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.fold_weights import FOLDED


@dataclass(frozen=True)
class DensifySparse:
    """A sparse initializer, or the result of a Constant with ``sparse_value``, becomes an initializer of its name.

    Only where a layer reads it, or what may make a layer's weight of it, and where it leaves no graph. All its readers
    follow.
    """

    def run(self, model: Model) -> PassResult:
        """Replace them."""
        editor = Editor(model)
        changed: list[str] = []
        for graph in model.graphs():
            for sparse in graph.origin.sparse_initializer:
                tensor = graph.sparse.get(sparse.values.name)
                if tensor is not None and _is_wanted(editor, tensor):
                    _replace(model, editor, graph, tensor, sparse)
                    graph.densified.add(tensor.name)
                    changed.append(tensor.name)
            for node in [node for node in graph.nodes if node.op == "Constant" and "sparse_value" in node.attrs]:
                if is_standard(node) and _is_wanted(editor, node.outputs[0]):
                    tensor = node.outputs[0]
                    editor.remove(node)
                    _replace(model, editor, graph, tensor, node.attrs["sparse_value"].sparse_tensor)
                    changed.append(tensor.name)
        editor.commit()
        return PassResult(tuple(changed))


def _is_wanted(editor: Editor, tensor: Tensor) -> bool:
    is_public = editor.is_output(tensor) or editor.is_body_output(tensor)
    return not is_public and any(map(_uses_weights, tensor.outputs))


def _uses_weights(node: Node) -> bool:
    return spec_of(node).has_record or (node.op in FOLDED and is_standard(node))


def _replace(model: Model, editor: Editor, graph: Graph, tensor: Tensor, sparse: SparseTensorProto) -> None:
    # The name is free again in its own graph, and hides there what it hid before.
    dense = Constant(tensor.name, dense_values(sparse, model.base_dir))
    graph.initializers[tensor.name] = dense
    editor.move_consumers(tensor, dense)
