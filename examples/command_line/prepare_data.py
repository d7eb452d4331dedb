"""Write what ``amct_onnx calibration`` reads: a model, and one folder of raw ``.bin`` batches for its input.

Usage: ``python prepare_data.py FOLDER``
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from amct_onnx import demo

BATCH_NUM = 4


def main() -> None:
    """Take model and images from the package; replace this by your own, prepared as the model was trained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    data = demo.load()
    images = folder / demo.INPUT_NAME
    images.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(data.model_path, folder / data.model_path.name)
    # A .bin file holds the values alone, in C order: shape and type are said on the command line.
    for index, batch in enumerate(np.split(data.calibration_images, BATCH_NUM)):
        batch.tofile(images / f"batch_{index}.bin")
    print(f"{BATCH_NUM} batches of shape {','.join(map(str, batch.shape))}, {batch.dtype}: {images}")


if __name__ == "__main__":
    main()
