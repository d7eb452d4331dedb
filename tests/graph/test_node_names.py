"""Node names: one of its own for every node, the same every time."""

from __future__ import annotations

from amct_onnx.graph import Model, import_model, name_nodes
from amct_onnx.graph.free_names import FreeNames
from tests.models import parse


def named(nodes: str, **more: str) -> tuple[Model, list[str]]:
    model = import_model(parse(nodes, **more))
    name_nodes(model)
    return model, [node.name for graph in model.graphs() for node in graph.nodes]


def test_unnamed_nodes_are_called_by_type_and_position() -> None:
    assert named("[first] a = Relu(x)  b = Neg(a)  y = Relu(b)")[1] == ["first", "Neg_1", "Relu_2"]


def test_doubled_names_get_a_suffix_and_the_first_keeps_its_own() -> None:
    assert named("[n] a = Relu(x)  [n] b = Neg(a)  [n] y = Relu(b)")[1] == ["n", "n_1", "n_2"]


def test_given_names_are_never_taken_away() -> None:
    text = "a = Relu(x)  [Relu_0] b = Neg(a)  [n] c = Neg(b)  [n] d = Neg(c)  [n_1] y = Relu(d)"
    assert named(text)[1] == ["Relu_0_1", "Relu_0", "n", "n_2", "n_1"]


def test_naming_twice_changes_nothing() -> None:
    model, names = named("a = Relu(x)  [n] b = Neg(a)  [n] y = Relu(b)")
    assert name_nodes(model) == 0
    assert [node.name for node in model.graph.nodes] == names


def test_bodies_are_named_in_source_order() -> None:
    branch = "{0} = {1} () => (float[2,3] {2}) {{ {2} = Neg(x) }}"
    text = f"y = If(c) <{branch.format('then_branch', 'a', 't')}, {branch.format('else_branch', 'b', 'e')}>"
    model, names = named(text, inputs="float[2,3] x, bool c")
    assert names == ["If_0", "Neg_0", "If_0/else_branch/Neg_0"]
    assert [graph.name for graph in model.graphs()] == ["g", "a", "b"]


def test_doubled_names_in_bodies_get_the_path_to_them() -> None:
    text = """
        [n] s = Neg(x)
        [if] y = If(c) <
            then_branch = a () => (float[2,3] t) { [n] t = Neg(x) },
            else_branch = b () => (float[2,3] e) { [m] e0 = Neg(x)
                [in] e = If(c) <
                    then_branch = d () => (float[2,3] p) { [m] p = Neg(x) },
                    else_branch = f () => (float[2,3] q) { [own] q = Neg(x) }> }>
    """
    model, names = named(text, inputs="float[2,3] x, bool c")
    inner = ["in/then_branch/m", "own"]
    assert names == ["n", "if", "if/then_branch/n", "if/else_branch/m", "in", *inner]
    assert name_nodes(model) == 0


def test_many_doubles_are_named_in_linear_time() -> None:
    class Counting(set[str]):
        asked = 0

        def __contains__(self, name: object) -> bool:
            Counting.asked += 1
            return super().__contains__(name)

    names = FreeNames(())
    names._taken = Counting()
    assert [names.like("n") for _ in range(500)][-1] == "n_499"
    assert Counting.asked < 3 * 500
