"""Random retrain configs: what counts for each layer, worked out by AMCT's rules from what protobuf's parser reads."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf import text_format

from amct_onnx.config.retrain import RetrainFacts, TrainableLayer, parse_retrain_request, resolve_retrain
from amct_onnx.errors import ConfigError
from amct_onnx.proto.retrain_config_onnx import AMCTRetrainConfig

OPERATORS = ("Conv", "Gemm", "MatMul", "ConvTranspose")
PYTORCH = {"Conv": "Conv2d", "ConvTranspose": "ConvTranspose2d"}
LAYERS = {f"{op.lower()}{number}": op for op in OPERATORS for number in range(3)}
FACTS = RetrainFacts(
    layers={
        name: TrainableLayer(op_type=op, kernel_rank=2 if op.startswith("Conv") else None)
        for name, op in LAYERS.items()
    },
    layer_types=OPERATORS,
    prunable_types=OPERATORS,
    sparse_types=OPERATORS,
)


def block(rng: random.Random) -> str:
    """A prune_config of one kind or the other, in a spelling or another."""
    colon = rng.choice(["", " :", ":"])
    if rng.random() < 0.25:
        frequency = rng.randrange(5)
        return f"prune_config{colon} {{ n_out_of_m_pruner {{ l1_selective_prune {{ update_freq: {frequency} }} }} }}"
    ratio = rng.randrange(1, 20) / 20
    aligned = rng.choice(["", "ascend_optimized: true", "ascend_optimized: False"])
    inner = f"balanced_l2_norm_filter_prune{colon} {{ prune_ratio: {ratio} {aligned} }}"
    return f"prune_config{colon} {{ filter_pruner {{ {inner} }} }}"


def random_config(rng: random.Random) -> str:
    """A config of distinct names; blocks may count for nobody."""
    parts = [block(rng)] if rng.random() < 0.7 else []
    for name in rng.sample(sorted(LAYERS), rng.randrange(4)):
        parts.append(f'override_layer_configs{{ layer_name: "{name}" {block(rng)} }}')
    for op in rng.sample(sorted(OPERATORS), rng.randrange(2)):
        parts.append(f'override_layer_types : {{ layer_type: "{rng.choice([op, PYTORCH.get(op, op)])}" {block(rng)} }}')
    for field in ("skip_layers", "regular_prune_skip_layers", "quant_skip_layers"):
        parts += [f'{field}: "{name}"' for name in rng.sample(sorted(LAYERS), rng.randrange(3))]
    for field in ("skip_layer_types", "regular_prune_skip_types", "quant_skip_types"):
        parts += [f'{field}: "{op}"' for op in rng.sample(sorted(OPERATORS), rng.random() < 0.2)]
    rng.shuffle(parts)
    return "\n".join(parts)


def expected(text: str) -> tuple[dict[str, Any], bool]:
    """Layer -> the prune_config that counts for it, and whether some block counts for nobody."""
    message: Any = text_format.Parse(text, AMCTRetrainConfig())
    onnx = {value: key for key, value in PYTORCH.items()}
    skipped = {*message.skip_layers, *message.regular_prune_skip_layers}
    types = {*message.skip_layer_types, *message.regular_prune_skip_types}
    of_type = {onnx.get(entry.layer_type, entry.layer_type): entry for entry in message.override_layer_types}
    of_layer = {entry.layer_name: entry for entry in message.override_layer_configs}
    counted: dict[str, Any] = {}
    used: set[str] = set()
    for name, op in LAYERS.items():
        if name in skipped or op in types:
            continue
        if name in of_layer:
            counted[name] = of_layer[name].prune_config
            used.add(name)
        elif op in of_type:
            counted[name] = of_type[op].prune_config
            used.add(op)
        elif message.HasField("prune_config"):
            counted[name] = message.prune_config
    return counted, not {*of_layer, *of_type} <= used


@pytest.mark.parametrize("seed", range(300))
def test_who_gets_what(seed: int) -> None:
    text = random_config(random.Random(seed))
    counted, some_dead = expected(text)
    if some_dead:
        with pytest.raises(ConfigError, match=r"skipping wins|a block of its own"):
            resolve_retrain(parse_retrain_request(text), FACTS)
        return
    layers = resolve_retrain(parse_retrain_request(text), FACTS).layers
    assert {name for name, layer in layers.items() if not layer.why_whole} == counted.keys()
    for name, config in counted.items():
        wanted = config.filter_pruner.balanced_l2_norm_filter_prune
        found = layers[name].pruning
        assert (found is not None) == config.HasField("filter_pruner")
        if found is not None:
            assert (pytest.approx(found.ratio), found.ascend_optimized) == (wanted.prune_ratio, wanted.ascend_optimized)
        sparsity = layers[name].sparsity
        assert (sparsity is not None) == config.HasField("n_out_of_m_pruner")
        if sparsity is not None:
            assert sparsity.update_freq == config.n_out_of_m_pruner.l1_selective_prune.update_freq


def test_the_seeds_meet_every_kind_of_config() -> None:
    outcomes = [expected(random_config(random.Random(seed))) for seed in range(300)]
    assert min(sum(dead for _, dead in outcomes), sum(not dead for _, dead in outcomes)) > 50
    kinds = {config.WhichOneof("regular_prune_strategy") for counted, _ in outcomes for config in counted.values()}
    assert kinds == {"filter_pruner", "n_out_of_m_pruner"}
