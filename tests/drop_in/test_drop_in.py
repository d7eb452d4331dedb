"""AMCT's functions with the user's own loop, in processes of their own as users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest

import amct_onnx
from amct_onnx.analyse.algorithms.balance import balance_factors
from amct_onnx.errors import AmctError, ConfigError, ModelError, NothingToCompressError, RecordError, UsageError
from amct_onnx.record import load_record
from tests.models import normal, parse

NET = "[a] r = Conv<pads = [1,1,1,1]>(x, v, p) s = Relu(r) [b] q = Conv(s, w) [c] y = Conv(s, u)  z = Neg(q)"
WEIGHTS = {
    "v": normal(6, 4, 3, 3),
    "p": normal(6, seed=1),
    "w": normal(3, 6, 1, 1, seed=2),
    "u": normal(2, 6, 1, 1, seed=3),
}

LOOP = """
    import sys, threading
    import numpy as np, onnxruntime as ort
    import amct_onnx as amct

    feeds = np.load("feeds.npy")
    options = amct.AMCT_SO
    {setup}
    session = ort.InferenceSession({model!r}, options)

    def run(part):
        for feed in part:
            session.run(None, {{"x": feed}})

    {loop}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model, three feeds and a config, in which everything runs."""
    monkeypatch.chdir(tmp_path)
    spread = np.array([0.05, 1, 20, 0.5], np.float32).reshape(1, 1, 4, 1, 1)
    np.save("feeds.npy", normal(3, 2, 4, 5, 5, seed=7) * spread)
    onnx.save(parse(NET, "float[n,4,5,5] x", "float y, float z", WEIGHTS), "model.onnx")
    amct_onnx.create_quant_config("config.json", "model.onnx", batch_num=3)
    return tmp_path


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user would, with the package that the tests import."""
    path = os.pathsep.join([str(Path(amct_onnx.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done


def run_loop(model: str, setup: str = "", loop: str = "run(feeds)") -> subprocess.CompletedProcess[str]:
    return run_python(textwrap.dedent(LOOP).format(model=model, setup=setup, loop=loop))


def quantize_and_run(**kwargs: str) -> subprocess.CompletedProcess[str]:
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    return run_loop("modified.onnx", **kwargs)


def direct():
    """The same by one call, on the same data and config."""
    feeds = [{"x": feed} for feed in np.load("feeds.npy")]
    return amct_onnx.quantize("model.onnx", feeds, config="config.json", formats=["ascend", "fake_quant"])


def initializers(path: str):
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_the_loop_gives_what_one_call_gives(folder):
    quantize_and_run()
    amct_onnx.save_model("modified.onnx", "record.txt", "out/net")
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "net_deploy_model.onnx",
        "net_fake_quant_model.onnx",
        "net_quant.json",
    ]
    expected = direct()
    record = load_record("record.txt").record
    assert dict(record.layers) == dict(expected.record.layers)
    assert record.header.runs == (3, 3)
    for form, path in (("ascend", "out/net_deploy_model.onnx"), ("fake_quant", "out/net_fake_quant_model.onnx")):
        saved, wanted = onnx.load(path), expected.model(form)
        assert [node.SerializeToString() for node in saved.graph.node] == [
            node.SerializeToString() for node in wanted.graph.node if node.ClearField("doc_string") is None
        ]
        assert {t.name: t.raw_data for t in saved.graph.initializer} == {
            t.name: t.raw_data for t in wanted.graph.initializer
        }
        assert [entry.domain for entry in saved.opset_import] == [""]
        assert not saved.metadata_props
    log = Path("amct_log/amct_onnx.log").read_text()
    assert "[create_quant_config]: Create quant config file config.json success." in log
    assert "The model file is saved in out/net_deploy_model.onnx" in log


THREADS = (
    "threads = [threading.Thread(target=run, args=(feeds[i:i + 1],)) for i in range(3)]\n"
    "[t.start() for t in threads]\n[t.join() for t in threads]"
)


@pytest.mark.parametrize(
    ("setup", "loop"),
    [
        ("options.execution_mode = ort.ExecutionMode.ORT_PARALLEL; options.inter_op_num_threads = 4", "run(feeds)"),
        ("options.intra_op_num_threads = 4", "run(feeds)"),
        ("", THREADS),
        ("options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL", "run(feeds)"),
    ],
    ids=["parallel", "four threads in an operator", "runs in threads", "not optimized"],
)
def test_every_way_to_run_gives_the_same_record(folder, setup, loop):
    quantize_and_run(setup=setup, loop=loop)
    got, expected = load_record("record.txt").record.layers, direct().record.layers
    for name, entry in expected.items():
        assert got[name].scale_d == pytest.approx(entry.scale_d, rel=1e-4)
        assert got[name].offset_d == entry.offset_d


def test_the_record_grows_with_every_run_and_counts_them(folder):
    quantize_and_run(loop="run(feeds[:1])")
    record = load_record("record.txt").record
    assert record.header.runs == (1, 3)
    assert all(entry.scale_d for entry in record.layers.values())
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    assert "only 1 of 3 runs done" in Path("amct_log/amct_onnx.log").read_text()


# Choosing scales takes longer than running, so only the first run and the last are written at once.
SLOW_WRITING = "import amct_onnx.analyse.recorder as recorder; recorder._WRITING_SHARE = 1e-9"


def test_runs_not_written_yet_count_when_saving(folder):
    save = "amct.save_model('modified.onnx', 'record.txt', 'net')"
    quantize_and_run(setup=SLOW_WRITING, loop=f"run(feeds[:2]); {save}")
    assert "only 2 of 3 runs done" in Path("amct_log/amct_onnx.log").read_text()
    assert load_record("record.txt").record.header.runs == (2, 3)


def test_runs_not_written_yet_are_written_when_the_process_ends(folder):
    quantize_and_run(setup=SLOW_WRITING, loop="run(feeds[:2])")
    assert load_record("record.txt").record.header.runs == (2, 3)


@pytest.mark.parametrize("touch", ["open('record.txt', 'a').write('# mine')", "os.remove('record.txt')"])
def test_a_record_changed_by_others_is_left_alone_when_the_process_ends(folder, touch):
    quantize_and_run(setup=f"import os; {SLOW_WRITING}", loop=f"run(feeds[:2]); {touch}")
    assert not Path("record.txt").exists() or Path("record.txt").read_text().endswith("# mine")


def test_surplus_runs_add_nothing_and_say_so_once(folder):
    done = quantize_and_run(loop="run(feeds); run(feeds * 100); run(feeds * 100)")
    assert done.stderr.count("batch_num is 3") == 1
    assert dict(load_record("record.txt").record.layers) == dict(direct().record.layers)


def test_without_runs_there_is_nothing_to_save(folder):
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    with pytest.raises(RecordError, match=r"no layer has scale_d, first 'a', 'b', 'c' \(0 of 3 runs done\); run"):
        amct_onnx.save_model("modified.onnx", "record.txt", "net")
    assert not list(folder.glob("net*"))


def test_a_record_that_disappears_ends_no_process(folder):
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    done = run_loop("modified.onnx", setup="import os; os.remove('record.txt')")
    assert "record.txt cannot be read" in done.stderr


def test_made_anew_in_one_process_starts_over(folder):
    script = """
        import numpy as np, onnxruntime as ort
        import amct_onnx as amct
        feeds = np.load("feeds.npy")
        for scale in (100, 1):
            amct.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
            session = ort.InferenceSession("modified.onnx", amct.AMCT_SO)
            for feed in feeds:
                session.run(None, {"x": feed * scale})
    """
    run_python(script)
    assert dict(load_record("record.txt").record.layers) == dict(direct().record.layers)


def test_not_finite_data_is_said_where_it_can_be(folder):
    feeds = np.load("feeds.npy")
    feeds[:] = np.nan
    np.save("feeds.npy", feeds)
    quantize_and_run()
    header = load_record("record.txt").record.header
    assert header.faults[0] == "layer 'a': calibration saw no finite value of its input"
    with pytest.raises(RecordError, match="3 of 3 runs done; layer 'a': calibration saw no finite value"):
        amct_onnx.save_model("modified.onnx", "record.txt", "net")


def test_balancing_from_end_to_end(folder):
    Path("net.cfg").write_text("batch_num: 3 common_config { dmq_balancer { migration_strength: 0.6 } }")
    amct_onnx.create_quant_config("config.json", "model.onnx", config_defination="net.cfg")
    with pytest.raises(RecordError, match=r"balances layer 'a', but the record holds no tensor_balance_factor"):
        amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    amct_onnx.quantize_preprocess("config.json", "record.txt", "model.onnx", "modified.onnx")
    run_loop("modified.onnx")
    acts = np.abs(np.load("feeds.npy")).max(axis=(0, 1, 3, 4))
    weights = np.abs(WEIGHTS["v"]).max(axis=(0, 2, 3))
    factors = load_record("record.txt").record.layers["a"].tensor_balance_factor
    np.testing.assert_allclose(factors, balance_factors(acts, weights, migration_strength=0.6), rtol=1e-6)
    quantize_and_run()
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    record = load_record("record.txt").record
    assert record.layers["a"].tensor_balance_factor == factors
    # b and c read one tensor with factors of their own, as AMCT has it.
    nodes = [node.op_type for node in onnx.load("net_deploy_model.onnx").graph.node]
    assert nodes.count("Mul") == 3
    feed = np.load("feeds.npy")[0]
    exact, balanced = (
        amct_onnx.runtime.open_session(Path(path)).run(["y"], {"x": feed})[0]
        for path in ("model.onnx", "net_fake_quant_model.onnx")
    )
    plain = direct_without_balance().run(["y"], {"x": feed})[0]
    assert np.linalg.norm(balanced - exact) < 0.7 * np.linalg.norm(plain - exact)


def direct_without_balance():
    feeds = [{"x": feed} for feed in np.load("feeds.npy")]
    result = amct_onnx.quantize("model.onnx", feeds, act="ifmr", weights="arq", formats=["fake_quant"])
    return amct_onnx.runtime.open_session(result.model("fake_quant"))


def test_names_for_all_nodes_are_saved_on_request(folder):
    nameless = onnx.load("model.onnx")
    for node in nameless.graph.node:
        node.name = ""
    onnx.save(nameless, "nameless.onnx")
    amct_onnx.create_quant_config("config.json", "nameless.onnx", updated_model="named.onnx")
    names = [node.name for node in onnx.load("named.onnx").graph.node]
    assert names == ["Conv_0", "Relu_1", "Conv_2", "Conv_3", "Neg_4"]
    assert {"Conv_0", "Conv_2", "Conv_3"} <= json.loads(Path("config.json").read_text()).keys()


def test_a_simple_config_beats_the_arguments(folder):
    Path("net.cfg").write_text("batch_num: 2 activation_offset: false")
    amct_onnx.create_quant_config("c.json", "model.onnx", ["b"], 5, True, "net.cfg")
    config = json.loads(Path("c.json").read_text())
    assert (config["batch_num"], config["activation_offset"], config["b"]["quant_enable"]) == (2, False, True)
    assert "skip_layers, batch_num and activation_offset are ignored" in Path("amct_log/amct_onnx.log").read_text()


MISUSE = [
    (lambda: amct_onnx.create_quant_config("model.onnx", "model.onnx"), UsageError, "would overwrite an input"),
    (lambda: amct_onnx.create_quant_config("c.json", 3), UsageError, "model_file is 3"),
    (lambda: amct_onnx.create_quant_config("c.json", "no.onnx"), ModelError, "no.onnx"),
    (lambda: amct_onnx.create_quant_config("c.json", "model.onnx", batch_num=0), ConfigError, "batch_num"),
    (lambda: amct_onnx.create_quant_config("c.json", "model.onnx", ["bb"]), ConfigError, "did you mean|'b'"),
    (
        lambda: amct_onnx.quantize_model("config.json", "model.onnx", "config.json", "record.txt"),
        UsageError,
        "would overwrite an input",
    ),
    (
        lambda: amct_onnx.quantize_preprocess("config.json", "record.txt", "model.onnx", "m.onnx"),
        ConfigError,
        "balance no layer",
    ),
    (
        lambda: amct_onnx.quantize_model("config.json", "model.onnx", "new.onnx", "./new.onnx"),
        UsageError,
        "two outputs would have this name",
    ),
    (
        lambda: amct_onnx.create_quant_config("c.json", "model.onnx", updated_model="c.json"),
        UsageError,
        "two outputs would have this name",
    ),
    (lambda: amct_onnx.create_quant_config("c.json", "modified.onnx"), ModelError, "is a calibration model already"),
    (
        lambda: amct_onnx.quantize_model("config.json", "modified.onnx", "m.onnx", "r.txt"),
        ModelError,
        "is a calibration model already",
    ),
    (lambda: amct_onnx.quantize("modified.onnx", []), ModelError, "is a calibration model already"),
    (lambda: amct_onnx.save_model("model.onnx", "record.txt", "net"), ModelError, "no model that quantize_model wrote"),
    (lambda: amct_onnx.save_model("modified.onnx", "no.txt", "net"), RecordError, "no.txt cannot be read"),
    (lambda: amct_onnx.save_model("modified.onnx", "other.txt", "net"), RecordError, "made for another model"),
    (lambda: amct_onnx.save_model("modified.onnx", "record.txt", "net/"), UsageError, "has no file name"),
]


@pytest.mark.parametrize(("call", "kind", "words"), MISUSE)
def test_misuse_is_named_and_leaves_nothing(folder, call, kind, words):
    quantize_and_run()
    text = Path("record.txt").read_text()
    digits = text.split("source sha256: ")[1][:64]
    Path("other.txt").write_text(text.replace(digits, "0" * 64))
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(kind, match=words):
        call()
    assert issubclass(kind, AmctError)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_without_the_extra_the_error_is_the_line_that_installs_it():
    script = """
        import sys
        sys.modules["onnxruntime_extensions"] = None
        import amct_onnx
        try:
            amct_onnx.AMCT_SO
        except amct_onnx.UsageError as error:
            print(error)
    """
    done = run_python(script)
    assert done.stdout.strip() == (
        "amct_onnx.AMCT_SO needs onnxruntime-extensions; install it with: pip install onnxruntime-extensions"
    )


def test_external_weights_stay_external(folder):
    large = {"v": normal(64, 4, 3, 3), "p": normal(64), "w": normal(3, 64, 1, 1), "u": normal(2, 64, 1, 1)}
    model = parse(NET, "float[n,4,5,5] x", "float y, float z", large)
    onnx.save(model, "model.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
    quantize_and_run()
    assert Path("modified.onnx.data").stat().st_size >= large["v"].nbytes
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    assert {path.name for path in folder.glob("v_*.external")} == {"v_deploy.external", "v_fakequant.external"}
    assert dict(load_record("record.txt").record.layers) == dict(direct().record.layers)


def test_single_inputs_are_observed_like_layers(folder):
    net = (
        "[a] r = Conv(x, g) [m] s = MaxPool<kernel_shape = [2,2]>(r) t = Sigmoid(s) "
        "[d] q = Add(s, t) y = Neg(q) z = Neg(r)"
    )
    onnx.save(parse(net, "float[n,4,5,5] x", "float y, float z", {"g": normal(6, 4, 1, 1)}), "model.onnx")
    Path("net.cfg").write_text(
        'batch_num: 3 tensor_quantize { layer_name: "d" input_index: 1 }'
        'tensor_quantize { layer_name: "m" input_index: 0 }'
    )
    amct_onnx.create_quant_config("config.json", "model.onnx", config_defination="net.cfg")
    quantize_and_run()
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    record = load_record("record.txt").record
    assert set(record.layers) == {"a", "d:1", "m:0"}
    assert dict(record.layers) == dict(direct().record.layers)
    operators = [node.op_type for node in onnx.load("net_deploy_model.onnx").graph.node]
    assert operators.count("AscendAntiQuant") == 2


def test_a_scale_too_small_for_the_bias_is_raised_when_saving(folder):
    small = {**WEIGHTS, "v": WEIGHTS["v"] * np.float32(1e-4), "p": np.full(6, 1e6, np.float32)}
    onnx.save(parse(NET, "float[n,4,5,5] x", "float y, float z", small), "model.onnx")
    quantize_and_run()
    before = load_record("record.txt").record.layers["a"]
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    after = load_record("record.txt").record.layers["a"]
    np.testing.assert_allclose(after.scale_w, 1e6 / (2**30 * before.scale_d), rtol=1e-5)
    assert max(before.scale_w) < min(after.scale_w)
    assert dict(load_record("record.txt").record.layers) == dict(direct().record.layers)


STARTS = {
    "create_quant_config": lambda model: amct_onnx.create_quant_config("new.json", model),
    "quantize_preprocess": lambda model: amct_onnx.quantize_preprocess("balance.json", "new.txt", model, "new.onnx"),
    "quantize_model": lambda model: amct_onnx.quantize_model("config.json", model, "new.onnx", "new.txt"),
    "quantize": lambda model: amct_onnx.quantize(model, [{"x": np.load("feeds.npy")[0]}]),
}
MADE = {
    "net_deploy_model.onnx": (ModelError, r"node 'a\.quant' \(AscendQuant\) shows that this is a deploy model already"),
    "net_fake_quant_model.onnx": (ModelError, r"node 'a\.quant\.fakequant\.\w+' .* this is a fake-quant model already"),
    "modified.onnx": (ModelError, r"\(Observe\) shows that this is a calibration model already; give the float model"),
    "qdq_model.onnx": (NothingToCompressError, "'a'.*: it is quantized already"),
}


@pytest.fixture
def made(folder):
    """Everything that is made from the model, beside it."""
    Path("net.cfg").write_text("batch_num: 3 common_config { dmq_balancer { } }")
    amct_onnx.create_quant_config("balance.json", "model.onnx", config_defination="net.cfg")
    quantize_and_run()
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    onnx.save(amct_onnx.apply("model.onnx", "record.txt", formats=["qdq"]).model("qdq"), "qdq_model.onnx")
    return folder


def test_made_models_are_no_sources(made):
    for model, (kind, words) in MADE.items():
        for start in STARTS.values():
            with pytest.raises(kind, match=words):
                start(model)
    assert not list(made.glob("new*"))


def test_a_deploy_model_with_layers_in_bodies_alone_is_no_source(folder):
    net = """
        y = If(c) <
            then_branch = p () => (float[n,6,5,5] t) { [b] t = Conv(x, v) },
            else_branch = q () => (float[n,6,5,5] u) { [e] u = Conv(x, v) }>
    """
    onnx.save(parse(net, "float[n,4,5,5] x, bool c", "float[n,6,5,5] y", {"v": normal(6, 4, 1, 1)}), "model.onnx")
    amct_onnx.create_quant_config("config.json", "model.onnx")
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    feed = '{"x": feeds[0], "c": np.array(True)}'
    run_loop("modified.onnx", loop=f"session.run(None, {feed})")
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    with pytest.raises(ModelError, match=r"node 'b\.quant' \(AscendQuant\) shows that this is a deploy model"):
        amct_onnx.create_quant_config("new.json", "net_deploy_model.onnx")
