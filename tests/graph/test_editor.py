"""The editor: order, identity, bodies, and work that grows with the number of edits only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from amct_onnx.graph import Editor, Model, build, import_model, replace_input
from amct_onnx.graph.edit import append_input, drop_attributes, replace_output
from amct_onnx.graph.parts import Node, Variable
from tests.models import normal, parse, run

CHAIN = "[a] s = Relu(x)  [b] t = Neg(s)  [c] y = Abs(t)"


def names(model: Model) -> list[str]:
    return [node.name for node in model.graph.nodes]


def probe(name: str) -> Node:
    return Node("Identity", name)


def test_insertions_keep_their_order_around_the_anchor() -> None:
    model = import_model(parse(CHAIN))
    editor = Editor(model)
    editor.insert_after(model.graph.nodes[1], [probe("5"), probe("6")])
    editor.insert_before(model.graph.nodes[1], [probe("1"), probe("2")])
    editor.insert_before(model.graph.nodes[1], [probe("3")])
    editor.insert_after(model.graph.nodes[1], [probe("7")])
    assert names(model) == ["a", "b", "c"]
    editor.commit()
    assert names(model) == ["a", "1", "2", "3", "b", "5", "6", "7", "c"]


def test_new_nodes_take_no_name_of_another() -> None:
    """A removed node's name is free again; those of bodies are taken as well."""
    body = "t () => (float u) { [inner] u = Neg(s) }"
    model = import_model(
        parse(
            f"[a] s = Relu(x) q = Cast<to = 9>(s) [b] y = If(q)<then_branch = {body}, else_branch = {body}>", "float x"
        )
    )
    a, cast, _ = model.graph.nodes
    editor = Editor(model)
    new = [probe(name) for name in ("a", "b", "inner", "new", "new")]
    editor.insert_after(cast, new)
    editor.remove(a)
    editor.commit()
    assert [node.name for node in new] == ["a", "b_1", "inner_1", "new", "new_1"]


def test_a_removed_node_leaves_its_place_to_what_was_put_there() -> None:
    model = import_model(parse(CHAIN))
    b = model.graph.nodes[1]
    s, t = b.inputs[0], b.outputs[0]
    editor = Editor(model)
    editor.insert_before(b, [probe("new")])
    editor.remove(b)
    editor.commit()
    assert names(model) == ["a", "new", "c"]
    assert (len(s.outputs), len(t.inputs), len(b.inputs), len(b.outputs)) == (0, 0, 0, 0)


def test_an_unknown_anchor_is_refused() -> None:
    editor = Editor(import_model(parse(CHAIN)))
    editor.insert_after(probe("elsewhere"), [probe("new")])
    with pytest.raises(LookupError, match="not in the model"):
        editor.commit()


def test_nodes_that_are_equal_by_value_are_told_apart() -> None:
    model = import_model(parse("[n] s = Relu(x)  [n] s2 = Relu(x)  y = Add(s, s2)"))
    first, second, add = model.graph.nodes
    second.outputs[0].name = "s"
    assert first == second
    assert first is not second
    editor = Editor(model)
    editor.move_consumers(second.outputs[0], first.outputs[0])
    editor.remove(second)
    editor.commit()
    assert [id(node) for node in model.graph.nodes] == [id(first), id(add)]
    assert [id(tensor) for tensor in add.inputs] == [id(first.outputs[0])] * 2
    assert [id(reader) for reader in model.graph.inputs[0].outputs] == [id(first)]


def test_a_reader_that_reads_twice_moves_with_both_inputs() -> None:
    model = import_model(parse("s = Relu(x)  y = Mul(s, s)"))
    relu = model.graph.nodes[0]
    editor = Editor(model)
    editor.move_consumers(relu.outputs[0], model.graph.inputs[0])
    editor.remove(relu)
    editor.commit()
    assert len(model.graph.inputs[0].outputs) == 2
    np.testing.assert_array_equal(run(build(model), {"x": normal(2, 3)})[0], normal(2, 3) ** 2)


def test_only_the_named_consumers_move() -> None:
    model = import_model(parse("s = Relu(x)  t = Neg(s)  y = Add(s, t)"))
    relu, neg, add = model.graph.nodes
    Editor(model).move_consumers(relu.outputs[0], model.graph.inputs[0], [neg])
    assert neg.inputs[0] is model.graph.inputs[0]
    assert add.inputs[0] is relu.outputs[0]


def test_outputs_of_bodies_move_with_all_consumers() -> None:
    text = """
        s = Relu(x)  t1 = Neg(x)
        y = If(c) <then_branch = a () => (float[2,3] s) { }, else_branch = b () => (float[2,3] e) { e = Abs(s) }>
    """
    model = import_model(parse(text, "float[2,3] x, bool c"))
    s, u = (node.outputs[0] for node in model.graph.nodes[:2])
    editor = Editor(model)
    assert editor.is_body_output(s)
    assert not editor.is_output(s)
    editor.move_consumers(s, u)
    assert editor.is_body_output(u)
    assert not editor.is_body_output(s)
    branch = build(model).to_proto().graph.node[2].attribute[0].g
    assert [info.name for info in branch.output] == ["t1"]


def test_outputs_of_the_main_graph_are_known() -> None:
    model = import_model(parse(CHAIN))
    editor = Editor(model)
    assert [editor.is_output(node.outputs[0]) for node in model.graph.nodes] == [False, False, True]


def test_inputs_and_outputs_are_replaced_on_both_sides() -> None:
    model = import_model(parse(CHAIN))
    a, b, _ = model.graph.nodes
    new = Variable("new")
    replace_output(a, 0, new)
    replace_input(b, 0, new)
    assert (list(new.inputs), list(new.outputs)) == ([a], [b])
    assert names(model) == ["a", "b", "c"]


def test_an_optional_input_is_appended_behind_gaps() -> None:
    node = Node("Clip", inputs=[Variable("x")])
    append_input(node, 2, Variable("high"), Variable.empty())
    assert [tensor.name for tensor in node.inputs] == ["x", "", "high"]
    append_input(node, 2, Variable("other"), Variable.empty())
    assert [tensor.name for tensor in node.inputs] == ["x", "", "other"]


def test_dropped_attributes_leave_everything_else_about_the_node() -> None:
    source = parse("y = Gemm<alpha = 2.0, transB = 1>(x, w)", weights={"w": normal(3, 3)})
    source.graph.node[0].doc_string = "kept"
    model = import_model(source)
    drop_attributes(model.graph.nodes[0], ["alpha"])
    written = build(model).to_proto().graph.node[0]
    assert [attribute.name for attribute in written.attribute] == ["transB"]
    assert written.doc_string == "kept"
    assert [attribute.name for attribute in source.graph.node[0].attribute] == ["alpha", "transB"]


def test_any_number_of_edits_costs_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuilding the node list visits each node once, and nodes are never compared by value."""
    text = "  ".join(f"t{i} = Relu({f't{i - 1}' if i else 'x'})" for i in range(300)) + "  y = Abs(t299)"
    model = import_model(parse(text))
    walks: list[int] = []
    original = Editor._merged

    def counted(self: Editor, graph: object) -> Iterator[Node]:
        merged = list(original(self, graph))  # type: ignore[arg-type]
        walks.append(len(merged))
        return iter(merged)

    def refuse(self: object, other: object) -> bool:
        raise AssertionError("compared by value")

    monkeypatch.setattr(Editor, "_merged", counted)
    monkeypatch.setattr(Node, "__eq__", refuse)
    monkeypatch.setattr(Variable, "__eq__", refuse)
    editor = Editor(model)
    for node in list(model.graph.nodes):
        if node.op == "Relu":
            editor.insert_before(node, [probe("p")])
            editor.move_consumers(node.outputs[0], node.inputs[0])
            editor.remove(node)
    editor.commit()
    assert walks == [301]
    assert len(model.graph.inputs[0].outputs) == 1
