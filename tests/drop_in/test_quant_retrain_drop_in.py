"""AMCT's functions for quantization-aware training, on ONNX files: config, model, restoring, saving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import amct_onnx
from amct_onnx.cli.main import main
from amct_onnx.errors import AmctError, ConfigError, DataError, ModelError, RecordError, UsageError
from amct_onnx.record import load_record
from tests.models import Array, initializers, normal, parse, run

WEIGHTS = {"w1": normal(16, 4, 1, 1), "w2": normal(16, 16, 1, 1, seed=1), "w3": normal(4, 16, 1, 1, seed=2)}
NET = parse(
    "[first] a = Conv(x, w1) [relu] b = Relu(a) [second] c = Conv(b, w2) [last] y = Conv(c, w3)",
    "float[n,4,8,8] x",
    "float[n,4,8,8] y",
    WEIGHTS,
)
QUANT = 'batch_num: 2\nquant_skip_layers: "last"\nretrain_weight_quant_config { arq_retrain { channel_wise: true } }\n'
FILTERS = (
    "prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 ascend_optimized: False } } }"
)
SELECTIVE = "prune_config { n_out_of_m_pruner { l1_selective_prune {} } }"
BOTH = f'{FILTERS} override_layer_configs {{ layer_name: "second" {SELECTIVE} }}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model and a config."""
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "model.onnx")
    Path("quant.cfg").write_text(QUANT)
    return tmp_path


def feeds() -> list[dict[str, Array]]:
    return [{"x": normal(8, 4, 8, 8, seed=seed)} for seed in range(2)]


def weights(path: str) -> dict[str, Array]:
    return initializers(onnx.load(path))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class TestConfig:
    def test_every_layer_by_defaults(self, folder) -> None:
        amct_onnx.create_quant_retrain_config("config.json", "model.onnx", normal(1, 4, 8, 8))
        layer = {
            "retrain_enable": True,
            "retrain_data_config": {"algo": "ulq_quantize", "dst_type": "INT8"},
            "retrain_weight_config": {"algo": "arq_retrain", "channel_wise": True, "dst_type": "INT8"},
        }
        assert json.loads(Path("config.json").read_text()) == {
            "version": 1,
            "batch_num": 1,
            **dict.fromkeys(("first", "last", "second"), layer),
        }
        assert "Create quant retrain config file config.json success" in Path("amct_log/amct_onnx.log").read_text()

    def test_a_simple_config_decides(self, folder) -> None:
        amct_onnx.create_quant_retrain_config("config.json", "model.onnx", config_defination="quant.cfg")
        found = json.loads(Path("config.json").read_text())
        assert (found["batch_num"], found["last"]) == (2, {"retrain_enable": False})
        assert found["first"]["retrain_weight_config"]["channel_wise"] is True

    def test_layers_that_cannot_be_quantized_are_not_enabled(self, folder) -> None:
        """A weight that is computed from the model's input is no weight."""
        model = parse(
            "[kept] a = Conv(x, w) [odd] y = Conv(a, v)",
            "float[n,4,8,8] x, float[4,4,1,1] v",
            "float[n,4,8,8] y",
            {"w": normal(4, 4, 1, 1)},
        )
        onnx.save(model, "odd.onnx")
        amct_onnx.create_quant_retrain_config("config.json", "odd.onnx")
        found = json.loads(Path("config.json").read_text())
        assert {name: found[name]["retrain_enable"] for name in ("kept", "odd")} == {"kept": True, "odd": False}
        Path("odd.cfg").write_text(
            'override_layer_configs { layer_name: "odd" retrain_weight_quant_config { arq_retrain {} } }'
        )
        with pytest.raises(ConfigError, match=r"odd\.cfg, line 1, .odd.: the layer cannot be quantized: .*; delete"):
            amct_onnx.create_quant_retrain_config("config.json", "odd.onnx", config_defination="odd.cfg")

    @pytest.mark.parametrize(
        ("changes", "kind", "words"),
        [
            ({"config_file": None}, UsageError, "create_quant_retrain_config: config_file is None"),
            ({"config_file": "model.onnx"}, UsageError, "would overwrite an input"),
            ({"config_file": "prune.cfg"}, UsageError, "would overwrite an input"),
            ({"model_file": "no.onnx"}, ModelError, r"no\.onnx: cannot read"),
            ({"config_defination": "no.cfg"}, ConfigError, r"no\.cfg cannot be read"),
            ({}, ConfigError, r"prune\.cfg, line 1: prune_config is not taken, since layers are only quantized here"),
            (
                {"config_defination": "none.cfg"},
                ConfigError,
                r"none\.cfg leaves no layer to quantize \(skip_layer_types",
            ),
        ],
    )
    def test_faults_leave_nothing(self, folder, changes: dict[str, Any], kind: type[AmctError], words: str) -> None:
        Path("prune.cfg").write_text(FILTERS)
        Path("none.cfg").write_text('skip_layer_types: "Conv"')
        before = contents(folder)
        arguments = {"config_file": "config.json", "model_file": "model.onnx", "config_defination": "prune.cfg"}
        with pytest.raises(kind, match=words):
            amct_onnx.create_quant_retrain_config(**{**arguments, **changes})
        assert contents(folder) == before


@pytest.fixture
def created(folder):
    """The same with everything that the first two functions write."""
    amct_onnx.create_quant_retrain_config("config.json", "model.onnx", config_defination="quant.cfg")
    amct_onnx.create_quant_retrain_model("config.json", "model.onnx", "record.txt", feeds(), "modified.onnx")
    return folder


def restore(config: str = "config.json", model: str = "model.onnx", data: Any = None, file: str | None = None) -> None:
    amct_onnx.restore_quant_retrain_model(config, model, "record.txt", data, file, "restored.onnx")


def test_the_model_keeps_its_weights_and_the_record_has_their_scales(created) -> None:
    for name, values in weights("modified.onnx").items():
        np.testing.assert_array_equal(values, WEIGHTS[name])
    layers = load_record("record.txt").record.layers
    assert set(layers) == {"first", "second"}
    filters = WEIGHTS["w1"].reshape(16, -1)
    expected = np.maximum(filters.max(axis=1) / 127, -filters.min(axis=1) / 128)
    np.testing.assert_allclose(layers["first"].scale_w, expected, rtol=1e-6)


@pytest.mark.parametrize("config", ["quant.cfg", "config.json"])
def test_both_forms_of_the_config_give_the_same_files(created, config: str) -> None:
    amct_onnx.create_quant_retrain_model(config, "model.onnx", "r.txt", feeds(), "m.onnx")
    assert Path("r.txt").read_bytes() == Path("record.txt").read_bytes()
    assert Path("m.onnx").read_bytes() == Path("modified.onnx").read_bytes()


def test_the_saved_models_are_those_of_one_call(created) -> None:
    amct_onnx.save_quant_retrain_model("config.json", "modified.onnx", "record.txt", "out/m")
    whole = amct_onnx.compress("model.onnx", feeds(), config="config.json", formats=("ascend", "fake_quant"))
    paths = whole.result.save("whole/m")
    assert Path("out/m_deploy_model.onnx").read_bytes() == paths["ascend"].read_bytes()
    assert Path("out/m_fake_quant_model.onnx").read_bytes() == paths["fake_quant"].read_bytes()


def test_restoring_gives_the_same_bytes(created) -> None:
    before = contents(created)
    restore()
    restore(model="modified.onnx")
    restore(file="modified.onnx")
    assert contents(created) == {**before, "restored.onnx": before["modified.onnx"]}


def test_trained_weights_get_scales_of_their_own(created) -> None:
    trained = {"w1": normal(16, 4, 1, 1, seed=7) * 3}
    np.savez("trained.npz", **trained)
    before = contents(created)
    with pytest.raises(UsageError, match=r"input_data is None, but the weights are not those that record\.txt"):
        restore(file="trained.npz")
    assert contents(created) == before
    restore(file="trained.npz", data=feeds())
    np.testing.assert_array_equal(weights("restored.onnx")["w1"], trained["w1"])
    np.testing.assert_array_equal(weights("restored.onnx")["w2"], WEIGHTS["w2"])
    # The same as if the model had been trained before.
    renewed = Path("record.txt").read_bytes()
    amct_onnx.create_quant_retrain_model("config.json", "restored.onnx", "r.txt", feeds(), "m.onnx")
    assert Path("r.txt").read_bytes() == renewed
    amct_onnx.save_quant_retrain_model("config.json", "restored.onnx", "record.txt", "out/m")
    fed = feeds()[0]
    want, got = (run(created / path, fed)[0] for path in ("restored.onnx", "out/m_fake_quant_model.onnx"))
    assert np.square(want - got).sum() < 1e-2 * np.square(want).sum()


def test_scales_need_data(folder) -> None:
    arguments = ("record.txt", None, "modified.onnx")
    with pytest.raises(UsageError, match="create_quant_retrain_model: input_data is None, but layers are quantized by"):
        amct_onnx.create_quant_retrain_model("quant.cfg", "model.onnx", *arguments)
    with pytest.raises(UsageError, match="create_compressed_retrain_model: input_data is None"):
        amct_onnx.create_compressed_retrain_model("model.onnx", None, "quant.cfg", "record.txt", "modified.onnx")
    assert not Path("modified.onnx").exists()


def test_what_does_not_fit_is_refused(created) -> None:
    np.savez("wrong.npz", w9=WEIGHTS["w1"])
    Path("other.json").write_text('{"frist": {"retrain_enable": true}}')
    before = contents(created)
    with pytest.raises(DataError, match=r"wrong\.npz: it holds 'w9', which is no weight of the model"):
        restore(file="wrong.npz", data=feeds())
    with pytest.raises(ConfigError, match=r"other\.json, line 1, .frist.: the config names it, .*did you mean .first"):
        restore(config="other.json")
    with pytest.raises(ConfigError, match=r"other\.json, line 1, .frist."):
        amct_onnx.save_quant_retrain_model("other.json", "modified.onnx", "record.txt", "out/m")
    with pytest.raises(UsageError, match="restore_quant_retrain_model: config_file is None"):
        restore(config=None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="would overwrite an input"):
        amct_onnx.restore_quant_retrain_model("config.json", "model.onnx", "record.txt", None, None, "config.json")
    assert contents(created) == before


def test_a_record_of_another_model_is_not_restored(created) -> None:
    other = parse(
        "[first] a = Conv(x, w1) [second] y = Conv(a, w2)",
        "float[n,4,8,8] x",
        "float[n,16,8,8] y",
        {"w1": WEIGHTS["w1"], "w2": WEIGHTS["w2"]},
    )
    onnx.save(other, "other.onnx")
    Path("other.cfg").write_text("batch_num: 2")
    before = contents(created)
    with pytest.raises(RecordError, match=r"record\.txt: the record was made for another model"):
        restore(config="other.cfg", model="other.onnx", data=feeds())
    assert contents(created) == before


class TestCompressed:
    """Restoring what was pruned and quantized."""

    @pytest.fixture(
        params=[FILTERS, SELECTIVE, FILTERS + f'override_layer_configs {{ layer_name: "second" {SELECTIVE} }}']
    )
    def made(self, folder, request):
        Path("all.cfg").write_text(f"{QUANT}{request.param}")
        amct_onnx.create_compressed_retrain_model("model.onnx", feeds(), "all.cfg", "record.txt", "modified.onnx")
        return folder

    def restore(self, model: str, file: str | None, data: Any = None) -> None:
        amct_onnx.restore_compressed_retrain_model(model, data, "all.cfg", "record.txt", file, "restored.onnx")

    @pytest.mark.parametrize(("model", "file"), [("modified.onnx", None), ("model.onnx", "modified.onnx")])
    def test_the_same_bytes(self, made, model: str, file: str | None) -> None:
        before = contents(made)
        self.restore(model, file)
        assert contents(made) == {**before, "restored.onnx": before["modified.onnx"]}

    def test_fitted_weights_are_in_no_record(self, made) -> None:
        before = contents(made)
        with pytest.raises(RecordError, match=r"record\.txt: weights were modified .* as weights_file"):
            self.restore("model.onnx", None)
        assert contents(made) == before

    def test_trained_weights_keep_the_structure_and_get_new_scales(self, made) -> None:
        structure = weights("modified.onnx")
        trained = {name: normal(*values.shape, seed=3) for name, values in structure.items()}
        np.savez("trained.npz", **trained)
        old = load_record("record.txt").record
        self.restore("model.onnx", "trained.npz", feeds())
        found = weights("restored.onnx")
        masked = [name for name in structure if (structure[name] == 0).any()]
        for name, values in structure.items():
            expected = trained[name] * (values != 0) if name in masked else trained[name]
            np.testing.assert_array_equal(found[name], expected)
        new = load_record("record.txt").record
        assert new.prune == old.prune
        scales = [record.layers["first"].scale_w for record in (old, new)]
        assert scales[0] != scales[1]
        amct_onnx.save_compressed_retrain_model("restored.onnx", "record.txt", "out/m")
        fed = feeds()[0]
        want, got = (run(made / path, fed)[0] for path in ("restored.onnx", "out/m_fake_quant_model.onnx"))
        assert np.square(want - got).sum() < 1e-2 * np.square(want).sum()


def test_the_record_alone_restores_what_was_not_fitted(folder) -> None:
    Path("all.cfg").write_text(QUANT + FILTERS)
    done = amct_onnx.compress("model.onnx", feeds(), config="all.cfg", recover=False, formats=("ascend",))
    paths = done.result.save("all")
    amct_onnx.restore_compressed_retrain_model(
        "model.onnx", None, "all.cfg", str(paths["record"]), None, "restored.onnx"
    )
    assert Path("restored.onnx").read_bytes() == paths["modified"].read_bytes()


def test_the_commands_take_the_json(created, capsys) -> None:
    assert main(["config", "show", "config.json", "--model", "model.onnx"]) == 0
    out = capsys.readouterr().out
    assert "0 of 3 layers are to be pruned, 2 quantized" in out
    assert "no: retrain_enable, line" in out
    Path("data").mkdir()
    for number, feed in enumerate(feeds()):
        np.savez(f"data/{number}.npz", **feed)
    assert main(["compress", "model.onnx", "--config", "config.json", "--data", "data", "-o", "out/m"]) == 0
    assert Path("out/m_record.txt").read_bytes() == Path("record.txt").read_bytes()
    capsys.readouterr()
    assert main(["quantize", "model.onnx", "--config", "config.json", "--data", "data", "-o", "out/q"]) == 2
    assert "config.json is a config of pruning and training" in capsys.readouterr().err
    assert main(["prune", "model.onnx", "--config", "config.json", "-o", "out/p"]) == 2
    assert (
        'config.json, line 6, "first": retrain_data_config, retrain_weight_config (line 10)' in capsys.readouterr().err
    )
