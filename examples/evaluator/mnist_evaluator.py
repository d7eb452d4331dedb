"""An evaluator: your own code runs the model on your own data, the command does the rest.

Run by itself, ``python mnist_evaluator.py MODEL...`` prints the accuracy of models.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime

import amct_onnx as amct
from amct_onnx import demo
from amct_onnx.common.auto_calibration import AutoCalibrationEvaluatorBase

BATCH_NUM = 4
PROVIDERS = ["CPUExecutionProvider"]


class MnistEvaluator(AutoCalibrationEvaluatorBase):
    """Calibrates and scores models of handwritten digits."""

    def __init__(self) -> None:
        self.data = demo.load()

    def calibration(self, model_file: str) -> None:
        """Run the model BATCH_NUM times; the options bring the operators that watch it."""
        session = onnxruntime.InferenceSession(model_file, amct.AMCT_SO, providers=PROVIDERS)
        for batch in np.split(self.data.calibration_images, BATCH_NUM):
            session.run(None, {demo.INPUT_NAME: batch})

    def evaluate(self, model_file: str) -> float:
        """Share of test images whose digit the model names."""
        session = onnxruntime.InferenceSession(model_file, providers=PROVIDERS)
        (logits,) = session.run(None, {demo.INPUT_NAME: self.data.test_images})
        return float(np.mean(logits.argmax(axis=1) == self.data.test_labels))


evaluator = MnistEvaluator()

if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(f"{path}: accuracy {evaluator.evaluate(path):.2%}")
