"""Raising the operator set: the same numbers, names and everything else as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from amct_onnx.errors import ModelError
from amct_onnx.graph import build, import_model, read_model
from amct_onnx.graph.opset import raise_opset
from tests.models import Array, initializers, normal, parse, run

AXES = "float[2,3,4] x"
FEED = {"x": normal(2, 3, 4)}


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("nodes", "outputs", "weights"),
    [
        ("y = Softmax<axis = 1>(x)", "float[2,3,4] y", {}),
        ("y = Softmax(x)", "float[2,3,4] y", {}),
        ("y = LogSoftmax<axis = 1>(x)", "float[2,3,4] y", {}),
        ("y = Hardmax<axis = -1>(x)", "float[2,3,4] y", {}),
        ("u = Unsqueeze<axes = [0, 2]>(x)  y = Squeeze<axes = [0]>(u)", "float[2,1,3,4] y", {}),
        ("y = ReduceSum<axes = [1], keepdims = 0>(x)", "float[2,4] y", {}),
        ("y = ReduceSum(x)", "float[1,1,1] y", {}),
        ("y, z = Split<axis = 2, split = [1, 3]>(x)", "float[2,3,1] y, float[2,3,3] z", {}),
        ("y, z = Split<axis = 2>(x)", "float[2,3,2] y, float[2,3,2] z", {}),
        ("y = Clip(x, low, high)", "float[2,3,4] y", {"low": np.float32(-0.5), "high": np.float32(0.5)}),
        ("y = Pad(x, p, v)", "float[2,3,6] y", {"p": ints(0, 0, 1, 0, 0, 1), "v": np.float32(2)}),
        ("y = Dropout(x)", "float[2,3,4] y", {}),
    ],
)
def test_operators_that_changed_meaning(nodes: str, outputs: str, weights: dict[str, Array]) -> None:
    model = parse(nodes, AXES, outputs, {name: np.asarray(values) for name, values in weights.items()}, opset=11)
    raised = raise_opset(model, 13)
    assert raised.opset_import[0].version == 13
    onnx.checker.check_model(raised)
    for expected, got in zip(run(model, FEED), run(raised, FEED), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("opset", "nodes", "weights"),
    [
        (6, "y = Clip<max = 0.5, min = -0.5>(x)", {}),
        (9, "y = Pad<pads = [0,0,0,0,0,0], value = 0.0>(x)", {}),
        (8, "y = BatchNormalization(x, g, b, m, v)", dict.fromkeys("gbmv", np.ones(3, np.float32))),
        (9, "y = Slice<axes = [1], starts = [1], ends = [4]>(x)", {}),
    ],
)
def test_older_models(opset: int, nodes: str, weights: dict[str, Array]) -> None:
    model = parse(nodes, AXES, "float[a,b,c] y", weights, opset=opset)
    np.testing.assert_allclose(run(raise_opset(model, 13), FEED)[0], run(model, FEED)[0], rtol=1e-6)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
@pytest.mark.parametrize("node", ["Clip<max = 0.5, min = -0.5>(x)", "Pad<pads = [0,0,0,0,0,1], value = 2.0>(x)"])
def test_numbers_that_become_inputs_have_the_type_of_the_data(kind: type, node: str) -> None:
    name = {np.float16: "float16", np.float64: "double"}[kind]
    model = parse(f"y = {node}", f"{name}[2,3,4] x", f"{name}[a,b,c] y", opset=8)
    raised = raise_opset(model, 13)
    onnx.checker.check_model(raised, full_check=True)
    feed = {"x": FEED["x"].astype(kind)}
    (expected,) = run(parse(f"y = {node}", AXES, "float[a,b,c] y", opset=8), {"x": feed["x"].astype(np.float32)})
    np.testing.assert_array_equal(run(raised, feed)[0], expected.astype(kind))


def test_what_is_declared_of_inputs_and_outputs_stays() -> None:
    """The converter infers shapes, and writes what it finds into the interface."""
    model = parse("y = Relu(x)", "float[2,3,4] x", "float[N,a,4] y", opset=9)
    raised = raise_opset(model, 13)
    assert raised.graph.input == model.graph.input
    assert raised.graph.output == model.graph.output


@pytest.mark.parametrize("factor", [2.0, 1.5, 3.0])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("opset", "op"), [(9, "Upsample"), (10, "Resize")])
def test_resized_images_keep_their_sampling_points(opset: int, op: str, mode: str, factor: float) -> None:
    """The converter leaves the coordinates to Resize's default, which is another one from operator set 11 on."""
    weights = {"s": np.array([1, 1, factor, factor], np.float32)}
    nodes = f'[up] y = {op}<mode = "{mode}">(x, s)'
    model = parse(nodes, "float[1,2,4,4] x", "float[a,b,c,d] y", weights, opset=opset)
    feed = {"x": normal(1, 2, 4, 4)}
    np.testing.assert_allclose(run(raise_opset(model, 13), feed)[0], run(model, feed)[0], rtol=1e-6, atol=1e-6)


def test_a_hardmax_that_the_converter_would_change_is_refused() -> None:
    with pytest.raises(ModelError, match="'Hardmax_0' is a Hardmax, which changed meaning"):
        raise_opset(parse("y = Hardmax<axis = 1>(x)", AXES, "float[2,3,4] y", opset=11), 13)


def test_a_recent_model_is_returned_as_it_is() -> None:
    for model in (parse("y = Relu(x)", opset=13), parse("y = custom.Op(x)", opset=0, domains='"custom": 1')):
        assert raise_opset(model, 13) is model


def test_bodies_are_converted_and_new_names_do_not_clash() -> None:
    branch = "{0} = {1} () => (float[2,3,4] {2}) {{ s{2} = Softmax<axis=1>(r)  {2} = Softmax<axis=1>(s{2}) }}"
    text = f"""
        r = Relu(x)  a = Softmax<axis = 1>(x)  b = Softmax<axis = 1>(a)
        y = If(c) <{branch.format("then_branch", "p", "t")}, {branch.format("else_branch", "q", "e")}>
    """
    model = parse(text, AXES + ", bool c", "float[2,3,4] y", opset=11)
    raised = raise_opset(model, 13)
    feed = FEED | {"c": np.array(True)}
    np.testing.assert_array_equal(run(raised, feed)[0], run(model, feed)[0])
    graph = import_model(raised)
    produced = [tensor.name for body in graph.graphs() for node in body.nodes for tensor in node.outputs]
    assert len(produced) == len(set(produced))


def test_names_of_nodes_survive() -> None:
    text = "[soft] a = Softmax<axis = 1>(x)  b = MatMul(a, w)  [last] y = Relu(b)"
    raised = raise_opset(parse(text, AXES, "float[2,3,4] y", {"w": normal(4, 4)}, opset=11), 13)
    names = {node.op_type: node.name for node in raised.graph.node if node.name}
    assert names["MatMul"] == "MatMul_1"
    assert (names["Softmax"], names["Relu"]) == ("soft", "last")


def decorated() -> ModelProto:
    model = parse(
        "r = Relu(x)  y = custom.Op<a = 1>(r, , w)", weights={"w": normal(3)}, opset=11, domains='"custom": 1'
    )
    model.doc_string, model.graph.doc_string, model.graph.node[0].doc_string = "m", "g", "n"
    for message in (model, model.graph, model.graph.node[0]):
        message.metadata_props.add(key="k", value="v")
    model.producer_name, model.model_version = "p", 3
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [5.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [2])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    model.graph.quantization_annotation.add(tensor_name="r")
    model.graph.value_info.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, ["batch", 3]))
    return model


def test_everything_else_stays() -> None:
    expected = decorated()
    expected.opset_import[0].version = 13
    for node, name in zip(expected.graph.node, ("Relu_0", "Op_1"), strict=True):
        node.name = name
    raised = raise_opset(decorated(), 13)
    for node in raised.graph.node:
        if not node.domain:
            node.ClearField("domain")
    for node in expected.graph.node:
        if not node.domain:
            node.ClearField("domain")
    assert raised.opset_import == expected.opset_import
    raised.graph.ClearField("initializer")
    expected.graph.ClearField("initializer")
    assert raised == expected


def test_functions_are_converted_by_inlining_them() -> None:
    """A runtime reads a function's body by the model's operator set, so leaving it alone would change its meaning."""
    function = '<domain: "local", opset_import: ["": 11]> soft (a) => (b) { b = Softmax<axis = 1>(a) }'
    text = "[call] s = local.soft(x)  [last] y = Relu(s)"
    model = parse(text, AXES, "float[2,3,4] y", opset=11, domains='"local": 1', functions=function)
    raised = raise_opset(model, 13)
    assert not raised.functions
    assert raised.graph.node[-1].name == "last"
    np.testing.assert_array_equal(run(raised, FEED)[0], run(model, FEED)[0])


def test_large_weights_go_round_the_converter() -> None:
    """Tensors come back with all they had, wherever they are."""
    weights = {"w": normal(40, 40)}
    text = "k = Constant<value = float[1] {1.0}>()  s = Add(x, k)  y = MatMul(s, w)"
    model = parse(text, "float[2,40] x", "float[2,40] y", weights, opset=11)
    model.graph.initializer[0].doc_string = "kept"
    model.graph.node[0].attribute[0].t.CopyFrom(helper.make_tensor("k", TensorProto.FLOAT, [2, 40], normal(2, 40)))
    large = helper.make_tensor("", TensorProto.FLOAT, [2, 800], normal(2, 800))
    model.graph.node.append(helper.make_node("Constant", [], ["unread"], value=large))
    raised = raise_opset(model, 13)
    assert raised.graph.initializer[0] == model.graph.initializer[0]
    assert next(a.t for node in raised.graph.node if "unread" in node.output for a in node.attribute) == large
    feed = {"x": normal(2, 40)}
    np.testing.assert_array_equal(run(raised, feed)[0], run(model, feed)[0])


def test_external_weights_stay_where_they_are(tmp_path: Path) -> None:
    weights = {"w": normal(40, 40), "p": ints(0, 1, 0, 1)}
    model = parse("s = Pad(x, p)  y = MatMul(s, w)", "float[2,38] x", "float[2,40] y", weights, opset=11)
    feed = {"x": normal(2, 38)}
    expected = run(model, feed)[0]
    path = tmp_path / "m.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, size_threshold=0)
    proto, folder = read_model(path)
    raised = raise_opset(proto, 13, folder)
    large = next(tensor for tensor in raised.graph.initializer if tensor.name == "w")
    assert large.data_location == TensorProto.EXTERNAL
    np.testing.assert_array_equal(run(build(import_model(raised, folder)), feed)[0], expected)


def test_the_source_is_not_changed() -> None:
    model = decorated()
    before = model.SerializeToString()
    raise_opset(model, 13)
    assert model.SerializeToString() == before
    assert initializers(model).keys() == {"w"}


def test_what_cannot_be_converted_is_refused() -> None:
    with pytest.raises(ModelError) as caught:
        raise_opset(parse("y = NoSuchOperator(x)", opset=11), 13)
    assert "uses operator set 11, this output form needs 13" in str(caught.value)
    assert "export the model again with opset 13 or later" in str(caught.value)
