"""Quantize a classifier with a calibration loop of your own.

Usage: ``python manual_calibration.py [OUTPUTS]``
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

import amct_onnx as amct
from amct_onnx import demo

BATCH_NUM = 4
PROVIDERS = ["CPUExecutionProvider"]


def calibrate(model_file: Path, images: NDArray[np.float32]) -> None:
    """Run the model that ``quantize_model`` wrote; every run adds to the record."""
    session = onnxruntime.InferenceSession(str(model_file), amct.AMCT_SO, providers=PROVIDERS)
    for batch in np.split(images, BATCH_NUM):
        session.run(None, {demo.INPUT_NAME: batch})


def accuracy(model_file: Path, images: NDArray[np.float32], labels: NDArray[Any]) -> float:
    """Share of images whose digit the model names."""
    session = onnxruntime.InferenceSession(str(model_file), providers=PROVIDERS)
    (logits,) = session.run(None, {demo.INPUT_NAME: images})
    return float(np.mean(logits.argmax(axis=1) == labels))


def main() -> None:
    """Quantize, then score the float and the quantized model on images that calibration has not seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outputs", nargs="?", type=Path, default=Path("outputs"), help="folder for all results")
    outputs: Path = parser.parse_args().outputs
    data = demo.load()
    config, record, modified = (outputs / "tmp" / name for name in ("config.json", "record.txt", "modified_model.onnx"))

    amct.create_quant_config(str(config), str(data.model_path), batch_num=BATCH_NUM)
    amct.quantize_model(str(config), str(data.model_path), str(modified), str(record))
    calibrate(modified, data.calibration_images)
    amct.save_model(str(modified), str(record), str(outputs / "mnist_mobilenet"))

    quantized = outputs / "mnist_mobilenet_fake_quant_model.onnx"
    for name, model_file in (("float", data.model_path), ("quantized", quantized)):
        print(f"{name} accuracy: {accuracy(model_file, data.test_images, data.test_labels):.2%}")


if __name__ == "__main__":
    main()
