"""What a model allows its configs, and what a config hands to the planner."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.analyse.configurable import model_facts, plan_options
from amct_onnx.config import ActivationAlgorithm, ConfigurableLayer, WeightAlgorithm, parse_request, resolve
from tests.models import imported, normal, parse

NET = parse(
    """
    [conv] a = Conv(x, w1, b1)
    [group] b = Conv<group = 2>(a, w2)
    [up] u = ConvTranspose(b, w5)
    [pool] c = AveragePool<kernel_shape = [2, 2]>(b)
    [max] d = MaxPool<kernel_shape = [2, 2]>(b)
    [add] e = Add(c, d)
    [mean] g = GlobalAveragePool(e)
    [flat] f = Flatten(g)
    [fc] h = Gemm(f, w3)
    [mm] y = MatMul(h, w4)
    """,
    "float[1,3,8,8] x",
    "float[1,2] y, float[p,q,r,s] u",
    {
        "w1": normal(4, 3, 1, 1),
        "b1": np.ones(4, np.float32),
        "w2": normal(6, 2, 1, 1),
        "w3": normal(6, 5),
        "w4": normal(5, 2),
        "w5": normal(6, 2, 3, 3),
    },
)
FACTS = model_facts(imported(NET))
WIDE, NARROW = frozenset({8, 16}), frozenset({8})


@pytest.mark.parametrize(
    "layer",
    [
        ConfigurableLayer(
            name="conv",
            op_type="Conv",
            kernel_rank=2,
            channels_in=3,
            per_channel=True,
            activation_bits=WIDE,
            weight_bits=frozenset({4, 6, 7, 8}),
            learned_rounding=True,
            balance=True,
        ),
        ConfigurableLayer(
            name="group",
            op_type="Conv",
            kernel_rank=2,
            channels_in=4,
            group=2,
            per_channel=True,
            activation_bits=WIDE,
            weight_bits=frozenset({4, 6, 7, 8}),
            learned_rounding=True,
            balance=True,
        ),
        ConfigurableLayer(
            name="up",
            op_type="ConvTranspose",
            kernel_rank=2,
            channels_in=6,
            per_channel=True,
            activation_bits=WIDE,
            weight_bits=frozenset({4, 8}),
            learned_rounding=True,
            balance=True,
        ),
        ConfigurableLayer(name="pool", op_type="AveragePool", kernel_rank=2, has_weight=False),
        ConfigurableLayer(
            name="fc",
            op_type="Gemm",
            channels_in=6,
            activation_bits=WIDE,
            weight_bits=frozenset({4, 8}),
            learned_rounding=True,
            balance=True,
        ),
        ConfigurableLayer(
            name="mm",
            op_type="MatMul",
            channels_in=5,
            weight_bits=frozenset({4, 8}),
            learned_rounding=True,
            balance=True,
        ),
    ],
    ids=lambda layer: layer.name,
)
def test_layers(layer: ConfigurableLayer) -> None:
    assert FACTS.layers[layer.name] == layer


def test_a_1d_convolution_takes_16_bits_but_is_not_learned() -> None:
    net = parse("[c] y = Conv(x, w)", "float[1,2,8] x", "float[a,b,c] y", {"w": normal(2, 2, 1)})
    layer = model_facts(imported(net)).layers["c"]
    assert (layer.kernel_rank, layer.activation_bits, layer.learned_rounding) == (1, WIDE, False)


def test_nodes_and_inputs() -> None:
    assert {name: (node.op_type, node.count) for name, node in FACTS.inputs.items()} == {
        "max": ("MaxPool", 1),
        "add": ("Add", 2),
    }
    assert FACTS.nodes["flat"] == "Flatten"
    assert {"Conv", "Gemm", "MatMul", "AveragePool"} <= set(FACTS.layer_types)
    assert set(FACTS.input_types) == {"Add", "MaxPool"}
    assert FACTS.fusing_types == ("Conv",)


class TestPlanOptions:
    TEXT = """
        batch_num: 3  skip_layers: "pool"  fakequant_precision_mode: FORCE_FP16_QUANT
        common_config { hfmg_quantize { num_of_bins: 1024 asymmetric: false } }
        override_layer_configs { layer_name: "conv" calibration_config {
            ifmr_quantize { dst_type: INT16 } arq_quantize { quant_bits: 7 }
            dmq_balancer { migration_strength: 0.3 } } }
        tensor_quantize { layer_name: "add" input_index: 1 }
        """

    def test_everything_arrives(self) -> None:
        config = resolve(parse_request(self.TEXT), FACTS)
        options = plan_options(config)
        assert "pool" in options.skip
        assert "pool" not in options.layers
        assert options.feeds == 3
        assert options.force_fp16
        assert [(entry.node, entry.input_index) for entry in options.tensors] == [("add", 1)]
        conv = options.of("conv")
        assert (conv.activation.bits, conv.weight.bits, conv.migration_strength) == (16, 7, 0.3)
        assert (options.of("fc").activation.num_of_bins, options.of("fc").activation.symmetric) == (1024, True)

    def test_what_only_the_qdq_form_quantizes_goes_by_common_config(self) -> None:
        default = plan_options(resolve(parse_request(self.TEXT), FACTS)).default
        assert (default.activation.algorithm, default.activation.bits) == (ActivationAlgorithm.HFMG, 8)
        assert default.weight.algorithm is WeightAlgorithm.ARQ
        assert plan_options(resolve(parse_request(""), FACTS)).default.activation.algorithm is ActivationAlgorithm.IFMR

    def test_a_target_without_zero_points(self) -> None:
        options = plan_options(resolve(parse_request(""), FACTS), symmetric=True)
        assert all(layer.activation.symmetric for layer in (options.default, *options.layers.values()))
