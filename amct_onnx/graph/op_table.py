"""What this package knows about each operator, in one table.

Everything that differs from operator to operator stands here: which inputs are data, weight and bias, which weight
axis is the output channel, what range an output can have, how a runtime computes it on integers, and why a node may
have to be refused.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from amct_onnx.graph.channels import Channels, grouped, plain
from amct_onnx.graph.model import constant_array
from amct_onnx.graph.parts import Constant, Node, Tensor


class Kernel(enum.Enum):
    """How a runtime that reads QDQ computes an operator on integers."""

    COMPUTE = "compute"
    """Integer multiply-accumulate (Conv, Gemm, MatMul)."""
    ELEMENTWISE = "elementwise"
    """An integer kernel that wants every data input and its output quantized, each with its own scale."""
    SAME_SCALE = "same_scale"
    """Moves values or picks among them; runs on integers when input and output share one scale."""
    CLAMP = "clamp"
    """Cuts values off; merges into the quantizer that follows."""
    FUNCTION = "function"
    """Computed in float, cheap, maps a quantized tensor to one worth quantizing."""
    FLOAT = "float"
    """Computed in float; quantizing around it gains nothing."""


@dataclass(frozen=True)
class Rule:
    """One reason why a node of a quantizable type must stay float.

    Attributes:
        applies: whether this node breaks the rule.
        reason: what the rule is, as a sentence for the report.
        remedy: what the user could do about it.
    """

    applies: Callable[[Node], bool]
    reason: str
    remedy: str


ChannelsOf: TypeAlias = Callable[[Node, tuple[int, ...]], Channels]


@dataclass(frozen=True)
class ConfigFacts:
    """What AMCT's configs ask of layers of one type.

    Kernels are counted by their spatial dimensions; None stands for layers without a kernel.

    Attributes:
        has_kernel: whether the layers have a kernel.
        limited: kernels that are quantized to 8 bits without zero point only.
        learned: kernels whose rounding AMCT learns (ADA).
        fuses: whether they take in a BatchNormalization behind them.
    """

    has_kernel: bool = False
    limited: frozenset[int | None] = frozenset()
    learned: frozenset[int | None] = frozenset()
    fuses: bool = False


@dataclass(frozen=True)
class OpSpec:
    """Facts about one operator of the default domain.

    Attributes:
        kernel: its integer kernel.
        on_integers: whether a node has the integer kernel; others of the type are computed in float.
        data: indexes of its data inputs; () means all inputs.
        weight: index of the weight input of a layer.
        bias: index of the bias input of a layer.
        gates: number of gates of a recurrent layer's direction; 0 for all others.
        has_record: whether a layer of this type gets a record entry.
        act_bits: widths of the data input's integers.
        weight_bits: widths of the weight's integers.
        is_homogeneous: whether a positive factor per channel may as well be applied behind it.
        scatters: whether every input value meets the weights (transposed convolution) rather than every output value.
        per_channel: whether AMCT configs quantize its weights per output channel.
        config: what else AMCT's configs ask of it.
        quantizable_inputs: whether they may ask to quantize single inputs of it (``tensor_quantize``).
        out_channels: where the output channels lie in the weight, for a node and the weight's shape.
        in_channels: the same of the input channels.
        channel_axis: axis of the channels in the data input and in the result.
        bounds: smallest and largest value that the output can take.
        rules: why a node of this type may be refused, checked in order.
        stays_float: why a node of this type stays float although it holds weights; for types without a record entry.
    """

    kernel: Kernel
    on_integers: Callable[[Node], bool] = field(default=lambda _node: True)
    data: tuple[int, ...] = (0,)
    weight: int | None = None
    bias: int | None = None
    gates: int = 0
    has_record: bool = False
    act_bits: frozenset[int] = frozenset({8})
    weight_bits: frozenset[int] = frozenset({8})
    is_homogeneous: bool = False
    scatters: bool = False
    per_channel: bool = False
    config: ConfigFacts = ConfigFacts()
    quantizable_inputs: bool = False
    out_channels: ChannelsOf = field(default=lambda _node, shape: plain(0, shape))
    in_channels: ChannelsOf = field(default=lambda _node, shape: plain(1, shape))
    channel_axis: int = 1
    bounds: Callable[[Node], tuple[float, float]] = field(default=lambda _node: (-math.inf, math.inf))
    rules: tuple[Rule, ...] = ()
    stays_float: Rule | None = None


def is_standard(node: Node) -> bool:
    """Whether the node is of ONNX's own operator set, where its type means what ONNX says."""
    return node.domain in (None, "", "ai.onnx")


def spec_of(node: Node) -> OpSpec:
    """The table row of a node; operators of other domains and unknown ones are float."""
    if not is_standard(node):
        return _FLOAT
    return OPS.get(node.op, _FLOAT)


def kernel_of(node: Node) -> Kernel:
    """How a runtime computes this very node on integers."""
    spec = spec_of(node)
    return spec.kernel if spec.on_integers(node) else Kernel.FLOAT


def multiplies_computed(node: Node) -> bool:
    """Whether the node is a matrix product of two computed tensors, as in attention; it has no weight."""
    return (
        node.op == "MatMul"
        and is_standard(node)
        and len(node.inputs) == 2
        and all(resolve_constant(tensor) is None for tensor in node.inputs)
    )


def data_inputs(node: Node) -> list[Tensor]:
    """The data inputs of a node that are really there."""
    spec = spec_of(node)
    indexes = spec.data or range(len(node.inputs))
    return [node.inputs[index] for index in indexes if index < len(node.inputs) and not node.inputs[index].is_empty()]


def resolve_constant(tensor: Tensor) -> Constant | None:
    """The constant behind a tensor, through Constant and Identity nodes; None when it is computed."""
    while not isinstance(tensor, Constant):
        producer = tensor.inputs[0] if tensor.inputs else None
        if producer is None or not is_standard(producer):
            return None
        if producer.op == "Constant":
            value = producer.attrs.get("value")
            return value if isinstance(value, Constant) else None
        if producer.op != "Identity":
            return None
        tensor = producer.inputs[0]
    return tensor


def known_constant(tensor: Tensor) -> Constant:
    """The constant behind a tensor that an earlier check has found to be constant."""
    constant = resolve_constant(tensor)
    if constant is None:
        raise TypeError(f"tensor '{tensor.name}' is computed at run time")
    return constant


def scalar_constant(tensor: Tensor) -> float | None:
    """Value of a constant with one element, else None."""
    constant = resolve_constant(tensor)
    if constant is None or math.prod(constant.shape) != 1:
        return None
    return float(np.asarray(constant_array(constant), dtype=np.float64).reshape(()))


def is_clamp(node: Node) -> bool:
    """Whether the node cuts values off at bounds that are known: a Relu, or a Clip whose bounds are constant."""
    if spec_of(node).kernel is not Kernel.CLAMP:
        return False
    return all(resolve_constant(tensor) is not None for tensor in node.inputs[1:] if not tensor.is_empty())


def is_known(node: Node) -> bool:
    """Whether the table says more of the node than that it is computed in float."""
    return spec_of(node) is not _FLOAT


def rank_of(tensor: Tensor) -> int | None:
    """Number of dimensions, None when unknown."""
    return None if tensor.shape is None else len(tensor.shape)


def _clip_bounds(node: Node) -> tuple[float, float]:
    bounds = [float(node.attrs.get("min", -math.inf)), float(node.attrs.get("max", math.inf))]
    for index in (1, 2):
        if len(node.inputs) > index and not node.inputs[index].is_empty():
            value = scalar_constant(node.inputs[index])
            if value is not None:
                bounds[index - 1] = value
    return bounds[0], bounds[1]


def _within(low: float, high: float) -> Callable[[Node], tuple[float, float]]:
    return lambda _node: (low, high)


def _gemm_out_axis(node: Node) -> int:
    return 0 if node.attrs.get("transB", 0) else 1


def _group(node: Node) -> int:
    return int(node.attrs.get("group", 1))


def _is_dequantized(tensor: Tensor) -> bool:
    return bool(tensor.inputs) and tensor.inputs[0].op == "DequantizeLinear"


def _weight_rank(node: Node) -> int | None:
    constant = resolve_constant(node.inputs[1])
    return None if constant is None else len(constant.shape)


def _not_float32(tensor: Tensor) -> bool:
    return tensor.dtype is not None and np.dtype(tensor.dtype) != np.float32


def _absent_or_constant(node: Node, index: int) -> bool:
    return (
        len(node.inputs) <= index or node.inputs[index].is_empty() or resolve_constant(node.inputs[index]) is not None
    )


def _gemm_bias_is_row(node: Node) -> bool:
    """Whether C is absent or holds one value per output channel (or one for all)."""
    if len(node.inputs) < 3 or node.inputs[2].is_empty():
        return True
    bias, weight = resolve_constant(node.inputs[2]), resolve_constant(node.inputs[1])
    if bias is None or weight is None:
        return False
    size = math.prod(bias.shape)
    channels = weight.shape[_gemm_out_axis(node)]
    return size == 1 or (size == channels and (not bias.shape or bias.shape[-1] == channels))


_ALREADY = Rule(
    lambda node: len(node.inputs) > 1 and _is_dequantized(node.inputs[1]),
    "it is quantized already (its weight comes from a DequantizeLinear)",
    "quantize the float model instead",
)
_CONSTANT_WEIGHT = Rule(
    lambda node: len(node.inputs) < 2 or resolve_constant(node.inputs[1]) is None,
    "its weight is computed at run time, not a constant",
    "fold constants before export",
)
_FLOAT32 = Rule(
    lambda node: any(_not_float32(tensor) for tensor in (*node.inputs[:2], *node.outputs)),
    "only float32 layers are quantized, this one has another element type",
    "convert the model to float32",
)
_DATA_COMPUTED = Rule(
    lambda node: resolve_constant(node.inputs[0]) is not None,
    "its data input is a constant",
    "fold constants before export",
)
_CONV_BIAS = Rule(
    lambda node: not _absent_or_constant(node, 2), "its bias is computed at run time", "fold constants before export"
)
_CONV_RANK = Rule(
    lambda node: _weight_rank(node) not in (3, 4, 5),
    "only 1-D, 2-D and 3-D convolutions are quantized",
    "none; the layer stays float",
)
_TRANSPOSED_RANK = Rule(
    lambda node: _weight_rank(node) not in (3, 4),
    "only 1-D and 2-D transposed convolutions are quantized",
    "none; the layer stays float",
)
_GEMM_TRANS_A = Rule(
    lambda node: bool(node.attrs.get("transA", 0)),
    "transA must be 0",
    "transpose the data input with a node of its own",
)
_GEMM_BIAS = Rule(
    lambda node: not _gemm_bias_is_row(node),
    "its C input is not a constant with one value per output channel",
    "add it with a node of its own",
)
_MATMUL_RANK = Rule(
    lambda node: (_weight_rank(node) or 0) < 2,
    "its constant weight must have two or more dimensions",
    "reshape the weight to one column",
)
_MATMUL_DYNAMIC = Rule(
    lambda node: resolve_constant(node.inputs[1]) is None and resolve_constant(node.inputs[0]) is None,
    "both inputs are computed at run time, there is no weight",
    "--matmul-inputs quantizes both inputs; in QDQ form they may be quantized anyway",
)
_PRODUCT_ALREADY = Rule(
    lambda node: any(map(_is_dequantized, node.inputs)),
    "it is quantized already (an input comes from a DequantizeLinear)",
    "quantize the float model instead",
)
_PRODUCT_RANK = Rule(
    lambda node: any((rank_of(tensor) or 2) < 2 for tensor in node.inputs),
    "both inputs are computed at run time, and one is a vector",
    "reshape it to a matrix",
)

_MATMUL_LEFT = Rule(
    lambda node: resolve_constant(node.inputs[0]) is not None,
    "the constant is its first input; only a constant second input counts as weight",
    "declare the shape of its second input, or transpose both operands",
)
_POOL_RANK = Rule(
    lambda node: rank_of(node.inputs[0]) not in (None, 4), "only 2-D pooling (4-D input) is quantized", "none"
)
_FLOAT32_DATA = Rule(
    lambda node: any(_not_float32(tensor) for tensor in (node.inputs[0], *node.outputs)),
    "only float32 layers are quantized, this one has another element type",
    "convert the model to float32",
)


def _is_plain_pool(node: Node) -> bool:
    """onnxruntime's integer pooling knows no dilations, and may count what lies beyond the padding with it."""
    sticks_out = node.attrs.get("ceil_mode", 0) or str(node.attrs.get("auto_pad", "")).startswith("SAME")
    is_dense = all(int(size) == 1 for size in node.attrs.get("dilations", ()))
    return is_dense and not (node.attrs.get("count_include_pad", 0) and sticks_out)


def _reads_table(node: Node) -> bool:
    table = resolve_constant(node.inputs[0])
    return table is not None and np.dtype(table.dtype).kind == "f" and math.prod(table.shape) >= _LARGE_TABLE


_LARGE_TABLE = 4096
_TABLE = Rule(_reads_table, "its table of weights (an embedding) is not quantized", "none; it stays float")
_RECURRENCE = Rule(
    lambda node: resolve_constant(node.inputs[2]) is None,
    "its recurrence weight is computed at run time, not a constant",
    "fold constants before export",
)
_RECURRENT_BIAS = Rule(
    lambda node: not _absent_or_constant(node, 3), "its bias is computed at run time", "fold constants before export"
)
_STATELESS = Rule(
    lambda node: all(tensor.is_empty() for tensor in (*node.inputs[5:6], *node.outputs[:2])),
    "no hidden state of it is to be seen (it has no initial_h, Y or Y_h)",
    "let it give out Y_h",
)

_WIDE_ACTIVATIONS = frozenset({8, 16})
_NARROW_WEIGHTS = frozenset({4, 8})

_RECURRENT = OpSpec(
    Kernel.FLOAT,
    weight=1,
    bias=3,
    gates=1,
    has_record=True,
    per_channel=True,
    act_bits=_WIDE_ACTIVATIONS,
    rules=(_ALREADY, _CONSTANT_WEIGHT, _RECURRENCE, _FLOAT32, _DATA_COMPUTED, _RECURRENT_BIAS),
)

_FLOAT = OpSpec(Kernel.FLOAT, data=())
_MOVES = OpSpec(Kernel.SAME_SCALE)
_KEEPS_CHANNELS = OpSpec(Kernel.SAME_SCALE, is_homogeneous=True)
_FUNCTION = OpSpec(Kernel.FUNCTION)
_ARITHMETIC = OpSpec(Kernel.ELEMENTWISE, data=(0, 1))

PRODUCT_RULES = (_PRODUCT_ALREADY, _FLOAT32, _PRODUCT_RANK)
"""Why a product of two computed tensors may be refused where such are to be quantized."""

OPS: Mapping[str, OpSpec] = {
    "Conv": OpSpec(
        Kernel.COMPUTE,
        weight=1,
        bias=2,
        has_record=True,
        per_channel=True,
        config=ConfigFacts(has_kernel=True, limited=frozenset({3}), learned=frozenset({2}), fuses=True),
        act_bits=_WIDE_ACTIVATIONS,
        weight_bits=frozenset({4, 6, 7, 8}),
        in_channels=lambda node, shape: grouped(1, shape, _group(node)),
        rules=(_ALREADY, _CONSTANT_WEIGHT, _FLOAT32, _DATA_COMPUTED, _CONV_BIAS, _CONV_RANK),
    ),
    "ConvTranspose": OpSpec(
        Kernel.FLOAT,
        weight=1,
        bias=2,
        has_record=True,
        per_channel=True,
        config=ConfigFacts(has_kernel=True, learned=frozenset({2})),
        act_bits=_WIDE_ACTIVATIONS,
        weight_bits=_NARROW_WEIGHTS,
        scatters=True,
        out_channels=lambda node, shape: grouped(1, shape, _group(node)),
        in_channels=lambda _node, shape: plain(0, shape),
        rules=(_ALREADY, _CONSTANT_WEIGHT, _FLOAT32, _DATA_COMPUTED, _CONV_BIAS, _TRANSPOSED_RANK),
    ),
    "Gemm": OpSpec(
        Kernel.COMPUTE,
        weight=1,
        bias=2,
        has_record=True,
        config=ConfigFacts(learned=frozenset({None})),
        act_bits=_WIDE_ACTIVATIONS,
        weight_bits=_NARROW_WEIGHTS,
        channel_axis=-1,
        out_channels=lambda node, shape: plain(_gemm_out_axis(node), shape),
        in_channels=lambda node, shape: plain(1 - _gemm_out_axis(node), shape),
        rules=(_ALREADY, _CONSTANT_WEIGHT, _FLOAT32, _DATA_COMPUTED, _GEMM_TRANS_A, _GEMM_BIAS),
    ),
    "MatMul": OpSpec(
        Kernel.COMPUTE,
        data=(0, 1),
        weight=1,
        has_record=True,
        config=ConfigFacts(learned=frozenset({None})),
        weight_bits=_NARROW_WEIGHTS,
        out_channels=lambda _node, shape: plain(len(shape) - 1, shape),
        in_channels=lambda _node, shape: plain(len(shape) - 2, shape),
        channel_axis=-1,
        rules=(_ALREADY, _MATMUL_DYNAMIC, _MATMUL_LEFT, _FLOAT32, _MATMUL_RANK),
    ),
    "AveragePool": OpSpec(
        Kernel.ELEMENTWISE,
        on_integers=_is_plain_pool,
        has_record=True,
        config=ConfigFacts(has_kernel=True),
        rules=(_FLOAT32_DATA, _DATA_COMPUTED, _POOL_RANK),
    ),
    "LSTM": replace(_RECURRENT, gates=4, rules=(*_RECURRENT.rules, _STATELESS)),
    "GRU": replace(_RECURRENT, gates=3),
    "RNN": _RECURRENT,
    "Gather": OpSpec(Kernel.FLOAT, data=(), stays_float=_TABLE),
    "Add": replace(_ARITHMETIC, quantizable_inputs=True),
    "Mul": _ARITHMETIC,
    "Concat": OpSpec(Kernel.ELEMENTWISE, data=()),
    "GlobalAveragePool": OpSpec(Kernel.ELEMENTWISE),
    "LeakyRelu": OpSpec(Kernel.ELEMENTWISE, is_homogeneous=True),
    "Sigmoid": OpSpec(Kernel.ELEMENTWISE, bounds=_within(0.0, 1.0)),
    "Relu": OpSpec(Kernel.CLAMP, is_homogeneous=True, bounds=_within(0.0, math.inf)),
    "Clip": OpSpec(Kernel.CLAMP, bounds=_clip_bounds),
    "MaxPool": replace(_KEEPS_CHANNELS, quantizable_inputs=True),
    "Reshape": _MOVES,
    "Flatten": _MOVES,
    "Transpose": _MOVES,
    "Squeeze": _MOVES,
    "Unsqueeze": _MOVES,
    "Identity": _KEEPS_CHANNELS,
    "Dropout": _KEEPS_CHANNELS,
    "HardSwish": _FUNCTION,
    "HardSigmoid": OpSpec(Kernel.FUNCTION, bounds=_within(0.0, 1.0)),
    "Tanh": OpSpec(Kernel.FUNCTION, bounds=_within(-1.0, 1.0)),
    "Elu": _FUNCTION,
    "Selu": _FUNCTION,
    "Mish": _FUNCTION,
    "Gelu": _FUNCTION,
    "Softplus": OpSpec(Kernel.FUNCTION, bounds=_within(0.0, math.inf)),
    "Softmax": OpSpec(Kernel.FLOAT, bounds=_within(0.0, 1.0)),
    "Exp": OpSpec(Kernel.FLOAT, bounds=_within(0.0, math.inf)),
    "Abs": OpSpec(Kernel.FLOAT, bounds=_within(0.0, math.inf)),
    "Sqrt": OpSpec(Kernel.FLOAT, bounds=_within(0.0, math.inf)),
}
