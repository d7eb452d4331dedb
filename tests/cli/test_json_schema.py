"""docs/json.md names every key that a command prints with ``--json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from amct_onnx.cli.main import main
from tests.models import normal, parse

DOCUMENT = Path(__file__).parents[2] / "docs" / "json.md"
# Objects whose keys are names of tensors, layers and so on.
NAMED = {"weight_files", "losses", "sizes", "operators", "fusions", "origins"}
QUANT = "batch_num: 2\n"
RETRAIN = """retrain_data_quant_config { ulq_quantize {} } batch_num: 2 prune_config { filter_pruner {
    balanced_l2_norm_filter_prune { prune_ratio: 0.5 ascend_optimized: false } } }
    override_layer_configs { layer_name: "last" prune_config { n_out_of_m_pruner { l1_selective_prune {} } } }
"""
SEARCH = "compress_ratio: 1.2 ascend_optimized: false\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = parse(
        "[first] s = Conv<pads = [1,1,1,1]>(x, w) r = Relu(s) [last] y = Conv(r, v)",
        "float[n,4,6,6] x",
        "float[n,8,6,6] y",
        {"w": normal(16, 4, 3, 3), "v": normal(8, 16, 1, 1, seed=1)},
    )
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for index in range(4):
        np.savez(tmp_path / "data" / f"{index}.npz", x=normal(4, 4, 6, 6, seed=2 + index))
    for name, text in (("quant", QUANT), ("retrain", RETRAIN), ("search", SEARCH)):
        (tmp_path / f"{name}.cfg").write_text(text)
    main(["compress", "m.onnx", "--config", "retrain.cfg", "--data", "data", "-o", "a", "-q"])
    return tmp_path


def keys(value: Any, name: str = "") -> Iterator[str]:
    """Every key but those of objects that are keyed by name."""
    if isinstance(value, dict):
        if name not in NAMED:
            yield from value
        for key, inner in value.items():
            yield from keys(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, name)


def documented(*titles: str) -> set[str]:
    """What stands in backticks in the sections that are headed so."""
    sections = {part.split("\n")[0]: part for part in DOCUMENT.read_text().split("\n## ")[1:]}
    return {word for title in titles for word in re.findall(r"`([a-z_0-9]+)`", sections[title])}


QUANTIZE, PRUNE = "`quantize --json`, `apply --json`", "`prune --json`, `apply --json` of a prune record"
SPARSIFY, CHECK = "`sparsify --json`, `apply --json` of a record of masks", "`check-deploy --json`"
FED = ["m.onnx", "--data", "data", "-o", "o"]


@pytest.mark.parametrize(
    ("command", "titles"),
    [
        (["quantize", *FED], [QUANTIZE, CHECK]),
        (["apply", "a_modified_model.onnx", "--record", "a_record.txt", "-o", "b"], [QUANTIZE, CHECK]),
        (["prune", *FED, "--ratio", "0.5"], [PRUNE, QUANTIZE]),
        (["inspect", "m.onnx", "--prune"], [PRUNE]),
        (["sparsify", *FED], [SPARSIFY, QUANTIZE]),
        (["compress", *FED, "--config", "retrain.cfg"], ["`compress --json`", QUANTIZE, PRUNE, SPARSIFY, CHECK]),
        (["inspect", "m.onnx"], ["`inspect --json`"]),
        (["check-deploy", "a_deploy_model.onnx"], [CHECK]),
        (["record", "check", "a_record.txt"], ["`record check --json`"]),
        (["config", "show", "quant.cfg", "--model", "m.onnx"], ["`config show --json`"]),
        (["config", "show", "retrain.cfg", "--model", "m.onnx"], ["`config show --json`"]),
        (["config", "show", "search.cfg", "--model", "m.onnx"], ["`config show --json`"]),
    ],
    ids=" ".join,
)
def test_every_key_is_documented(
    command: list[str], titles: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sorted(set(keys(printed)) - documented(*titles)) == []
