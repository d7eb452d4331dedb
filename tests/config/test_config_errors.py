"""Every rule of configs, one row each: what breaks it, and that the error names file, line, entry, rule and remedy.

More values of each rule stand in ``test_resolve`` (simple configs) and ``test_json``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amct_onnx.config import ModelFacts, load_request, resolve
from amct_onnx.errors import AmctError, ConfigError, NothingToCompressError
from tests.config.model_facts import CONV, FACTS, only

LAYER_TYPES = ", ".join(f'"{name}"' for name in FACTS.layer_types)
LAYER_NAMES = ", ".join(f'"{name}"' for name in FACTS.layers)


class Row(NamedTuple):
    """One rule broken in a simple config: the field at fault stands on line 2."""

    rule: str
    text: str
    entry: str
    says: str
    remedy: str


def common(inner: str) -> str:
    return f"common_config {{ {inner} }}"


def of_type(name: str, inner: str = "") -> str:
    return f'override_layer_types {{ layer_type: "{name}" calibration_config {{ {inner} }} }}'


def of_layer(name: str, inner: str = "") -> str:
    return f'override_layer_configs {{ layer_name: "{name}" calibration_config {{ {inner} }} }}'


def tensor(inner: str) -> str:
    return f"tensor_quantize {{ {inner} }}"


ROWS = [
    # Names.
    Row("no layer skipped twice", 'skip_layers: ["fc", "fc"]', "fc", "skip_layers names it twice", "delete one"),
    Row("no type skipped twice", 'skip_layer_types: ["Gemm", "Gemm"]', "Gemm", "names it twice", "delete one"),
    Row("no fusion skipped twice", 'skip_fusion_layers: ["conv", "conv"]', "conv", "names it twice", "delete one"),
    Row("no layer overridden twice", of_layer("fc") * 2, "fc", "override_layer_configs names it twice", "delete one"),
    Row("no type overridden twice", of_type("Gemm") * 2, "Gemm", "override_layer_types names it twice", "delete one"),
    Row("skipped layers exist", 'skip_layers: "fcc"', "fcc", "the model has no such node", "did you mean"),
    Row("skipped layers can be quantized", 'skip_layers: "relu"', "relu", "a Relu cannot be quantized", "delete"),
    Row("skipped types are quantized", 'skip_layer_types: "Relu"', "Relu", "names a type that is not", "choose from"),
    Row("overridden layers exist", of_layer("fcc"), "fcc", "the model has no such node", "did you mean"),
    Row("overridden layers can be quantized", of_layer("relu"), "relu", "a Relu cannot be quantized", "delete"),
    Row("overridden types are known", of_type("Linear"), "Linear", "names a type that is not", "choose from"),
    Row("skipped fusions exist", 'skip_fusion_layers: "no"', "no", "the model has no such node", "inspect"),
    Row("skipped fusions fuse", 'skip_fusion_layers: "fc"', "fc", "nothing is fused into a Gemm", "name that layer"),
    # What a layer cannot do, asked of it by name.
    Row(
        "channel_wise", of_layer("fc", "arq_quantize { channel_wise: true }"), "", "channel_wise: true", "correct over"
    ),
    Row(
        "balancing", of_layer("pool", "dmq_balancer {}"), "", 'dmq_balancer: 0.5 is not possible for "pool"', "correct"
    ),
    Row("16 bits", of_layer("matmul", "ifmr_quantize { dst_type: INT16 }"), "", "MatMul take 8 bits", "correct over"),
    Row("learned rounding", of_layer("conv_1d", "ada_quantize {}"), "", "1-D Conv is not learned", "correct over"),
    Row("6 bits", of_layer("fc", "arq_quantize { quant_bits: 6 }"), "", "Gemm take 4 or 8 bits", "correct over"),
    Row("4 bits, odd channels", of_layer("conv_odd", "arq_quantize { quant_bits: 4 }"), "", "even number", "correct"),
    Row("4 bits, groups", of_layer("conv_depthwise", "arq_quantize { quant_bits: 4 }"), "", "single group", "correct"),
    Row("asymmetric 3-D", of_layer("conv_3d", "ifmr_quantize { asymmetric: true }"), "", "symmetrically", "correct"),
    # Bounds.
    Row("batch_num", "batch_num: 0", "", "batch_num is 0, but it is at least 1", "correct"),
    *(
        Row(f"{name} {value}", common(f"ifmr_quantize {{ {name}: {value} }}"), "", f"{name} is {value}", "correct")
        for name in ("max_percentile", "min_percentile")
        for value in ("0.5", "1.5")
    ),
    Row(
        "search range",
        common("ifmr_quantize { search_range_start: 2.0 }"),
        "",
        "range is 2.0 to 1.3, but 0 <",
        "correct",
    ),
    Row("search step", common("ifmr_quantize { search_step: 0.9 }"), "", "search_step is 0.9", "correct"),
    Row("bins", common("hfmg_quantize { num_of_bins: 512 }"), "", "it is 1024, 2048, 4096 or 8192", "correct"),
    Row("weight bits", common("arq_quantize { quant_bits: 5 }"), "", "it is 4, 6, 7 or 8", "correct"),
    Row("warm_start", common("ada_quantize { warm_start: 1.0 }"), "", "warm_start is 1.0, but it lies", "correct"),
    Row("reg_param", common("ada_quantize { reg_param: 0.0 }"), "", "reg_param is 0.0, but it lies", "correct"),
    Row("beta range", common("ada_quantize { beta_range_end: 30 }"), "", "beta range is 20.0 to 30.0", "correct"),
    Row("num_iteration", common("ada_quantize { num_iteration: 0 }"), "", "num_iteration is 0", "correct"),
    Row("num_steps", common("nuq_quantize { num_steps: 33 }"), "", "num_steps is 33, but it lies", "correct"),
    Row("num_of_iteration", common("nuq_quantize { num_of_iteration: 6 }"), "", "num_of_iteration is 6", "correct"),
    Row("strength", common("dmq_balancer { migration_strength: 0.9 }"), "", "between 0.2 and 0.8", "correct"),
    # Inputs.
    Row("input: both fields", tensor('layer_name: "add"'), "add", "input_index is missing", "add it"),
    Row("input: node exists", tensor('layer_name: "ad" input_index: 0'), "ad", "no such node", "did you mean"),
    Row(
        "input: type",
        tensor('layer_name: "conv" input_index: 0'),
        "conv",
        "takes inputs of Add and MaxPool",
        "delete it",
    ),
    Row("input: index", tensor('layer_name: "add" input_index: 2'), "add", "this Add has 2 inputs", "correct"),
    # Fields.
    Row("known field", "batch_nums: 2", "", "unknown field batch_nums", "did you mean batch_num?"),
    Row("type of a field", 'batch_num: "2"', "", "not the string", "takes a whole number"),
    Row("enumeration", "fakequant_precision_mode: FP16", "", "not FP16", "takes one of FORCE_FP16_QUANT"),
    Row(
        "required field",
        "override_layer_types { calibration_config { } }",
        "",
        "layer_type is missing",
        "must be given",
    ),
]


def told(path: Path, facts: ModelFacts, kind: type[AmctError] = ConfigError) -> list[str]:
    """The lines of the error that reading a file gives, which has to begin with the file."""
    with pytest.raises(kind) as caught:
        resolve(load_request(path), facts)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.splitlines()


@pytest.mark.parametrize("row", ROWS, ids=[row.rule for row in ROWS])
def test_row(tmp_path: Path, row: Row) -> None:
    path = tmp_path / "my.cfg"
    path.write_text("# a comment\n" + row.text)
    where = f'line 2, "{row.entry}": ' if row.entry else "line 2"
    (line,) = [line for line in told(path, FACTS) if where in line and row.says in line]
    assert row.remedy in line


# Of the config as a whole: no line is at fault.
WHOLE = [
    (
        "all types skipped",
        f"skip_layer_types: [{LAYER_TYPES}]",
        "skip_layer_types leaves no layer",
        "delete one of its",
    ),
    ("all layers skipped", f"skip_layers: [{LAYER_NAMES}]", "skip_layers leaves no layer", "delete one of its names"),
    ("no layer enabled", '{"version": 1}', "it quantizes no layer", 'set "quant_enable":true for at least one'),
]


@pytest.mark.parametrize(("text", "says", "remedy"), [row[1:] for row in WHOLE], ids=[row[0] for row in WHOLE])
def test_whole_config(tmp_path: Path, text: str, says: str, remedy: str) -> None:
    path = tmp_path / "my.cfg"
    path.write_text(text)
    (line,) = told(path, FACTS)
    assert says in line
    assert remedy in line


def test_a_layer_named_like_a_parameter(tmp_path: Path) -> None:
    path = tmp_path / "my.cfg"
    path.write_text("")
    facts = replace(FACTS, layers={"batch_num": replace(CONV, name="batch_num")})
    (line,) = told(path, facts)
    assert '"batch_num": a layer of the model bears the name of a global parameter' in line
    assert "rename" in line


def test_a_model_without_layers(tmp_path: Path) -> None:
    path = tmp_path / "my.cfg"
    path.write_text("")
    with pytest.raises(
        NothingToCompressError, match="no layer of the model can be quantized; 'conv_computed': its weigh"
    ):
        resolve(load_request(path), only())


def test_no_layer_to_balance(tmp_path: Path) -> None:
    path = tmp_path / "my.cfg"
    path.write_text("")
    with pytest.raises(ConfigError) as caught:
        resolve(load_request(path), FACTS).balanced()
    assert str(caught.value).startswith(f"{path} asks to balance no layer; add dmq_balancer")


class JsonRow(NamedTuple):
    """One rule broken in a JSON config: ``{"conv": ...}`` on one line each; the place at fault is on `line`."""

    rule: str
    text: str
    line: int
    entry: str
    says: str
    remedy: str


def layer(name: str = "conv", **content: Any) -> str:
    """A layer's object, whose keys each stand on a line of their own from line 3 on."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    inner = ",\n".join(['"quant_enable": true', *lines])
    return f'{{"{name}": {{\n{inner}}}}}'


ON = '"conv": {"quant_enable": true}'
JSON_ROWS = [
    JsonRow(
        "no key twice", f'{{{ON},\n"batch_num": 1, "batch_num": 2}}', 2, "", "batch_num stands twice", "delete one"
    ),
    JsonRow("no layer twice", f"{{{ON},\n{ON}}}", 2, "", "conv stands twice in the file", "delete one"),
    JsonRow(
        "no key twice inside", layer(a=1).replace('"a": 1', '"quant_enable": true'), 3, "conv", "twice", "delete one"
    ),
    JsonRow("version 1", f'{{{ON},\n"version": 2}}', 2, "", "version is 2, but only 1 is known", "correct it"),
    JsonRow("type of a number", f'{{{ON},\n"batch_num": "1"}}', 2, "", "a whole number, not a string", "correct it"),
    JsonRow("type of a flag", f'{{{ON},\n"do_fusion": 1}}', 2, "", "true or false, not a whole number", "correct it"),
    JsonRow("type of a list", f'{{{ON},\n"skip_fusion_layers": "a"}}', 2, "", "a list, not a string", "correct it"),
    JsonRow("type of a layer", layer(activation_quant_params=[]), 3, "conv", "an object, not a list", "correct it"),
    JsonRow(
        "known key", f'{{{ON},\n"batchnum": 1}}', 2, "", "neither a parameter nor a layer", "did you mean batch_num?"
    ),
    JsonRow("known key of a layer", layer(quant_enabled=True), 3, "conv", "is no parameter of a layer", "did you mean"),
    JsonRow("known layer", f'{{{ON},\n"convv": {{"quant_enable": true}}}}', 2, "convv", "no such node", "did you mean"),
    JsonRow("layer of a type", f'{{{ON},\n"relu": {{"quant_enable": true}}}}', 2, "relu", "a Relu cannot be", "delete"),
    JsonRow(
        "known algorithm", layer(activation_quant_params={"act_algo": "kl"}), 3, "conv", "it is one of", "correct it"
    ),
    JsonRow(
        "keys of one algorithm",
        layer(activation_quant_params={"act_algo": "hfmg", "search_step": 0.1}),
        3,
        "conv",
        "search_step belongs to ifmr, but act_algo is hfmg",
        "delete one of them",
    ),
    JsonRow(
        "mode", f'{{{ON},\n"fakequant_precision_mode": "FP"}}', 2, "", "is DEFAULT or FORCE_FP16_QUANT", "correct it"
    ),
    JsonRow("activation bits", layer(activation_quant_params={"num_bits": 12}), 3, "", "but it is 8 or 16", "correct"),
    JsonRow("weight bits", layer(weight_quant_params={"num_bits": 3}), 3, "", "it is 4, 6, 7 or 8", "correct"),
    JsonRow("strength", layer(dmq_balancer_param=0.1), 3, "", "between 0.2 and 0.8", "correct"),
    JsonRow("channel_wise", layer("fc", weight_quant_params={"channel_wise": True}), 3, "", "not possible", "correct"),
]


@pytest.mark.parametrize("row", JSON_ROWS, ids=[row.rule for row in JSON_ROWS])
def test_json_row(tmp_path: Path, row: JsonRow) -> None:
    path = tmp_path / "my.json"
    path.write_text(row.text)
    where = f'line {row.line}, "{row.entry}": ' if row.entry else f"line {row.line}"
    (line,) = [line for line in told(path, FACTS) if where in line and row.says in line]
    assert row.remedy in line


FILES = [
    ("a file that is not there", None, "cannot be read: No such file or directory", "give the path of a config file"),
    ("no text", b"batch_num: \xff", "line 1, column 12: byte 0xff is not UTF-8", ""),
    ("neither form", b"batch_num = 1", "line 1, column 11: expected", ":"),
    ("an open block", b"common_config {", "line 1, column 1", "is never closed"),
    ("cut off JSON", b'{"version": 1', "line 1, column 14: expected", "it is cut off"),
]


@pytest.mark.parametrize(("content", "says", "remedy"), [row[1:] for row in FILES], ids=[row[0] for row in FILES])
def test_file(tmp_path: Path, content: bytes | None, says: str, remedy: str) -> None:
    path = tmp_path / "my.cfg"
    if content is not None:
        path.write_bytes(content)
    (line,) = told(path, FACTS)
    assert says in line
    assert remedy in line
