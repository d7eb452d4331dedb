"""Facts about an imaginary model with every kind of layer that configs distinguish."""

from __future__ import annotations

from dataclasses import replace

from amct_onnx.config import ConfigurableLayer, ModelFacts, QuantizableInputs

WIDE = frozenset({8, 16})
CONV = ConfigurableLayer(
    name="conv",
    op_type="Conv",
    kernel_rank=2,
    channels_in=16,
    per_channel=True,
    activation_bits=WIDE,
    weight_bits=frozenset({4, 6, 7, 8}),
    learned_rounding=True,
    balance=True,
)
LAYERS = (
    CONV,
    replace(CONV, name="conv_odd", channels_in=3),
    replace(CONV, name="conv_depthwise", group=16),
    replace(CONV, name="conv_1d", kernel_rank=1, learned_rounding=False),
    replace(
        CONV, name="conv_3d", kernel_rank=3, asymmetric=False, activation_bits=frozenset({8}), learned_rounding=False
    ),
    replace(CONV, name="deconv", op_type="ConvTranspose", weight_bits=frozenset({4, 8})),
    ConfigurableLayer(
        name="fc",
        op_type="Gemm",
        channels_in=16,
        activation_bits=WIDE,
        weight_bits=frozenset({4, 8}),
        learned_rounding=True,
        balance=True,
    ),
    ConfigurableLayer(
        name="matmul",
        op_type="MatMul",
        channels_in=16,
        weight_bits=frozenset({4, 8}),
        learned_rounding=True,
        balance=True,
    ),
    ConfigurableLayer(name="pool", op_type="AveragePool", kernel_rank=2, has_weight=False),
)
FACTS = ModelFacts(
    layers={layer.name: layer for layer in LAYERS},
    refused={"conv_computed": "its weight is computed at run time, not a constant"},
    nodes={
        **{layer.name: layer.op_type for layer in LAYERS},
        "conv_computed": "Conv",
        "relu": "Relu",
        "add": "Add",
        "max": "MaxPool",
    },
    inputs={"add": QuantizableInputs(op_type="Add", count=2), "max": QuantizableInputs(op_type="MaxPool", count=1)},
    layer_types=("Conv", "Gemm", "MatMul", "AveragePool", "ConvTranspose"),
    input_types=("Add", "MaxPool"),
    fusing_types=("Conv",),
)


def only(*names: str) -> ModelFacts:
    """The model with these layers alone."""
    return replace(FACTS, layers={name: FACTS.layers[name] for name in names})
