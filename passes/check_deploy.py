"""Everything that the Ascend compiler will ask of a deploy model, asked beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from amct_onnx.graph.model import Model
from amct_onnx.passes.deploy_findings import DeployFinding
from amct_onnx.passes.deploy_layer_rules import (
    attribute_findings,
    channel_findings,
    deployed_layers,
    enclosure_findings,
    parameter_findings,
    quantized_findings,
    type_findings,
)
from amct_onnx.passes.deploy_model_rules import (
    control_flow_findings,
    operator_findings,
    opset_findings,
    shape_findings,
)


def check_deploy(model: Model) -> tuple[DeployFinding, ...]:
    """What was found in a named model, what stops the compiler first; the model is not changed."""
    layers = deployed_layers(model)
    found: Iterator[DeployFinding] = chain(
        opset_findings(model),
        operator_findings(model),
        attribute_findings(model),
        enclosure_findings(model, layers),
        type_findings(layers),
        parameter_findings(layers),
        quantized_findings(model, layers),
        shape_findings(model),
        control_flow_findings(model),
        channel_findings(model, layers),
    )
    return tuple(sorted(found, key=lambda finding: not finding.stops))
