"""What only a process of its own shows: dead streams and foreign encodings."""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

COMMAND = [sys.executable, "-m", "amct_onnx", "inspect", "m.onnx"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="层é")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder


def environment(**extra):
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return {**os.environ, "PYTHONPATH": source, **extra}


def test_a_reader_that_left(folder):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(COMMAND, cwd=folder, stdout=writing, stderr=subprocess.PIPE, env=environment(), check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def no_room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))


def test_a_full_disk_behind_stdout(folder):
    with (folder / "out.txt").open("wb") as full:
        done = subprocess.run(
            COMMAND,
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
            preexec_fn=no_room,
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [["--json"], ["--traceback"], ["--nonsense"]])
@pytest.mark.parametrize("dead", ["stdout", "stderr"])
def test_a_failure_on_a_full_disk(folder, dead, flags):
    """What went wrong stays what it was, on whichever stream is left."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with open("/dev/full", "wb") as full:
        streams[dead] = full
        command = [*COMMAND[:-1], "no.onnx", *flags]
        done = subprocess.run(command, cwd=folder, env=environment(), check=False, **streams)
    assert done.returncode == 2
    assert (b"Traceback" in (done.stderr or b"")) == (dead == "stdout" and flags == ["--traceback"])


def test_a_terminal_of_seven_bits(folder):
    run = [*COMMAND, "--json"]
    ascii_only = environment(PYTHONIOENCODING="ascii")
    done = subprocess.run(run, cwd=folder, capture_output=True, env=ascii_only, check=True)
    assert json.loads(done.stdout.decode("ascii"))["facts"][0]["name"] == "层é"
    done = subprocess.run(COMMAND, cwd=folder, capture_output=True, env=ascii_only, check=True)
    assert rb"\u5c42" in done.stdout
