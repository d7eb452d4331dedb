"""From record entries to what passes work with, checked against the model."""

from __future__ import annotations

import numpy as np

from amct_onnx.graph import Model
from amct_onnx.passes.locate import Layer, locate_layers
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.record import Finding, LayerFacts, LayerRecord, LoadedRecord, Record, validate_record

_BITS = {"INT4": 4, "INT6": 6, "INT7": 7, "INT8": 8, "INT16": 16}


def layer_quants(model: Model, record: Record | LoadedRecord) -> tuple[dict[str, LayerQuant], tuple[Finding, ...]]:
    """Quantization of each layer that the record quantizes.

    Args:
        model: named and fused.
        record: the plan.

    Returns:
        Layer name -> quantization, and the warnings found on the way.

    Raises:
        RecordError: an entry breaks a rule or does not fit the model.
    """
    survey = locate_layers(model)
    facts: dict[str, LayerFacts | str] = {layer.name: layer_facts(layer) for layer in survey.layers}
    facts.update({refusal.node: refusal.reason for refusal in survey.refusals})
    nodes = {node.name: len(node.inputs) for graph in model.graphs() for node in graph.nodes}
    findings = validate_record(record, facts, nodes=nodes)
    plain = record.record if isinstance(record, LoadedRecord) else record
    quants = {
        name: LayerQuant(tensor_quant(entry), np.asarray(entry.scale_w, np.float32), _BITS[entry.weight_type])
        for name, entry in plain.layers.items()
        if not entry.is_empty and not entry.is_tensor_quantize
    }
    return quants, findings


def layer_facts(layer: Layer) -> LayerFacts:
    """What a record's rules ask of a layer."""
    return LayerFacts(
        op_type=layer.op_type,
        channels_out=layer.channels_out,
        channels_in=layer.channels_in,
        has_weight=layer.weight is not None,
        act_types=frozenset({"INT8"}),
        wts_types=frozenset({"INT8"}),
    )


def tensor_quant(entry: LayerRecord) -> TensorQuant:
    """Quantization of an activation, from an entry that has scale_d and offset_d."""
    if entry.scale_d is None or entry.offset_d is None:
        raise TypeError("the entry has no scale_d or offset_d")
    return TensorQuant(entry.scale_d, entry.offset_d, _BITS[entry.activation_type])
