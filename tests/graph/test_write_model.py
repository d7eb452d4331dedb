"""Writing: all or nothing, one weight at a time, and never over a file that belongs to something else."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from amct_onnx.errors import ModelError, UsageError
from amct_onnx.graph import BuiltModel, ExternalNaming, build, import_model, read_model
from amct_onnx.graph.files import replacing, write_model
from amct_onnx.graph.stream import Initializer, write_stream
from amct_onnx.graph.weights import DerivedValues
from tests.models import normal, parse, run

LARGE = (2, 300)
INPUT, OUTPUT = "float[2,300] x", "float[2,300] y"
FEED = {"x": normal(*LARGE)}
NODES = "s = Add(x, w)  t = Mul(s, v)  y = Sub(t, tiny)"
WEIGHTS = {"w": normal(*LARGE, seed=1), "v": normal(*LARGE, seed=2), "tiny": normal(1, seed=3)}


def source() -> ModelProto:
    return parse(NODES, INPUT, OUTPUT, WEIGHTS)


def save_source(folder: Path, proto: ModelProto | None = None, name: str = "source.onnx") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    model = ModelProto()
    model.CopyFrom(proto or source())
    onnx.save_model(model, str(path), save_as_external_data=True, location=f"{name}.data", size_threshold=0)
    return path


def built_from(path: Path) -> BuiltModel:
    return build(import_model(*read_model(path)))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_small_model_is_one_file_and_what_protobuf_would_write(tmp_path: Path) -> None:
    built = build(import_model(source()))
    path = tmp_path / "deep" / "m.onnx"
    assert write_model(built, path) == [path]
    assert path.read_bytes() == built.to_proto().SerializeToString(deterministic=True)
    assert content(path.parent).keys() == {"m.onnx"}


def test_the_stream_is_what_protobuf_would_write() -> None:
    """Stored, replaced and renamed initializers; every field before and after the graph."""
    model = source()
    model.doc_string, model.graph.doc_string = "model", "graph"
    model.metadata_props.add(key="k", value="v")
    model.graph.initializer[0].doc_string = "weight"
    graph = import_model(model)
    graph.rewrite_constant(graph.graph.initializers["v"], DerivedValues([300], np.dtype(np.int8), _ones))
    graph.graph.initializers["w"].name = "renamed"
    built = build(graph)
    stream = io.BytesIO()
    headers = built.skeleton.graph.initializer
    write_stream(stream, built.skeleton, [Initializer(header, built.values[header.name]._values) for header in headers])
    assert stream.getvalue() == built.to_proto().SerializeToString(deterministic=True)


def _ones() -> np.ndarray:
    return np.ones(300, np.int8)


def test_a_model_of_external_weights_runs_from_another_folder(tmp_path: Path) -> None:
    built = built_from(save_source(tmp_path / "in"))
    path = tmp_path / "out" / "m.onnx"
    assert write_model(built, path) == [path, tmp_path / "out" / "m.onnx.data"]
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    np.testing.assert_array_equal(run(path, FEED)[0], run(source(), FEED)[0])
    written = onnx.load_model(str(path), load_external_data=False)
    offsets = [
        int(entry.value)
        for tensor in written.graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert offsets == [0, 4096]
    assert [t.data_location for t in written.graph.initializer] == [1, 1, 0]


@pytest.mark.parametrize(
    ("naming", "ending"), [(ExternalNaming.DEPLOY, "deploy"), (ExternalNaming.FAKE_QUANT, "fakequant")]
)
def test_a_file_per_tensor_is_called_after_it(tmp_path: Path, naming: ExternalNaming, ending: str) -> None:
    path = tmp_path / "out" / "m.onnx"
    written = write_model(built_from(save_source(tmp_path / "in")), path, naming)
    assert [file.name for file in written] == ["m.onnx", f"w_{ending}.external", f"v_{ending}.external"]
    np.testing.assert_array_equal(run(path, FEED)[0], run(source(), FEED)[0])


def test_names_that_become_one_on_disk_do_not_overwrite_each_other(tmp_path: Path) -> None:
    names = ["a/w", "a_w", "A_W", "a\\w", "x" * 400 + "1", "x" * 400 + "2", "..", "ü" * 200]
    weights = {name: normal(*LARGE, seed=seed) for seed, name in enumerate(names)}
    model = parse("y = Relu(x)", INPUT, OUTPUT, weights)
    for name in names:
        model.graph.node[-1].output[0] = f"{name} done"
        model.graph.node.append(helper.make_node("Add", [f"{name} done", name], ["y"]))
    path = tmp_path / "out" / "m.onnx"
    files = write_model(built_from(save_source(tmp_path / "in", model)), path, ExternalNaming.DEPLOY)
    assert len({file.name.casefold() for file in files}) == 1 + len(names)
    assert [file.name for file in files[1:5]] == [
        "a_w_deploy.external",
        "a_w_1_deploy.external",
        "A_W_2_deploy.external",
        "a_w_3_deploy.external",
    ]
    assert all(file.parent == path.parent and len(file.name.encode()) < 255 for file in files)
    np.testing.assert_array_equal(run(path, FEED)[0], run(model, FEED)[0])


@pytest.mark.parametrize("naming", list(ExternalNaming))
def test_a_failing_weight_leaves_nothing_behind(tmp_path: Path, naming: ExternalNaming) -> None:
    path = save_source(tmp_path / "in")
    data = tmp_path / "in" / "source.onnx.data"
    data.write_bytes(data.read_bytes()[:-100])
    out = tmp_path / "out"
    with pytest.raises(ModelError, match="cut off"):
        write_model(built_from(path), out / "m.onnx", naming)
    assert content(out) == {}


@pytest.mark.parametrize("naming", list(ExternalNaming))
def test_a_failing_weight_leaves_the_earlier_model_whole(tmp_path: Path, naming: ExternalNaming) -> None:
    path = save_source(tmp_path / "in")
    out = tmp_path / "out"
    write_model(built_from(path), out / "m.onnx", naming)
    before = content(out)
    (tmp_path / "in" / "source.onnx.data").write_bytes(b"")
    with pytest.raises(ModelError):
        write_model(built_from(path), out / "m.onnx", naming)
    assert content(out) == before


@pytest.mark.parametrize("naming", list(ExternalNaming))
def test_writing_again_replaces_the_same_files(tmp_path: Path, naming: ExternalNaming) -> None:
    built = built_from(save_source(tmp_path / "in"))
    first = write_model(built, tmp_path / "out" / "m.onnx", naming)
    assert write_model(built, tmp_path / "out" / "m.onnx", naming) == first
    assert len(content(tmp_path / "out")) == len(first)


def test_the_data_file_of_the_source_is_never_overwritten(tmp_path: Path) -> None:
    """Saving beside the source, under a name whose data file is the source's own."""
    path = save_source(tmp_path, name="m.onnx")
    before = (tmp_path / "m.onnx.data").read_bytes()
    written = write_model(built_from(path), path)
    assert [file.name for file in written] == ["m.onnx", "m.onnx_1.data"]
    assert (tmp_path / "m.onnx.data").read_bytes() == before
    np.testing.assert_array_equal(run(path, FEED)[0], run(source(), FEED)[0])


def test_two_models_in_one_folder_keep_their_own_weights(tmp_path: Path) -> None:
    """AMCT's file names do not hold the model's name, so a second model must not take those of the first."""
    other = parse(NODES, INPUT, OUTPUT, {name: values + 1 for name, values in WEIGHTS.items()})
    one, two = save_source(tmp_path / "in1"), save_source(tmp_path / "in2", other)
    out = tmp_path / "out"
    write_model(built_from(one), out / "one.onnx", ExternalNaming.DEPLOY)
    for _ in range(2):
        files = write_model(built_from(two), out / "two.onnx", ExternalNaming.DEPLOY)
        assert [file.name for file in files[1:]] == ["w_1_deploy.external", "v_1_deploy.external"]
    np.testing.assert_array_equal(run(out / "one.onnx", FEED)[0], run(source(), FEED)[0])
    np.testing.assert_array_equal(run(out / "two.onnx", FEED)[0], run(other, FEED)[0])


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    (tmp_path / "m.onnx.data").write_bytes(b"precious")
    write_model(built_from(save_source(tmp_path / "in")), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").read_bytes() == b"precious"
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", FEED)[0], run(source(), FEED)[0])


def test_a_model_too_large_for_one_file_goes_to_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("build", "files"):
        monkeypatch.setattr(sys.modules[f"amct_onnx.graph.{module}"], "PROTOBUF_LIMIT", 3000)
    built = build(import_model(source()))
    assert len(write_model(built, tmp_path / "m.onnx")) == 2
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", FEED)[0], run(source(), FEED)[0])
    with pytest.raises(ModelError, match="save it to a file"):
        built.to_proto()


def test_strings_stay_in_the_model(tmp_path: Path) -> None:
    model = source()
    model.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [400], [b"text"] * 400))
    proto, folder = read_model(save_source(tmp_path / "in"))
    proto.graph.initializer.append(model.graph.initializer[-1])
    write_model(build(import_model(proto, folder)), tmp_path / "m.onnx")
    strings = onnx.load_model(str(tmp_path / "m.onnx")).graph.initializer[-1]
    assert list(strings.string_data) == [b"text"] * 400


def test_each_weight_is_computed_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def compute() -> np.ndarray:
        calls.append(1)
        return np.ones(LARGE, np.float32)

    model = import_model(*read_model(save_source(tmp_path / "in")))
    new = model.rewrite_constant(model.graph.initializers["w"], DerivedValues([*LARGE], np.dtype(np.float32), compute))
    list.__setitem__(model.graph.nodes[0].inputs, 1, new)
    list.append(new.outputs, model.graph.nodes[0])
    for naming in ExternalNaming:
        write_model(build(model), tmp_path / "out" / "m.onnx", naming)
    assert len(calls) == len(ExternalNaming)
    assert isinstance(new._values, DerivedValues)


def test_an_unwritable_place_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot write here"):
        write_model(build(import_model(source())), tmp_path / "file" / "m.onnx")


def test_a_full_disk_is_a_usage_error(tmp_path: Path) -> None:
    def fill(path: Path) -> None:
        with replacing(path):
            raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="No space left"):
        fill(tmp_path / "m.onnx")
    assert content(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("none.onnx", None, "No such file"),
        ("text.onnx", b"hello", "not an ONNX model"),
        ("empty.onnx", b"", "no ONNX graph"),
        ("broken.json", b"{", "not an ONNX model"),
        ("broken.textproto", b"{", "not an ONNX model"),
        pytest.param(
            "broken.onnxtxt", b"{", "not an ONNX model", marks=pytest.mark.filterwarnings("ignore:The onnxtxt format")
        ),
    ],
)
def test_unreadable_models_are_refused(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ModelError, match=message) as caught:
        read_model(path)
    assert str(path) in str(caught.value)
