"""Transpositions of constants, and transpositions of transpositions."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import is_standard, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult


@dataclass(frozen=True)
class FoldTranspose:
    """Transpose of a constant becomes a constant; two in a row become one, or none where they cancel.

    ``transpose(transpose(x, p), q) = transpose(x, p[q])``. Values only move, so this is exact for every element type.
    The constant is computed when it is written; a MatMul or Gemm that reads it has a weight from then on. A result that
    leaves the graph, or a body, stays as it is.

    Attributes:
        skip: names of nodes to leave alone; where a reader of the constant is named, the Transpose stays.
    """

    skip: Container[str] = ()

    def run(self, model: Model) -> PassResult:
        """Fold in graph order, so that chains fold completely."""
        editor = Editor(model)
        changed: list[str] = []
        merged: dict[str, tuple[str, ...]] = {}
        withheld: list[str] = []
        for node in [node for node in model.graph.nodes if _is_transpose(node)]:
            readers: list[Node] = list(node.outputs[0].outputs)
            constant = resolve_constant(node.inputs[0])
            perm = None if constant is not None else _perm_of_pair(editor, node)
            if perm is None and (constant is None or _is_public(editor, node.outputs[0])):
                continue
            involved = [node, *readers] if constant is not None else [node, node.inputs[0].inputs[0]]
            if any(member.name in self.skip for member in involved):
                withheld.append(node.name)
                continue
            changed.append(node.name)
            if constant is not None:
                merged.update(
                    (reader.name, (*merged.get(reader.name, (reader.name,)), node.name)) for reader in readers
                )
                _fold_constant(model, editor, node, constant)
            elif perm is not None:
                first = involved[1]
                before = merged.pop(first.name, (first.name,))
                if not _is_identity(perm):
                    merged[node.name] = (node.name, *before)
                _fold_pair(editor, node, perm)
        editor.commit()
        return PassResult(tuple(changed), (), merged, tuple(withheld))


def _is_transpose(node: Node) -> bool:
    return bool(node.op == "Transpose" and is_standard(node))


def _is_public(editor: Editor, tensor: Tensor) -> bool:
    return editor.is_output(tensor) or editor.is_body_output(tensor)


def _perm_of_pair(editor: Editor, second: Node) -> list[int] | None:
    """The permutation of a Transpose together with the one before it; None where joining them gains nothing."""
    between = second.inputs[0]
    if not between.inputs or not _is_transpose(between.inputs[0]):
        return None
    perm = _composed(between.inputs[0].attrs.get("perm"), second.attrs.get("perm"))
    if _is_identity(perm):
        return None if _is_public(editor, second.outputs[0]) else perm
    return perm if len(between.outputs) == 1 and not _is_public(editor, between) else None


def _composed(first: Sequence[int] | None, second: Sequence[int] | None) -> list[int]:
    """``first[second]``, where None reverses the axes; [] where both do."""
    rank = len(first or second or ())
    backwards = list(range(rank))[::-1]
    first, second = first or backwards, second or backwards
    return [int(first[axis]) for axis in second]


def _is_identity(perm: Sequence[int]) -> bool:
    return list(perm) == list(range(len(perm)))


def _fold_pair(editor: Editor, second: Node, perm: Sequence[int]) -> None:
    between = second.inputs[0]
    first = between.inputs[0]
    source = first.inputs[0]
    if _is_identity(perm):
        editor.move_consumers(second.outputs[0], source)
        editor.remove(second)
    else:
        replace_input(second, 0, source)
        # The source's proto would bring the old permutation back.
        second.attrs, second.origin = {"perm": list(perm)}, None
    if not between.outputs and not _is_public(editor, between):
        editor.remove(first)


def _fold_constant(model: Model, editor: Editor, node: Node, constant: Constant) -> None:
    perm = node.attrs.get("perm")
    shape = [int(size) for size in constant.shape]

    def values() -> Array:
        return np.ascontiguousarray(np.transpose(constant_array(constant), perm))

    order = perm or range(len(shape))[::-1]
    folded = DerivedValues([shape[axis] for axis in order], constant.dtype, values)
    editor.move_consumers(node.outputs[0], model.add_constant(node.outputs[0].name, folded))
    editor.remove(node)
