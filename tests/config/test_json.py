"""JSON configs: the text written, what reading asks of it, and the round trip."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from amct_onnx.config import (
    ActivationAlgorithm,
    ActivationOptions,
    LayerConfig,
    LayerOptions,
    QuantConfig,
    TensorOptions,
    WeightAlgorithm,
    WeightOptions,
    arguments_request,
    format_json,
    parse_request,
    resolve,
)
from amct_onnx.config.json_text import Value, read_json
from amct_onnx.config.load import load_request
from amct_onnx.errors import ConfigError
from amct_onnx.prototext import Source, TextError
from tests.config.model_facts import FACTS, only

DEFAULTS = """{
    "version":1,
    "batch_num":1,
    "activation_offset":true,
    "joint_quant":false,
    "do_fusion":true,
    "skip_fusion_layers":[],
    "conv":{
        "quant_enable":true,
        "activation_quant_params":{
            "num_bits":8,
            "max_percentile":0.999999,
            "min_percentile":0.999999,
            "search_range":[
                0.7,
                1.3
            ],
            "search_step":0.01,
            "act_algo":"ifmr",
            "asymmetric":true
        },
        "weight_quant_params":{
            "num_bits":8,
            "channel_wise":true,
            "wts_algo":"arq_quantize"
        }
    }
}"""


def resolved(text: str, *names: str) -> QuantConfig:
    return resolve(parse_request(text, source="my.json"), only(*names) if names else FACTS)


def with_layer(name: str = "conv", **content: Any) -> str:
    return json.dumps({"version": 1, name: {"quant_enable": True, **content}}, indent=1)


def warnings(config: QuantConfig) -> str:
    return "\n".join(str(finding) for finding in config.warnings)


class TestWriting:
    def test_all_defaults(self) -> None:
        assert format_json(resolve(arguments_request(), only("conv"))) == DEFAULTS

    def test_everything(self) -> None:
        text = """
        batch_num: 2  joint_quant: true  fakequant_precision_mode: FORCE_FP16_QUANT  skip_fusion_layers: "conv"
        skip_layers: "fc"
        common_config { dmq_balancer { migration_strength: 0.7 } hfmg_quantize { num_of_bins: 2048 } }
        tensor_quantize { layer_name: "add" input_index: 1 hfmg_quantize {} }
        """
        written = json.loads(format_json(resolve(parse_request(text), only("fc", "conv"))))
        assert list(written) == [
            "version",
            "batch_num",
            "activation_offset",
            "joint_quant",
            "do_fusion",
            "fakequant_precision_mode",
            "skip_fusion_layers",
            "tensor_quantize",
            "conv",
            "fc",
        ]
        assert written["fakequant_precision_mode"] == "FORCE_FP16_QUANT"
        assert list(written["conv"]) == [
            "quant_enable",
            "dmq_balancer_param",
            "activation_quant_params",
            "weight_quant_params",
        ]
        assert list(written["conv"]["activation_quant_params"]) == ["num_bits", "act_algo", "num_of_bins", "asymmetric"]
        assert written["conv"]["dmq_balancer_param"] == 0.7
        assert written["fc"]["quant_enable"] is False
        assert list(written["tensor_quantize"][0]) == ["layer_name", "input_index", "activation_quant_params"]

    def test_layers_are_in_alphabetical_order(self) -> None:
        written = list(json.loads(format_json(resolve(arguments_request(), FACTS))))[6:]
        assert written == sorted(FACTS.layers)


def random_config(rng: random.Random) -> QuantConfig:
    layers = {}
    for name, facts in FACTS.layers.items():
        kernel = facts.op_type in ("Conv", "ConvTranspose")
        layers[name] = LayerConfig(
            op_type=facts.op_type,
            enabled=name == "conv" or rng.random() < 0.7,
            options=LayerOptions(
                activation=random_activation(rng, asymmetric=facts.asymmetric),
                weight=WeightOptions(
                    algorithm=rng.choice(list(WeightAlgorithm)), per_channel=kernel and rng.random() < 0.5
                ),
                migration_strength=round(rng.uniform(0.2, 0.8), 3) if facts.balance and rng.random() < 0.5 else None,
            ),
        )
    inputs = rng.sample([("add", 0), ("add", 1), ("max", 0)], rng.randint(0, 3))
    return QuantConfig(
        layers=layers,
        tensors=tuple(
            TensorOptions(node=node, input_index=index, activation=random_activation(rng)) for node, index in inputs
        ),
        batch_num=rng.randint(1, 100),
        activation_offset=rng.random() < 0.5,
        joint_quant=rng.random() < 0.5,
        do_fusion=rng.random() < 0.5,
        force_fp16_quant=rng.random() < 0.5,
        skip_fusion_layers=tuple(rng.sample(["conv", "conv_odd"], rng.randint(0, 2))),
    )


def random_activation(rng: random.Random, *, asymmetric: bool = True) -> ActivationOptions:
    algorithm = rng.choice(list(ActivationAlgorithm))
    start = round(rng.uniform(0.1, 0.9), 3)
    parameters: dict[str, Any] = {}
    if algorithm is ActivationAlgorithm.IFMR:
        parameters = {
            "search_start": start,
            "search_end": round(start + rng.uniform(0.1, 1), 3),
            "search_step": round(rng.uniform(0.001, 0.09), 4),
            "max_percentile": rng.uniform(0.51, 1),
        }
    if algorithm is ActivationAlgorithm.HFMG:
        parameters = {"num_of_bins": rng.choice([1024, 2048, 4096, 8192])}
    symmetric = not asymmetric or rng.random() < 0.5
    return ActivationOptions(algorithm=algorithm, symmetric=symmetric, **parameters)


@pytest.mark.parametrize("seed", range(50))
def test_round_trip(seed: int) -> None:
    config = random_config(random.Random(seed))
    text = format_json(config)
    again = resolve(parse_request(text), FACTS)
    assert again == config
    assert format_json(again) == text


class TestReading:
    def test_what_is_missing_is_filled_in(self) -> None:
        config = resolved('{"conv":{"quant_enable":true}}', "conv")
        assert config == resolved(DEFAULTS, "conv")
        assert not config.warnings

    @pytest.mark.parametrize(
        "content",
        [
            {"activation_quant_params": {}},
            {"weight_quant_params": {}},
            {"activation_quant_params": {"act_algo": "ifmr"}, "weight_quant_params": {"wts_algo": "arq_quantize"}},
            {"weight_quant_params": {"channel_wise": True}},
        ],
    )
    def test_single_parameters_are_filled_in(self, content: dict[str, Any]) -> None:
        assert resolved(with_layer(**content), "conv") == resolved(DEFAULTS, "conv")

    def test_files_of_older_releases(self) -> None:
        config = resolved(
            with_layer(
                activation_quant_params={
                    "max_percentile": 0.99,
                    "min_percentile": 0.98,
                    "search_range": [0.8, 1.2],
                    "search_step": 0.02,
                    "act_algo": "ifmr",
                },
                weight_quant_params={"wts_algo": "arq_quantize", "channel_wise": True},
            )
        )
        activation = config.layers["conv"].options.activation
        assert (activation.max_percentile, activation.min_percentile) == (0.99, 0.98)
        assert (activation.search_start, activation.search_end, activation.search_step) == (0.8, 1.2, 0.02)
        assert (activation.bits, activation.symmetric) == (8, False)

    @pytest.mark.parametrize(
        ("offset", "own", "symmetric"), [(True, None, False), (False, None, True), (False, True, False)]
    )
    def test_asymmetric(self, offset: bool, own: bool | None, symmetric: bool) -> None:
        parameters = {} if own is None else {"asymmetric": own}
        text = {"activation_offset": offset, "conv": {"quant_enable": True, "activation_quant_params": parameters}}
        assert resolved(json.dumps(text)).layers["conv"].options.activation.symmetric is symmetric

    def test_layers_that_are_absent_or_disabled_stay_float(self) -> None:
        text = '{"conv":{"quant_enable":true},\n"fc":{"quant_enable":false},\n"pool":{}}'
        config = resolved(text)
        assert list(config.enabled()) == ["conv"]
        reasons = {name: layer.reason for name, layer in config.layers.items()}
        assert (reasons["fc"], reasons["matmul"]) == ("not enabled, line 2", "the config does not list it")
        assert re.search('line 3, "pool": quant_enable is missing, so the layer stays float', warnings(config))

    def test_origins(self) -> None:
        text = '{"activation_offset":false,\n"conv":{"quant_enable":true,\n"weight_quant_params":{"num_bits":7}}}'
        origins = resolved(text).layers["conv"].origins
        assert origins["weight.bits"] == 'layer "conv", line 3'
        assert origins["activation.symmetric"] == "activation_offset, line 1"
        assert origins["activation.algorithm"] == "default"

    @pytest.mark.parametrize(
        ("algorithm", "parameters", "meant"),
        [
            ("ada_quantize", {"num_iteration": 9, "reg_param": 0.1, "beta_range": [20, 2]}, WeightAlgorithm.MSE),
            ("nuq_quantize", {"num_steps": 32, "num_of_iteration": 1}, WeightAlgorithm.ARQ),
        ],
    )
    def test_stand_ins(self, algorithm: str, parameters: dict[str, Any], meant: WeightAlgorithm) -> None:
        config = resolved(with_layer(weight_quant_params={"wts_algo": algorithm, **parameters}))
        assert config.layers["conv"].options.weight.algorithm is meant
        assert f"{algorithm} is accepted" in warnings(config)

    def test_whole_numbers_are_numbers(self) -> None:
        config = resolved(with_layer(activation_quant_params={"search_range": [1, 2], "max_percentile": 1}))
        assert config.layers["conv"].options.activation.search_end == 2.0

    def test_tensor_quantize(self) -> None:
        text = {
            "tensor_quantize": [
                {"layer_name": "add", "input_index": 1, "activation_quant_params": {"asymmetric": False}}
            ]
        }
        expected = ActivationOptions(algorithm=ActivationAlgorithm.IFMR, symmetric=True)
        assert resolved(json.dumps(text)).tensors == (TensorOptions(node="add", input_index=1, activation=expected),)


# One file in the form of each generation, with values other than the defaults.
IFMR = {
    "max_percentile": 0.99999,
    "min_percentile": 0.9999,
    "search_range": [0.8, 1.2],
    "search_step": 0.02,
    "act_algo": "ifmr",
}
GENERATIONS: dict[str, dict[str, Any]] = {
    "5": {
        "version": 1,
        "batch_num": 2,
        "activation_offset": True,
        "joint_quant": False,
        "do_fusion": True,
        "skip_fusion_layers": ["conv"],
        "conv": {
            "quant_enable": True,
            "activation_quant_params": IFMR,
            "weight_quant_params": {"wts_algo": "arq_quantize", "channel_wise": True},
        },
        "fc": {
            "quant_enable": False,
            "activation_quant_params": IFMR,
            "weight_quant_params": {"wts_algo": "arq_quantize", "channel_wise": False},
        },
    },
    "6 with non-uniform weights": {
        "version": 1,
        "batch_num": 1,
        "activation_offset": False,
        "joint_quant": False,
        "do_fusion": False,
        "skip_fusion_layers": [],
        "conv": {
            "quant_enable": True,
            "activation_quant_params": IFMR,
            "weight_quant_params": {"wts_algo": "nuq_quantize", "num_steps": 32, "num_of_iteration": 1},
        },
    },
    "7 with balancing": {
        "version": 1,
        "batch_num": 3,
        "activation_offset": True,
        "joint_quant": False,
        "do_fusion": True,
        "skip_fusion_layers": [],
        "fc": {
            "quant_enable": True,
            "dmq_balancer_param": 0.6,
            "activation_quant_params": {"act_algo": "hfmg", "num_of_bins": 2048},
            "weight_quant_params": {"wts_algo": "arq_quantize", "channel_wise": False},
        },
    },
    "8 with widths, learned rounding and inputs": {
        "version": 1,
        "batch_num": 4,
        "activation_offset": True,
        "joint_quant": False,
        "do_fusion": True,
        "fakequant_precision_mode": "FORCE_FP16_QUANT",
        "skip_fusion_layers": [],
        "tensor_quantize": [
            {"layer_name": "add", "input_index": 1, "activation_quant_params": {**IFMR, "asymmetric": False}}
        ],
        "conv": {
            "quant_enable": True,
            "activation_quant_params": {"num_bits": 8, **IFMR, "asymmetric": False},
            "weight_quant_params": {
                "num_bits": 8,
                "wts_algo": "ada_quantize",
                "num_iteration": 500,
                "reg_param": 0.02,
                "beta_range": [18, 3],
                "warm_start": 0.1,
                "channel_wise": True,
            },
        },
    },
    "9": {
        "version": 1,
        "batch_num": 8,
        "activation_offset": False,
        "do_fusion": True,
        "skip_fusion_layers": [],
        "matmul": {
            "quant_enable": True,
            "activation_quant_params": {"num_bits": 8, "act_algo": "hfmg", "num_of_bins": 8192, "asymmetric": True},
            "weight_quant_params": {"num_bits": 8, "channel_wise": False, "wts_algo": "arq_quantize"},
        },
    },
}


@pytest.mark.parametrize("name", GENERATIONS)
def test_files_of_every_generation_mean_what_they_say(name: str) -> None:
    said = GENERATIONS[name]
    config = resolved(json.dumps(said, indent=4, separators=(",", ":")))
    for key in ("batch_num", "activation_offset", "do_fusion"):
        assert getattr(config, key) == said[key]
    assert list(config.skip_fusion_layers) == said["skip_fusion_layers"]
    assert config.force_fp16_quant == ("fakequant_precision_mode" in said)
    assert [(tensor.node, tensor.input_index) for tensor in config.tensors] == [
        (entry["layer_name"], entry["input_index"]) for entry in said.get("tensor_quantize", [])
    ]
    layers = {key: value for key, value in said.items() if isinstance(value, dict)}
    assert set(config.enabled()) == {key for key, value in layers.items() if value["quant_enable"]}
    for key, value in layers.items():
        options, activation = config.layers[key].options, value["activation_quant_params"]
        assert options.activation.algorithm.value == activation["act_algo"]
        assert options.activation.symmetric is not activation.get("asymmetric", said["activation_offset"])
        assert options.activation.bits == activation.get("num_bits", 8)
        assert options.migration_strength == value.get("dmq_balancer_param")
        assert options.weight.per_channel == value["weight_quant_params"].get("channel_wise", key == "conv")
        if activation["act_algo"] == "ifmr":
            ours = options.activation
            assert [ours.search_start, ours.search_end] == activation["search_range"]
            assert (ours.search_step, ours.max_percentile) == (activation["search_step"], activation["max_percentile"])
            assert ours.min_percentile == activation["min_percentile"]
        else:
            assert options.activation.num_of_bins == activation["num_of_bins"]


FAULTS = [
    ('{"version":1,\n"version":1,"conv":{"quant_enable":true}}', "line 2: version stands twice in the file"),
    ('{"conv":{"quant_enable":true},\n"conv":{"quant_enable":false}}', "line 2: conv stands twice in the file"),
    ('{"conv":{"quant_enable":true,\n"quant_enable":true}}', 'line 2, "conv": quant_enable stands twice in a layer'),
    (
        '{"conv":{"quant_enable":true,"weight_quant_params":{"num_bits":8,\n"num_bits":8}}}',
        'line 2, "conv": num_bits stands twice in weight_quant_params',
    ),
    ('{"version":2,"conv":{"quant_enable":true}}', "version is 2, but only 1 is known"),
    ('{"version":true,"conv":{"quant_enable":true}}', "version is a whole number, not true or false"),
    ('{"batch_num":"1","conv":{"quant_enable":true}}', "batch_num is a whole number, not a string"),
    ('{"batch_num":1.0,"conv":{"quant_enable":true}}', "batch_num is a whole number, not a number"),
    ('{"batch_num":0,"conv":{"quant_enable":true}}', "batch_num is 0, but it is at least 1"),
    ('{"activation_offset":1,"conv":{"quant_enable":true}}', "activation_offset is true or false, not a whole number"),
    ('{"do_fusion":null,"conv":{"quant_enable":true}}', "do_fusion is true or false, not null"),
    ('{"joint_quant":{},"conv":{"quant_enable":true}}', "joint_quant is true or false, not an object"),
    ('{"skip_fusion_layers":"conv","conv":{"quant_enable":true}}', "skip_fusion_layers is a list, not a string"),
    ('{"skip_fusion_layers":[1],"conv":{"quant_enable":true}}', "an entry of skip_fusion_layers is a string"),
    ('{"fakequant_precision_mode":"FP16","conv":{"quant_enable":true}}', "is DEFAULT or FORCE_FP16_QUANT"),
    ('{"batchnum":1,"conv":{"quant_enable":true}}', "batchnum is neither a parameter nor a layer .* mean batch_num"),
    ('{"convv":{"quant_enable":true},"conv":{"quant_enable":true}}', '"convv": .* no such node; did you mean "conv"'),
    ('{"relu":{"quant_enable":true}}', '"relu": the config names it, but a Relu cannot be quantized'),
    ('{"version":1}', "it quantizes no layer of the model"),
    ('{"conv":{"quant_enable":false}}', "it quantizes no layer of the model"),
    ("[]", "the file is an object, not a list"),
    (with_layer(quant_enabled=True), '"conv": quant_enabled is no parameter of a layer; did you mean quant_enable'),
    (with_layer(activation_quant_params=[]), "activation_quant_params is an object, not a list"),
    (with_layer(activation_quant_params={"act_algo": "kl"}), 'act_algo is "kl", but it is one of mse'),
    (with_layer(weight_quant_params={"wts_algo": "kl"}), 'wts_algo is "kl", but it is one of arq_quantize'),
    (with_layer(activation_quant_params={"num_of_bins": 4096}), "num_of_bins belongs to hfmg, but act_algo is ifmr"),
    (
        with_layer(activation_quant_params={"act_algo": "hfmg", "search_step": 0.1}),
        "search_step belongs to ifmr, but act_algo is hfmg",
    ),
    (with_layer(weight_quant_params={"num_steps": 16}), "num_steps belongs to nuq_quantize"),
    (with_layer(activation_quant_params={"max_percentil": 1.0}), "did you mean max_percentile"),
    (with_layer(activation_quant_params={"max_percentile": 0.5}), "max_percentile is 0.5, but it is more than 0.5"),
    (with_layer(activation_quant_params={"max_percentile": "1"}), "max_percentile is a number, not a string"),
    (with_layer(activation_quant_params={"search_range": [1.3, 0.7]}), "the search range is 1.3 to 0.7"),
    (with_layer(activation_quant_params={"search_range": [0.7]}), "search_range has 1 entries, but it is a start and"),
    (with_layer(activation_quant_params={"search_range": [0.7, True]}), "an entry of search_range is a number"),
    (with_layer(activation_quant_params={"search_step": 1}), "search_step is 1.0"),
    (with_layer(activation_quant_params={"num_bits": 12}), "num_bits is 12, but it is 8 or 16"),
    (with_layer(activation_quant_params={"num_bits": 4}), "num_bits: 4 is not possible .* take 8 or 16 bits"),
    (with_layer(activation_quant_params={"act_algo": "hfmg", "num_of_bins": 3}), "num_of_bins is 3"),
    (with_layer(weight_quant_params={"num_bits": 5}), "num_bits is 5, but it is 4, 6, 7 or 8"),
    (with_layer(weight_quant_params={"wts_algo": "ada_quantize", "reg_param": 0}), "reg_param is 0.0"),
    (with_layer(weight_quant_params={"wts_algo": "ada_quantize", "beta_range": [2, 20]}), "the beta range is 2.0 to"),
    (with_layer(dmq_balancer_param=0.9), "dmq_balancer_param is 0.9, but it lies between 0.2 and 0.8"),
    (with_layer("pool", dmq_balancer_param=0.5), 'dmq_balancer_param: 0.5 is not possible for "pool"'),
    (with_layer("fc", weight_quant_params={"channel_wise": True}), 'channel_wise: true is not possible for "fc"'),
    (with_layer("fc", weight_quant_params={"num_bits": 6}), 'num_bits: 6 is not possible for "fc"'),
    (with_layer("conv_3d", activation_quant_params={"asymmetric": True}), 'asymmetric: true is not .* "conv_3d"'),
    ('{"tensor_quantize":{}}', "tensor_quantize is a list, not an object"),
    ('{"tensor_quantize":[{"layer_name":"add"}]}', '"add": input_index is missing'),
    ('{"tensor_quantize":[{"input_index":0}]}', "layer_name is missing"),
    ('{"tensor_quantize":[{"layer_name":"add","input_index":-1}]}', "input_index is -1, but this Add has 2 inputs"),
    ('{"tensor_quantize":[1]}', "an entry of tensor_quantize is an object, not a whole number"),
]


@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_fault(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(text)
    message = str(caught.value)
    assert message.startswith("my.json")
    assert re.search(words, message)


class TestText:
    @pytest.mark.parametrize(
        "text",
        [
            '{"a":[1,-2.5,1e3,{"b":null}],"c":"\\u00e9\\n\\"","":true,"d":{},"e":[]}',
            ' \r\n\t{ "a" : [ ] }\n',
            "[]",
            '"x"',
            "-0",
            "0.10e-2",
        ],
    )
    def test_legal_text_reads_as_python_reads_it(self, text: str) -> None:
        assert plain(read_json(Source(text))) == json.loads(text)

    @pytest.mark.parametrize("seed", range(100))
    def test_damaged_text_is_refused_as_python_refuses_it(self, seed: int) -> None:
        rng = random.Random(seed)
        text = list(DEFAULTS)
        for _ in range(rng.randint(1, 3)):
            text[rng.randrange(len(text))] = rng.choice('{}[]",:0-.e \nt')
        damaged = "".join(text)
        try:
            wanted = json.loads(damaged)
        except ValueError:
            with pytest.raises(TextError):
                read_json(Source(damaged))
        else:
            assert plain(read_json(Source(damaged))) == wanted

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('{"a":1', "line 1, column 7: expected .* the end of the file; it is cut off"),
            ('{"a":1,}', 'column 8: expected a key in double quotes, found "}"'.replace('"}"', "'}'")),
            ("{'a':1}", "expected a key in double quotes"),
            ('{"a":1}\nx', "line 2, column 1: the text goes on after the end"),
            ('{"a":True}', "expected a value, found 'True'"),
            ('{"a":NaN}', "expected a value"),
            ('{"a":"x\n"}', "the string that begins here is not legal"),
            ('{"a":' + "[" * 40, "nested more than 20 deep"),
            ('{"a":' + "1" * 5000 + "}", "a number of more than 30 characters"),
        ],
    )
    def test_fault(self, text: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            parse_request(text)


def plain(value: Value) -> Any:
    if isinstance(value.data, dict):
        return {key: plain(member) for key, member in value.data.items()}
    if isinstance(value.data, list):
        return [plain(member) for member in value.data]
    return value.data


@pytest.mark.parametrize(("text", "words"), [("", "end of the file"), ("null", "not null"), ("batch_num: 2", "line 1")])
def test_a_file_called_json_is_json_whatever_it_holds(tmp_path: Path, text: str, words: str) -> None:
    """An empty one was taken for a simple config without a word, and every layer got its default."""
    path = tmp_path / "config.JSON"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        resolve(load_request(path), FACTS)
