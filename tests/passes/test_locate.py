"""Which layers can be quantized, and the reason given for every other."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from amct_onnx.graph.element_types import settle_types
from amct_onnx.passes.locate import Layer, locate_layers
from tests.models import Array, imported, normal, parse

IMAGE = "float[1,3,5,5] x"
ANY = "float[a,b,c,d] y"


def survey(nodes: str, inputs: str = IMAGE, outputs: str = ANY, weights: dict[str, Array] | None = None, **more: int):
    model = imported(parse(nodes, inputs, outputs, weights, **more))
    settle_types(model)
    return locate_layers(model)


ALREADY = "it is quantized already"
STATELESS = "no hidden state of it is to be seen"

REFUSED = [
    ("y = Conv(x, k)", IMAGE + ", float[2,3,1,1] k", {}, "its weight is computed at run time, not a constant"),
    ("y = Conv(x, w)", "double[1,3,5,5] x", {"w": np.ones((2, 3, 1, 1))}, "only float32 layers are quantized"),
    ("y = Conv(k, w)", IMAGE, {"k": normal(1, 3, 5, 5), "w": normal(2, 3, 1, 1)}, "its data input is a constant"),
    ("y = Conv(x, w, k)", IMAGE + ", float[2] k", {"w": normal(2, 3, 1, 1)}, "its bias is computed at run time"),
    ("y = Conv(x, w)", "float[1,3,5,5,5,5] x", {"w": normal(2, 3, 1, 1, 1, 1)}, "only 1-D, 2-D and 3-D convolutions"),
    ("y = ConvTranspose(x, k)", IMAGE + ", float[3,2,1,1] k", {}, "its weight is computed at run time"),
    ("y = ConvTranspose(x, w)", "double[1,3,5,5] x", {"w": np.ones((3, 2, 1, 1))}, "only float32 layers"),
    ("y = ConvTranspose(k, w)", IMAGE, {"k": normal(1, 3, 5, 5), "w": normal(3, 2, 1, 1)}, "its data input is a c"),
    ("y = ConvTranspose(x, w, k)", IMAGE + ", float[2] k", {"w": normal(3, 2, 1, 1)}, "its bias is computed at run"),
    (
        "y = ConvTranspose(x, w)",
        "float[1,3,5,5,5] x",
        {"w": normal(3, 2, 1, 1, 1)},
        "only 1-D and 2-D transposed convolutions",
    ),
    ("y = Gemm(x, k)", "float[2,3] x, float[3,4] k", {}, "its weight is computed at run time"),
    ("y = Gemm(x, w)", "double[2,3] x", {"w": np.ones((3, 4))}, "only float32 layers are quantized"),
    ("y = Gemm(k, w)", "float[2,3] x", {"k": normal(2, 3), "w": normal(3, 4)}, "its data input is a constant"),
    ("y = Gemm<transA = 1>(x, w)", "float[3,2] x", {"w": normal(3, 4)}, "transA must be 0"),
    ("y = Gemm(x, w, k)", "float[2,3] x, float[4] k", {"w": normal(3, 4)}, "its C input is not a constant"),
    ("y = Gemm(x, w, k)", "float[2,3] x", {"w": normal(3, 4), "k": normal(2, 4)}, "its C input is not a constant"),
    ("y = Gemm(x, w, k)", "float[4,3] x", {"w": normal(3, 4), "k": normal(4, 1)}, "its C input is not a constant"),
    ("y = MatMul(x, k)", "float[2,3] x, float[3,4] k", {}, "both inputs are computed at run time"),
    ("y = MatMul(w, x)", "float[3,4] x", {"w": normal(2, 3)}, "the constant is its first input"),
    ("y = MatMul(x, w)", "double[2,3] x", {"w": np.ones((3, 4))}, "only float32 layers are quantized"),
    ("y = MatMul(x, w)", "float[2,2,3] x", {"w": normal(3)}, "its constant weight must have two or more dimensions"),
    ("y = AveragePool<kernel_shape = [2,2]>(x)", "double[1,3,5,5] x", {}, "only float32 layers are quantized"),
    ("y = AveragePool<kernel_shape = [2,2]>(k)", IMAGE, {"k": normal(1, 3, 5, 5)}, "its data input is a constant"),
    ("y = AveragePool<kernel_shape = [2]>(x)", "float[1,3,5] x", {}, "only 2-D pooling"),
]


def _recurrent(op: str, gates: int) -> list[tuple[str, str, dict[str, Array], str]]:
    w, r = normal(1, 2 * gates, 4), normal(1, 2 * gates, 2)
    steps, call = "float[3,1,4] x", f"y = {op}<hidden_size = 2>"
    return [
        (call + "(x, k, r)", f"{steps}, float[1,{2 * gates},4] k", {"r": r}, "its weight is computed at run time"),
        (call + "(x, w, k)", f"{steps}, float[1,{2 * gates},2] k", {"w": w}, "its recurrence weight is computed"),
        (call + "(x, w, r)", "double[3,1,4] x", {"w": w.astype(float), "r": r.astype(float)}, "only float32 layers"),
        (call + "(t, w, r)", "float[1] x", {"t": normal(3, 1, 4), "w": w, "r": r}, "its data input is a constant"),
        (call + "(x, w, r, k)", f"{steps}, float[1,{4 * gates}] k", {"w": w, "r": r}, "its bias is computed at run"),
    ]


REFUSED += [case for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)) for case in _recurrent(op, gates)]


@pytest.mark.parametrize(("nodes", "inputs", "weights", "reason"), REFUSED)
def test_reasons(nodes: str, inputs: str, weights: dict[str, Array], reason: str) -> None:
    result = survey("[layer] " + nodes, inputs, "float y" if "double" not in inputs else "double y", weights)
    assert result.layers == ()
    (refusal,) = result.refusals
    assert (refusal.node, reason in refusal.reason) == ("layer", True)
    assert refusal.remedy


def test_an_lstm_that_shows_no_hidden_state_is_refused() -> None:
    weights = {"w": normal(1, 8, 4), "r": normal(1, 8, 2)}
    proto = parse("[layer] y = LSTM<hidden_size = 2>(x, w, r)", "float[3,1,4] x", "float y", weights)
    # The parser of older onnx reads no empty names.
    proto.graph.node[0].output[:] = ["", "", "y"]
    (refusal,) = locate_layers(imported(proto)).refusals
    assert refusal.node == "layer"
    assert STATELESS in refusal.reason


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
def test_quantized_weights_are_recognized(op: str) -> None:
    shape = (2, 3, 1, 1) if op == "Conv" else (3, 4)
    weights = {"q": np.ones(shape, np.int8), "s": np.array(0.1, np.float32)}
    inputs = IMAGE if op == "Conv" else "float[2,3] x"
    result = survey(f"k = DequantizeLinear(q, s) [layer] y = {op}(x, k)", inputs, "float y", weights)
    (refusal,) = result.refusals
    assert (refusal.node, ALREADY in refusal.reason) == ("layer", True)


@pytest.mark.parametrize(
    ("nodes", "outputs", "node", "reason"),
    [
        ("[layer] y = Gather(t, i)", "float[a,b] y", "layer", "its table of weights"),
    ],
)
def test_what_holds_weights_but_has_no_record_entry_is_named(nodes: str, outputs: str, node: str, reason: str) -> None:
    weights = {"w": normal(1, 8, 8), "r": normal(1, 8, 2), "t": normal(1024, 8), "i": np.array([1, 2])}
    result = survey(nodes, IMAGE, outputs, weights)
    assert [(refusal.node, reason in refusal.reason) for refusal in result.refusals] == [(node, True)]


def test_every_rule_of_the_table_has_a_case() -> None:
    from amct_onnx.graph.op_table import OPS

    rules = {(op, rule.reason) for op, spec in OPS.items() for rule in spec.rules if ALREADY not in rule.reason}
    covered = {(op, text) for op, text in rules for case in REFUSED if case[3] in text and f"= {op}" in case[0]}
    assert {(op, text) for op, text in rules - covered if STATELESS not in text} == set()


def test_skipped_and_in_a_body() -> None:
    text = """
        [skipped] s = Conv(x, w)
        y = If(c) <then_branch = p () => (float[a,b,d,e] t) { [inner] t = Conv(s, w) },
                   else_branch = q () => (float[a,b,d,e] u) { u = Neg(s) }>
    """
    model = imported(parse(text, IMAGE + ", bool c", ANY, {"w": normal(3, 3, 1, 1)}))
    found = locate_layers(model, {"skipped": "skipped on request"})
    assert [(layer.name, layer.in_body) for layer in found.layers] == [("inner", True)]
    assert {refusal.node: refusal.reason for refusal in found.refusals} == {"skipped": "skipped on request"}
    outside = found.outside_bodies()
    assert not outside.layers
    assert outside.refusals[-1].node == "inner"
    assert "inside a control-flow body" in outside.refusals[-1].reason


def only(nodes: str, *args: str, weights: dict[str, Array]) -> Layer:
    result = survey(nodes, *args, weights=weights)
    assert not result.refusals
    (layer,) = result.layers
    return layer


def test_facts_about_layers() -> None:
    conv = only("[l] y = Conv<group = 3>(x, w, b)", weights={"w": normal(6, 1, 3, 3), "b": normal(6)})
    assert (conv.name, conv.op_type, conv.channels_out, conv.channels_in) == ("l", "Conv", 6, 3)
    assert (conv.out_channels.axis, conv.in_channels.axis) == (0, None)
    transposed = only("y = ConvTranspose<group = 3>(x, w)", weights={"w": normal(3, 4, 2, 2)})
    assert (transposed.channels_out, transposed.channels_in, transposed.in_channels.axis) == (12, 3, 0)
    assert (conv.bias.name, conv.bias_add, conv.activation.name, conv.output.name) == ("b", None, "x", "y")
    gemm = only("y = Gemm<transB = 1>(x, w)", "float[2,3] x", "float[2,4] y", weights={"w": normal(4, 3)})
    assert (gemm.out_channels.axis, gemm.channels_out, gemm.channels_in, gemm.bias) == (0, 4, 3, None)
    matmul = only("y = MatMul(x, w)", "float[2,3] x", "float[2,4] y", weights={"w": normal(3, 4)})
    assert (matmul.out_channels.axis, matmul.channels_out, matmul.channels_in) == (1, 4, 3)
    pool = only("y = AveragePool<kernel_shape = [2,2]>(x)", weights={})
    assert (pool.weight, pool.channels_out, pool.channels_in) == (None, None, None)


def test_weights_behind_constant_and_identity_nodes_count() -> None:
    nodes = "k = Constant<value = float[1,1] {2.0}>()  i = Identity(k)  y = MatMul(x, i)"
    assert only(nodes, "float[2,1] x", "float[2,1] y", weights={}).channels_out == 1


PRODUCT = ("float[2,3] x", "float y")


@pytest.mark.parametrize("operands", ["s, b", "b, s"])
@pytest.mark.parametrize("shape", [(4,), (1, 4)])
def test_the_bias_of_a_matmul_in_either_order(operands: str, shape: tuple[int, ...]) -> None:
    weights = {"w": normal(3, 4), "b": normal(*shape)}
    layer = only(f"s = MatMul(x, w)  [add] y = Add({operands})", *PRODUCT, weights=weights)
    assert (layer.bias.name, layer.bias_add.name, layer.output.name) == ("b", "add", "y")


@pytest.mark.parametrize(
    ("nodes", "bias"),
    [
        ("s = MatMul(x, w)  y = Add(s, b)", normal(1)),
        ("s = MatMul(x, w)  y = Add(s, b)", normal(4, 1)),
        ("s = MatMul(x, w)  y = Add(s, b)", normal(2, 4)),
        ("s = MatMul(x, w)  y = Add(s, b)", normal()),
        ("s = MatMul(x, w)  y = Add(s, s)  z = Abs(b)", normal(4)),
        ("s = MatMul(x, w)  y = Add(s, b)  z = Abs(s)", normal(4)),
        ("s = MatMul(x, w)  y = Sub(s, b)", normal(4)),
        ("s = MatMul(x, w)  y = custom.Add(s, b)", normal(4)),
        ("s = MatMul(x, w)  t = Abs(b)  y = Add(s, t)", normal(4)),
    ],
)
def test_what_is_no_bias_of_a_matmul(nodes: str, bias: Array) -> None:
    layer = only(nodes, *PRODUCT, weights={"w": normal(3, 4), "b": np.asarray(bias)})
    assert (layer.bias, layer.bias_add, layer.output.name) == (None, None, "s")


def test_a_matmul_that_leaves_the_graph_has_no_bias() -> None:
    weights = {"w": normal(3, 4), "b": normal(4)}
    layer = only("s = MatMul(x, w)  y = Add(s, b)", "float[2,3] x", "float[2,4] y, float[2,4] s", weights=weights)
    assert layer.bias_add is None


def test_an_add_inside_a_body_is_no_bias() -> None:
    """The body may not run, or many times."""
    text = """
        s = MatMul(x, w)
        y = If(c) <then_branch = p () => (float[2,4] t) { t = Add(s, b) },
                   else_branch = q () => (float[2,4] u) { u = Identity(b4) }>
    """
    weights = {"w": normal(3, 4), "b": normal(4), "b4": normal(2, 4)}
    layer = only(text, "float[2,3] x, bool c", "float[2,4] y", weights=weights)
    assert (layer.bias_add, layer.output.name) == (None, "s")


def test_element_types_spread_where_the_model_is_silent() -> None:
    """An exporter that writes no value infos must not make a half-precision pooling pass for float32."""
    nodes = """
        s = Conv(x, w)  r = Relu(s)  m = MaxPool<kernel_shape = [1,1]>(r)
        [p] y = AveragePool<kernel_shape = [1,1]>(m)
    """
    model = parse(nodes, "float16[1,3,5,5] x", "float16[a,b,c,d] y", {"w": np.ones((3, 3, 1, 1), np.float16)})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    graph = imported(model)
    settle_types(graph)
    assert {node.outputs[0].dtype for node in graph.graph.nodes} == {np.dtype(np.float16)}
    assert [refusal.node for refusal in locate_layers(graph).refusals] == ["Conv_0", "p"]


def test_layers_inside_functions_are_reported() -> None:
    """The call is what a user can name; a function that only calls such a function is one as well."""
    model = parse(
        "[o] k = f.outer(x, w) [s] t = f.twice(k) [c] y = MatMul(t, w)",
        "float[2,4] x",
        "float[2,4] y",
        {"w": normal(4, 4)},
        domains='"f": 1',
        functions="""
            <opset_import: ["": 17, "f": 1], domain: "f"> outer (a, w) => (b) { b = f.inner(a, w) }
            <opset_import: ["": 17], domain: "f"> inner (a, w) => (b) { b = MatMul(a, w) }
            <opset_import: ["": 17], domain: "f"> twice (a) => (b) { b = Add(a, a) }
        """,
    )
    survey = locate_layers(imported(model))
    assert [layer.name for layer in survey.layers] == ["c"]
    assert [(refusal.node, "inline" in refusal.remedy) for refusal in survey.refusals] == [("o", True)]
