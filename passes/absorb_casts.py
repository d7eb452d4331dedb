"""AscendQuant reads float16 and AscendDequant writes it: a Cast beside one of them needs no node of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from amct_onnx.graph.edit import Editor, replace_input, replace_output
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import is_standard
from amct_onnx.graph.parts import Node
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_ascend import GE_FLOAT16

_FLOAT16 = np.dtype(np.float16)


@dataclass(frozen=True)
class AbsorbCasts:
    """Cast to float32 before AscendQuant nodes alone goes, and so does Cast to float16 behind an AscendDequant.

    The latter gets ``dtype`` 1 instead. Only where nothing else reads the float32 tensor.
    """

    def run(self, model: Model) -> PassResult:
        """Remove them."""
        editor = Editor(model)
        changed: list[str] = []
        for node in [node for node in model.nodes() if node.op == "Cast" and is_standard(node)]:
            if _enters(editor, node):
                for reader in list(node.outputs[0].outputs):
                    replace_input(reader, 0, node.inputs[0])
            elif _leaves(editor, node):
                dequant, result = node.inputs[0].inputs[0], node.outputs[0]
                dequant.attrs["dtype"] = GE_FLOAT16
                editor.remove(node)
                replace_output(dequant, 0, result)
                changed.append(dequant.name)
                continue
            else:
                continue
            changed.append(node.name)
            editor.remove(node)
        editor.commit()
        return PassResult(tuple(changed))


def _enters(editor: Editor, cast: Node) -> bool:
    wide, readers = cast.outputs[0], cast.outputs[0].outputs
    if cast.attrs.get("to") != TensorProto.FLOAT or cast.inputs[0].dtype != _FLOAT16 or not readers:
        return False
    is_public = editor.is_output(wide) or editor.is_body_output(wide)
    return not is_public and all(reader.op == "AscendQuant" for reader in readers)


def _leaves(editor: Editor, cast: Node) -> bool:
    wide = cast.inputs[0]
    producers = wide.inputs
    is_dequant = bool(producers) and producers[0].op == "AscendDequant"
    return cast.attrs.get("to") == TensorProto.FLOAT16 and is_dequant and editor.is_private(wide)


@dataclass(frozen=True)
class SpellCasts:
    """Inverse of :class:`AbsorbCasts`, on a deploy model that was read back."""

    def run(self, model: Model) -> PassResult:
        """Put a Cast before every AscendQuant of what may be float16, and one behind AscendDequants that write it."""
        editor = Editor(model)
        changed: list[str] = []
        for node in list(model.nodes()):
            if node.op == "AscendQuant" and node.inputs[0].dtype != np.float32:
                wide = model.new_tensor(f"{node.name}.float32", np.dtype(np.float32))
                cast = Node("Cast", f"{node.name}.to_float32", {"to": TensorProto.FLOAT}, [node.inputs[0]], [wide])
                editor.insert_before(node, [cast])
                replace_input(node, 0, wide)
            elif node.op == "AscendDequant" and node.attrs.get("dtype") == GE_FLOAT16:
                result = node.outputs[0]
                wide = model.new_tensor(f"{node.name}.float32", np.dtype(np.float32))
                replace_output(node, 0, wide)
                cast = Node("Cast", f"{node.name}.from_float32", {"to": TensorProto.FLOAT16}, [wide], [result])
                editor.insert_after(node, [cast])
            else:
                continue
            changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))
