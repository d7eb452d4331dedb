"""AMCT's functions for pruning, on ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import amct_onnx
from amct_onnx.errors import (
    AmctError,
    ConfigError,
    DataError,
    ModelError,
    RecordError,
    UsageError,
)
from tests.models import Array, normal, parse, run

NET = "[first] a = Conv(x, w1, b1) [relu] b = Relu(a) [second] c = Conv(b, w2) [last] y = Conv(c, w3)"
WEIGHTS = {
    "w1": normal(8, 3, 1, 1),
    "b1": normal(8, seed=4),
    "w2": normal(6, 8, 1, 1, seed=1),
    "w3": normal(4, 6, 1, 1, seed=2),
}
CFG = "prune_config{ filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 ascend_optimized: False } } }"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model and a config."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(NET, "float[n,3,h,w] x", "float[n,4,h,w] y", WEIGHTS), "model.onnx")
    Path("prune.cfg").write_text(CFG)
    return tmp_path


def weights(path: str) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def create(**changes: object) -> None:
    arguments = {
        "model_file": "model.onnx",
        "input_data": {"x": normal(1, 3, 5, 7)},
        "config_defination": "prune.cfg",
        "record_file": "record.txt",
        "modified_onnx_file": "pruned.onnx",
    }
    amct_onnx.create_prune_retrain_model(**{**arguments, **changes})


def restore(**changes: object) -> None:
    arguments = {
        "model_file": "model.onnx",
        "input_data": None,
        "record_file": "record.txt",
        "config_defination": "prune.cfg",
        "weights_file": None,
        "modified_onnx_file": "restored.onnx",
    }
    amct_onnx.restore_prune_retrain_model(**{**arguments, **changes})


def strongest(weight: Array, count: int) -> list[int]:
    """Output channels of largest norm, in order."""
    norms = np.linalg.norm(weight.reshape(len(weight), -1), axis=1)
    return sorted(np.argsort(norms)[-count:].tolist())


def test_the_weakest_filters_go(folder) -> None:
    create()
    first, second = strongest(WEIGHTS["w1"], 4), strongest(WEIGHTS["w2"], 3)
    found = weights("pruned.onnx")
    expected = {
        "w1": WEIGHTS["w1"][first],
        "b1": WEIGHTS["b1"][first],
        "w2": WEIGHTS["w2"][second][:, first],
        "w3": WEIGHTS["w3"][:, second],
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    log = Path("amct_log/amct_onnx.log").read_text()
    assert "[create_prune_retrain_model]: 2 layers pruned" in log


@pytest.mark.parametrize("data", [None, normal(1, 3, 5, 7), (normal(2, 3, 4, 4),), {"x": normal(1, 3, 9, 9)}])
def test_input_data_decides_nothing_but_sizes(folder, data: object) -> None:
    create(input_data=data)
    assert weights("pruned.onnx")["w2"].shape == (3, 4, 1, 1)


def test_the_record_is_that_of_the_command(folder) -> None:
    create()
    amct_onnx.prune("model.onnx", config="prune.cfg").save("m")
    assert Path("record.txt").read_bytes() == Path("m_record.txt").read_bytes()
    assert Path("pruned.onnx").read_bytes() == Path("m_pruned_model.onnx").read_bytes()


class TestFourToTwo:
    """Of every four weights two become zero, where the config says so, beside channels that go elsewhere."""

    SELECTIVE = "prune_config { n_out_of_m_pruner { l1_selective_prune {} } }"
    BOTH = f'{CFG} override_layer_configs {{ layer_name: "last" {SELECTIVE} }}'

    def test_of_four_weights_the_largest_two_stay(self, folder) -> None:
        Path("prune.cfg").write_text(self.SELECTIVE)
        create()
        found = weights("pruned.onnx")
        fours = np.abs(WEIGHTS["w2"]).reshape(6, 2, 4)
        largest = fours >= np.sort(fours, axis=2)[:, :, 2:3]
        np.testing.assert_array_equal(found["w2"], WEIGHTS["w2"] * largest.reshape(6, 8, 1, 1))
        assert "3 layers thinned out" in Path("amct_log/amct_onnx.log").read_text()

    def test_both_in_one_config(self, folder) -> None:
        Path("prune.cfg").write_text(self.BOTH)
        create()
        found = weights("pruned.onnx")
        assert (found["w1"].shape, found["w2"].shape) == ((4, 3, 1, 1), (3, 4, 1, 1))
        # A last group of three loses one.
        assert ((found["w3"] == 0).sum(axis=1) == 1).all()
        log = Path("amct_log/amct_onnx.log").read_text()
        assert "2 layers pruned" in log
        assert "not thinned out" not in log
        assert "not pruned here" not in log

    @pytest.mark.parametrize("config", [SELECTIVE, BOTH])
    def test_restoring(self, folder, config: str) -> None:
        Path("prune.cfg").write_text(config)
        create()
        restore()
        assert Path("restored.onnx").read_bytes() == Path("pruned.onnx").read_bytes()
        sparse = weights("pruned.onnx")
        np.savez("trained.npz", w3=np.ones_like(sparse["w3"]))
        restore(weights_file="trained.npz")
        np.testing.assert_array_equal(weights("restored.onnx")["w3"], sparse["w3"] != 0)

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ("batch_num: 1", "holds no prune_config"),
            (f'{SELECTIVE} skip_layer_types: "Conv"', r"leaves no layer to thin out \(skip_layer_types"),
            (f'{CFG} skip_layer_types: "Conv"', r"leaves no layer to prune \(skip_layer_types"),
        ],
    )
    def test_nothing_to_do(self, folder, config: str, words: str) -> None:
        Path("prune.cfg").write_text(config)
        with pytest.raises(ConfigError, match=rf"prune\.cfg {words}"):
            create()
        assert not Path("pruned.onnx").exists()

    def test_a_record_that_takes_nothing_out(self, folder) -> None:
        entry = 'record { key: "first" value { scale_d: 1 offset_d: 0 scale_w: 1 offset_w: 0 } }'
        Path("record.txt").write_text(entry)
        with pytest.raises(RecordError, match=r"record\.txt: it holds no prune_record"):
            restore()


def test_restoring_gives_the_same_model(folder) -> None:
    create()
    restore()
    assert Path("restored.onnx").read_bytes() == Path("pruned.onnx").read_bytes()


@pytest.mark.parametrize("ending", ["npz", "onnx"])
def test_restoring_takes_trained_weights(folder, ending: str) -> None:
    create()
    trained = {name: normal(*values.shape, seed=9) for name, values in weights("pruned.onnx").items()}
    kept = trained.pop("b1")
    if ending == "npz":
        np.savez("trained.npz", **trained)
    else:
        model = parse("y = Conv(x, w1)", "float[n,3,h,w] x", "float[n,4,h,w] y", trained)
        onnx.save(model, "trained.onnx")
    restore(weights_file=f"trained.{ending}")
    found = weights("restored.onnx")
    for name, values in trained.items():
        np.testing.assert_array_equal(found[name], values)
    np.testing.assert_array_equal(found["b1"], weights("pruned.onnx")["b1"])
    assert not np.array_equal(found["b1"], kept)
    assert run(folder / "restored.onnx", {"x": normal(1, 3, 4, 4)})[0].shape == (1, 4, 4, 4)


def test_both_saved_models_hold_the_pruned_one(folder) -> None:
    create()
    amct_onnx.save_prune_retrain_model("pruned.onnx", "out/net", normal(1, 3, 5, 7))
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "net_deploy_model.onnx",
        "net_fake_quant_model.onnx",
    ]
    assert Path("out/net_deploy_model.onnx").read_bytes() == Path("out/net_fake_quant_model.onnx").read_bytes()
    feed = {"x": normal(2, 3, 6, 6)}
    np.testing.assert_array_equal(
        run(folder / "out/net_deploy_model.onnx", feed)[0], run(folder / "pruned.onnx", feed)[0]
    )
    assert "The model file is saved in out/net_deploy_model.onnx" in Path("amct_log/amct_onnx.log").read_text()


def test_saved_models_keep_external_weights_apart(folder) -> None:
    model = onnx.load("model.onnx")
    onnx.save(model, "big.onnx", save_as_external_data=True, location="big.data", size_threshold=0)
    create(model_file="big.onnx")
    amct_onnx.save_prune_retrain_model("pruned.onnx", "out/net")
    feed = {"x": normal(2, 3, 6, 6)}
    found = [run(folder / "out" / f"net_{kind}_model.onnx", feed)[0] for kind in ("deploy", "fake_quant")]
    np.testing.assert_array_equal(found[0], found[1])


FAULTS = [
    ({"model_file": "no.onnx"}, ModelError, r"no\.onnx: cannot read"),
    ({"model_file": None}, UsageError, "create_prune_retrain_model: model_file is None, but it is the path"),
    ({"config_defination": None}, UsageError, "create_prune_retrain_model: config_defination is None"),
    ({"record_file": 3}, UsageError, "create_prune_retrain_model: record_file is 3"),
    ({"modified_onnx_file": None}, UsageError, "create_prune_retrain_model: modified_onnx_file is None"),
    ({"config_defination": "no.cfg"}, ConfigError, r"no\.cfg cannot be read"),
    ({"config_defination": "all.cfg"}, ConfigError, r"all\.cfg, line 2: retrain_weight_quant_config is not taken"),
    ({"modified_onnx_file": "model.onnx"}, UsageError, "would overwrite an input"),
    ({"record_file": "prune.cfg"}, UsageError, "would overwrite an input"),
    ({"record_file": "same", "modified_onnx_file": "same"}, UsageError, "two outputs"),
    ({"input_data": {"z": normal(1)}}, DataError, "'z', which is no input"),
]


@pytest.mark.parametrize(("changes", "kind", "words"), FAULTS)
def test_faults_leave_nothing(folder, changes: dict[str, object], kind: type[AmctError], words: str) -> None:
    Path("all.cfg").write_text(CFG + "\nretrain_weight_quant_config { arq_retrain {} }")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(kind, match=words):
        create(**changes)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "amct_log"} == before


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"record_file": "no.txt"}, RecordError, r"no\.txt"),
        ({"config_defination": "bad.cfg"}, ConfigError, r"bad\.cfg, line 1, .secnd.: .*did you mean .second"),
        ({"weights_file": "no.npz"}, DataError, r"no\.npz cannot be read: No such file"),
        ({"weights_file": "prune.cfg"}, DataError, r"prune\.cfg is no file of arrays by name"),
        ({"weights_file": "single.npy"}, DataError, r"single\.npy is no file of arrays by name"),
        ({"weights_file": "name.npz"}, DataError, r"it holds 'w11', which is no weight .*did you mean 'w1'"),
        (
            {"weights_file": "whole.npz"},
            DataError,
            r"'w1' is 8x3x1x1 float32, but .* has 4x3x1x1 float32",
        ),
        (
            {"weights_file": "double.npz"},
            DataError,
            r"'w1' is 4x3x1x1 float64, but .* has 4x3x1x1 float32",
        ),
        ({"weights_file": "empty.npz"}, DataError, r"empty\.npz: it holds no weights"),
        ({"weights_file": "diverged.npz"}, DataError, r"diverged\.npz: 1 of the 12 values of 'w1' are NaN or infinite"),
        ({"config_defination": "none.cfg"}, ConfigError, r"none\.cfg holds no prune_config"),
        ({"modified_onnx_file": "record.txt"}, UsageError, "would overwrite an input"),
    ],
)
def test_faults_in_restoring(folder, changes: dict[str, object], kind: type[AmctError], words: str) -> None:
    create()
    Path("bad.cfg").write_text('skip_layers: "secnd"')
    np.save("single.npy", WEIGHTS["w1"])
    np.savez("name.npz", w11=WEIGHTS["w1"])
    np.savez("whole.npz", **WEIGHTS)
    np.savez("double.npz", w1=np.zeros((4, 3, 1, 1)))
    np.savez("empty.npz")
    np.savez("diverged.npz", w1=np.where(np.arange(12) == 5, np.nan, 1).astype(np.float32).reshape(4, 3, 1, 1))
    Path("none.cfg").write_text('regular_prune_skip_layers: "last"')
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(kind, match=words):
        restore(**changes)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_mask_may_be_infinite_where_the_model_has_it_so(folder) -> None:
    """An .onnx file of trained weights holds all initializers, masks included."""
    mask = {"m": np.array([0, -np.inf, 0, 0], np.float32).reshape(1, 4, 1, 1)}
    nodes = NET.replace("y = Conv(c, w3)", "d = Conv(c, w3) y = Add(d, m)")
    onnx.save(parse(nodes, "float[n,3,h,w] x", "float[n,4,h,w] y", {**WEIGHTS, **mask}), "model.onnx")
    create()
    restore(weights_file="pruned.onnx", modified_onnx_file="again.onnx")
    np.testing.assert_array_equal(weights("again.onnx")["m"], mask["m"])


@pytest.mark.parametrize("path", ["pruned_deploy_model.onnx", "pruned_fake_quant_model.onnx"])
def test_saving_never_overwrites_its_source(folder, path: str) -> None:
    create(modified_onnx_file=path)
    before = Path(path).read_bytes()
    with pytest.raises(UsageError, match="would overwrite an input"):
        amct_onnx.save_prune_retrain_model(path, "pruned")
    assert Path(path).read_bytes() == before
