"""Models whose weights lie in files of their own, through all steps of `compress` and back from the record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import amct_onnx
from amct_onnx.graph.build import BuiltModel
from tests.models import Array, normal, parse

FILTER = """prune_config { filter_pruner { balanced_l2_norm_filter_prune {
    prune_ratio: 0.25 ascend_optimized: false } } }
"""
SPARSE = "prune_config { n_out_of_m_pruner { l1_selective_prune {} } }\n"
BOTH = f'{FILTER} override_layer_configs {{ layer_name: "b" {SPARSE} }}\n'
INT8 = "batch_num: 4 retrain_weight_quant_config { arq_retrain { channel_wise: true } }\n"


def network() -> ModelProto:
    """Two convolutions, and a table in an attribute, as exporters write constants."""
    model = parse(
        "[a] s = Conv(x, w) r = Relu(s) [b] t = Conv(r, v) y = Add(t, table)",
        "float[n,8,16,16] x",
        "float[n,8,16,16] y",
        {"w": normal(64, 8, 1, 1, seed=1), "v": normal(8, 64, 1, 1, seed=2)},
    )
    table = numpy_helper.from_array(normal(16, 16, seed=3), "table")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["table"], value=table))
    return model


def feeds() -> list[dict[str, Array]]:
    return [{"x": normal(2, 8, 16, 16, seed=seed)} for seed in range(4)]


@pytest.fixture
def source(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "m.onnx"
    where = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(network(), path, convert_attribute=True, **where)
    return path


def contents(saved: dict[str, Path], weights: dict[str, tuple[Path, ...]]) -> dict[str, list[bytes]]:
    return {kind: [Path(file).read_bytes() for file in (path, *weights.get(kind, ()))] for kind, path in saved.items()}


@pytest.mark.parametrize("text", [INT8, FILTER + INT8, SPARSE + INT8, BOTH + INT8])
@pytest.mark.parametrize("recover", [False, True])
def test_forms_are_as_external_as_the_source(source, tmp_path, monkeypatch, text: str, recover: bool) -> None:
    """No step may need the whole model in one message, which holds 2 GB at most."""

    def refuse(_: BuiltModel) -> ModelProto:
        raise AssertionError("a model was put into one message")

    monkeypatch.setattr(BuiltModel, "to_proto", refuse)
    (tmp_path / "my.cfg").write_text(text)
    result = amct_onnx.compress(source, feeds(), config=tmp_path / "my.cfg", recover=recover).result
    paths = result.save(tmp_path / "out" / "m")
    assert paths.weights.keys() == paths.keys() - {"record", "tensors", "quant_json"}
    saved = contents(paths, paths.weights)
    modified = paths.get("modified", source)
    models = [modified] if recover or text == INT8 else [modified, source]
    for index, model in enumerate(models):
        again = amct_onnx.apply(model, paths["record"]).save(tmp_path / f"again{index}" / "m")
        replayed = contents(again, again.weights)
        assert replayed == {kind: saved[kind] for kind in replayed}


def test_what_no_step_changes_is_still_read_from_the_source(source) -> None:
    """A reference costs no memory; the table of an attribute is one, too."""
    pruned = amct_onnx.prune(source, ratio=0.25).model
    proto, folder = pruned.to_source()
    assert folder == source.parent.resolve()
    constant = next(node for node in proto.graph.node if node.op_type == "Constant")
    assert constant.attribute[0].t.data_location == TensorProto.EXTERNAL
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    assert weights["w"].data_location == TensorProto.DEFAULT
    assert numpy_helper.to_array(weights["w"]).shape == (48, 8, 1, 1)


@pytest.mark.parametrize("text", [FILTER, BOTH])
def test_what_functions_for_training_write_is_external_too(source, tmp_path, text: str) -> None:
    (tmp_path / "my.cfg").write_text(text)
    made, record, again = (str(tmp_path / name) for name in ("made.onnx", "record.txt", "again.onnx"))
    amct_onnx.create_prune_retrain_model(str(source), None, str(tmp_path / "my.cfg"), record, made)
    trained = tmp_path / "trained.npz"
    np.savez(trained, w=np.ones((48, 8, 1, 1), np.float32))
    amct_onnx.restore_prune_retrain_model(str(source), None, record, str(tmp_path / "my.cfg"), str(trained), again)
    for path in (made, again):
        stored = {tensor.name: tensor for tensor in onnx.load(path, load_external_data=False).graph.initializer}
        assert {name for name, one in stored.items() if one.data_location == TensorProto.EXTERNAL} == {"w", "v"}
