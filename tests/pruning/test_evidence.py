"""What a prune report says of the data, of sizes, and of how the pruned model does."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.api.prune import prune_groups
from amct_onnx.errors import DataError, ModelError, NothingToCompressError
from tests.models import Array, normal, parse, run

WEIGHTS = {"w": normal(8, 3, 1, 1), "v": normal(16, 8, 1, 1, seed=1), "k": normal(4, 16, 1, 1, seed=2)}
NET = parse(
    "[first] a = Conv(x, w) b = Relu(a) [second] c = Conv(b, v) d = Relu(c) [last] y = Conv(d, k)",
    "float[n,3,h,w] x",
    "float[n,4,p,q] y",
    WEIGHTS,
)


def feeds(count: int, side: int = 4) -> list[dict[str, Array]]:
    return [{"x": normal(2, 3, side, side, seed=index)} for index in range(count)]


def snr(source: ModelProto, pruned: ModelProto, data: list[dict[str, Array]]) -> float:
    pairs = [(run(source, feed)[0].astype(float), run(pruned, feed)[0].astype(float)) for feed in data]
    noise = sum(np.square(want - got).sum() for want, got in pairs)
    return float(10 * np.log10(sum(np.square(want).sum() for want, _ in pairs) / noise))


@pytest.mark.parametrize("recover", [True, False])
def test_the_pruned_model_is_tried_on_the_first_feeds(recover: bool) -> None:
    result = amct_onnx.prune(NET, feeds(6), ratio=0.5, recover=recover)
    (trial,) = result.report.trials
    assert (trial.form, trial.feeds, trial.error) == ("pruned", 4, None)
    pruned = result.model.to_proto()
    assert trial.snr_db == pytest.approx(snr(NET, pruned, feeds(6)[:4]), abs=1e-3)
    assert trial.snr_db_by_feed == pytest.approx([snr(NET, pruned, [feed]) for feed in feeds(4)], abs=1e-3)
    assert trial.speed_up is not None
    assert trial.speed_up > 0
    assert any("fitted to the very feeds" in note for note in result.report.notes) == recover


def test_nothing_is_tried_without_data_or_on_request() -> None:
    assert amct_onnx.prune(NET, ratio=0.5).report.trials == ()
    assert amct_onnx.prune(NET, feeds(2), ratio=0.5, trial=False).report.trials == ()


@pytest.mark.parametrize("recover", [True, False])
def test_too_few_rows_are_named_with_the_columns(recover: bool) -> None:
    # One feed of two pixels: two rows for the 8 columns of one layer and the 16 of the other.
    few = [{"x": normal(1, 3, 1, 2)}]
    (note,) = [note for note in amct_onnx.prune(NET, few, ratio=0.5, recover=recover).report.notes if "rows" in note]
    # Once fitted, half of the columns are gone.
    columns = 8 if recover else 16
    assert f"2 of 2 layers, least for 'last': 2 rows for {columns} columns, {2 / columns:.2g} per column" in note
    assert "more feeds" in note


def test_enough_rows_are_not_remarked_on() -> None:
    notes = amct_onnx.prune(NET, feeds(4), ratio=0.5, trial=False).report.notes
    assert notes == ()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("importance", ["l2", "energy", "reconstruction"])
def test_rows_that_are_not_finite_are_left_out_and_counted(value: float, importance: str) -> None:
    dirty = feeds(4)
    dirty[2]["x"][0, 1, 0, 0] = value
    result = amct_onnx.prune(NET, dirty, ratio=0.5, importance=importance)
    (note,) = [note for note in result.report.notes if "infinite" in note]
    # One pixel of 4 feeds of 2 x 16.
    assert "2 layers, first of 'second' (1 of 128), in feed 2; check the data" in note
    clean = run(result.model, feeds(1)[0])[0]
    assert np.isfinite(clean).all()


@pytest.mark.parametrize("importance", ["l2", "energy", "reconstruction"])
def test_data_without_a_finite_row_is_an_error(importance: str) -> None:
    dirty = [{"x": np.full((1, 3, 2, 2), np.nan, np.float32)}] * 2
    with pytest.raises(DataError, match=r"^feed 0: what 'second' and all other layers .* every row of every feed"):
        amct_onnx.prune(NET, dirty, ratio=0.5, importance=importance)


def test_sizes_taken_for_free_ones_are_told() -> None:
    fixed = parse(
        "[a] t = Conv(x, w) [b] y = Conv(t, k)",
        "float[2,3,8,8] x",
        "float[2,4,8,8] y",
        {**WEIGHTS, "k": normal(4, 8, 1, 1)},
    )
    assert amct_onnx.prune(fixed, ratio=0.5).report.sizes == {}
    assert amct_onnx.prune(NET, ratio=0.5, input_shapes={"x": (1, 3, 5, 6)}).report.sizes == {"x": (1, 3, 5, 6)}
    with_data = amct_onnx.prune(NET, feeds(2), ratio=0.5).report
    assert with_data.sizes == {"x": (2, 3, 4, 4)}
    # 16 pixels times the weights of the three layers.
    assert with_data.before.multiply_adds == 16 * (24 + 128 + 64)


def test_sizes_at_which_the_model_does_not_run_are_told() -> None:
    # The target shape fits 6 x 6 pixels alone.
    picky = parse(
        "[a] t = Conv(x, w) r = Reshape(t, to) s = Relu(r) [b] y = MatMul(s, k) i = NonZero(s) z = Cast<to = 1>(i)",
        "float[1,3,h,w] x",
        "float[1,8,4] y, float[3,n] z",
        {"w": WEIGHTS["w"], "k": normal(36, 4), "to": np.array([1, 8, 36])},
    )
    words = r"does not run at x:1,3,64,64 \(.*\); give sizes .* --input-shape \(input_shapes\), or --data"
    with pytest.raises(NothingToCompressError, match=words):
        amct_onnx.prune(picky, ratio=0.5)
    assert "channels are not followed" in prune_groups(picky).notes[0]
    assert prune_groups(picky, input_shapes={"x": (1, 3, 6, 6)}).notes == ()


def test_sizes_that_were_guessed_are_named_where_nothing_can_go() -> None:
    # Inference believes a target shape that a run would refuse.
    fixed = parse(
        "[a] t = Conv(x, w) r = Reshape(t, to) [b] y = MatMul(r, k)",
        "float[1,3,h,w] x",
        "float[1,8,4] y",
        {"w": WEIGHTS["w"], "k": normal(36, 4), "to": np.array([1, 8, 36])},
    )
    with pytest.raises(
        NothingToCompressError, match=r"taken as x:1,3,64,64, at which .* does not run; .* --input-shape .*, or --data$"
    ):
        amct_onnx.prune(fixed, ratio=0.5)
    with pytest.raises(NothingToCompressError, match=r"it is skipped on request; 'b': it is the model's output 'y'$"):
        amct_onnx.prune(fixed, ratio=0.5, input_shapes={"x": (1, 3, 6, 6)}, skip="a")


INT8 = np.ones((8, 3, 1, 1), np.int8)
SCALE = {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8), "u": np.array(0, np.uint8)}
QUANTIZED = {
    "a weight that is dequantized": (
        "w = DequantizeLinear(q, s, z) [c] y = Conv(x, w)",
        {"q": INT8, **SCALE},
        "node .*DequantizeLinear",
    ),
    "a weight that is quantized first": (
        "q = QuantizeLinear(f, s, z) w = DequantizeLinear(q, s, z) [c] y = Conv(x, w)",
        {"f": WEIGHTS["w"], **SCALE},
        "DequantizeLinear",
    ),
    "a layer on integers": (
        "q = QuantizeLinear(x, s, u) [c] r = QLinearConv(q, s, u, w, s, z, s, u) y = DequantizeLinear(r, s, u)",
        {"w": INT8, **SCALE},
        "node 'c' .QLinearConv",
    ),
    "a layer quantized while it runs": (
        "q, a, b = DynamicQuantizeLinear(x) [c] i = ConvInteger(q, w, b) f = Cast<to = 1>(i) y = Mul(f, a)",
        {"w": INT8.astype(np.uint8)},
        "DynamicQuantizeLinear",
    ),
}


@pytest.mark.parametrize(("nodes", "weights", "words"), QUANTIZED.values(), ids=QUANTIZED.keys())
def test_quantized_models_are_called_that(nodes: str, weights: dict[str, Array], words: str) -> None:
    model = parse(nodes, "float[1,3,4,4] x", "float[1,8,4,4] y", weights)
    run(model, {"x": normal(1, 3, 4, 4)})
    with pytest.raises(ModelError, match=f"{words}.*quantized already.*prune the float model") as caught:
        amct_onnx.prune(model, ratio=0.5)
    assert not isinstance(caught.value, NothingToCompressError)
    with pytest.raises(ModelError, match="quantized already"):
        prune_groups(model)


@pytest.mark.parametrize("form", ["ascend", "fake_quant", "qdq"])
def test_our_own_quantized_models_are_refused(form: str) -> None:
    made = amct_onnx.quantize(NET, feeds(2)).model(form)
    with pytest.raises(ModelError, match=re.compile("is a (deploy|fake-quant) model already|quantized already")):
        amct_onnx.prune(made, ratio=0.5)


def test_a_model_that_dequantizes_its_input_is_a_float_model() -> None:
    model = parse(
        "f = DequantizeLinear(x, s, u) [first] a = Conv(f, w) [last] y = Conv(a, k)",
        "uint8[n,3,4,4] x",
        "float[n,4,4,4] y",
        {"w": WEIGHTS["w"], "k": normal(4, 8, 1, 1), **SCALE},
    )
    assert [group.removed for group in amct_onnx.prune(model, ratio=0.5).report.groups] == [4, 0]


def test_a_pruned_model_that_could_not_be_run_is_told() -> None:
    # The second output does not exist at the sizes that are guessed, and asks nothing of channels.
    model = parse(
        "[first] a = Conv(x, w) [last] y = Conv(a, k) r = Reshape(x, to) z = Relu(r)",
        "float[1,3,h,w] x",
        "float[1,4,p,q] y, float[1,108] z",
        {"w": WEIGHTS["w"], "k": normal(4, 8, 1, 1), "to": np.array([1, 108])},
    )
    (note,) = amct_onnx.prune(model, ratio=0.5).report.notes
    assert "was not run" in note
    assert "--input-shape" in note
    assert amct_onnx.prune(model, ratio=0.5, input_shapes={"x": (1, 3, 6, 6)}).report.notes == ()


def test_sizes_at_which_the_model_runs_are_not_blamed() -> None:
    with pytest.raises(NothingToCompressError, match=r"it is the model's output 'y'$"):
        amct_onnx.prune(NET, ratio=0.5, skip=["first", "second"])
