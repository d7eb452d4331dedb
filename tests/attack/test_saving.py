"""What a save writes, and what it must never touch."""

import os
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import onnx
import onnxruntime
import pytest
from small_models import FEED, conv_net, random

import amct_onnx
from amct_onnx.errors import UsageError


@pytest.fixture(scope="module")
def result():
    return amct_onnx.quantize(conv_net(), [FEED], trial=False)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def small_files_only():
    """Files may not exceed 1 kB inside, as on a full disk; nothing else may write then, not even the test report."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_changes_nothing(result, tmp_path):
    (tmp_path / "m_record.txt").write_text("an earlier one")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="nothing was changed"), small_files_only():
        result.save(tmp_path / "m")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["m_deploy_model.onnx", "m_quant.json"])
def test_a_folder_in_the_way_of_one_file_stops_all(result, tmp_path, kind):
    (tmp_path / kind).mkdir()
    with pytest.raises(UsageError, match=rf"{kind}.*in the way"):
        result.save(tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == [kind]


@pytest.mark.parametrize("prefix", ["", ".", "..", "out/", "out/.", "a\0b", "x" * 250])
def test_prefixes_that_name_no_file(result, tmp_path, monkeypatch, prefix):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        result.save(prefix)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write here"):
        result.save(tmp_path / "file" / "m")


@pytest.mark.parametrize("location", ["m_qdq_model.onnx", "m_qdq_model.onnx.data", "w_deploy.external"])
def test_external_weights_of_the_source_are_never_overwritten(tmp_path, location):
    source = tmp_path / "source.onnx"
    onnx.save(conv_net(), source, save_as_external_data=True, size_threshold=0, location=location)
    before = contents(tmp_path)
    saved = amct_onnx.quantize(source, [FEED], trial=False)
    with pytest.raises(UsageError, match="overwrite an input"):
        saved.save(tmp_path / "m")
    assert contents(tmp_path) == before


def test_external_weights_of_nodes_are_never_overwritten(tmp_path):
    """A Constant node's tensor may lie in a file as well."""
    net = conv_net()
    net.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=net.graph.initializer[0]))
    del net.graph.initializer[0]
    held = net.graph.node[0].attribute[0].t
    (tmp_path / "m_qdq_model.onnx").write_bytes(held.raw_data)
    held.ClearField("raw_data")
    held.data_location = onnx.TensorProto.EXTERNAL
    held.external_data.add(key="location", value="m_qdq_model.onnx")
    (tmp_path / "source.onnx").write_bytes(net.SerializeToString())
    before = contents(tmp_path)
    saved = amct_onnx.apply(tmp_path / "source.onnx", amct_onnx.record.Record())
    with pytest.raises(UsageError, match="overwrite an input"):
        saved.save(tmp_path / "m")
    assert contents(tmp_path) == before


def test_a_model_with_external_weights_is_saved_whole(tmp_path):
    source = tmp_path / "source.onnx"
    onnx.save(conv_net(), source, save_as_external_data=True, size_threshold=0, location="source.data")
    paths = amct_onnx.quantize(source, [FEED], trial=False).save(tmp_path / "out" / "m")
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    for form in ("fake_quant", "qdq"):
        onnx.checker.check_model(tmp_path / "elsewhere" / paths[form].name)
    assert not [path for path in (tmp_path / "elsewhere").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("moved", [False, True])
def test_a_model_with_external_weights_is_saved_twice_into_one_place(tmp_path, monkeypatch, moved):
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "source.onnx"
    onnx.save(conv_net(), source, save_as_external_data=True, size_threshold=0, location="source.data")
    result = amct_onnx.quantize(source, [FEED], trial=False)
    result.save(tmp_path / "out" / "m")
    before = contents(tmp_path / "out")
    monkeypatch.chdir(tmp_path if moved else "/")
    result.save("out/m" if moved else tmp_path / "out" / "m")
    assert contents(tmp_path / "out") == before


def test_outputs_run_wherever_they_are_taken(tmp_path, monkeypatch):
    source = tmp_path / "source.onnx"
    wide = conv_net(weight=random(400, 3, 3, 3) * np.float32(0.3))
    (wanted,) = run(wide)
    onnx.save(wide, source, save_as_external_data=True, size_threshold=0, location="source.data")
    result = amct_onnx.quantize(source, [FEED], trial=False)
    paths = result.save(tmp_path / "out" / "m")
    assert all(paths.weights[form] for form in ("ascend", "fake_quant", "qdq"))
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    source.unlink()
    (tmp_path / "source.data").unlink()
    monkeypatch.chdir("/")
    for form in ("fake_quant", "qdq"):
        (got,) = run(tmp_path / "elsewhere" / paths[form].name)
        assert np.square(got - wanted).sum() < 1e-3 * np.square(wanted).sum()


def run(model):
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, {"x": FEED})


KILLED = """
import os, sys, signal
from pathlib import Path
sys.path.insert(0, {here!r})
import amct_onnx, amct_onnx.graph.files
from small_models import FEED, conv_net
# Whoever started the tests may have had interrupts ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
result = amct_onnx.quantize(conv_net(), [FEED], trial=False)
stream, count = amct_onnx.graph.files.write_stream, 0
def write_stream(*arguments):
    global count
    count += 1
    stream(*arguments)
    if count == 2:
        os.kill(os.getpid(), signal.{signal})
amct_onnx.graph.files.write_stream = write_stream
result.save(Path("m"))
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_killed_while_saving(tmp_path, name):
    (tmp_path / "m_deploy_model.onnx").write_text("an earlier one")
    code = KILLED.format(here=os.path.dirname(os.path.abspath(__file__)), signal=name)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode != 0
    seen = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert seen == {"m_deploy_model.onnx"}
    assert (tmp_path / "m_deploy_model.onnx").read_text() == "an earlier one"
    # What is killed outright cannot clean up behind itself.
    assert name == "SIGKILL" or len(list(tmp_path.iterdir())) == 1


def test_a_plan_in_place_stays_as_its_author_wrote_it(result, tmp_path):
    paths = result.save(tmp_path / "m")
    with paths["record"].open("a") as stream:
        stream.write("# widened by hand\n")
    before = paths["record"].read_bytes()
    again = amct_onnx.apply(conv_net(), paths["record"])
    again.save(tmp_path / "m", keep=[paths["record"], paths["tensors"]])
    assert paths["record"].read_bytes() == before
    with pytest.raises(UsageError, match="overwrite an input"):
        again.save(tmp_path / "m", protect=[paths["record"]])


@pytest.mark.parametrize("form", ["ascend", "tflite"])
def test_a_form_that_is_not_there(form):
    with pytest.raises(UsageError, match=f"no '{form}' model, only qdq"):
        amct_onnx.quantize(conv_net(), [FEED], formats="qdq", trial=False).model(form)
