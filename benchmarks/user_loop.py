"""A user's own loop on models with state and control flow: silero-vad, a detector of voices.

Run from the repository root: ``python -m benchmarks.user_loop``. One model has all its convolutions inside the two
branches of an If, one branch for each sampling rate; the other has them outside and only its LSTM inside. The loop
carries the state from window to window, as only a loop can. The package brings no sound, so the signal is drawn: sung
vowels, pauses, a little noise. That says little of the detector's skill, but how alike the compressed and the float
model are. It calibrates on one signal and compares on another.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import amct_onnx as amct
from amct_onnx.record import load_record
from benchmarks.fetch import SILERO_MODELS, SILERO_VAD, fetch

RATE = 16000
WINDOW = 512
CONTEXT = 64
SECONDS = 10
WINDOWS = SECONDS * RATE // WINDOW
ROUNDS = 9
# Centre and width, in Hz, of what makes the vowels of "father", "see", "who" and "bed".
VOWELS = np.array(
    [
        [(700, 130), (1220, 70), (2600, 160)],
        [(300, 80), (2300, 100), (3000, 150)],
        [(320, 80), (800, 90), (2200, 150)],
        [(500, 90), (1700, 100), (2500, 150)],
    ]
)

Signal = NDArray[np.float32]


def draw_signal(seed: int) -> Signal:
    """Half a second of vowels in a row, half a second of pause, and again with another pitch, over noise."""
    rng = np.random.default_rng(seed)
    times = np.arange(SECONDS * RATE) / RATE
    pitch = np.repeat(rng.uniform(90, 240, SECONDS), RATE) * (1 - 0.3 * (times % 1))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    vowels = VOWELS[np.repeat(rng.integers(0, len(VOWELS), 8 * SECONDS), RATE // 8)]
    voice = np.zeros_like(times)
    for harmonic in range(1, 30):
        away = (harmonic * pitch[:, None] - vowels[..., 0]) / vowels[..., 1]
        voice += np.sin(harmonic * phase) * (1 / (1 + away**2)).sum(axis=1)
    is_voiced = np.clip(8 * np.sin(2 * np.pi * times), 0, 1)
    return (0.1 * voice * is_voiced + rng.normal(0, 0.003, times.size)).astype(np.float32)


def run_over(model: Path, signal: Signal, options: onnxruntime.SessionOptions | None = None) -> tuple[Signal, float]:
    """The probability of a voice in each window, and the seconds that the loop took."""
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    state = np.zeros((2, 1, 128), np.float32)
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), signal])
    probabilities = []
    begin = time.perf_counter()
    for start in range(0, WINDOWS * WINDOW, WINDOW):
        window = padded[None, start : start + CONTEXT + WINDOW]
        output, state = session.run(None, {"input": window, "state": state, "sr": np.array(RATE, np.int64)})
        probabilities.append(output.item())
    return np.array(probabilities, np.float32), time.perf_counter() - begin


def quantize(model: Path, signal: Signal, folder: Path) -> tuple[list[float], list[float]]:
    """Calibrate on a signal, write models and record into a folder; seconds of observed and plain loops, in turns."""
    config, record, modified = (str(folder / name) for name in ("config.json", "record.txt", "modified.onnx"))
    amct.create_quant_config(config, str(model), batch_num=WINDOWS)
    observed, plain = [], []
    for _ in range(ROUNDS):
        amct.quantize_model(config, str(model), modified, record)
        observed.append(run_over(Path(modified), signal, amct.AMCT_SO)[1])
        plain.append(run_over(model, signal)[1])
    amct.save_model(modified, record, str(folder / "silero"))
    return observed, plain


def report(model: Path, folder: Path) -> None:
    """Print what was observed of a model, how close it stays when compressed, and what watching costs."""
    outside = {node.name for node in onnx.load(model).graph.node}
    observed, plain = quantize(model, draw_signal(0), folder)
    signal = draw_signal(1)
    exact, faked = (run_over(file, signal)[0] for file in (model, folder / "silero_fake_quant_model.onnx"))
    layers = load_record(folder / "record.txt").record.layers
    seen = {key for key, entry in layers.items() if entry.scale_d is not None}
    print(f"{model.name}: {len(layers)} layers, {len(layers.keys() - outside)} of them inside If bodies")
    print(f"  observed: {len(seen)}; their branch never ran: {len(layers.keys() - seen)}; observed inside If bodies:")
    print("\n".join(f"    {key}" for key in sorted(seen - outside)) or "    none")
    print(f"  probability of a voice in {WINDOWS} windows: {exact.min():.3f} to {exact.max():.3f} in float")
    print(f"  fake-quant against float: correlation {np.corrcoef(exact, faked)[0, 1]:.4f}, ", end="")
    print(f"largest difference {np.abs(exact - faked).max():.3f}")
    ratios = [ours / theirs for ours, theirs in zip(observed, plain, strict=True)]
    print(f"  {WINDOWS} runs, observed {median(observed):.3f} s, plain {median(plain):.3f} s, ", end="")
    print(f"{median(ratios):.1f} times ({min(ratios):.1f} to {max(ratios):.1f}; medians of {ROUNDS} rounds)")


def main() -> None:
    """Report on each model of the package."""
    package = fetch(SILERO_VAD).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # AMCT's functions log to the working directory
        for model in SILERO_MODELS:
            report(package / model, Path(folder))
        os.chdir("/")


if __name__ == "__main__":
    main()
