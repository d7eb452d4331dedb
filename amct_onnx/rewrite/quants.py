"""From record entries to what passes work with, checked against the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.graph import Model
from amct_onnx.passes.balance import Factors
from amct_onnx.passes.input_sites import InputSites
from amct_onnx.passes.locate import Layer, Survey, locate_layers
from amct_onnx.passes.quant_params import LayerQuant, RecurrentQuant, TensorQuant
from amct_onnx.passes.recurrent import RecurrentLayer
from amct_onnx.record import (
    Finding,
    LayerFacts,
    LayerRecord,
    LoadedRecord,
    Record,
    Severity,
    validate_record,
)
from amct_onnx.record.check import as_loaded, placed
from amct_onnx.record.complaints import Complaint
from amct_onnx.record.findings import raise_errors
from amct_onnx.record.tensor_rules import tensor_complaints, zero_point_complaints
from amct_onnx.record.unapplied import unapplied_findings
from amct_onnx.rewrite.prepare import Prepared, prepare
from amct_onnx.rewrite.products import product_complaints, second_names, with_seconds

_BITS = {"INT4": 4, "INT6": 6, "INT7": 7, "INT8": 8, "INT16": 16}


@dataclass(frozen=True)
class RecordQuants:
    """What a record says, ready for passes.

    Attributes:
        layers: layer name -> quantization.
        recurrent: the same of recurrent layers.
        inputs: ``node:index`` -> quantization of a single input.
        findings: the warnings found on the way.
    """

    layers: dict[str, LayerQuant]
    inputs: dict[str, TensorQuant]
    recurrent: dict[str, RecurrentQuant] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def record_quants(
    prepared: Prepared,
    record: Record | LoadedRecord,
    *,
    tensors: Record | LoadedRecord | None = None,
    symmetric_only: bool = False,
    strict: bool = False,
) -> RecordQuants:
    """Quantization of each layer and input that the record quantizes.

    Args:
        prepared: the model, balanced as the record says.
        record: the plan.
        tensors: the plan of tensors, which holds the second factors of products of two computed tensors.
        symmetric_only: refuse zero points, for a target that has none.
        strict: warnings are errors.

    Raises:
        RecordError: an entry breaks a rule or does not fit the model.
    """
    loaded = as_loaded(record)
    entries = loaded.record.layers
    survey = _survey(prepared.model, loaded.record)
    findings = [*loaded.findings, *_model_findings(prepared.model, survey, loaded), *unapplied_findings(loaded)]
    second_plan = None if tensors is None else as_loaded(tensors).record
    seconds = second_names(survey.layers)
    for name, tensor in seconds.items():
        findings += placed(loaded, name, product_complaints(entries[name], tensor, second_plan))
    for name, entry in entries.items():
        findings += placed(loaded, name, zero_point_complaints(entry) if symmetric_only else ())
    raise_errors(loaded.source, findings, strict=strict)
    quantizing = {name: e for name, e in entries.items() if not e.is_empty and not e.is_tensor_quantize}
    with_states = {layer.name for layer in survey.recurrent}
    layers = {
        name: LayerQuant(
            tensor_quant(entry),
            _weight_scale(entry, prepared.folded.get(name)),
            _BITS[entry.weight_type],
            force_fp16=_forces_fp16(entry),
        )
        for name, entry in quantizing.items()
        if name not in with_states
    }
    recurrent = {name: _recurrent_quant(entry) for name, entry in quantizing.items() if name in with_states}
    inputs = {name: tensor_quant(entry) for name, entry in entries.items() if entry.is_tensor_quantize}
    layers = with_seconds(layers, seconds, second_plan)
    return RecordQuants(layers, inputs, recurrent, tuple(dict.fromkeys(findings)))


def _recurrent_quant(entry: LayerRecord) -> RecurrentQuant:
    if entry.scale_h is None or entry.offset_h is None:
        raise TypeError("the entry has no scale_h or offset_h")
    return RecurrentQuant(
        tensor_quant(entry),
        TensorQuant(entry.scale_h, entry.offset_h, _BITS[entry.activation_type]),
        np.asarray(entry.scale_w, np.float32),
        np.asarray(entry.scale_r, np.float32),
        _BITS[entry.weight_type],
        force_fp16=_forces_fp16(entry),
    )


def _forces_fp16(entry: LayerRecord) -> bool:
    return entry.fakequant_precision_mode == "FORCE_FP16_QUANT"


def _survey(model: Model, record: Record) -> Survey:
    """The layers of a model; products of two computed tensors are layers where the record has an entry for them."""
    named = {name for name, entry in record.layers.items() if not entry.is_empty}
    return locate_layers(model, products=named)


def _model_findings(model: Model, survey: Survey, loaded: LoadedRecord) -> tuple[Finding, ...]:
    """What of a record does not fit a model."""
    facts: dict[str, LayerFacts | str] = {layer.name: layer_facts(layer) for layer in survey.all_layers}
    facts.update({refusal.node: refusal.reason for refusal in survey.refusals})
    nodes = {node.name: len(node.inputs) for graph in model.graphs() for node in graph.nodes}
    named = loaded.record.layers
    quantized = [layer for layer in survey.layers if layer.name in named and not named[layer.name].is_empty]
    obstacle = InputSites(model, quantized).obstacle
    return validate_record(loaded, facts, nodes=nodes, input_obstacle=obstacle)


def _weight_scale(entry: LayerRecord, folded: Factors | None) -> NDArray[np.float32]:
    """Weight scales of a layer; what divides its output channels divides them, so the integers stay the same."""
    scale = np.asarray(entry.scale_w, np.float32)
    return scale if folded is None else np.asarray(scale / folded, np.float32)


def prepare_for(record: Record | LoadedRecord, proto: ModelProto, base_dir: Path | None) -> Prepared:
    """The model fused and balanced as a record says; the record is not checked yet.

    The scales in a record of another tool are those of layers that took in what AMCT documents and nothing else.
    """
    plain = as_loaded(record).record
    skip_fusion = [name for name, entry in plain.layers.items() if entry.skip_fusion]
    prepared = prepare(proto, base_dir, skip_fusion=skip_fusion, documented_only=plain.header is None)
    return prepared.balanced(_balance(record))


def _balance(record: Record | LoadedRecord) -> dict[str, Factors]:
    """The balance factors that a record holds, by layer."""
    layers = as_loaded(record).record.layers
    return {
        name: np.asarray(entry.tensor_balance_factor, np.float32)
        for name, entry in layers.items()
        if entry.tensor_balance_factor and not entry.is_tensor_quantize
    }


def tensor_quants(
    model: Model,
    tensors: Record | LoadedRecord,
    layers: Mapping[str, LayerQuant],
    *,
    symmetric_only: bool = False,
    strict: bool = False,
) -> tuple[dict[str, TensorQuant], tuple[Finding, ...]]:
    """Quantization of each tensor that only the QDQ form quantizes.

    Args:
        model: named and fused.
        tensors: the plan, keyed by tensor name.
        layers: the layers that the record quantizes; their inputs are the record's affair.
        symmetric_only: refuse zero points, for a target that has none.
        strict: warnings are errors.

    Returns:
        Tensor name -> quantization, and the warnings found on the way.

    Raises:
        RecordError: an entry breaks a rule.
    """
    loaded = as_loaded(tensors)
    names = {tensor.name for tensor in (*model.graph.inputs, *model.graph.initializers.values())}
    names |= {tensor.name for node in model.nodes() for tensor in node.outputs}
    survey = [layer for layer in locate_layers(model, products=layers).layers if layer.name in layers]
    # Products of two computed tensors have pairs in the QDQ form, which follow the tensors file alone.
    # What a layer in a body reads from outside may have a pair there as well; the layer has its own inside.
    outside = {id(tensor) for tensor in model.graph.inputs}
    outside |= {id(tensor) for node in model.graph.nodes for tensor in node.outputs}
    weighted = [layer for layer in survey if layer.second is None]
    read = [layer for layer in weighted if not (layer.in_body and id(layer.activation) in outside)]
    inputs = {layer.activation.name: layer.name for layer in read}
    seconds = second_names(survey).values()
    findings, quants = [*loaded.findings], {}
    for name, entry in loaded.record.layers.items():
        findings += placed(loaded, name, tensor_complaints(entry))
        findings += placed(loaded, name, zero_point_complaints(entry) if symmetric_only else ())
        if name in inputs and name in seconds:
            continue
        if name in inputs:
            message = f'it is the input of layer "{inputs[name]}", whose entry in the record is used instead'
            findings += placed(loaded, name, [Complaint(None, message, Severity.WARNING)])
        elif name not in names:
            message = "the model has no such tensor; correct the name, or delete the entry"
            findings += placed(loaded, name, [Complaint(None, message, Severity.WARNING)])
        elif entry.scale_d is not None and entry.offset_d is not None:
            quants[name] = entry
    raise_errors(loaded.source, findings, strict=strict)
    return {name: tensor_quant(entry) for name, entry in quants.items()}, tuple(dict.fromkeys(findings))


def shared_input_notes(model: Model, quants: Mapping[str, LayerQuant]) -> tuple[str, ...]:
    """Say where two layers read one tensor with different scales, of which the QDQ form can take but one."""
    seen: dict[str, str] = {}
    notes: list[str] = []
    for layer in locate_layers(model).layers:
        if layer.name not in quants or layer.in_body:
            continue
        name = layer.activation.name
        first = seen.setdefault(name, layer.name)
        if quants[first].data != quants[layer.name].data:
            notes.append(
                f"layers '{first}' and '{layer.name}' read tensor '{name}' with different scale_d or offset_d; "
                "the QDQ model quantizes it once for both"
            )
    return tuple(notes)


def layer_facts(layer: Layer | RecurrentLayer) -> LayerFacts:
    """What a record's rules ask of a layer."""
    if isinstance(layer, RecurrentLayer):
        return LayerFacts(
            op_type=layer.op_type,
            channels_out=layer.rows,
            gates=layer.gates,
            act_types=frozenset(f"INT{bits}" for bits in layer.spec.act_bits),
            wts_types=frozenset(f"INT{bits}" for bits in layer.spec.weight_bits),
        )
    return LayerFacts(
        op_type=layer.op_type,
        channels_out=layer.channels_out,
        channels_in=layer.channels_in,
        has_weight=layer.weight is not None,
        symmetric_only=layer.second is not None,
        act_types=frozenset(f"INT{bits}" for bits in layer.spec.act_bits),
        wts_types=frozenset(f"INT{bits}" for bits in layer.weight_bits),
    )


def tensor_quant(entry: LayerRecord) -> TensorQuant:
    """Quantization of an activation, from an entry that has scale_d and offset_d."""
    if entry.scale_d is None or entry.offset_d is None:
        raise TypeError("the entry has no scale_d or offset_d")
    return TensorQuant(entry.scale_d, entry.offset_d, _BITS[entry.activation_type])
