"""Whatever ONNX allows and onnxruntime runs is compressed soundly, or left alone with a reason."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import onnx
from hypothesis import HealthCheck, assume, given, settings

import amct_onnx
from amct_onnx.errors import NothingToCompressError
from amct_onnx.graph.op_table import OPS
from amct_onnx.record import parse_record
from amct_onnx.runtime.simulator import MINIMUM_OPSET, integer_model
from tests.legal.sensitivity import steps_noise
from tests.legal.strategy import Case, cases
from tests.legal.writer import declared
from tests.models import Array, run

NIGHTLY = os.environ.get("AMCT_ONNX_EXAMPLES")
"""How many examples, drawn anew each time; without it a few, always the same."""
LEAST_DB = 10.0
STEPS = 4
"""An input and a weight of several layers, each rounded by up to half a step, and ranges that cut off a little."""
LAYERS = {op for op, spec in OPS.items() if spec.has_record}


def outputs(model: onnx.ModelProto, case: Case, *, optimized: bool = True) -> list[list[Array]]:
    return [run(model, feed, optimized=optimized) for feed in case.feeds]


def unnamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without names of nodes, which may be doubled; that onnxruntime alone refuses."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        node.name = ""
    return copy


def float_outputs(case: Case) -> list[list[Array]]:
    try:
        onnx.checker.check_model(case.model, full_check=True)
        wanted = outputs(unnamed(case.model), case)
    except Exception:
        assume(False)
    assume(all(np.isfinite(array).all() for arrays in wanted for array in arrays))
    return wanted


def assert_close(got: list[list[Array]], wanted: list[list[Array]], case: Case, least_db: float, what: str) -> None:
    """As many decibels, or no more noise than a few steps of every weight and input make where outputs cancel out."""
    for number, (arrays, expected) in enumerate(zip(got, wanted, strict=True)):
        for index, (array, want) in enumerate(zip(arrays, expected, strict=True)):
            assert array.dtype == want.dtype, what
            assert array.shape == want.shape, what
            signal = float(np.square(want, dtype=np.float64).sum())
            noise = float(np.square(array.astype(np.float64) - want).sum())
            if noise > signal * 10 ** (-least_db / 10):
                allowed = STEPS**2 * steps_noise(unnamed(case.model), case.feeds[number], expected)[index]
                assert noise <= allowed, (what, signal, noise, allowed)


def layer_types(graph: onnx.GraphProto) -> Counter[str]:
    found = Counter(node.op_type for node in graph.node if node.op_type in LAYERS)
    for node in graph.node:
        for attribute in node.attribute:
            found += layer_types(attribute.g)
    return found


def quantized(case: Case) -> tuple[amct_onnx.CompressionResult | None, str]:
    try:
        return amct_onnx.quantize(case.model, case.feeds, trial=False), ""
    except NothingToCompressError as error:
        return None, str(error)


@settings(
    max_examples=int(NIGHTLY or "250"),
    derandomize=NIGHTLY is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(cases())
def test_a_legal_model(case: Case) -> None:
    wanted = float_outputs(case)
    result, words = quantized(case)
    if result is None:
        assert all(op in words for op in layer_types(case.model.graph))
        return
    made = {form: result.model(form) for form in ("ascend", "fake_quant", "qdq")}
    for form, model in made.items():
        assert declared(model) == declared(case.model), form
    for form in ("fake_quant", "qdq"):
        onnx.checker.check_model(made[form], full_check=True)
        assert_close(outputs(made[form], case), wanted, case, LEAST_DB, form)
    if next(entry.version for entry in made["ascend"].opset_import if not entry.domain) >= MINIMUM_OPSET:
        simulated = outputs(integer_model(made["ascend"]), case, optimized=False)
        assert_close(simulated, outputs(made["fake_quant"], case, optimized=False), case, 60, "simulator")
    assert_reported(result, case)
    assert_applied(result, case)


def assert_reported(result: amct_onnx.CompressionResult, case: Case) -> None:
    """Each layer is compressed, or its refusal has a reason."""
    reported = Counter(layer.op_type for layer in result.report.layers)
    assert all(refusal.reason for refusal in result.report.refusals)
    names = {layer.name for layer in result.report.layers}
    reported.update(refusal.op_type for refusal in result.report.refusals if refusal.node not in names)
    assert not layer_types(case.model.graph) - reported


def assert_applied(result: amct_onnx.CompressionResult, case: Case) -> None:
    """The plan as text gives the same bytes."""
    record = parse_record(result.record_text())
    again = amct_onnx.apply(case.model, record, tensors=result.tensors)
    for form, model in result.models.items():
        first, second = (
            built.to_proto().SerializeToString(deterministic=True) for built in (model, again.models[form])
        )
        assert first == second, form
