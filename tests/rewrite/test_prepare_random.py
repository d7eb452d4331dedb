"""Whatever is fused, no output of a float model changes: random small graphs against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from amct_onnx.graph import build
from amct_onnx.rewrite import prepare
from tests.models import Array, normal, run

SHAPE = (2, 4, 5, 5)
CONSTANT_SHAPES = [(), (1,), (4, 1, 1), (1, 4, 1, 1), (5,), (1, 1, 5, 1), SHAPE]


class Maker:
    """Nodes upon nodes, most of them on the latest tensor; every tensor keeps its shape."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes = []
        self.constants: dict[str, Array] = {}
        self.tensors = ["x"]

    def constant(self, *shape: int) -> str:
        """A new constant, or one that other nodes read as well."""
        same = [name for name, array in self.constants.items() if array.shape == shape]
        if same and self.rng.random() < 0.2:
            return str(self.rng.choice(same))
        name = f"c{len(self.constants)}"
        self.constants[name] = (self.rng.uniform(0.4, 2, shape) * self.rng.choice([-1, 1])).astype(np.float32)
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> None:
        output = f"t{len(self.tensors)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=f"n{output}", **attributes))
        self.tensors.append(output)

    def step(self) -> None:
        tensor = self.tensors[-1] if self.rng.random() < 0.8 else str(self.rng.choice(self.tensors))
        kind = self.rng.choice(["arithmetic"] * 4 + ["norm"] * 2 + ["conv"] * 2 + ["product", "turn", "other"])
        if kind == "arithmetic":
            shape = CONSTANT_SHAPES[self.rng.integers(len(CONSTANT_SHAPES))]
            operands = [tensor, self.constant(*shape)]
            op = str(self.rng.choice(["Mul", "Div", "Add", "Sub"]))
            self.node(op, *(operands[::-1] if op != "Div" and self.rng.random() < 0.3 else operands))
        elif kind == "norm":
            variance = self.constant(4)
            self.constants[variance] = np.abs(self.constants[variance])
            self.node("BatchNormalization", tensor, *(self.constant(4) for _ in range(3)), variance)
        elif kind == "conv":
            kernel, group = int(self.rng.choice([1, 3])), int(self.rng.choice([1, 2, 4]))
            weights = [self.constant(4, 4 // group, kernel, kernel), *([self.constant(4)] * self.rng.integers(2))]
            self.node("Conv", tensor, *weights, group=group, pads=[kernel // 2] * 4)
        elif kind == "product":
            self.node("MatMul", tensor, self.constant(5, 5))
        elif kind == "turn":
            self.node("Transpose", tensor, perm=[0, 1, 3, 2])
        else:
            self.node(str(self.rng.choice(["Relu", "Sigmoid", "Identity"])), tensor)

    def model(self, opset: int) -> ModelProto:
        for _ in range(8):
            self.step()
        read = {name for node in self.nodes for name in node.input}
        ends = [name for name in self.tensors[1:] if name not in read or self.rng.random() < 0.1]
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends]
        known = self.rng.random() < 0.7
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE if known else ["a", "b", "c", "d"])
        stored = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", [source], infos, stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("seed", range(150))
def test_no_output_changes(seed: int) -> None:
    model = Maker(seed).model([9, 13, 17][seed % 3])
    feed = {"x": normal(*SHAPE, seed=seed)}
    made = build(prepare(model, None).model).to_proto()
    assert [info.name for info in made.graph.output] == [info.name for info in model.graph.output]
    before, now = run(model, feed, optimized=False), run(made, feed, optimized=False)
    for expected, got in zip(before, now, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


def test_the_random_graphs_fuse() -> None:
    fused = [prepare(Maker(seed).model(17), None).fused for seed in range(60)]
    assert sum(bool(members) for members in fused) > 15
