from __future__ import annotations

import numpy as np
import onnx
import onnxruntime

from amct_onnx import demo


def test_demo_reaches_the_score_on_its_card() -> None:
    loaded = demo.load()
    session = onnxruntime.InferenceSession(loaded.model_path, providers=["CPUExecutionProvider"])
    (logits,) = session.run([demo.OUTPUT_NAME], {demo.INPUT_NAME: loaded.test_images})
    assert np.mean(logits.argmax(axis=1) == loaded.test_labels) >= 0.99


def test_demo_shapes_and_types() -> None:
    loaded = demo.load()
    assert loaded.test_images.shape == (1000, 1, 28, 28)
    assert loaded.calibration_images.shape == (200, 1, 28, 28)
    assert loaded.test_images.dtype == loaded.calibration_images.dtype == np.float32
    assert loaded.test_labels.shape == (1000,)
    assert loaded.calibration_labels.shape == (200,)


def test_demo_keeps_batch_normalization_for_the_fusing_pass() -> None:
    kinds = {node.op_type for node in onnx.load(demo.load().model_path).graph.node}
    assert {"Conv", "BatchNormalization", "Clip", "Gemm"} <= kinds
