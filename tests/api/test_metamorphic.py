"""Changes that mean nothing to a model or its data change no scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import amct_onnx
from tests.models import Array, normal, parse

NODES = (
    "[c] s = Conv<pads = [1, 1, 1, 1]>(x, a, p) r = Relu(s) [d] t = Conv<group = 4>(r, b) u = Add(t, r) "
    "[q] v = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(u) g = GlobalAveragePool(v) f = Flatten(g) "
    "[g] h = Gemm<transB = 1>(f, m, p) [k] w = MatMul(h, n) y = Add(w, p)"
)
WEIGHTS = {
    "a": normal(4, 3, 3, 3),
    "b": normal(4, 1, 1, 1, seed=1),
    "m": normal(4, 4, seed=2),
    "n": normal(4, 4, seed=3),
    "p": normal(4, seed=4),
}
FEEDS = [{"x": normal(2, 3, 8, 8, seed=seed)} for seed in range(10, 16)]


def net() -> ModelProto:
    return parse(NODES, "float[n,3,8,8] x", "float[n,4] y", WEIGHTS)


def scales(model: ModelProto | Path, feeds: list[dict[str, Array]] = FEEDS) -> dict[str, Array]:
    layers = amct_onnx.quantize(model, feeds, trial=False).record.layers
    return {
        name: np.array([entry.scale_d, entry.offset_d, *entry.scale_w], np.float64) for name, entry in layers.items()
    }


@pytest.fixture(scope="module")
def expected() -> dict[str, Array]:
    return scales(net())


def renamed_tensors(model: ModelProto) -> ModelProto:
    odd = {"s": "s/out:0", "r": "层 输出", "t": "t.quantize", "a": "权重", "v": "v", "p": "p "}
    for node in model.graph.node:
        node.input[:] = [odd.get(name, name) for name in node.input]
        node.output[:] = [odd.get(name, name) for name in node.output]
    for entry in model.graph.initializer:
        entry.name = odd.get(entry.name, entry.name)
    return model


def identities(model: ModelProto) -> ModelProto:
    """An Identity before every data input but the bias Add's, two before every weight."""
    nodes = []
    for node in model.graph.node:
        if node.name:
            for index, name in enumerate(list(node.input)):
                for step in range(2 if name in WEIGHTS else 1):
                    result = f"{node.name}_{index}_{step}"
                    nodes.append(helper.make_node("Identity", [node.input[index]], [result], result))
                    node.input[index] = result
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def constant_nodes(model: ModelProto) -> ModelProto:
    constants = [helper.make_node("Constant", [], [entry.name], value=entry) for entry in model.graph.initializer]
    nodes = [*constants, *model.graph.node]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    return model


def weights_as_inputs(model: ModelProto) -> ModelProto:
    model.graph.input.extend(
        helper.make_tensor_value_info(entry.name, entry.data_type, entry.dims) for entry in model.graph.initializer
    )
    return model


def duplicated_weights(model: ModelProto) -> ModelProto:
    bias = numpy_helper.from_array(WEIGHTS["p"], "p2")
    model.graph.initializer.append(bias)
    next(node for node in model.graph.node if node.name == "g").input[2] = "p2"
    return model


def fixed_sizes(model: ModelProto) -> ModelProto:
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = 2
    return model


def value_infos(model: ModelProto) -> ModelProto:
    return onnx.shape_inference.infer_shapes(model)


CHANGES: list[Callable[[ModelProto], ModelProto]] = [
    renamed_tensors,
    identities,
    constant_nodes,
    weights_as_inputs,
    duplicated_weights,
    fixed_sizes,
    value_infos,
]


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_form_of_the_model(change: Callable[[ModelProto], ModelProto], expected: dict[str, Array]) -> None:
    model = change(net())
    onnx.checker.check_model(model)
    assert_same(scales(model), expected)


def test_external_weights(tmp_path: Path, expected: dict[str, Array]) -> None:
    onnx.save(net(), tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    assert_same(scales(tmp_path / "net.onnx"), expected)


@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_batch_size_and_order(size: int, expected: dict[str, Array]) -> None:
    rows = np.concatenate([feed["x"] for feed in FEEDS])[np.random.default_rng(5).permutation(12)]
    assert_same(scales(net(), [{"x": rows[start : start + size]} for start in range(0, 12, size)]), expected)
