"""What ``docs/differences-from-amct.md`` says of AMCT's functions and no other test holds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import amct_onnx
from amct_onnx.record import load_record
from amct_onnx.runtime import open_session
from tests.drop_in.test_drop_in import run_loop, run_python
from tests.models import normal, parse

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "differences-from-amct.md"
INPUT, OUTPUT = "float[n,3,6,6] x", "float[n,5,h,k] y"
NET = "[a] r = Conv(x, w) [b] y = Conv(r, v)"
WEIGHTS = {"w": normal(4, 3, 3, 3), "v": normal(5, 4, 1, 1, seed=1)}
FEEDS = normal(2, 2, 3, 6, 6, seed=2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quantize(model: onnx.ModelProto, feeds: np.ndarray = FEEDS, config: str = "", loop: str = "run(feeds)") -> dict:
    """All of AMCT's functions in their order; the entries of the record."""
    onnx.save(model, "model.onnx")
    np.save("feeds.npy", feeds)
    Path("net.cfg").write_text(f"batch_num: {len(feeds)} {config}")
    amct_onnx.create_quant_config("config.json", "model.onnx", config_defination="net.cfg")
    if "dmq_balancer" in config:
        amct_onnx.quantize_preprocess("config.json", "record.txt", "model.onnx", "modified.onnx")
        run_loop("modified.onnx")
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    run_loop("modified.onnx", loop=loop)
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    return dict(load_record("record.txt").record.layers)


def log() -> str:
    return Path("amct_log/amct_onnx.log").read_text()


@pytest.mark.parametrize("nothing", ["data", "weights"])
def test_balancing_what_is_zero_balances_nothing(folder, nothing):
    weights = {**WEIGHTS, "w": WEIGHTS["w"] * 0} if nothing == "weights" else WEIGHTS
    feeds = FEEDS * 0 if nothing == "data" else FEEDS
    layers = quantize(parse(NET, INPUT, OUTPUT, weights), feeds, "common_config { dmq_balancer { } }")
    assert layers["a"].tensor_balance_factor == (1.0,) * 3
    assert Path("net_deploy_model.onnx").exists()


def test_layers_that_share_a_weight_are_balanced_each_for_itself(folder):
    net = "[a] r = Conv(x, w) g = Mul(x, spread) [c] s = Conv(g, w) y = Add(r, s)"
    spread = np.array([100, 1, 0.01], np.float32).reshape(3, 1, 1)
    model = parse(net, INPUT, "float[n,4,h,k] y", {"w": WEIGHTS["w"], "spread": spread})
    layers = quantize(model, config="common_config { dmq_balancer { } }")
    assert layers["a"].tensor_balance_factor != layers["c"].tensor_balance_factor
    feed = {"x": FEEDS[0]}
    exact, faked = (
        open_session(Path(path)).run(["y"], feed)[0] for path in ("model.onnx", "net_fake_quant_model.onnx")
    )
    assert np.linalg.norm(faked - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (1e10, r"its input reaches [\d.e+]+, which asks for scale_d"),
        (np.inf, "calibration saw no finite value of its input"),
    ],
)
def test_a_layer_whose_data_no_scale_fits_stays_float_alone(folder, factor, reason):
    net = "[a] r = Conv(x, w) q = Mul(r, f) [b] y = Conv(q, v)"
    layers = quantize(parse(net, INPUT, OUTPUT, {**WEIGHTS, "f": np.array([factor], np.float32)}))
    assert layers["a"].scale_d is not None
    assert layers["b"].scale_d is None
    assert re.search(f"layer 'b' stays float: {reason}", log())
    dequantized = [
        node.name for node in onnx.load("net_deploy_model.onnx").graph.node if node.op_type == "AscendDequant"
    ]
    assert dequantized == ["a.dequant"]


def test_single_values_that_are_not_finite_are_left_out_and_counted(folder):
    feeds = FEEDS.copy()
    feeds[0, 0, 0, 0, :2] = np.nan
    feeds[1, 1, 2, 5, 5] = np.inf
    layers = quantize(parse(NET, INPUT, OUTPUT, WEIGHTS), feeds)
    finite = feeds[np.isfinite(feeds)]
    # IFMR moves the upper bound of the finite values by 0.7 to 1.3, and nothing else.
    assert 0.7 < layers["a"].scale_d * 255 / (finite.max() - finite.min()) < 1.3
    assert "layer 'a': its input held 2 NaN and 1 infinite values, which are left out" in log()


def test_empty_batches_add_nothing(folder):
    model = parse(NET, INPUT, OUTPUT, WEIGHTS)
    expected = quantize(model, FEEDS[:1])
    assert quantize(model, FEEDS, loop="run([feeds[0][:0], feeds[0]])") == expected
    assert "runs done" not in log()


def test_weights_may_be_constant_nodes(folder):
    model = parse(NET, INPUT, OUTPUT, WEIGHTS)
    expected = quantize(model)
    operators = [node.op_type for node in onnx.load("net_deploy_model.onnx").graph.node]
    for tensor in model.graph.initializer:
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]
    assert quantize(model) == expected
    assert [node.op_type for node in onnx.load("net_deploy_model.onnx").graph.node] == operators


def test_operators_of_other_domains_are_left_alone(folder):
    net = "[a] r = Conv(x, w) [g] t = com.microsoft.Gelu(r) [b] y = Conv(t, v)"
    layers = quantize(parse(net, INPUT, OUTPUT, WEIGHTS, domains='"com.microsoft": 1'))
    assert set(layers) == {"a", "b"}
    for form in ("deploy", "fake_quant"):
        saved = onnx.load(f"net_{form}_model.onnx")
        assert {entry.domain for entry in saved.opset_import} == {"", "com.microsoft"}
        assert [node.domain for node in saved.graph.node if node.name == "g"] == ["com.microsoft"]
    feed = {"x": FEEDS[0]}
    exact, faked = (
        open_session(Path(path)).run(["y"], feed)[0] for path in ("model.onnx", "net_fake_quant_model.onnx")
    )
    assert np.linalg.norm(faked - exact) < 0.05 * np.linalg.norm(exact)


def test_a_fake_quant_model_runs_with_and_without_amct_so(folder):
    quantize(parse(NET, INPUT, OUTPUT, WEIGHTS))
    feed = {"x": FEEDS[0]}
    np.save("plain.npy", open_session(Path("net_fake_quant_model.onnx")).run(["y"], feed)[0])
    script = """
        import numpy as np, onnxruntime as ort
        import amct_onnx as amct
        session = ort.InferenceSession("net_fake_quant_model.onnx", amct.AMCT_SO)
        np.save("under.npy", session.run(["y"], {"x": np.load("feeds.npy")[0]})[0])
    """
    run_python(script)
    np.testing.assert_allclose(np.load("under.npy"), np.load("plain.npy"), rtol=1e-5, atol=1e-5)


def test_outputs_that_exist_are_replaced_and_named(folder):
    quantize(parse(NET, INPUT, OUTPUT, WEIGHTS))
    before = log()
    quantize(parse(NET, INPUT, OUTPUT, WEIGHTS))
    added = log()[len(before) :]
    for name in ("config.json", "modified.onnx", "record.txt"):
        assert f"WARNING - [AMCT]:{name} is replaced" in added
    assert "replacing earlier outputs: net_deploy_model.onnx, net_fake_quant_model.onnx, net_quant.json" in added


@pytest.mark.parametrize("opset", [7, 9, 12, 17])
def test_the_deploy_model_keeps_the_operator_set(folder, opset):
    quantize(parse(NET, INPUT, OUTPUT, WEIGHTS, opset=opset))
    assert [entry.version for entry in onnx.load("net_deploy_model.onnx").opset_import] == [opset]


def test_every_row_of_the_page_points_to_tests_that_exist():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`tests/" in line]
    pointers = [re.findall(r"`(tests/\S+?\.py)(?:::(\w+))?`", row) for row in rows]
    assert len(rows) > 25
    for row, found in zip(rows, pointers, strict=True):
        assert found, row
        for path, name in found:
            assert not name or re.search(rf"def {name}\b", (ROOT / path).read_text()), (path, name)
