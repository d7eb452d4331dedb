"""External weights: read from where they are, byte for byte, and refused with a reason where that cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from amct_onnx.errors import ModelError
from amct_onnx.graph import build, constant_array, import_model, read_model
from amct_onnx.graph.weights import DerivedValues, StoredValues, stored_bytes
from tests.models import Array, normal, parse, run

WEIGHTS = {"w": normal(3, seed=1), "v": normal(3, seed=2)}


def two_weights() -> ModelProto:
    return parse("s = Add(x, w)  y = Mul(s, v)", weights=WEIGHTS)


def save(folder: Path, *, one_file: bool = True) -> Path:
    path = folder / "m.onnx"
    options = {"save_as_external_data": True, "all_tensors_to_one_file": one_file, "size_threshold": 0}
    onnx.save_model(two_weights(), str(path), location="m.data" if one_file else None, **options)
    return path


def change(path: Path, **entries: str) -> Path:
    """Change what the model at `path` says of the data of tensor 'w'."""
    model = onnx.load_model(str(path), load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    given = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, value in given.items():
        tensor.external_data.add(key=key, value=value)
    onnx.save_model(model, str(path))
    return path


def loaded(path: Path) -> dict[str, Array]:
    model = import_model(*read_model(path))
    return {name: constant_array(constant) for name, constant in model.graph.initializers.items()}


@pytest.mark.parametrize("one_file", [True, False])
def test_one_file_or_several(tmp_path: Path, one_file: bool) -> None:
    arrays = loaded(save(tmp_path, one_file=one_file))
    for name, expected in WEIGHTS.items():
        np.testing.assert_array_equal(arrays[name], expected)


def test_a_subfolder_and_an_unaligned_offset(tmp_path: Path) -> None:
    path = save(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "w.bin").write_bytes(b"abc" + WEIGHTS["w"].tobytes())
    change(path, location="deep/w.bin", offset="3")
    np.testing.assert_array_equal(loaded(path)["w"], WEIGHTS["w"])
    model = import_model(*read_model(path))
    np.testing.assert_array_equal(run(build(model), {"x": normal(2, 3)})[0], run(two_weights(), {"x": normal(2, 3)})[0])


def test_offset_and_length_may_be_left_out(tmp_path: Path) -> None:
    path = save(tmp_path, one_file=False)
    model = onnx.load_model(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        location = next(entry.value for entry in tensor.external_data if entry.key == "location")
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=location)
    onnx.save_model(model, str(path))
    np.testing.assert_array_equal(loaded(path)["v"], WEIGHTS["v"])


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(path)
    return str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = save(tmp_path)
    (tmp_path / "m.data").unlink()
    message = refused(path)
    assert "'w'" in message
    assert str(tmp_path / "m.data") in message
    assert "No such file" in message
    assert "keep the weight files beside the model" in message


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    path = save(tmp_path)
    (tmp_path / "m.data").unlink()
    (tmp_path / "m.data").mkdir()
    (tmp_path / "m.data" / "x").write_bytes(b"")
    assert str(tmp_path / "m.data") in refused(path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = save(tmp_path)
    (tmp_path / "m.data").write_bytes((tmp_path / "m.data").read_bytes()[:-5])
    message = refused(path)
    assert "'v' is cut off" in message
    assert str(tmp_path / "m.data") in message
    assert "copy the complete weight file" in message


@pytest.mark.parametrize("location", ["../m.data", "a/../../m.data", "/etc/hostname", ""])
def test_locations_outside_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    message = refused(change(save(tmp_path), location=location))
    assert f"'w' has location '{location}'" in message
    assert "below the model's own folder" in message


def test_a_path_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    assert "below the model's own folder" in refused(change(save(tmp_path), location="m\0.data"))


@pytest.mark.parametrize("way", ["m.data", "deep/m.data"])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, way: str) -> None:
    (tmp_path / "own").mkdir()
    path = change(save(tmp_path / "own"), location=way)
    (tmp_path / "other").mkdir()
    (tmp_path / "own" / "m.data").rename(tmp_path / "other" / "m.data")
    first = Path(way).parts[0]
    (tmp_path / "own" / first).symlink_to(tmp_path / "other" / ("m.data" if first == way else ""))
    message = refused(path)
    assert f"'w' in {way} is a link to {tmp_path.resolve() / 'other' / 'm.data'}" in message
    assert "copy the file itself beside the model" in message


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    path = save(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "m.data").rename(tmp_path / "deep" / "other")
    (tmp_path / "m.data").symlink_to("deep/other")
    np.testing.assert_array_equal(loaded(path)["w"], WEIGHTS["w"])


@pytest.mark.parametrize("data", ["m.data", "5d"])
def test_a_model_and_its_data_behind_links(tmp_path: Path, data: str) -> None:
    """A cache keeps both under other names elsewhere; or the model alone is linked to."""
    for folder in ("blobs", "snapshot"):
        (tmp_path / folder).mkdir()
    save(tmp_path / "blobs")
    (tmp_path / "blobs" / "m.onnx").rename(tmp_path / "blobs" / "c3")
    (tmp_path / "blobs" / "m.data").rename(tmp_path / "blobs" / data)
    (tmp_path / "snapshot" / "m.onnx").symlink_to("../blobs/c3")
    if data != "m.data":
        (tmp_path / "snapshot" / "m.data").symlink_to(f"../blobs/{data}")
    np.testing.assert_array_equal(loaded(tmp_path / "snapshot" / "m.onnx")["w"], WEIGHTS["w"])


@pytest.mark.parametrize("entries", [{"offset": "x"}, {"offset": "-4"}, {"length": "8"}, {"length": "1e3"}])
def test_impossible_numbers_are_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    message = refused(change(save(tmp_path), **entries))
    assert "'w' in m.data" in message
    assert "needs 12 bytes" in message


def test_external_weights_of_a_model_without_folder_are_refused(tmp_path: Path) -> None:
    proto, _ = read_model(save(tmp_path))
    with pytest.raises(ModelError, match=r"'w' lies in the external file 'm\.data'.*give the path"):
        build(import_model(proto)).to_proto()


def test_zero_sized_tensors_need_no_file(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[0, 3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="nowhere")
    assert StoredValues(tensor, tmp_path).load().shape == (0, 3)


def test_values_that_do_not_fill_the_shape_are_refused() -> None:
    for raw in (b"abc", bytes(8)):
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=raw)
        with pytest.raises(ModelError, match="'w' does not hold as many values as its shape"):
            StoredValues(tensor, None).load()


def test_an_unknown_element_type_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'w' has element type 999.*update onnx"):
        StoredValues(TensorProto(name="w", data_type=999), None)


@pytest.mark.parametrize(
    ("data_type", "packed"),
    [(TensorProto.INT4, [0xE1, 0xC3, 0x05]), (TensorProto.UINT4, [0x21, 0x43, 0x05])],
)
def test_packed_types(tmp_path: Path, data_type: int, packed: list[int]) -> None:
    """Two values of four bits share a byte, the first in the low half."""
    signs = (1, -2, 3, -4, 5) if data_type == TensorProto.INT4 else (1, 2, 3, 4, 5)
    inline = helper.make_tensor("w", data_type, [5], signs)
    assert StoredValues(inline, None).stored_bytes().tolist() == packed
    (tmp_path / "w.bin").write_bytes(bytes(packed))
    external = TensorProto(name="w", data_type=data_type, dims=[5], data_location=TensorProto.EXTERNAL)
    external.external_data.add(key="location", value="w.bin")
    stored = StoredValues(external, tmp_path)
    assert stored.nbytes == 3
    np.testing.assert_array_equal(stored.load().astype(int), signs)
    assert stored_bytes(stored).tolist() == packed


def test_derived_values_are_computed_each_time_and_checked() -> None:
    calls: list[int] = []

    def compute() -> Array:
        calls.append(1)
        return normal(2, 3)

    values = DerivedValues([2, 3], np.dtype(np.float32), compute)
    assert (values.nbytes, len(calls)) == (24, 0)
    np.testing.assert_array_equal(values.load(), values.load())
    assert len(calls) == 2
    with pytest.raises(TypeError, match="declared"):
        DerivedValues([3], np.dtype(np.float32), compute).load()


def test_nested_tensors_in_external_files_are_taken_along(tmp_path: Path) -> None:
    """A Constant node and an initializer of a body may be external as well; another folder must not lose them."""
    text = """
        k = Constant<value = float[3] {1.0, 2.0, 3.0}>()  s = Add(x, k)
        y = If(c) <then_branch = a () => (float[2,3] t) <float[3] w = {4.0, 5.0, 6.0}> { t = Mul(s, w) },
                   else_branch = b () => (float[2,3] e) { e = Neg(s) }>
    """
    model = parse(text, "float[2,3] x, bool c")
    feed = {"x": normal(2, 3), "c": np.array(True)}
    expected = run(model, feed)[0]
    nested = [model.graph.node[0].attribute[0].t, model.graph.node[2].attribute[0].g.initializer[0]]
    for index, tensor in enumerate(nested):
        (tmp_path / f"{index}.bin").write_bytes(numpy_helper.to_array(tensor).tobytes())
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"{index}.bin")
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    built = build(import_model(*read_model(tmp_path / "m.onnx")))
    np.testing.assert_array_equal(run(built, feed)[0], expected)
