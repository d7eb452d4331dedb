"""Architectures as libraries build them, small and with random weights, for exporting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

LARGEST = 60_000_000
"""Parameters; what is larger has the same operators as a smaller sister."""

Built = tuple[nn.Module, dict[str, Tensor]]
"""A module, and its inputs by name."""

_TIMM = Path(__file__).with_name("zoo_timm.txt").read_text().split()
_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 64,
    "vocab_size": 100,
}
_TEXT_MODELS = Path(__file__).with_name("zoo_text.txt").read_text().split()


def names() -> list[str]:
    """Every architecture, as ``library/name``; smaller ones of a library first."""
    listed = [f"torchvision/{name}" for name in _torchvision_names()]
    listed += [f"timm/{name}" for name in _TIMM if timm.is_model(name)]
    return ["blocks/c2f", *listed, *(f"transformers/{name}" for name in _transformers())]


def build(name: str) -> Built:
    """An architecture with random weights, ready to be exported."""
    torch.manual_seed(0)
    library, name = name.split("/", 1)
    makers: dict[str, Callable[[str], Built]] = {
        "blocks": lambda _name: (_C2f(), {"x": torch.rand(1, 3, 64, 64)}),
        "torchvision": _build_torchvision,
        "timm": _build_timm,
        "transformers": lambda name: _transformers()[name](),
    }
    module, inputs = makers[library](name)
    _wake(module)
    return _Plain(module, tuple(inputs)).eval(), inputs


def _torchvision_names() -> Iterator[str]:
    sizes: dict[str, int] = {}
    for name in torchvision.models.list_models():
        if name.startswith("quantized"):
            continue
        size = torchvision.models.get_model_weights(name).DEFAULT.meta["num_params"]
        if size <= LARGEST:
            sizes[name] = size
    yield from sorted(sizes, key=lambda name: sizes[name])


def _build_torchvision(name: str) -> Built:
    module = torchvision.models.get_model(name, weights=None, **_without_backbone(name))
    kind = type(module).__module__
    if ".detection" in kind:
        return module, {"x": torch.rand(1, 3, 160, 160)}
    if ".video" in kind:
        frames, side = (16, 224) if name.startswith(("mvit", "s3d")) else (16, 112)
        return module, {"x": torch.rand(1, 3, frames, side, side)}
    if ".optical_flow" in kind:
        return module, {"a": torch.rand(1, 3, 128, 128), "b": torch.rand(1, 3, 128, 128)}
    side = 224 if name.startswith(("vit", "maxvit", "swin")) else 299 if name.startswith("inception") else 96
    return module, {"x": torch.rand(1, 3, side, side)}


def _without_backbone(name: str) -> dict[str, Any]:
    has_backbone = any(
        word in name for word in ("rcnn", "retinanet", "ssd", "fcos", "deeplab", "fcn_", "lraspp", "keypoint")
    )
    return {"weights_backbone": None} if has_backbone else {}


def _build_timm(name: str) -> Built:
    module = timm.create_model(name, pretrained=False, exportable=True)
    return module, {"x": torch.rand(1, *module.default_cfg["input_size"])}


def _transformers() -> dict[str, Callable[[], Built]]:
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    vision |= {"image_size": 32, "patch_size": 8}
    pixels = {"pixel_values": torch.rand(1, 3, 32, 32)}
    sound = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    wave = {"input_values": torch.rand(1, 4000)}
    ids = {"input_ids": torch.randint(3, 99, (1, 16)), "attention_mask": torch.ones(1, 16, dtype=torch.long)}
    both = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "vocab_size": 100}
    both |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}
    answer = {"decoder_input_ids": torch.randint(3, 99, (1, 8))}
    mel = {"input_features": torch.rand(1, 80, 128), "decoder_input_ids": torch.randint(3, 99, (1, 8))}
    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100}
    made: dict[str, Callable[[], Built]] = {name: _maker(name, _TEXT, ids) for name in _TEXT_MODELS}
    made |= {name: _maker(name, vision, pixels) for name in ("ViT", "DeiT", "Beit", "Dinov2", "Data2VecVision")}
    made |= {name: _maker(name, sound, wave) for name in ("Wav2Vec2", "Hubert", "WavLM")}
    made |= {
        "DistilBert": _maker(
            "DistilBert", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 100}, ids
        ),
        "GPT2": _maker("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100}, ids),
        "OPT": _maker("OPT", {**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}, ids),
        "Bloom": _maker("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100}, ids),
        "T5": _maker("T5", t5, {**ids, **answer}),
        "Bart": _maker("Bart", both, {**ids, **answer}),
        "Marian": _maker("Marian", {**both, "pad_token_id": 0, "decoder_start_token_id": 0}, {**ids, **answer}),
        "Whisper": _maker("Whisper", {**both, "max_source_positions": 64, "pad_token_id": 0}, mel),
        "CLIPVision": _maker("CLIPVision", vision, pixels),
        "CLIPText": _maker("CLIPText", {**_TEXT, "eos_token_id": 2}, ids),
        "Swin": _maker(
            "Swin",
            {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "image_size": 64, "window_size": 4},
            {"pixel_values": torch.rand(1, 3, 64, 64)},
        ),
        "Segformer": _maker("Segformer", {}, {"pixel_values": torch.rand(1, 3, 64, 64)}),
        "ConvNext": _maker(
            "ConvNext",
            {"hidden_sizes": [16, 32, 32, 48], "depths": [1, 1, 2, 1]},
            {"pixel_values": torch.rand(1, 3, 64, 64)},
        ),
        "ResNet": _maker(
            "ResNet",
            {"hidden_sizes": [16, 32, 32, 48], "depths": [1, 1, 2, 1]},
            {"pixel_values": torch.rand(1, 3, 64, 64)},
        ),
        "Mamba": _maker(
            "Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}, {"input_ids": ids["input_ids"]}
        ),
        "PatchTST": _maker(
            "PatchTST",
            {"num_input_channels": 3, "context_length": 32, "d_model": 32, "ffn_dim": 64},
            {"past_values": torch.rand(1, 32, 3)},
        ),
    }
    return made


def _maker(name: str, config: dict[str, Any], inputs: dict[str, Tensor]) -> Callable[[], Built]:
    def make() -> Built:
        kind = getattr(transformers, f"{name}Config")(**config)
        kind.use_cache = False
        return getattr(transformers, f"{name}Model")(kind), inputs

    return make


def _wake(module: nn.Module) -> None:
    """Normalizations of an untrained model pass everything through; give them something to do."""
    generator = torch.Generator().manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.running_mean.uniform_(-0.1, 0.1, generator=generator)
            part.running_var.uniform_(0.5, 1.5, generator=generator)
            if part.weight is not None and not part.weight.any():
                # Some libraries begin with branches that give nothing; exporters then share one weight of zeros.
                torch.nn.init.uniform_(part.weight, 0.5, 1.5, generator=generator)


class _C2f(nn.Module):
    """A block of current detectors: halves of channels, each result kept for one concatenation, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv_unit(3, 32, 3)
        self.steps = nn.ModuleList([nn.Sequential(_conv_unit(16, 16, 3), _conv_unit(16, 16, 3)) for _ in range(2)])
        self.join = _conv_unit(64, 32, 1)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.head = nn.Conv2d(128, 20, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.stem(x).chunk(2, 1))
        for step in self.steps:
            parts.append(parts[-1] + step(parts[-1]))
        pooled = [self.join(torch.cat(parts, 1))]
        for _ in range(3):
            pooled.append(self.pool(pooled[-1]))
        return self.head(torch.cat(pooled, 1)).flatten(2)


def _conv_unit(inner: int, outer: int, kernel: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inner, outer, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outer), nn.SiLU()
    )


class _Plain(nn.Module):
    """Takes tensors in order and gives a flat tuple of tensors."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(_tensors(self._result(inputs)))

    def _result(self, inputs: tuple[Tensor, ...]) -> Any:
        if isinstance(self.module, transformers.PreTrainedModel):
            return self.module(**dict(zip(self.names, inputs, strict=True)))
        detects = ".detection" in type(self.module).__module__
        return self.module([inputs[0][0]]) if detects else self.module(*inputs)


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, dict):
        for value in result.values():
            yield from _tensors(value)
    elif isinstance(result, list | tuple):
        for value in result:
            yield from _tensors(value)
