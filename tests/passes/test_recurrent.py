"""LSTM, GRU and RNN: integers by numpy, the layer itself by onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from amct_onnx.passes.quant_params import RecurrentQuant, TensorQuant
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, run

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, HIDDEN = 4, 2, 6, 5
DATA, STATE = TensorQuant(0.02, 11), TensorQuant(0.008, -3)


@dataclass(frozen=True)
class Case:
    """A recurrent layer to build."""

    op: str
    directions: int = 1
    bias: bool = True
    states: bool = True
    peepholes: bool = False
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def rows(self) -> int:
        return GATES[self.op] * HIDDEN


CASES = [
    Case("LSTM"),
    Case("LSTM", bias=False),
    Case("LSTM", directions=2),
    Case("LSTM", states=False),
    Case("LSTM", peepholes=True),
    Case("LSTM", attributes=(("direction", "reverse"), ("clip", 0.5), ("input_forget", 1))),
    Case("GRU", attributes=(("linear_before_reset", 1),)),
    Case("GRU"),
    Case("GRU", directions=2, attributes=(("linear_before_reset", 1),)),
    Case("RNN"),
    Case("RNN", attributes=(("activations", ["Relu"]),), directions=1),
]


def constants(case: Case) -> dict[str, Array]:
    rng = np.random.default_rng(3)

    def drawn(*shape: int) -> Array:
        return rng.normal(0, 0.4, shape).astype(np.float32)

    found = {"W": drawn(case.directions, case.rows, INPUTS), "R": drawn(case.directions, case.rows, HIDDEN)}
    if case.bias:
        found["B"] = drawn(case.directions, 2 * case.rows)
    if case.peepholes:
        found["P"] = drawn(case.directions, 3 * HIDDEN)
    return found


def feed(case: Case) -> dict[str, Array]:
    rng = np.random.default_rng(4)
    states = {"h0": (case.directions, BATCH, HIDDEN), "c0": (case.directions, BATCH, HIDDEN)}
    shapes = {"x": (STEPS, BATCH, INPUTS), **(states if case.states else {})}
    if case.op != "LSTM":
        shapes.pop("c0", None)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def model(case: Case, values: dict[str, Array]) -> ModelProto:
    fed = feed(case)
    names = ["x", "W", "R", "B", "", "h0", "c0", "P"][: 8 if case.op == "LSTM" else 6]
    inputs = [name if name in values or name in fed else "" for name in names]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["y", "y_h", "y_c"] if case.op == "LSTM" else ["y", "y_h"]
    attributes = {"hidden_size": HIDDEN, **dict(case.attributes)}
    if case.directions == 2:
        attributes["direction"] = "bidirectional"
    node = helper.make_node(case.op, inputs, outputs, name="rec", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, 1, array.shape) for name, array in fed.items()],
        [helper.make_tensor_value_info(name, 1, [None] * (4 if name == "y" else 3)) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quant(case: Case, *, per_gate: bool = False, bits: int = 8) -> RecurrentQuant:
    size = case.directions * (GATES[case.op] if per_gate else case.rows)
    scales = np.linspace(0.006, 0.014, size, dtype=np.float32)
    data, state = DATA, STATE
    if bits == 16:
        data, state = TensorQuant(1e-4, 300, 16), TensorQuant(1e-4, -77, 16)
    return RecurrentQuant(data, state, scales, scales[::-1].copy())


def on_grid(x: Array, q: TensorQuant) -> Array:
    integers = np.clip(np.rint(x / np.float32(q.scale)) + q.offset, q.qmin, q.qmax)
    return ((integers - q.offset) * np.float32(q.scale)).astype(np.float32)


def weight_on_grid(weight: Array, scale: Array) -> Array:
    rows = weight.reshape(-1, weight.shape[-1])
    step = np.repeat(scale, len(rows) // len(scale))[:, None]
    return (np.clip(np.rint(rows / step), -128, 127) * step).reshape(weight.shape).astype(np.float32)


def expected(case: Case, q: RecurrentQuant) -> list[Array]:
    """The float operator on what numpy quantized."""
    values, fed = constants(case), feed(case)
    values["W"] = weight_on_grid(values["W"], q.weight_scale)
    values["R"] = weight_on_grid(values["R"], q.recurrence_scale)
    if "B" in values:
        rows = case.directions * case.rows
        grid = [
            np.repeat(scale, rows // len(scale)).reshape(case.directions, -1) * np.float32(of.scale)
            for scale, of in ((q.weight_scale, q.data), (q.recurrence_scale, q.hidden))
        ]
        step = np.concatenate(grid, axis=1)
        values["B"] = (np.rint(values["B"] / step) * step).astype(np.float32)
    fed["x"] = on_grid(fed["x"], q.data)
    if "h0" in fed:
        fed["h0"] = on_grid(fed["h0"], q.hidden)
    return list(run(model(case, values), fed))


def made(case: Case, form: OutputForm, q: RecurrentQuant, **options: Any) -> ModelProto:
    source = model(case, constants(case))
    return rewrite(prepare(source, None), {}, form, recurrent={"rec": q}, **options)[0].to_proto()


@pytest.mark.parametrize("per_gate", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_fake_quant_and_qdq_compute_with_quantized_weights_input_and_state(case: Case, per_gate: bool) -> None:
    q = quant(case, per_gate=per_gate)
    want = expected(case, q)
    for form in (OutputForm.FAKE_QUANT, OutputForm.QDQ):
        proto = made(case, form, q, qdq_recurrent=True)
        onnx.checker.check_model(proto)
        for got, wanted in zip(run(proto, feed(case)), want, strict=True):
            np.testing.assert_allclose(got, wanted, atol=2e-6)


def test_sixteen_bits() -> None:
    q = quant(CASES[0], bits=16)
    for got, wanted in zip(
        run(made(CASES[0], OutputForm.FAKE_QUANT, q), feed(CASES[0])), expected(CASES[0], q), strict=True
    ):
        np.testing.assert_allclose(got, wanted, atol=2e-6)


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[6]], ids=str)
def test_the_ascend_operator_holds_integers_and_scales(case: Case) -> None:
    q = quant(case)
    proto = made(case, OutputForm.ASCEND, q)
    (node,) = proto.graph.node
    arrays = {entry.name: numpy_helper.to_array(entry) for entry in proto.graph.initializer}
    states = ["h0", "c0"] if case.op == "LSTM" else ["h0"]
    bias = node.input[3 + len(states)]
    assert node.op_type == f"Basic{case.op}InplaceFillWindowCache"
    assert list(node.input) == ["x", "W", "R", *states, bias, "", "", "rec.dequant.param"]
    assert (arrays["W"].dtype, arrays[bias].dtype) == (np.int8, np.int32)
    np.testing.assert_array_equal(
        arrays["R"][0], np.clip(np.rint(constants(case)["R"][0] / q.recurrence_scale[:, None]), -128, 127)
    )
    if case.bias:
        step = np.concatenate([q.weight_scale * np.float32(DATA.scale), q.recurrence_scale * np.float32(STATE.scale)])
        np.testing.assert_array_equal(arrays[bias][0], np.rint(constants(case)["B"][0] / step.astype(np.float64)))
    else:
        np.testing.assert_array_equal(arrays[bias], np.zeros((1, 2 * case.rows), np.int32))
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    assert attributes["quant_scale_x"] == np.float32(1) / np.float32(DATA.scale)
    assert attributes["quant_scale_h"] == np.float32(1) / np.float32(STATE.scale)
    assert (attributes["quant_offset_x"], attributes["quant_offset_h"]) == (11.0, -3.0)
    assert (attributes["quant_sqrt_mode_x"], attributes["quant_sqrt_mode_h"], attributes["quant_dtype"]) == (0, 0, 2)
    assert (attributes["direction"], attributes["clip"], attributes["hidden_size"]) == (b"forward", -1.0, HIDDEN)
    assert attributes["input_forget" if case.op == "LSTM" else "linear_before_reset"] == (case.op == "GRU")
    assert list(attributes["activations"]) == list(attributes["activation_alpha"]) == []
    scales = arrays["rec.dequant.param"].astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(
        scales,
        np.concatenate([q.weight_scale * np.float32(DATA.scale), q.recurrence_scale * np.float32(STATE.scale)]),
    )


@pytest.mark.parametrize("case", [CASES[0], CASES[6]], ids=str)
def test_the_simulator_runs_it_as_the_fake_quant_model_does(case: Case) -> None:
    q = quant(case)
    session = open_simulator(made(case, OutputForm.ASCEND, q))
    names = [output.name for output in session.get_outputs()]
    for got, want in zip(
        session.run(names, feed(case)), run(made(case, OutputForm.FAKE_QUANT, q), feed(case)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_qdq_leaves_it_float_unless_asked() -> None:
    proto = made(CASES[0], OutputForm.QDQ, quant(CASES[0]))
    assert [node.op_type for node in proto.graph.node] == ["LSTM"]
    for got, want in zip(
        run(proto, feed(CASES[0])), run(model(CASES[0], constants(CASES[0])), feed(CASES[0])), strict=True
    ):
        np.testing.assert_array_equal(got, want)
