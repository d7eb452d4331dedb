"""Everything that is fused at once, and that a plan is applied to the very graph it was made for."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.errors import UsageError
from amct_onnx.record import LayerRecord, format_record
from amct_onnx.rewrite import prepare
from tests.models import Array, normal, parse, run

IMAGE, MATRIX = "float[2,4,8,8] x", "float[a,b] y"
NODES = """
    [div] d = Div(x, six)  [norm] n = BatchNormalization(d, g, b, m, v)
    [conv] c1 = Conv(n, w1)  [bn] c2 = BatchNormalization(c1, g, b, m, v)  [mul] c3 = Mul(k, c2)
    [relu] r = Relu(c3)
    [scale] e1 = Div(r, six)  [more] e2 = Mul(e1, k)  [shift] e3 = Add(e2, k)
    [padded] p = Conv<pads = [1, 1, 1, 1]>(e3, w2)
    [pool] q = GlobalAveragePool(p)  [flat] f = Flatten(q)
    [turn] t = Transpose(w3)  [product] h1 = MatMul(f, t)  [bias] h2 = Add(h1, a)  [last] y = Mul(h2, a)
"""
FUSED = {
    "conv": ("conv", "bn", "mul", "div", "norm"),
    "product": ("product", "turn", "bias", "last"),
    "scale": ("scale", "more"),
}


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {
        "six": np.array([6], np.float32),
        "w1": normal(4, 4, 1, 1),
        "w2": normal(5, 4, 3, 3, seed=1),
        "w3": normal(3, 5, seed=2),
        "k": rng.uniform(0.5, 2, (4, 1, 1)).astype(np.float32),
        "a": rng.uniform(0.5, 2, 3).astype(np.float32),
        **{name: rng.uniform(0.5, 2, 4).astype(np.float32) for name in "gbmv"},
    }


def everything(opset: int = 17) -> ModelProto:
    return parse(NODES, IMAGE, MATRIX, weights(), opset=opset)


def feeds() -> list[Array]:
    return [normal(2, 4, 8, 8, seed=seed) for seed in range(3)]


def test_each_layer_says_what_it_stands_for() -> None:
    prepared = prepare(everything(), None)
    assert {name: set(members) for name, members in prepared.fused.items()} == {
        name: set(members) for name, members in FUSED.items()
    }
    assert all(name == members[0] for name, members in prepared.fused.items())
    assert [node.name for node in prepared.model.graph.nodes] == [
        "conv", "relu", "scale", "shift", "padded", "pool", "flat", "product", "bias"
    ]  # fmt: skip


def test_tensors_that_are_left_have_the_values_of_the_source() -> None:
    """Calibration runs the source model and looks at them."""
    source, prepared = everything(), prepare(everything(), None)
    names = [node.outputs[0].name for node in prepared.model.graph.nodes if node.name != "product"]
    outputs = ", ".join(f"float[a,b,c,d] {name}" for name in names[:6])
    made = amct_onnx.graph.build(prepared.model).to_proto()
    for proto in (source, made):
        proto.graph.output.extend(parse("z = Relu(x)", IMAGE, outputs).graph.output)
    for expected, got in zip(run(source, {"x": feeds()[0]}), run(made, {"x": feeds()[0]}), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


CHOICES: list[dict[str, object]] = [
    {},
    {"do_fusion": False},
    {"skip_fusion": ["bn"]},
    {"skip_fusion": ["conv"]},
    {"skip_fusion": ["norm", "last"]},
    {"skip_fusion": "turn"},
    {"skip_fusion": ["more", "relu"]},
    {"do_fusion": False, "skip_fusion": ["bn"]},
    {"do_fusion": False, "skip": ["conv", "product"]},
    {"skip_fusion": ["product"], "skip": ["conv"]},
]


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("choice", CHOICES)
def test_a_plan_is_applied_to_the_graph_it_was_made_for(choice: dict[str, object], opset: int) -> None:
    model = everything(opset)
    made = amct_onnx.quantize(model, feeds(), trial=False, **choice)  # type: ignore[arg-type]
    again = amct_onnx.apply(model, made.record, tensors=made.tensors)
    for form in made.models:
        assert made.model(form) == again.model(form)
    assert [layer.source_nodes for layer in made.report.layers] == [layer.source_nodes for layer in again.report.layers]


def test_without_fusion_every_node_stays_and_the_plan_says_so() -> None:
    made = amct_onnx.quantize(everything(), feeds(), do_fusion=False, skip=["padded"], formats=["ascend"])
    skips = {name for name, entry in made.record.layers.items() if entry.skip_fusion}
    assert skips == {"div", "conv", "bn", "scale", "turn"}
    assert made.record.layers["scale"] == LayerRecord(skip_fusion=True)
    assert not made.record.layers["conv"].is_empty
    names = {node.name for node in made.model("ascend").graph.node}
    assert {"div", "norm", "bn", "mul", "scale", "more", "turn", "last"} <= names


def test_plain_plans_say_nothing_of_fusion() -> None:
    assert "skip_fusion" not in format_record(amct_onnx.quantize(everything(), feeds()).record)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"skip_fusion: 'cnov'.*did you mean 'conv'"):
        amct_onnx.quantize(everything(), feeds(), skip_fusion=["cnov"])


def test_what_only_conversion_would_fuse_stays() -> None:
    """Functions are opened when the operator set is raised; the scale was chosen for the layer without them."""
    function = (
        '<opset_import: ["": 12], domain: "own"> Six (s) => (t) { k = Constant<value = float {6.0}>() t = Mul(s, k) }'
    )
    model = parse(
        "[conv] s = Conv(x, w1) [own] y = own.Six(s)", IMAGE, "float[a,b,c,d] y", {"w1": weights()["w1"]}, opset=12,
        domains='"own": 1', functions=function,
    )  # fmt: skip
    raised = prepare(model, None).at_opset(13)
    assert raised.fused == {}
    assert [node.op for node in raised.model.graph.nodes] == ["Conv", "Constant", "Mul"]


def test_what_only_shapes_of_the_converter_would_fuse_stays() -> None:
    """It writes down the shape of an output that says none; with it the Sub could be folded as well."""
    constants = weights() | {"turned": normal(4, 1, 1, seed=6)}
    nodes = """
        [left] l = Conv(x, w1) [turn] t = Transpose<perm = [0, 1, 3, 2]>(l) [sub] s = Sub(t, turned)
        [bn] n = BatchNormalization(s, g, b, m, v) [conv] y = Conv(n, w2)
    """
    model = parse(nodes, "float[2,4,8,8] x", "float[a,b,c,d] y, float t", constants, opset=11)
    model.graph.output[1].type.tensor_type.ClearField("shape")
    prepared = prepare(model, None)
    assert prepared.fused == {"conv": ("conv", "bn")}
    raised = prepared.at_opset(13)
    assert raised.fused == prepared.fused
    feed = {"x": feeds()[0]}
    made = amct_onnx.graph.build(raised.model).to_proto()
    np.testing.assert_allclose(run(made, feed)[0], run(model, feed)[0], rtol=1e-3, atol=1e-4)


def test_arithmetic_of_old_operator_sets_stays_in_every_form() -> None:
    nodes = "[conv] s = Conv(x, w1) [mul] t = Mul<broadcast = 1>(s, six) [add] y = Add<broadcast = 1>(t, six)"
    model = parse(nodes, IMAGE, "float[a,b,c,d] y", weights(), opset=6)
    prepared = prepare(model, None)
    assert prepared.fused == prepared.at_opset(13).fused == {}
