"""The examples, each run as a user runs it: in a process of its own, from another folder, with nothing but its name."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import amct_onnx
from amct_onnx import demo
from amct_onnx.record import load_record
from amct_onnx.runtime import fetch
from amct_onnx.runtime.simulator import open_simulator

ROOT = Path(amct_onnx.__file__).parents[1]
EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = {f"mnist_mobilenet_{name}" for name in ("deploy_model.onnx", "fake_quant_model.onnx", "quant.json")}
DATA = demo.load()
LAYERS = {node.name for node in onnx.load(DATA.model_path).graph.node if node.op_type in ("Conv", "Gemm")}


@dataclass(frozen=True)
class Outcome:
    """What an example printed, the folder it was run in, and the one it was asked to write to."""

    said: str
    cwd: Path
    outputs: Path


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Outcome]:
    """All examples, each run once, the second with a folder of its own choice."""
    folder = tmp_path_factory.mktemp("examples")
    commands = {
        "manual": ["python", str(EXAMPLES / "manual_calibration" / "manual_calibration.py")],
        "command line": ["sh", str(EXAMPLES / "command_line" / "run.sh"), "my results"],
        "evaluator": ["sh", str(EXAMPLES / "evaluator" / "run.sh")],
    }
    environment = own_commands(folder / "commands")
    outcomes = {}
    for name, command in commands.items():
        cwd = folder / name
        cwd.mkdir()
        said = run(command, cwd, environment)
        outcomes[name] = Outcome(said, cwd, cwd / (command[2] if command[2:] else "outputs"))
    return outcomes


def own_commands(folder: Path) -> dict[str, str]:
    """An environment in which ``python`` and ``amct_onnx`` are those of the tests, whatever is installed."""
    folder.mkdir()
    python = shlex.quote(sys.executable)
    for name, command in (("python", python), ("amct_onnx", f"{python} -m amct_onnx")):
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    first = {"PATH": folder, "PYTHONPATH": ROOT}
    return {**os.environ, **{name: f"{path}{os.pathsep}{os.environ.get(name, '')}" for name, path in first.items()}}


def run(command: list[str], cwd: Path, environment: dict[str, str]) -> str:
    """What a command prints; it has to succeed."""
    where = shutil.which(command[0], path=environment["PATH"])
    assert where is not None
    done = subprocess.run(
        [where, *command[1:]], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@cache
def logits(model_file: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model_file), providers=["CPUExecutionProvider"])
    return session.run(None, {demo.INPUT_NAME: DATA.test_images})[0]


def accuracy(model_file: Path) -> float:
    return float(np.sum(logits(model_file).argmax(axis=1) == DATA.test_labels)) / len(DATA.test_labels)


def float_and_quantized(outcome: Outcome) -> list[str]:
    """Both accuracies as the examples print them."""
    models = (DATA.model_path, outcome.outputs / "mnist_mobilenet_fake_quant_model.onnx")
    return [f"{accuracy(model):.2%}" for model in models]


@pytest.mark.parametrize("name", ["manual", "command line", "evaluator"])
def test_the_models(outcomes, name):
    outputs = outcomes[name].outputs
    fake_quant = outputs / "mnist_mobilenet_fake_quant_model.onnx"
    assert accuracy(fake_quant) == pytest.approx(accuracy(DATA.model_path), abs=0.005)
    deploy = outputs / "mnist_mobilenet_deploy_model.onnx"
    images = {demo.INPUT_NAME: DATA.test_images[:100]}
    (simulated,) = fetch(open_simulator(deploy), [demo.OUTPUT_NAME], images)
    assert np.linalg.norm(simulated - logits(fake_quant)[:100]) < 0.01 * np.linalg.norm(simulated)
    nodes = onnx.load(deploy).graph.node
    assert {node.name.removesuffix(".dequant") for node in nodes if node.op_type == "AscendDequant"} == LAYERS
    assert json.loads((outputs / "mnist_mobilenet_quant.json").read_text())


BATCHES = {f"data/image/batch_{index}.bin" for index in range(4)}
MORE_FILES = {
    "manual": {"tmp/config.json", "tmp/record.txt", "tmp/modified_model.onnx"},
    "command line": {*BATCHES, "data/mnist_mobilenet.onnx"},
    "evaluator": set(),
}


@pytest.mark.parametrize("name", MORE_FILES)
def test_nothing_is_written_beside_the_folder_but_the_log(outcomes, name):
    outcome = outcomes[name]
    assert files(outcome.outputs) == MODELS | MORE_FILES[name]
    inside = {f"{outcome.outputs.name}/{file}" for file in files(outcome.outputs)}
    assert files(outcome.cwd) - inside == {"amct_log/amct_onnx.log"}


def test_all_ways_give_the_same_model(outcomes):
    """Same model, data and defaults: the three differ in nothing but how they are asked."""
    graphs = [onnx.load(outcome.outputs / "mnist_mobilenet_deploy_model.onnx").graph for outcome in outcomes.values()]
    assert graphs[0] == graphs[1] == graphs[2]


def test_manual_calibration_prints_both_accuracies_and_keeps_the_record(outcomes):
    outcome = outcomes["manual"]
    exact, quantized = float_and_quantized(outcome)
    assert outcome.said.splitlines() == [f"float accuracy: {exact}", f"quantized accuracy: {quantized}"]
    record = load_record(outcome.outputs / "tmp" / "record.txt").record
    assert set(record.layers) == LAYERS
    assert all(entry.scale_d and entry.offset_d is not None and entry.scale_w for entry in record.layers.values())
    assert record.header is not None
    assert record.header.runs == (4, 4)


def test_the_command_line_writes_the_images_as_they_are(outcomes):
    outcome = outcomes["command line"]
    stored = np.concatenate([np.fromfile(outcome.outputs / name, np.float32) for name in sorted(BATCHES)])
    np.testing.assert_array_equal(stored, DATA.calibration_images.ravel())
    assert f"4 batches of shape 50,1,28,28, float32: {outcome.outputs.name}/data/image" in outcome.said
    assert f"quantized {len(LAYERS)} layers" in outcome.said
    (ratio,) = re.findall(r"tried fake_quant on the first 4 feeds: output SNR ([\d.]+) dB", outcome.said)
    assert float(ratio) > 30


def test_the_evaluator_prints_both_accuracies(outcomes):
    outcome = outcomes["evaluator"]
    assert re.findall(r"accuracy ([\d.]+%)", outcome.said) == float_and_quantized(outcome)


def test_the_readme_names_every_example():
    text = (EXAMPLES / "README.md").read_text()
    scripts = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*.*")}
    assert {name for name in scripts if name in text} == scripts
