"""Raise the version of the default operator set, where an output form needs operators of a later one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, inliner, version_converter

from amct_onnx.errors import ModelError
from amct_onnx.graph.free_names import FreeNames
from amct_onnx.graph.light import lighten, restore
from amct_onnx.graph.model import Model, import_model
from amct_onnx.graph.naming import named, write_names
from amct_onnx.graph.opset_mends import mend, refuse_what_changes_meaning
from amct_onnx.graph.protos import copy_fields


def raise_opset(proto: ModelProto, minimum: int, base_dir: Path | None = None) -> ModelProto:
    """`proto` itself when its default operator set is recent enough, else a converted copy.

    Operators that changed meaning on the way (Softmax, Squeeze, ReduceSum, ...) are really rewritten, by onnx's own
    converter; where that is wrong it is mended or the model refused. Large weights do not pass through it, and what it
    would lose comes back from the source. Nodes are named first, so that the converter's own new nodes shift no name.
    Functions of the model are inlined.

    Args:
        proto: the model, never changed.
        minimum: version of the default operator set that is needed.
        base_dir: folder of external weights.

    Raises:
        ModelError: the converter cannot bring the model there.
    """
    current = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if current == 0 or current >= minimum:
        return proto
    light, weights = lighten(proto, base_dir)
    source = named(light)
    try:
        if light.functions:
            # Runtimes read a function's body by the operator set of the model, so it has to be converted as well.
            light = inliner.inline_local_functions(light, convert_version=True)
            source = named(light)
        refuse_what_changes_meaning(source, current, minimum)
        converted = _converted(light, minimum)
    except Exception as error:
        # The converter's C++ exceptions reach Python as bare RuntimeError and kin.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the model uses operator set {current}, this output form needs {minimum}, and converting fails: {reason}; "
            f"export the model again with opset {minimum} or later"
        ) from error
    mend(converted, light, current)
    restore(converted, weights)
    _add_missing(light, converted)
    _restore_graph(converted.graph, light.graph)
    _rename_new_tensors(converted, source)
    return converted


def _converted(light: ModelProto, minimum: int) -> ModelProto:
    """`light` with a later operator set; the converter does not know sparse initializers, so others stand in."""
    sparse = {entry.values.name: entry for entry in light.graph.sparse_initializer}
    if not sparse:
        return version_converter.convert_version(light, minimum)
    given = ModelProto()
    given.CopyFrom(light)
    given.graph.ClearField("sparse_initializer")
    for name, entry in sparse.items():
        given.graph.initializer.add(name=name, data_type=entry.values.data_type, dims=entry.dims, raw_data=b"sparse")
    converted = version_converter.convert_version(given, minimum)
    dense = [tensor for tensor in converted.graph.initializer if tensor.name not in sparse]
    converted.graph.ClearField("initializer")
    converted.graph.initializer.extend(dense)
    return converted


def _restore_graph(converted: GraphProto, source: GraphProto) -> None:
    _add_missing(source, converted)
    # The converter adds types of its own new tensors, some of them wrong.
    del converted.value_info[:]
    converted.value_info.extend(source.value_info)
    # It also writes what it found out about shapes into what the source declares.
    for declared, infos in ((source.input, converted.input), (source.output, converted.output)):
        as_given = {info.name: info for info in declared}
        for info in infos:
            info.CopyFrom(as_given.get(info.name, info))
    nodes = {node.name: node for node in source.node}
    for node in converted.node:
        if node.name in nodes:
            _restore_node(node, nodes[node.name])


def _restore_node(converted: NodeProto, source: NodeProto) -> None:
    copy_fields(source, converted, leave=[*_fields(converted), "input", "output", "attribute"])
    attributes = {attribute.name: attribute for attribute in source.attribute}
    for attribute in converted.attribute:
        if attribute.HasField("g") and attribute.name in attributes:
            _restore_graph(attribute.g, attributes[attribute.name].g)


def _add_missing(source: Any, target: Any) -> None:
    copy_fields(source, target, leave=_fields(target))


def _fields(message: Any) -> list[str]:
    return [descriptor.name for descriptor, _ in message.ListFields()]


def _rename_new_tensors(converted: ModelProto, source: Model) -> None:
    """Give the converter's own tensors names of their own: it numbers them afresh in every body."""
    known = {
        tensor.name for graph in source.graphs() for node in graph.nodes for tensor in (*node.inputs, *node.outputs)
    }
    names = FreeNames(known)
    model = import_model(converted)
    for graph in model.graphs():
        for node in graph.nodes:
            for tensor in node.outputs:
                if tensor.name not in known:
                    tensor.name = names.like(tensor.name)
    write_names(model)
