"""AMCT's functions for combined compression, on ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import amct_onnx
from amct_onnx.errors import ConfigError, RecordError
from tests.models import Array, initializers, normal, parse

NET = parse(
    "[first] a = Conv(x, w1) [relu] b = Relu(a) [second] c = Conv(b, w2) [last] y = Conv(c, w3)",
    "float[n,4,8,8] x",
    "float[n,4,8,8] y",
    {"w1": normal(16, 4, 1, 1), "w2": normal(16, 16, 1, 1), "w3": normal(4, 16, 1, 1)},
)
CFG = """batch_num: 2
prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 ascend_optimized: False } } }
retrain_weight_quant_config { arq_retrain { channel_wise: true } }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model and a config."""
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "model.onnx")
    Path("compressed.cfg").write_text(CFG)
    return tmp_path


def feeds() -> list[dict[str, Array]]:
    return [{"x": normal(8, 4, 8, 8, seed=seed)} for seed in range(2)]


def create(config: str = "compressed.cfg") -> None:
    amct_onnx.create_compressed_retrain_model("model.onnx", feeds(), config, "record.txt", "modified.onnx")


def test_the_saved_models_are_those_of_one_call(folder) -> None:
    create()
    assert {name: array.shape for name, array in initializers(onnx.load("modified.onnx")).items()}["w2"] == (8, 8, 1, 1)
    amct_onnx.save_compressed_retrain_model("modified.onnx", "record.txt", "out/m", feeds())
    whole = amct_onnx.compress("model.onnx", feeds(), config="compressed.cfg", formats=("ascend", "fake_quant"))
    paths = whole.result.save("whole/m")
    assert Path("modified.onnx").read_bytes() == paths["modified"].read_bytes()
    assert Path("record.txt").read_bytes() == paths["record"].read_bytes()
    assert Path("out/m_deploy_model.onnx").read_bytes() == paths["ascend"].read_bytes()
    assert Path("out/m_fake_quant_model.onnx").read_bytes() == paths["fake_quant"].read_bytes()
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "m_deploy_model.onnx",
        "m_fake_quant_model.onnx",
        "m_quant.json",
    ]


def test_a_config_that_quantizes_alone_keeps_the_model(folder) -> None:
    Path("quant.cfg").write_text("batch_num: 2 retrain_weight_quant_config { arq_retrain { channel_wise: true } }")
    create("quant.cfg")
    np.testing.assert_array_equal(initializers(onnx.load("modified.onnx"))["w2"], initializers(NET)["w2"])
    amct_onnx.save_compressed_retrain_model("modified.onnx", "record.txt", "out/m")
    assert Path("out/m_deploy_model.onnx").exists()


def test_what_does_not_belong_together_is_refused(folder) -> None:
    create()
    with pytest.raises(RecordError, match="weights were modified"):
        amct_onnx.save_compressed_retrain_model("model.onnx", "record.txt", "out/m")
    Path("pruning.cfg").write_text(CFG[: CFG.index("retrain_weight")])
    amct_onnx.create_compressed_retrain_model("model.onnx", feeds(), "pruning.cfg", "r.txt", "p.onnx")
    with pytest.raises(RecordError, match="quantizes no layer"):
        amct_onnx.save_compressed_retrain_model("p.onnx", "r.txt", "out/m")
    assert not Path("out").exists()
    Path("none.cfg").write_text("batch_num: 2")
    with pytest.raises(ConfigError, match=r"none\.cfg asks for nothing that this model has layers for"):
        amct_onnx.create_compressed_retrain_model("model.onnx", feeds(), "none.cfg", "n.txt", "n.onnx")
    assert not Path("n.onnx").exists()
