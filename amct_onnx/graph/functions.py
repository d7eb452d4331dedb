"""Functions that a model brings itself: which of them hold layers, and their nodes in place of the calls."""

from __future__ import annotations

import logging
from pathlib import Path

from onnx import FunctionProto, ModelProto, inliner

from amct_onnx.graph.light import lighten, restore
from amct_onnx.graph.naming import named
from amct_onnx.graph.op_table import OPS
from amct_onnx.graph.protos import copy_fields

logger = logging.getLogger(__name__)

_DEFAULT = ("", "ai.onnx")


def functions_with_layers(proto: ModelProto) -> set[tuple[str, str]]:
    """Domain and name of the model's functions that hold a layer, or a call of another that does."""
    calls = {
        (function.domain, function.name): {(node.domain, node.op_type) for node in function.node}
        for function in proto.functions
    }
    found: set[tuple[str, str]] = set()
    more = {key for key, called in calls.items() if any(map(_is_layer_type, called))}
    while more:
        found |= more
        more = {key for key, called in calls.items() if key not in found and called & more}
    return found


def inline_layer_functions(proto: ModelProto, base_dir: Path | None) -> ModelProto:
    """`proto` itself, or a copy in which functions that hold layers are replaced by their nodes.

    A node ``N`` of a function becomes ``N__k``, a tensor likewise, with k the number of the call, counted in the order
    in which onnx's inliner comes to it; nodes without a name are called ``FUNCTION_OPERATOR_i`` first, i their place in
    the function. Nodes outside are named as without functions. Other functions stay, as does one that is written for
    another operator set than the model or that has overloads.

    Args:
        proto: the model, never changed; large weights do not pass through the inliner.
        base_dir: folder of its external weights.
    """
    wanted = functions_with_layers(proto)
    ids = [(f.domain, f.name) for f in proto.functions if (f.domain, f.name) in wanted and _can_be_inlined(f, proto)]
    if not ids:
        return proto
    light, weights = lighten(proto, base_dir)
    named(light)
    for function in light.functions:
        for index, node in enumerate(function.node):
            node.name = node.name or f"{function.name}_{node.op_type}_{index}"
    try:
        inlined = inliner.inline_selected_functions(light, ids)
    except Exception as error:
        # Its C++ exceptions reach Python as bare RuntimeError and kin; the calls are then reported as what they are.
        logger.info("the model's functions are not inlined: %s", error)
        return proto
    restore(inlined, weights)
    copy_fields(light, inlined, leave=["functions", *(descriptor.name for descriptor, _ in inlined.ListFields())])
    return inlined


def _can_be_inlined(function: FunctionProto, proto: ModelProto) -> bool:
    same_name = [f for f in proto.functions if (f.domain, f.name) == (function.domain, function.name)]
    return len(same_name) == 1 and _opset(function) in (None, _opset(proto))


def _opset(holder: FunctionProto | ModelProto) -> int | None:
    return next((entry.version for entry in holder.opset_import if entry.domain in _DEFAULT), None)


def _is_layer_type(called: tuple[str, str]) -> bool:
    domain, name = called
    return domain in _DEFAULT and name in OPS and OPS[name].has_record
