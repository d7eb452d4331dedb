"""Pruning, 4:2 sparsity and quantization by one retrain config: what is done, in files, and again from the record."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import amct_onnx
from amct_onnx import CombinedResult, OutputForm
from amct_onnx.errors import ArgumentError, ConfigError, DataError, NothingToCompressError, RecordError, UsageError
from amct_onnx.record import WeightState
from tests.models import Array, initializers, normal, parse, run


def network(seed: int = 0) -> ModelProto:
    return parse(
        """[first] s = Conv<pads = [1,1,1,1]>(x, w, b) r = Relu(s) [second] t = Conv(r, v, c) u = Relu(t)
           p = GlobalAveragePool(u) f = Flatten(p) [last] y = Gemm<transB = 1>(f, m, d)""",
        "float[batch,8,8,8] x",
        "float[batch,5] y",
        {
            "w": normal(16, 8, 3, 3, seed=seed + 1),
            "b": normal(16, seed=seed + 2),
            "v": normal(24, 16, 1, 1, seed=seed + 3),
            "c": normal(24, seed=seed + 4),
            "m": normal(5, 24, seed=seed + 5),
            "d": normal(5, seed=seed + 6),
        },
    )


def feeds(count: int = 8) -> list[dict[str, Array]]:
    mixing = np.random.default_rng(9).normal(size=(8, 4))
    rng = np.random.default_rng(1)
    return [
        {"x": np.einsum("cd,ndhw->nchw", mixing, rng.normal(size=(8, 4, 8, 8))).astype(np.float32)}
        for _ in range(count)
    ]


FILTER = """prune_config : { filter_pruner : { balanced_l2_norm_filter_prune : {
    prune_ratio : 0.25 ascend_optimized: False } } }
"""
SPARSE = "prune_config{ n_out_of_m_pruner { l1_selective_prune { n_out_of_m_type: M4N2 update_freq: 0 } } }\n"
INT8 = "batch_num: 8 retrain_weight_quant_config: { arq_retrain: { channel_wise: true dst_type: INT8 } }\n"


@pytest.fixture
def done(tmp_path):
    """Compress the network by the text of a config."""

    def compress(text: str, **options: object) -> CombinedResult:
        (tmp_path / "my.cfg").write_text(text)
        return amct_onnx.compress(network(), feeds(), config=tmp_path / "my.cfg", trial=False, **options)

    return compress


def weight_shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    return {name: values.shape for name, values in initializers(model).items()}


def test_channels_go_and_what_stays_is_quantized(done) -> None:
    found = done(FILTER + INT8)
    assert found.result.modified is not None
    modified = found.result.modified.to_proto()
    assert weight_shapes(modified)["w"] == (12, 8, 3, 3)
    assert weight_shapes(modified)["v"] == (18, 12, 1, 1)
    assert [layer.name for layer in found.result.report.layers] == ["first", "second", "last"]
    assert set(found.result.models) == set(OutputForm)
    scales = found.result.record.layers["first"].scale_w
    # arq: the largest weight of each filter is 127, or the smallest -128.
    filters = initializers(modified)["w"].reshape(12, -1)
    np.testing.assert_allclose(scales, np.maximum(filters.max(axis=1) / 127, -filters.min(axis=1) / 128), rtol=1e-6)
    assert [len(entry.producers) for entry in found.result.record.prune] == [1, 1]
    assert found.pruned is not None
    assert found.thinned is None


def test_nothing_that_another_step_does_is_called_undone(done) -> None:
    found = done(f'{FILTER}{INT8} override_layer_configs {{ layer_name: "second" {SPARSE} }}')
    assert found.pruned is not None
    assert found.thinned is not None
    notes = (*found.pruned.notes, *found.thinned.notes, *found.result.report.notes)
    assert not any("my.cfg" in note for note in notes)
    refusals = {refusal.node: refusal.reason for refusal in found.thinned.refusals}
    assert refusals == dict.fromkeys(("first", "last"), "its block prunes channels instead")


def test_a_warning_of_the_config_is_told_once(done) -> None:
    """The last layer's channels are the model's results, so pruning them has no effect."""
    found = done(f'{FILTER}{INT8} override_layer_configs {{ layer_name: "last" {FILTER} }}')
    assert found.pruned is not None
    notes = (*found.pruned.notes, *found.result.report.notes)
    assert sum("has no effect" in note for note in notes) == 1


def test_half_of_the_weights_go_and_every_zero_stays_one(done) -> None:
    found = done(SPARSE + INT8)
    for built in [*found.result.models.values(), found.result.modified]:
        values = [numpy_helper.to_array(tensor) for tensor in built.to_proto().graph.initializer]
        weights = [array for array in values if array.size in (16 * 8 * 9, 24 * 16, 24 * 5)]
        assert len(weights) == 3
        assert min(float((array == 0).mean()) for array in weights) >= 0.5
    assert [entry.selective_prune.name for entry in found.result.record.prune if entry.selective_prune] == [
        "first",
        "second",
        "last",
    ]


def test_one_config_may_prune_and_thin_out(done) -> None:
    own = f'override_layer_configs {{ layer_name: "second" {SPARSE} }}'
    found = done(FILTER + own + INT8)
    modified = initializers(found.result.modified.to_proto())
    assert modified["w"].shape == (12, 8, 3, 3)
    assert modified["v"].shape == (24, 12, 1, 1)
    assert (modified["v"] == 0).mean() == 0.5
    assert (modified["w"] == 0).mean() == 0
    again = amct_onnx.restore_pruned(network(), found.result.record, structure_only=True).model.to_proto()
    np.testing.assert_array_equal(initializers(again)["v"] == 0, modified["v"] == 0)
    assert weight_shapes(again) == weight_shapes(found.result.modified.to_proto())


@pytest.mark.parametrize("text", [FILTER + INT8, SPARSE + INT8])
def test_the_record_gives_the_same_bytes_again(done, text: str) -> None:
    found = done(text).result
    again = amct_onnx.apply(found.modified.to_proto(), found.record, tensors=found.tensors)
    assert {form: model.to_proto().SerializeToString() for form, model in again.models.items()} == {
        form: model.to_proto().SerializeToString() for form, model in found.models.items()
    }
    assert again.record == found.record
    with pytest.raises(RecordError, match="weights were modified"):
        amct_onnx.apply(network(), found.record, tensors=found.tensors)


@pytest.mark.parametrize("text", [FILTER + INT8, SPARSE + INT8])
def test_without_recovery_the_source_and_the_record_are_enough(done, text: str) -> None:
    found = done(text, recover=False).result
    assert found.record.header.weights is WeightState.RECOMPUTABLE
    again = amct_onnx.apply(network(), found.record, tensors=found.tensors)
    assert again.modified.to_proto().SerializeToString() == found.modified.to_proto().SerializeToString()
    assert again.models[OutputForm.QDQ].to_proto().SerializeToString() == (
        found.models[OutputForm.QDQ].to_proto().SerializeToString()
    )
    with pytest.raises(RecordError, match="made for another model"):
        amct_onnx.apply(network(seed=40), found.record)


def quantized(text: str, done) -> dict[str, tuple[float, int]]:
    found = done(text).result
    return {name: (entry.scale_d, entry.offset_d) for name, entry in found.record.layers.items()}


def test_given_bounds_are_the_range(done) -> None:
    data = "retrain_data_quant_config: { ulq_quantize: { clip_max_min: { clip_max: 6.0 clip_min: -3.0 } } }"
    found = quantized(INT8 + data, done)
    scale = 9 / 255
    for name in ("first", "second", "last"):
        assert found[name] == pytest.approx((np.float32(scale), round(-128 + 3 / scale)))


def test_a_fixed_minimum_is_zero(done) -> None:
    data = """retrain_data_quant_config: { ulq_quantize: {
        clip_max_min: { clip_max: 6.0 clip_min: -3.0 } fixed_min: true } }"""
    assert set(quantized(INT8 + data, done).values()) == {(float(np.float32(6 / 255)), -128)}
    alone = "retrain_data_quant_config: { ulq_quantize: { fixed_min: true } }"
    free = "retrain_data_quant_config: { ulq_quantize: {} }"
    assert quantized(INT8 + free, done)["first"][1] != -128
    # Behind a Relu it is zero anyway.
    assert quantized(INT8 + free, done)["second"][1] == -128
    assert quantized(INT8 + alone, done)["first"][1] == -128


@pytest.mark.parametrize(("part", "width"), [("weight", "INT4"), ("data", "INT16")])
def test_other_widths_are_those_of_quantizing(done, tmp_path, part: str, width: str) -> None:
    """The same record as a calibration config of that width gives, for what both say alike."""
    blocks = {
        "weight": "retrain_weight_quant_config { arq_retrain { dst_type: INT4 } }",
        "data": "retrain_data_quant_config { ulq_quantize { dst_type: INT16 } }",
    }
    found = done(f'{blocks[part]} quant_skip_layers: "last"').result
    calibration = {
        "weight": "common_config { arq_quantize { quant_bits: 4 } }",
        "data": "common_config { ifmr_quantize { dst_type: INT16 } }",
    }
    (tmp_path / "quant.cfg").write_text(f'{calibration[part]} skip_layers: "last"')
    plain = amct_onnx.quantize(network(), feeds(), config=tmp_path / "quant.cfg", trial=False)
    assert found.record.layers == plain.record.layers
    types = {(entry.act_type, entry.wts_type) for entry in found.record.layers.values()}
    assert types == {("INT16", "INT8") if width == "INT16" else ("INT8", "INT4")}


def test_an_odd_number_of_channels_left_takes_four_bits_away(done) -> None:
    narrow = "retrain_weight_quant_config { arq_retrain { dst_type: INT4 } } quant_skip_layers: 'last'"
    found = done(FILTER.replace("0.25", "0.3") + narrow).result
    assert initializers(found.modified.to_proto())["v"].shape[1] == 11
    assert {name: entry.wts_type for name, entry in found.record.layers.items()} == {"first": "INT4", "second": "INT8"}
    assert any('"second": dst_type INT4 is not possible once channels are gone' in note for note in found.report.notes)


def test_ulq_searches_for_the_scale_of_least_error(tmp_path) -> None:
    # Of many weights a few are much larger than the others, so that cutting them off pays.
    weight = normal(64, 512, seed=3) ** 3
    model = parse("[line] y = Gemm<transB = 1>(x, w)", "float[n,512] x", "float[n,64] y", {"w": weight})
    errors = {}
    for algorithm in ("arq_retrain", "ulq_retrain"):
        config = tmp_path / f"{algorithm}.cfg"
        config.write_text(f"retrain_weight_quant_config: {{ {algorithm}: {{ channel_wise: false }} }}")
        found = amct_onnx.compress(model, [{"x": normal(4, 512)}], config=config, trial=False)
        (scale,) = found.result.record.layers["line"].scale_w
        steps = np.clip(np.rint(weight / scale), -128, 127)
        errors[algorithm] = float(np.square(steps * scale - weight).sum())
    assert errors["ulq_retrain"] < errors["arq_retrain"]


def test_too_few_feeds_are_told_before_the_data_is_walked(done) -> None:
    walks: list[object] = []

    def progress(walk: object) -> object:
        walks.append(walk)
        return walk

    fault = r"my\.cfg: batch_num is 9, but the calibration data holds 8 feeds; give more data, or lower batch_num$"
    with pytest.raises(DataError, match=fault):
        done(FILTER + INT8.replace("8", "9", 1), progress=progress)
    assert not walks
    done(FILTER + "batch_num: 9", progress=progress)  # No layer is quantized: the number counts for nothing.
    assert walks


def test_batch_num_limits_what_scales_are_found_from(done) -> None:
    (note,) = [note for note in done(SPARSE + INT8.replace("8", "2", 1)).result.report.notes if "batch_num" in note]
    assert note == "batch_num is 2: the first 2 of 8 feeds were used to find the scales"


def test_skipped_layers_stay_float(done) -> None:
    found = done(INT8 + 'quant_skip_layers: "second" quant_skip_types: "Gemm"').result
    assert list(found.record.layers) == ["first"]
    reasons = {refusal.node: refusal.reason for refusal in found.report.refusals}
    assert set(reasons) == {"second", "last"}
    assert found.modified is None
    assert not found.record.prune


def test_a_config_without_quantization_gives_the_modified_model_alone(done, tmp_path) -> None:
    found = done(SPARSE).result
    assert not found.models
    with pytest.raises(UsageError, match="no layer was quantized; `modified` is the float one"):
        found.model("qdq")
    paths = found.save(tmp_path / "out" / "m")
    assert set(paths) == {"modified", "record"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["m_modified_model.onnx", "m_record.txt"]
    assert (initializers(onnx.load(paths["modified"]))["v"] == 0).mean() == 0.5


def test_what_cannot_be_done_is_an_error(done, tmp_path) -> None:
    every = "".join(f'skip_layers: "{name}" ' for name in ("first", "second", "last"))
    for text, words in (
        ("batch_num: 2", "asks for nothing .*; add a prune_config, a retrain_data_quant_config"),
        (INT8 + every, "asks for nothing .*skip fewer layers"),
        (FILTER + every, "leaves no layer to prune"),
        (SPARSE + every, "leaves no layer to thin out"),
    ):
        with pytest.raises(ConfigError, match=words):
            done(text)
    for argument, word in (("selection", "choose from l1"), ("formats", "unknown"), ("qdq_target", "unknown")):
        with pytest.raises(UsageError, match=word):
            done(SPARSE, **{argument: "nothing"})
    with pytest.raises(ArgumentError, match="data is needed"):
        amct_onnx.compress(network(), None, config=tmp_path / "my.cfg")


COMPRESSED = """skip_layer_types: "Gemm"
quant_skip_layers: "first"
retrain_weight_quant_config: { arq_retrain: { channel_wise: true dst_type: INT8 } }
override_layer_types : { layer_type: "Conv"
  retrain_weight_quant_config: { arq_retrain: { channel_wise: false dst_type: INT8 } }
  retrain_data_quant_config : { ulq_quantize : { clip_max_min : { clip_max : 6.0 clip_min : -6.0 } } }
  %s }
"""


@pytest.mark.parametrize("kind", [FILTER, SPARSE])
def test_the_published_examples_do_what_they_say(done, kind: str) -> None:
    stronger = kind.replace("0.25", "0.5").replace("update_freq: 0", "update_freq: 1")
    found = done(kind + COMPRESSED % stronger)
    modified = initializers(found.result.modified.to_proto())
    if kind is FILTER:
        assert modified["w"].shape[0] == 8
        assert modified["v"].shape[:2] == (12, 8)
    else:
        assert [(modified[name] == 0).mean() for name in ("w", "v", "m")] == [0.5, 0.5, 0.0]
    (entry,) = found.result.record.layers.values()
    assert list(found.result.record.layers) == ["second"]
    assert len(entry.scale_w) == 1
    assert entry.scale_d == pytest.approx(12 / 255)


def test_files_are_written_and_replayed_from_disk(tmp_path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    (tmp_path / "my.cfg").write_text(FILTER + INT8)
    found = amct_onnx.compress(tmp_path / "m.onnx", feeds(), config=tmp_path / "my.cfg")
    assert [trial.form for trial in found.result.report.trials] == ["fake_quant", "qdq"]
    assert all(trial.snr_db is not None and math.isfinite(trial.snr_db) for trial in found.result.report.trials)
    paths = found.result.save(tmp_path / "out" / "m")
    again = amct_onnx.apply(paths["modified"], paths["record"]).save(tmp_path / "again" / "m")
    for kind in ("ascend", "fake_quant", "qdq", "record", "tensors"):
        assert Path(again[kind]).read_bytes() == Path(paths[kind]).read_bytes()


def test_quantized_results_stay_near_those_of_the_modified_model(done) -> None:
    found = done(FILTER + INT8).result
    fed = feeds(1)[0]
    want, got = run(found.modified, fed)[0], run(found.models[OutputForm.FAKE_QUANT], fed)[0]
    assert np.square(want - got).sum() < 1e-2 * np.square(want).sum()


@pytest.mark.parametrize("text", [FILTER, SPARSE])
@pytest.mark.parametrize("recover", [False, True])
def test_the_modified_model_is_taken_as_it_is_whatever_its_weights(tmp_path, text: str, recover: bool) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    (tmp_path / "my.cfg").write_text(text + INT8)
    found = amct_onnx.compress(
        tmp_path / "m.onnx", feeds(), config=tmp_path / "my.cfg", recover=recover, trial=False
    ).result
    assert found.record.header.weights.is_modified is recover
    paths = found.save(tmp_path / "out" / "m")
    again = amct_onnx.apply(paths["modified"], paths["record"]).save(tmp_path / "again" / "m")
    for kind in ("ascend", "fake_quant", "qdq", "record", "tensors"):
        assert Path(again[kind]).read_bytes() == Path(paths[kind]).read_bytes()
    restore = amct_onnx.restore_pruned if text is FILTER else amct_onnx.restore_sparse
    restored = restore(paths["modified"], paths["record"]).model.to_proto()
    assert restored.SerializeToString() == Path(paths["modified"]).read_bytes()


ALIGNED = FILTER.replace("ascend_optimized: False", "")
"""By default a multiple of 16 channels stays, so none of 16 goes, and none of 24."""
EVERY = ("first", "second", "last")


def skipping(field: str) -> str:
    return "".join(f'{field}: "{name}" ' for name in EVERY)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FILTER + skipping("regular_prune_skip_layers"), r"my\.cfg leaves no layer to prune \(regular_prune_skip_lay"),
        (SPARSE + skipping("regular_prune_skip_layers"), r"my\.cfg leaves no layer to thin out \(regular_prune_skip"),
        (ALIGNED, r"my\.cfg: no channel of the model can be pruned; 'first': a multiple of 16 stays"),
    ],
)
def test_what_nothing_can_be_taken_from_is_quantized_and_told(done, text: str, reason: str) -> None:
    found = done(text + INT8)
    assert found.pruned is None
    assert found.thinned is None
    assert len([note for note in found.result.report.notes if re.search(reason, note)]) == 1
    plain = done(INT8).result
    assert found.result.modified is None
    assert found.model("qdq").SerializeToString() == plain.model("qdq").SerializeToString()
    assert found.result.record == plain.record


def test_one_step_that_does_nothing_keeps_no_other_from_its_work(done) -> None:
    found = done(f'{ALIGNED} override_layer_configs {{ layer_name: "last" {SPARSE} }}')
    assert found.pruned is None
    assert found.thinned is not None
    assert (initializers(found.result.modified.to_proto())["m"] == 0).mean() == 0.5
    assert any("no channel of the model can be pruned" in note for note in found.result.report.notes)


def test_what_cannot_be_quantized_is_pruned_and_told(done, tmp_path) -> None:
    found = done(FILTER + INT8 + skipping("quant_skip_layers")).result
    assert not found.models
    assert any("my.cfg leaves no layer to quantize (quant_skip_layers, line" in note for note in found.report.notes)
    nothing_seen = [{"x": np.full((2, 8, 8, 8), np.nan, np.float32)}]
    config = tmp_path / "my.cfg"
    config.write_text(FILTER + "retrain_weight_quant_config { arq_retrain {} }")
    options = {"config": config, "importance": "l2", "recover": False, "trial": False}
    unseen = amct_onnx.compress(network(), nothing_seen, **options).result
    assert not unseen.models
    assert weight_shapes(unseen.modified.to_proto())["w"] == (12, 8, 3, 3)
    (note,) = unseen.report.notes
    assert "my.cfg: no layer of the model can be quantized; 'first' (Conv), 'second' (Conv), 'last' (Gemm)" in note


def test_nothing_done_at_all_is_an_error_that_gives_every_reason(done) -> None:
    with pytest.raises(NothingToCompressError, match="no channel of the model can be pruned"):
        done(ALIGNED)
    config = ALIGNED + INT8 + skipping("quant_skip_layers")
    with pytest.raises(NothingToCompressError, match=r"no layer to quantize .*no channel of the model can be pruned"):
        done(config)


@pytest.mark.parametrize("text", [FILTER, SPARSE])
def test_a_model_that_is_not_quantized_is_tried_beside_float(tmp_path, text: str) -> None:
    (tmp_path / "my.cfg").write_text(text)
    found = amct_onnx.compress(network(), feeds(), config=tmp_path / "my.cfg").result
    (trial,) = found.report.trials
    fed = feeds()[:4]
    want = np.concatenate([run(network(), one)[0] for one in fed])
    got = np.concatenate([run(found.modified, one)[0] for one in fed])
    snr = 10 * math.log10(np.square(want).sum() / np.square(want - got).sum())
    assert (trial.form, trial.feeds) == ("modified", 4)
    assert trial.snr_db == pytest.approx(snr, rel=1e-3)
    assert (trial.speed_up is not None) is (text is FILTER)
    assert sum("fitted to the very feeds" in note for note in found.report.notes) == 1
