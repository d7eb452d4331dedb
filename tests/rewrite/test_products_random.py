"""Random graphs of matrix products in all their shapes: every form computes the same, and text gives the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import amct_onnx
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, run

SHAPES = [(4, 6), (6, 4), (2, 4, 6), (2, 6, 4), (4, 4)]
Shape = tuple[int, ...]


class Graph:
    """A graph that grows by one node at a time."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[object] = []
        self.constants: list[TensorProto] = []
        self.inputs = [(f"x{index}", SHAPES[self.random.integers(len(SHAPES))]) for index in range(3)]
        self.tensors: list[tuple[str, Shape]] = list(self.inputs)

    def model(self) -> ModelProto:
        used = {name for node in self.nodes for name in node.input}  # type: ignore[attr-defined]
        results = [(name, shape) for name, shape in self.tensors[len(self.inputs) :] if name not in used]
        infos = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in entries]
            for entries in (self.inputs, results)
        ]
        graph = helper.make_graph(self.nodes, "g", *infos, self.constants)
        opset = int(self.random.choice([11, 13, 17]))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    def grow(self) -> None:
        steps = [self._product, self._layer, self._left, self._column, self._gemm, self._function, self._arithmetic]
        steps[self.random.integers(len(steps))](*self._any())

    def _any(self) -> tuple[str, Shape]:
        return self.tensors[self.random.integers(len(self.tensors))]

    def _constant(self, *shape: int) -> str:
        values = self.random.standard_normal(shape).astype(np.float32)
        self.constants.append(numpy_helper.from_array(values, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def _add(self, op: str, inputs: list[str], shape: Shape, **attrs: object) -> None:
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [result], name=f"n{len(self.nodes)}", **attrs))
        self.tensors.append((result, shape))

    def _product(self, name: str, shape: Shape) -> None:
        other, second = self._any()
        if len(shape) > 1 and len(second) > 1 and shape[-1] == second[-2]:
            self._add("MatMul", [name, other], np.matmul(np.empty(shape), np.empty(second)).shape)

    def _layer(self, name: str, shape: Shape) -> None:
        self._add("MatMul", [name, self._constant(shape[-1], 5)], (*shape[:-1], 5))

    def _left(self, name: str, shape: Shape) -> None:
        if len(shape) > 1:
            self._add("MatMul", [self._constant(5, shape[-2]), name], (*shape[:-2], 5, shape[-1]))

    def _column(self, name: str, shape: Shape) -> None:
        if len(shape) > 1:
            self._add("MatMul", [name, self._constant(shape[-1])], shape[:-1])

    def _gemm(self, name: str, shape: Shape) -> None:
        if len(shape) != 2:
            return
        turned = int(self.random.integers(2))
        rows, depth = shape[::-1] if turned else shape
        shapes: list[Shape] = [(rows, 5), (rows, 1), (1, 5), (5,), (1,), ()]
        added = self._constant(*shapes[self.random.integers(len(shapes))])
        beta = float(self.random.choice([1.0, 2.0, 0.0]))
        inputs = [name, self._constant(depth, 5), added]
        self._add("Gemm", inputs, (rows, 5), transA=turned, alpha=0.5, beta=beta)

    def _function(self, name: str, shape: Shape) -> None:
        self._add(str(self.random.choice(["Relu", "Sigmoid", "Tanh", "Softmax"])), [name], shape)

    def _arithmetic(self, name: str, shape: Shape) -> None:
        same = [other for other, found in self.tensors if found == shape]
        other = str(self.random.choice(same)) if self.random.integers(2) else self._constant(*shape[-1:])
        self._add(str(self.random.choice(["Add", "Mul"])), [name, other], shape)


@pytest.mark.parametrize("seed", range(40))
def test_forms_agree(seed: int, tmp_path) -> None:
    graph = Graph(seed)
    while len(graph.nodes) < 6:
        graph.grow()
    proto = graph.model()
    feeds = [_feed(graph) for _ in range(2)]
    options = {"do_fusion": bool(seed % 4), "dmq": 0.5 if seed % 3 == 0 else None, "act": "minmax"}
    result = amct_onnx.quantize(proto, feeds, matmul_inputs=bool(seed % 5), trial=False, **options)
    exact = run(proto, feeds[0], optimized=False)
    faked = run(result.model("fake_quant"), feeds[0], optimized=False)
    simulated = open_simulator(result.model("ascend")).run(None, feeds[0])
    qdq = run(result.model("qdq"), feeds[0])
    for expected, *made in zip(exact, faked, simulated, qdq, strict=True):
        np.testing.assert_array_equal(made[0], made[1])
        for values in made:
            assert values.shape == expected.shape
            assert np.abs(values - expected).max() < 0.35 * np.abs(expected).max()
    assert not [finding for finding in result.report.deploy if finding.stops]
    result.save(tmp_path / "m")
    again = amct_onnx.apply(proto, tmp_path / "m_record.txt")
    for form in ("ascend", "fake_quant", "qdq"):
        assert again.model(form).SerializeToString() == result.model(form).SerializeToString()


def _feed(graph: Graph) -> dict[str, Array]:
    return {name: graph.random.standard_normal(shape).astype(np.float32) for name, shape in graph.inputs}
