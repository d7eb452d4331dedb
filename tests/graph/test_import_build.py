"""Import and build: what no pass touches comes back byte for byte."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper, parser

from amct_onnx.graph import build, constant_array, import_model
from amct_onnx.graph.edit import Editor, replace_input
from tests.models import imported, node_named, normal, parse, run

BODIES = """
    s = Relu(x)
    y = If(c) <
        then_branch = yes () => (float[2,3] t) <float[3] w = {1.0, 2.0, 3.0}> { t = Add(s, w) },
        else_branch = no () => (float[2,3] e) { n = Neg(s)  e = Identity(n) }>
"""


def same_bytes(model: ModelProto) -> bool:
    rebuilt = build(import_model(model)).to_proto()
    return rebuilt.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_every_model_of_the_onnx_test_suite() -> None:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    models = [case.model for case in cases if case.model is not None]
    assert len(models) > 1000
    assert [case.name for case in cases if case.model is not None and not same_bytes(case.model)] == []


def rich_model() -> ModelProto:
    model = parse(BODIES, "float[2,3] x, bool c, float[3] overridable", weights={"overridable": normal(3)})
    model.graph.initializer.append(numpy_helper.from_array(normal(4), "unread"))
    model.graph.value_info.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, ["batch", None]))
    model.doc_string, model.graph.doc_string, model.graph.node[0].doc_string = "model", "graph", "node"
    model.producer_name, model.producer_version, model.domain, model.model_version = "p", "1", "d", 7
    for message in (model, model.graph, model.graph.node[0], model.graph.node[1]):
        message.metadata_props.add(key="key", value="value")
    annotation = model.graph.quantization_annotation.add(tensor_name="s")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s_scale")
    model.training_info.add()
    return model


def test_metadata_docs_value_infos_and_unread_initializers_stay() -> None:
    assert same_bytes(rich_model())


def test_model_functions_stay() -> None:
    function = '<domain: "local", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }'
    assert same_bytes(parse("y = local.twice(x)", domains='"local": 1', functions=function))


def test_sparse_initializers_stay() -> None:
    model = parse("y = Add(x, sparse)")
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [5.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [2])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    assert same_bytes(model)


def test_empty_optional_inputs_and_outputs_stay() -> None:
    model = parse("y = Clip(x, , high)  a, , b = custom.Op(x, , )", weights={"high": normal()}, domains='"custom": 1')
    assert same_bytes(model)
    assert [tensor.name for tensor in import_model(model).graph.nodes[1].outputs] == ["a", "", "b"]


@pytest.mark.parametrize(
    "attribute",
    [
        helper.make_attribute("type", helper.make_tensor_type_proto(TensorProto.FLOAT, [2])),
        helper.make_attribute("tensors", [helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])]),
        helper.make_attribute("graphs", [parse("y = Relu(x)").graph]),
        helper.make_attribute("strings", [b"\xff\xfe", "text"]),
        helper.make_attribute("floats", [], attr_type=AttributeProto.FLOATS),
        helper.make_attribute("bytes", b"\xff\xfe"),
    ],
    ids=lambda attribute: attribute.name,
)
def test_attribute_kinds_stay(attribute: AttributeProto) -> None:
    model = parse("y = custom.Op(x)", domains='"custom": 1')
    model.graph.node[0].attribute.append(attribute)
    assert same_bytes(model)


def test_a_model_without_the_default_domain() -> None:
    model = parse("y = custom.Op(x)", opset=0, domains='"custom": 3')
    assert same_bytes(model)
    assert import_model(model).opset == 0


def test_bodies_read_the_very_tensors_of_the_outer_graph() -> None:
    model = import_model(parse(BODIES, "float[2,3] x, bool c"))
    relu = model.graph.nodes[0]
    assert [node.op for node in relu.outputs[0].outputs] == ["Add", "Neg"]


def test_a_renamed_outer_tensor_is_renamed_in_bodies() -> None:
    model = import_model(parse(BODIES, "float[2,3] x, bool c"))
    model.graph.nodes[0].outputs[0].name = "renamed"
    proto = build(model).to_proto()
    bodies = [attribute.g for attribute in proto.graph.node[1].attribute]
    assert [body.node[0].input[0] for body in bodies] == ["renamed", "renamed"]
    feed = {"x": normal(2, 3), "c": np.array(False)}
    np.testing.assert_array_equal(run(proto, feed)[0], -np.maximum(feed["x"], 0))


@pytest.mark.parametrize("op", ["Loop", "Scan"])
def test_loop_and_scan_bodies(op: str) -> None:
    loop = """
        n = Constant<value = int64 {3}>()
        y = Loop(n, , x) <body = b (int64 i, bool go_in, float[2,3] v) => (bool go, float[2,3] u)
            { go = Identity(go_in)  u = Add(v, x) }>
    """
    scan = """
        z, y = Scan(start, x) <num_scan_inputs = 1, body = b (float[3] v, float[3] row) => (float[3] u, float[3] r)
            { u = Add(v, row)  r = Mul(u, start) }>
    """
    model = parse(loop if op == "Loop" else scan, weights={"start": normal(3)})
    assert same_bytes(model)


def test_a_body_that_returns_an_outer_tensor() -> None:
    text = BODIES.replace("n = Neg(s)  e = Identity(n)", "").replace("float[2,3] e", "float[2,3] s")
    model = parse(text, "float[2,3] x, bool c")
    assert same_bytes(model)
    graph = import_model(model)
    bodies = [body for body in graph.graphs() if body is not graph.graph]
    assert bodies[1].outputs[0] is graph.graph.nodes[0].outputs[0]


def test_an_initializer_that_only_a_body_returns_is_kept_when_its_reader_goes() -> None:
    """A constant may leave a body as it is; losing its last ordinary reader must not lose the constant."""
    text = """
        s = Add(x, w)
        y = If(c) <then_branch = a () => (float[3] w) { }, else_branch = b () => (float[3] n) { n = Neg(w) }>
    """
    model = imported(parse(text, "float[3] x, bool c", "float[3] y, float[3] s", {"w": normal(3)}))
    for name in ("Add_0", "Neg_0"):
        node = node_named(model, name)
        replace_input(node, node.inputs.index(model.graph.initializers["w"]), model.graph.inputs[0])
    assert [tensor.name for tensor in build(model).to_proto().graph.initializer] == ["w"]


@pytest.mark.parametrize("data_type", [TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.FLOAT8E4M3FN])
def test_types_numpy_does_not_have(data_type: int) -> None:
    tensor = helper.make_tensor("w", data_type, [3], [1.0, 2.0, 3.0])
    model = parse("y = Relu(x)  z = Cast<to = 1>(w)")
    model.graph.initializer.append(tensor)
    text = """
        z = Identity(x)
        v = If(c) <then_branch = a () => (float[3] t) { t = Cast<to = 1>(bw) },
                   else_branch = b () => (float[3] e) { e = Identity(z) }>
    """
    nested = parse(text, "float[3] x, bool c", "float[3] v")
    twin = nested.graph.node[1].attribute[0].g.initializer.add()
    twin.CopyFrom(tensor)
    twin.name = "bw"
    assert same_bytes(model)
    assert same_bytes(nested)


def test_a_rewritten_initializer_is_no_longer_an_input() -> None:
    model = import_model(parse("y = Add(x, w)", "float[2,3] x, float[3] w", weights={"w": normal(3)}))
    old = model.graph.initializers["w"]
    replace_input(model.graph.nodes[0], 1, model.rewrite_constant(old, np.ones(3, np.float32)))
    proto = build(model).to_proto()
    assert [info.name for info in proto.graph.input] == ["x"]
    np.testing.assert_array_equal(run(proto, {"x": normal(2, 3)})[0], normal(2, 3) + 1)


def test_a_constant_that_is_also_a_graph_output_is_not_rewritten_in_place() -> None:
    model = import_model(parse("y = Add(x, w)", outputs="float[2,3] y, float[3] w", weights={"w": normal(3)}))
    new = model.rewrite_constant(model.graph.initializers["w"], np.ones(3, np.float32))
    replace_input(model.graph.nodes[0], 1, new)
    assert new.name == "w_1"
    np.testing.assert_array_equal(run(build(model), {"x": normal(2, 3)})[1], normal(3))


@pytest.mark.parametrize(("readers", "name"), [(1, "w_1"), (2, "w")])
def test_the_name_passes_on_when_all_readers_move(readers: int, name: str) -> None:
    model = import_model(parse("s = Add(x, w)  y = Add(s, w)", weights={"w": normal(3)}))
    assert model.rewrite_constant(model.graph.initializers["w"], np.ones(3, np.float32), readers).name == name


def test_a_copy_is_equal_and_independent() -> None:
    source = rich_model()
    model = import_model(source)
    twin = model.copy()
    assert build(twin).to_proto() == source
    ids = {id(part) for graph in model.graphs() for node in graph.nodes for part in (node, *node.inputs, *node.outputs)}
    twin_nodes = [node for graph in twin.graphs() for node in graph.nodes]
    assert not ids & {id(part) for node in twin_nodes for part in (node, *node.inputs, *node.outputs)}
    editor = Editor(twin)
    editor.move_consumers(twin.graph.nodes[0].outputs[0], twin.graph.inputs[0])
    editor.remove(twin.graph.nodes[0])
    editor.commit()
    twin.add_constant("more", normal(2))
    assert build(model).to_proto() == source


def test_a_copy_does_not_share_attribute_lists() -> None:
    model = import_model(parse("y = Transpose<perm = [0, 1]>(x)"))
    model.copy().graph.nodes[0].attrs["perm"].reverse()
    assert model.graph.nodes[0].attrs["perm"] == [0, 1]


def test_values_are_read_when_asked_for_and_not_kept() -> None:
    model = import_model(parse("y = Add(x, w)", weights={"w": normal(3)}))
    constant = model.graph.initializers["w"]
    np.testing.assert_array_equal(constant_array(constant), normal(3))
    assert not isinstance(constant._values, np.ndarray)


def test_new_nodes_are_written_with_their_attributes() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[3,2] y) { y = Transpose<perm=[1,0]>(x) }'
    model = import_model(parser.parse_model(text))
    model.graph.nodes[0].origin = None
    assert onnx.printer.to_text(build(model).to_proto()) == onnx.printer.to_text(parser.parse_model(text))
