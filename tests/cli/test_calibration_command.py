"""``amct_onnx calibration``: AMCT's flags, with raw data and with an evaluator."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest

import amct_onnx
from amct_onnx.cli import main
from amct_onnx.common.auto_calibration import AutoCalibrationEvaluatorBase
from amct_onnx.common.cmd_line_utils.data_handler import load_data
from tests.models import normal, parse

NET = "[c] s = Conv(x, w) [m] t = Mul(s, f) [d] y = Conv(t, v)"
WEIGHTS = {"w": normal(4, 3, 1, 1), "v": normal(2, 4, 1, 1, seed=1)}
DATA = ["--input_shape", "x:2,3,4,4;f:1", "--data_dir", "x/;f/", "--data_types", "float32;float32"]
OUTPUTS = ["net_deploy_model.onnx", "net_fake_quant_model.onnx", "net_quant.json"]
EVALUATOR = """
    import numpy as np, onnxruntime as ort
    import amct_onnx as amct
    from amct_onnx.common.auto_calibration import AutoCalibrationEvaluatorBase
    from amct_onnx.common.cmd_line_utils.data_handler import load_data

    class Evaluator(AutoCalibrationEvaluatorBase):
        def calibration(self, model_file):
            session = ort.InferenceSession(model_file, amct.AMCT_SO)
            for feed in load_data({"x": [2, 3, 4, 4], "f": [1]}, ["x/", "f/"], ["float32", "float32"], 2):
                session.run(None, feed)

        def evaluate(self, model_file):
            return 1.0

        def metric_eval(self, original_metric, new_metric):
            return True, 0.0
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two inputs with two .bin files each, written in an order that is not that of their names."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(NET, "float[n,3,4,4] x, float[1] f", "float[n,2,4,4] y", WEIGHTS), "net.onnx")
    for name in ("x", "f"):
        Path(name).mkdir()
    for index in (1, 0):
        (normal(2, 3, 4, 4, seed=index) * (1 + 9 * index)).tofile(f"x/b{index}.bin")
        np.array([1 + index], np.float32).tofile(f"f/b{index}.bin")
    return tmp_path


def calibration(*flags: str) -> int:
    return main(["calibration", "--model", "net.onnx", "--save_path", "out/net", *flags])


def expected(batch_num: int):
    """The same by one call in Python, on feeds made here."""
    feeds = [
        {"x": normal(2, 3, 4, 4, seed=index) * np.float32(1 + 9 * index), "f": np.array([1 + index], np.float32)}
        for index in range(batch_num)
    ]
    result = amct_onnx.quantize("net.onnx", feeds, act="ifmr", weights="arq", formats=["ascend", "fake_quant"])
    return result.model("ascend").graph


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("spelling", ["apart", "joined", "abbreviated"])
def test_raw_data(folder, batches, spelling):
    flags = [*DATA, "--batch_num", str(batches)]
    if spelling == "joined":
        flags = [f"{flag}={value}" for flag, value in zip(flags[::2], flags[1::2], strict=True)]
    if spelling == "abbreviated":
        flags = ["--data_type" if flag == "--data_types" else flag for flag in flags]
    assert calibration(*flags) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == OUTPUTS
    # All inputs of a model are fed in one run, and files are taken in the order of their names.
    assert onnx.load("out/net_deploy_model.onnx").graph == expected(batches)
    assert Path("amct_log/amct_onnx.log").exists()


def test_one_batch_is_the_default(folder):
    assert calibration(*DATA) == 0
    assert onnx.load("out/net_deploy_model.onnx").graph == expected(1)


def test_a_simple_config_decides(folder):
    Path("my.cfg").write_text('batch_num: 2 skip_layers: "d"')
    assert calibration(*DATA, "--calibration_config", "my.cfg") == 0
    names = {node.name for node in onnx.load("out/net_deploy_model.onnx").graph.node}
    assert "c.quant" in names
    assert "d.quant" not in names


@pytest.mark.parametrize("end", ["", "\nevaluator = Evaluator()\n"], ids=["a class", "an object"])
def test_an_evaluator_runs_the_model(folder, end):
    Path("eva.py").write_text(textwrap.dedent(EVALUATOR) + end)
    assert calibration("--evaluator", "eva.py", "--batch_num", "2") == 0
    assert sorted(path.name for path in Path("out").iterdir()) == OUTPUTS
    assert onnx.load("out/net_deploy_model.onnx").graph == expected(2)


def test_an_evaluator_leaves_nothing_beside_its_file(folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    Path("eva").mkdir()
    Path("eva/eva.py").write_text(textwrap.dedent(EVALUATOR))
    assert calibration("--evaluator", "eva/eva.py", "--batch_num", "2") == 0
    assert [path.name for path in Path("eva").iterdir()] == ["eva.py"]
    assert sys.dont_write_bytecode is False


def test_an_evaluator_imports_late_and_moves_about(folder):
    """Neighbours are found while it runs as well, whatever it puts on the path; outputs go where asked."""
    for name in ("work", "elsewhere"):
        Path(name).mkdir()
    text = textwrap.dedent(EVALUATOR)
    late = 'import neighbour_of_eva, os, sys; sys.path.insert(0, "elsewhere"); os.chdir(neighbour_of_eva.FOLDER)'
    text = text.replace("    session = ort", f"    {late}\n        session = ort").replace(
        '"x/", "f/"', '"../x", "../f"'
    )
    Path("work/eva.py").write_text(text)
    Path("work/neighbour_of_eva.py").write_text('FOLDER = "elsewhere"')
    before = list(sys.path)
    assert calibration("--evaluator", "work/eva.py", "--batch_num", "2") == 0
    assert sys.path == ["elsewhere", *before]
    sys.path.remove("elsewhere")
    assert onnx.load("out/net_deploy_model.onnx").graph == expected(2)


def test_an_evaluator_runs_twice_where_layers_are_balanced(folder):
    Path("my.cfg").write_text("batch_num: 2 common_config { dmq_balancer { } }")
    Path("eva.py").write_text(textwrap.dedent(EVALUATOR))
    assert calibration("--evaluator", "eva.py", "--calibration_config", "my.cfg") == 0
    assert "Mul" in [node.op_type for node in onnx.load("out/net_deploy_model.onnx").graph.node if node.name != "m"]


def test_quiet_means_quiet(folder, capsys):
    assert calibration(*DATA, "--quiet") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("flag", ["--help", "--h"])
def test_help(flag):
    command = [sys.executable, "-m", "amct_onnx", "calibration", flag]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(amct_onnx.__file__).parents[1])
    assert done.returncode == 0
    for name in ("--input_shape", "--data_dir", "--data_types", "--evaluator", "--calibration_config", "--batch_num"):
        assert name in done.stdout


FAULTS = [
    ([], "--input_shape is missing"),
    (DATA[:4], "--data_types is missing"),
    ([*DATA, "--evaluator", "eva.py"], "--evaluator and --input_shape exclude each other"),
    ([*DATA, "--batch_num", "1", "--calibration_config", "my.cfg"], "--calibration_config and --batch_num exclude"),
    ([*DATA, "--batch_num", "0"], "--batch_num is 0"),
    ([*DATA, "--batch_num", "3"], "batch_num is 3, but the calibration data holds 2 feeds"),
    ([*DATA, "--calibration_config", "no.cfg"], "no.cfg cannot be read"),
    (["--input_shape=", *DATA[2:]], "--input_shape is empty"),
    ([*DATA[:2], "--data_dir", "x/;no/", *DATA[4:]], "no: no such folder"),
    ([*DATA[:2], "--data_dir", "x/", *DATA[4:]], "1 folders, 2 input shapes, 2 data types"),
    (["--input_shape", "x:2,3,4,5;f:1", *DATA[2:]], "384 bytes, but input 'x' of shape [2, 3, 4, 5]"),
    ([*DATA[:4], "--data_types", "float32;float31"], "data type 'float31' is unknown"),
    (["--evaluator", "no.py"], "no.py: no such file"),
    (["--evaluator", "empty.py"], "empty.py: no evaluator stands in it"),
    (["--evaluator", "two.py"], "two.py: several evaluators stand in it: a, b"),
    (["--evaluator", "broken.py"], "broken.py: running it fails: ZeroDivisionError"),
    (["--evaluator", "raises.py"], "fails: KeyError: 'data'"),
    (["--evaluator", "lazy.py"], "no layer has scale_d"),
    (["--evaluator", "arguments.py"], "arguments.py: E() fails: TypeError"),
    (["--evaluator", "exits.py"], "fails: SystemExit: 0"),
    (["--evaluator", "ends.py"], "ends.py: E() fails: SystemExit: 0"),
]
FILES = {
    "empty.py": "x = 1",
    "two.py": "class E:\n    def calibration(self, f): pass\na, b = E(), E()",
    "broken.py": "1 / 0",
    "raises.py": "class E:\n    def calibration(self, f): raise KeyError('data')",
    "lazy.py": "class E:\n    def calibration(self, f): pass",
    "exits.py": "import sys\nclass E:\n    def calibration(self, f): sys.exit(0)",
    "ends.py": "import sys\nclass E:\n    def __init__(self): sys.exit(0)\n    def calibration(self, f): pass",
    "arguments.py": "class E:\n    def __init__(self, n): pass\n    def calibration(self, f): pass",
}


@pytest.mark.parametrize(("flags", "words"), FAULTS, ids=[words for _, words in FAULTS])
def test_faults_are_one_line_and_leave_nothing(folder, capsys, flags, words):
    for name, text in FILES.items():
        Path(name).write_text(text)
    assert calibration(*flags) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert words in lines[0]
    assert not Path("out").exists() or not list(Path("out").iterdir())


def test_no_input_is_overwritten(folder, capsys):
    Path("out").mkdir()
    Path("net.onnx").rename("out/net_deploy_model.onnx")
    before = Path("out/net_deploy_model.onnx").read_bytes()
    flags = ["--model", "out/net_deploy_model.onnx", "--save_path", "out/net"]
    assert main(["calibration", *flags, *DATA]) == 2
    assert "would overwrite an input" in capsys.readouterr().err
    assert Path("out/net_deploy_model.onnx").read_bytes() == before


def test_load_data_takes_as_many_as_asked(folder):
    feeds = list(load_data({"x": [2, 3, 4, 4], "f": [1]}, ["x", "f"], ["float32", "float32"], 1))
    assert len(feeds) == 1
    np.testing.assert_array_equal(feeds[0]["x"], normal(2, 3, 4, 4, seed=0))
    with pytest.raises(amct_onnx.DataError, match=r"holds 2 \.bin files, fewer than batch_num, which is 3"):
        load_data({"x": [2, 3, 4, 4], "f": [1]}, ["x", "f"], ["float32", "float32"], 3)


def test_an_evaluator_without_calibration_is_none():
    class Evaluator(AutoCalibrationEvaluatorBase):
        pass

    with pytest.raises(TypeError, match="calibration"):
        Evaluator()
