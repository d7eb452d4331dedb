"""Pruning by AMCT's retrain config: what goes of real models, and what the report says of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from onnx import ModelProto, numpy_helper

from amct_onnx import ConfigError, ModelError, PruneResult, UsageError, prune, resolve_prune_config, sparsify
from amct_onnx.api import trial
from amct_onnx.config.retrain import FilterPruning, parse_retrain_request
from amct_onnx.errors import NothingToCompressError
from tests.config.retrain_examples import EXAMPLES, with_names
from tests.models import normal, parse

QUANTIZE = "quantize the result, or let `amct_onnx compress` do everything"
# Three layers in a row and a fourth, whose channels are the model's results.
CHAIN = parse(
    """[stem] a = Conv(x, w1) [relu] b = Relu(a) [up] c = ConvTranspose(b, w2) [mid] d = Conv(c, w3)
       [pool] e = AveragePool<kernel_shape = [8,8]>(d) [flat] f = Flatten(e) [head] y = Gemm<transB = 1>(f, w4)""",
    "float[n,3,8,8] x",
    "float[n,k] y",
    {"w1": normal(64, 3, 1, 1), "w2": normal(64, 32, 1, 1), "w3": normal(48, 32, 1, 1), "w4": normal(5, 48)},
)
# Two layers that share their channels.
SUM = parse(
    "[left] a = Conv(x, w1) [right] b = Conv(x, w2) [sum] c = Add(a, b) [last] y = Conv(c, w3)",
    "float[n,3,8,8] x",
    "float[n,4,8,8] y",
    {"w1": normal(40, 3, 1, 1, seed=1), "w2": normal(40, 3, 1, 1, seed=2), "w3": normal(4, 40, 1, 1, seed=3)},
)


def filters(ratio: float, *, aligned: bool = False) -> str:
    flag = f"ascend_optimized: {str(aligned).lower()}"
    return f"prune_config {{ filter_pruner {{ balanced_l2_norm_filter_prune {{ prune_ratio: {ratio} {flag} }} }} }}"


def of_layer(name: str, inner: str) -> str:
    return f'override_layer_configs {{ layer_name: "{name}" {inner} }}'


def pruned(model: ModelProto, text: str) -> PruneResult:
    return prune(model, config=parse_retrain_request(text, source="my.cfg"))


def channels(result: PruneResult) -> Mapping[str, int]:
    """Output channels of each layer, by the sizes of the weights that were written."""
    proto = result.model.to_proto()
    sizes = {tensor.name: numpy_helper.to_array(tensor).shape for tensor in proto.graph.initializer}
    found = {}
    for node in proto.graph.node:
        if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
            found[node.name] = sizes[node.input[1]][1 if node.op_type == "ConvTranspose" else 0]
    return found


def test_each_layer_loses_what_its_block_says() -> None:
    text = filters(0.25) + of_layer("up", filters(0.5)) + of_layer("mid", filters(0.5, aligned=True))
    # 64 - 16; 32 - 16; of 48, 24 would stay, and of multiples of 16 that is 32.
    assert channels(pruned(CHAIN, text)) == {"stem": 48, "up": 16, "mid": 32, "head": 5}


def test_alignment_is_on_unless_said() -> None:
    text = filters(0.3).replace("ascend_optimized: false", "")
    # 64 - 19 = 45 -> 48, 32 - 10 = 22 -> 32, 48 - 14 = 34 -> 48.
    assert channels(pruned(CHAIN, text)) == {"stem": 48, "up": 32, "mid": 48, "head": 5}


def test_the_same_as_by_arguments() -> None:
    by_config = pruned(CHAIN, filters(0.3) + 'skip_layers: "up"')
    by_arguments = prune(CHAIN, ratio=0.3, skip=["up"])
    assert by_config.record == by_arguments.record
    assert by_config.model.to_proto() == by_arguments.model.to_proto()


def test_what_no_block_names_stays() -> None:
    result = pruned(CHAIN, of_layer("up", filters(0.5)))
    assert channels(result) == {"stem": 64, "up": 16, "mid": 48, "head": 5}
    assert {group.layers[0]: group.reason for group in result.report.groups}["stem"] == "the config does not prune it"


def test_layers_that_share_channels_lose_the_smaller_share() -> None:
    result = pruned(SUM, of_layer("left", filters(0.5)) + of_layer("right", filters(0.25)))
    assert channels(result) == {"left": 30, "right": 30, "last": 4}


@pytest.mark.parametrize("field", ["skip_layers", "regular_prune_skip_layers"])
def test_a_skipped_layer_keeps_those_that_share_its_channels(field: str) -> None:
    text = f'{filters(0.5)}\n{field}: "right"'
    with pytest.raises(ConfigError) as caught:
        pruned(SUM, text)
    assert f"it shares channels with 'right', which stays: {field}, line 2" in str(caught.value)
    config = resolve_prune_config(SUM, parse_retrain_request(text))
    assert {name: layer.why_whole for name, layer in config.layers.items()} == {
        "left": f"it shares channels with 'right', which stays: {field}, line 2",
        "right": f"{field}, line 2",
        "last": "it is the model's output 'y'",
    }


def test_the_config_shows_where_alignment_leaves_nothing_to_go() -> None:
    """Of 64 channels 45 stay, 48 aligned; of 32 the 22 that stay become all."""
    config = resolve_prune_config(CHAIN, parse_retrain_request(filters(0.3, aligned=True)))
    assert {name: layer.why_none for name, layer in config.layers.items() if layer.pruning} == {
        "stem": "",
        "up": "a multiple of 16 stays for Ascend devices, and of 32 channels that is all",
        "mid": "a multiple of 16 stays for Ascend devices, and of 48 channels that is all",
    }
    assert channels(prune(CHAIN, config=config)) == {"stem": 48, "up": 32, "mid": 48, "head": 5}
    few = resolve_prune_config(CHAIN, parse_retrain_request(filters(0.001)))
    assert few.layers["stem"].why_none == "0.001 of 64 channels rounds to none"


def test_the_config_shows_which_layers_share_channels() -> None:
    layers = resolve_prune_config(SUM, parse_retrain_request(filters(0.5))).layers
    assert {name: layer.shares for name, layer in layers.items()} == {
        "left": ("right",),
        "right": ("left",),
        "last": (),
    }


DEPTHWISE = parse(
    "[first] a = Conv(x, w1) [relu] r = Relu(a) [deep] b = Conv<group = 8>(r, w2) [last] y = Conv(b, w3)",
    "float[n,3,8,8] x",
    "float[n,4,8,8] y",
    {"w1": normal(8, 3, 1, 1), "w2": normal(8, 1, 1, 1), "w3": normal(4, 8, 1, 1)},
)


def test_a_depthwise_convolution_goes_with_the_channels_it_reads() -> None:
    result = pruned(DEPTHWISE, filters(0.5) + of_layer("deep", filters(0.25)))
    assert channels(result) == {"first": 4, "deep": 4, "last": 4}
    assert any("its channels go with those that it reads" in note for note in result.report.notes)


def test_skipping_a_depthwise_convolution_keeps_the_channels_that_pass_through_it() -> None:
    text = f'{filters(0.5)} regular_prune_skip_layers: "deep"'
    with pytest.raises(ConfigError, match="its channels pass through 'deep', which stays: regular_prune_skip_layers"):
        pruned(DEPTHWISE, text)
    with pytest.raises(NothingToCompressError, match="'first': it is skipped on request"):
        prune(DEPTHWISE, ratio=0.5, skip=["deep"])
    layers = resolve_prune_config(DEPTHWISE, parse_retrain_request(text)).layers
    assert [name for name, layer in layers.items() if layer.pruning] == []


@pytest.mark.parametrize("compressed", [partial(prune, ratio=0.5), sparsify])
def test_what_is_no_layer_cannot_be_skipped(compressed: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match="'relu' is a Relu, which has no weight"):
        compressed(DEPTHWISE, skip=["relu"])


def test_what_is_not_done_is_said() -> None:
    text = f"""{filters(0.5)}
        {of_layer("mid", "prune_config { n_out_of_m_pruner { l1_selective_prune {} } }")}
        retrain_weight_quant_config {{ arq_retrain {{}} }} quant_skip_types: ["Gemm", "AveragePool", "Conv"]"""
    # A config that was resolved for everything may be given to one step after the other.
    config = resolve_prune_config(CHAIN, parse_retrain_request(text, source="my.cfg"))
    result = prune(CHAIN, config=config)
    assert channels(result) == {"stem": 32, "up": 16, "mid": 48, "head": 5}
    assert result.report.notes == (
        "my.cfg: 'mid' is not thinned out 4:2 here; `amct_onnx sparsify` does that",
        f"my.cfg: 'up' is not quantized here; {QUANTIZE}",
    )
    reasons = {group.layers[0]: group.reason for group in result.report.groups}
    assert reasons["mid"] == "'mid' is to be thinned out 4:2 instead"


def test_with_data_channels_are_chosen_by_it_and_the_rest_is_fitted() -> None:
    feeds = [{"x": normal(4, 3, 8, 8, seed=seed)} for seed in range(3)]
    text = filters(0.25) + "regular_prune_skip_types: 'ConvTranspose'"
    result = prune(CHAIN, feeds, config=parse_retrain_request(text))
    assert channels(result) == {"stem": 48, "up": 32, "mid": 36, "head": 5}
    assert result.report.fitted


class TestPublishedExamples:
    """With real names in place of the placeholders."""

    def test_prune(self) -> None:
        text = with_names(EXAMPLES["prune.cfg"], "stem", "head", "mid")
        # Aligned: of 32 the 22 that stay become 32; half of 48 become 32.
        assert channels(pruned(CHAIN, text)) == {"stem": 64, "up": 32, "mid": 32, "head": 5}

    def test_what_compressed_prunes(self) -> None:
        text = with_names(EXAMPLES["compressed1.cfg"], "Gemm", "stem", "AveragePool", "ConvTranspose")
        config = resolve_prune_config(CHAIN, parse_retrain_request(text, source="my.cfg"))
        result = prune(CHAIN, config=config)
        # 64 - 19 = 45 -> 48, half of 32, 48 - 14 = 34 -> 48.
        assert channels(result) == {"stem": 48, "up": 16, "mid": 48, "head": 5}
        assert result.report.notes[-1] == (f"my.cfg: each of 2 layers, like 'up', is not quantized here; {QUANTIZE}")

    @pytest.mark.parametrize(
        ("name", "names", "words"),
        [
            ("selective_prune.cfg", ("stem", "head", "mid"), "asks for 4:2 sparsity alone"),
            ("compressed2.cfg", ("Gemm", "stem", "AveragePool", "ConvTranspose"), ", line 13: quant_skip_layers"),
            ("quant.cfg", ("ConvTranspose", "mid"), ", line 2: retrain_data_quant_config"),
        ],
    )
    def test_the_others_prune_no_channels(self, name: str, names: tuple[str, ...], words: str) -> None:
        with pytest.raises(ConfigError, match=f"my.cfg ?{words}"):
            pruned(CHAIN, with_names(EXAMPLES[name].replace("conv_1", "stem"), *names))

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_verbatim_all_placeholders_are_told(self, name: str) -> None:
        with pytest.raises(ConfigError, match=r"faults:\n  line \d+[,:] "):
            prune(CHAIN, config=parse_retrain_request(EXAMPLES[name]))


@pytest.mark.parametrize("given", [{"ratio": 0.5}, {"ascend_optimized": True}, {"skip": ["mid"]}])
def test_arguments_that_a_config_decides(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"config and {next(iter(given))} exclude each other"):
        prune(CHAIN, config=parse_retrain_request(filters(0.5)), **given)


def test_saving_never_overwrites_the_config(tmp_path) -> None:
    path = tmp_path / "m_record.txt"
    path.write_text(filters(0.5))
    with pytest.raises(UsageError, match="would overwrite an input"):
        prune(CHAIN, config=path).save(tmp_path / "m")
    assert path.read_text() == filters(0.5)


def test_a_resolved_config_works_for_its_model_alone() -> None:
    resolved = resolve_prune_config(CHAIN, parse_retrain_request(filters(0.25)))
    assert resolved.pruned()["up"] == FilterPruning(ratio=0.25, ascend_optimized=False)
    assert channels(prune(CHAIN, config=resolved)) == {"stem": 48, "up": 24, "mid": 36, "head": 5}
    with pytest.raises(ConfigError, match="was resolved for another model: only one of them has layer 'head'"):
        prune(SUM, config=resolved)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (1, "0.01 of 8 channels rounds to none"),
        (2, "0.01 of 8 channels in 2 equal blocks is less than one of each"),
    ],
)
def test_a_ratio_too_small_for_any_channel(groups: int, words: str) -> None:
    model = parse(
        f"[first] a = Conv<group = {groups}>(x, w) [last] y = Conv(a, v)",
        "float[n,4,8,8] x",
        "float[n,4,8,8] y",
        {"w": normal(8, 4 // groups, 1, 1), "v": normal(4, 8, 1, 1)},
    )
    with pytest.raises(NothingToCompressError, match=f"'first': {words};"):
        prune(model, ratio=0.01)


def test_speeds_are_those_of_the_fastest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine slows single runs down, and none is faster than it can be."""
    monkeypatch.setattr(trial, "time_runs", lambda *_, **__: {"float": [2.0, 9.0, 9.0], "tried": [90.0, 1.0, 90.0]})
    result = prune(CHAIN, [{"x": normal(4, 3, 8, 8)}], ratio=0.5)
    assert [one.speed_up for one in result.report.trials] == [2.0]


def test_a_result_is_no_model() -> None:
    result = prune(CHAIN, ratio=0.5)
    with pytest.raises(ModelError, match=r"the model is a BuiltModel; give a path or a ModelProto .*to_proto"):
        prune(result.model, ratio=0.5)
