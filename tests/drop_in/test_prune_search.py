"""``auto_channel_prune_search`` on ONNX files."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx import demo
from amct_onnx.errors import AmctError, ConfigError, DataError, UsageError
from tests.models import Array, normal, parse

NET = parse(
    "[first] a = Conv(x, w1, b1) [relu] b = Relu(a) [second] c = Conv(b, w2) [last] y = Conv(c, w3)",
    "float[n,3,h,w] x",
    "float[n,4,h,w] y",
    {
        "w1": normal(32, 3, 1, 1),
        "b1": normal(32, seed=4),
        "w2": normal(48, 32, 1, 1, seed=1),
        "w3": normal(4, 48, 1, 1, seed=2),
    },
)
PAIRS = [(normal(2, 3, 6, 6, seed=seed), np.array([1, 2])) for seed in range(4)]
TEXT = "compress_ratio: 1.5 ascend_optimized: false test_iteration: 4"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model and a config."""
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "model.onnx")
    Path("auto.cfg").write_text(TEXT)
    return tmp_path


def search(**changes: Any) -> str:
    """The config that is found."""
    arguments: dict[str, Any] = {
        "model": "model.onnx",
        "config": "auto.cfg",
        "input_data": PAIRS,
        "output_cfg": "found.cfg",
    }
    arguments |= changes
    amct_onnx.auto_channel_prune_search(**arguments)
    return Path(arguments["output_cfg"]).read_text()


def sizes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def multiply_adds(model: ModelProto) -> int:
    """Of one place: every convolution here is applied at all of them."""
    return sum(int(np.prod(shape)) for name, shape in sizes(model).items() if name.startswith("w"))


def log() -> str:
    return Path("amct_log/amct_onnx.log").read_text()


def test_the_signature_is_the_documented_one() -> None:
    parameters = inspect.signature(amct_onnx.auto_channel_prune_search).parameters
    defaults = {name: entry.default for name, entry in parameters.items() if entry.default is not entry.empty}
    assert list(parameters) == ["model", "config", "input_data", "output_cfg", "sensitivity", "search_alg"]
    assert defaults == {"sensitivity": "TaylorLossSensitivity", "search_alg": "GreedySearch"}


def test_pruning_by_what_was_found_gives_the_ratio(folder) -> None:
    search()
    amct_onnx.create_prune_retrain_model("model.onnx", None, "found.cfg", "record.txt", "pruned.onnx")
    pruned = onnx.load("pruned.onnx")
    ratio = multiply_adds(NET) / multiply_adds(pruned)
    assert 1.5 <= ratio < 1.65
    assert f"{ratio:.3f} times less, 1.5 asked for, saved in found.cfg" in log()


def test_it_is_the_search_of_prune(folder) -> None:
    text = search()
    again = amct_onnx.prune("model.onnx", [x for x, _ in PAIRS], auto_config="auto.cfg", importance="taylor")
    assert text == again.config_text()


FEEDS = [x for x, _ in PAIRS]


@pytest.mark.parametrize(
    ("data", "says_labels"),
    [
        (PAIRS, True),
        ([[x, label] for x, label in PAIRS], True),
        ([((x,), label) for x, label in PAIRS], True),
        ([({"x": x}, label) for x, label in PAIRS], True),
        (tuple(FEEDS), False),
        ([(x,) for x in FEEDS], False),
        ([{"x": x} for x in FEEDS], False),
        ("feeds", False),
        (Path("feeds"), False),
    ],
)
def test_data_comes_in_many_forms(folder, data: object, says_labels: bool) -> None:
    expected = search(output_cfg="plain.cfg", input_data=list(FEEDS))
    Path("feeds").mkdir()
    for index, x in enumerate(FEEDS):
        np.savez(f"feeds/{index}.npz", x=x)
    Path("amct_log/amct_onnx.log").unlink()
    assert search(input_data=data) == expected
    assert ("labels are not needed" in log()) == says_labels


TWO = parse(
    "a = Add(x, z) [first] b = Conv(a, w1) [last] y = Conv(b, w2)",
    "float[n,3,4,4] x, float[n,3,4,4] z",
    "float[n,4,4,4] y",
    {"w1": normal(16, 3, 1, 1), "w2": normal(4, 16, 1, 1)},
)


def test_a_pair_of_arrays_is_a_feed_of_two_inputs(folder) -> None:
    pairs = [(normal(2, 3, 4, 4, seed=seed), normal(2, 3, 4, 4, seed=9 + seed)) for seed in range(4)]
    found = search(model=TWO, input_data=pairs)
    assert search(model=TWO, input_data=[(pair, 1) for pair in pairs]) == found
    assert search(model=TWO, input_data=[({"x": x, "z": z}, 1) for x, z in pairs]) == found


def test_a_model_in_memory_is_not_changed(folder) -> None:
    model = onnx.load("model.onnx")
    before = model.SerializeToString(deterministic=True)
    assert search(model=model) == search()
    assert model.SerializeToString(deterministic=True) == before


def test_only_the_config_and_the_log_are_written(folder) -> None:
    search()
    assert sorted(path.name for path in folder.iterdir()) == ["amct_log", "auto.cfg", "found.cfg", "model.onnx"]
    search()
    assert "found.cfg is replaced" in log()


class Own(amct_onnx.ChannelSensitivity):
    """Loses nothing with the first layer."""

    def losses(self, group: amct_onnx.ChannelGroup, feeds: Sequence[Any]) -> Array:
        return np.full(group.units, 0.0 if "first" in group.layers else 1.0)


def test_an_object_of_ones_own_tells_what_channels_are_worth(folder) -> None:
    Path("auto.cfg").write_text("compress_ratio: 1.3 ascend_optimized: false")
    text = search(sensitivity=Own())
    assert 'layer_name: "first"' in text
    assert 'regular_prune_skip_layers: "second"' in text


def test_a_small_net_is_not_pruned_far_beyond_what_was_asked_for(folder) -> None:
    model, data = demo.load().model_path, demo.load().calibration_images
    Path("auto.cfg").write_text("compress_ratio: 1.5")
    search(model=model, input_data=[(data[:50], None)])
    result = amct_onnx.prune(model, config="found.cfg")
    ratio = result.report.before.multiply_adds / result.report.after.multiply_adds
    assert 1.5 <= ratio < 1.8


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("compress_ratio: 1", r"auto\.cfg, line 1: compress_ratio is 1, but"),
        ("\n\ncompress_ratio: 500", r"auto\.cfg, line 3: compress_ratio is 500, but at most [\d.]+ is in reach"),
        ("compress_ratio: 2 override_prune_cfg: 'no.cfg'", r"auto\.cfg, line 1: override_prune_cfg: no\.cfg cannot"),
        (
            "prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 } } }",
            r"auto\.cfg is a config of pruning .*`amct_onnx prune` takes it as --config",
        ),
    ],
)
def test_faults_of_the_config(folder, content: str, words: str) -> None:
    Path("auto.cfg").write_text(content)
    with pytest.raises(ConfigError, match=words):
        search()
    assert not Path("found.cfg").exists()


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"sensitivity": "TaylorLoss"}, UsageError, r"sensitivity is 'TaylorLoss'; give 'TaylorLossSensitivity' or an"),
        ({"sensitivity": None}, UsageError, r"sensitivity is None"),
        ({"sensitivity": Own}, UsageError, r"sensitivity is <class"),
        ({"search_alg": "Knapsack"}, UsageError, r"search_alg is 'Knapsack'; there is GreedySearch alone"),
        ({"config": None}, UsageError, "auto_channel_prune_search: config is None, but it is the path of a file"),
        ({"output_cfg": 3}, UsageError, "output_cfg is 3"),
        ({"input_data": None}, UsageError, "input_data is None"),
        ({"input_data": []}, DataError, "no feed"),
        ({"input_data": normal(2, 3, 6, 6)}, DataError, "iterable of feeds, not ndarray"),
        ({"input_data": [normal(2, 4, 6, 6)]}, DataError, r"shape \[2, 4, 6, 6\] does not fit"),
        ({"input_data": iter(PAIRS)}, DataError, "generator"),
        ({"input_data": "nowhere"}, DataError, "nowhere: no such file or folder"),
        ({"config": "no.cfg"}, ConfigError, r"no\.cfg cannot be read"),
        ({"output_cfg": "auto.cfg"}, UsageError, r"auto\.cfg: this output would overwrite an input"),
        ({"output_cfg": "model.onnx"}, UsageError, r"model\.onnx: this output would overwrite an input"),
        ({"model": "no.onnx"}, AmctError, r"no\.onnx: cannot read"),
        ({"output_cfg": "auto.cfg/found.cfg"}, UsageError, r"auto\.cfg: cannot write here"),
    ],
)
def test_faults_leave_nothing(folder, changes: dict[str, Any], kind: type[AmctError], words: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(kind, match=words):
        amct_onnx.auto_channel_prune_search(
            **{
                "model": "model.onnx",
                "config": "auto.cfg",
                "input_data": PAIRS,
                "output_cfg": "found.cfg",
                **changes,
            }
        )
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "amct_log"} == before
