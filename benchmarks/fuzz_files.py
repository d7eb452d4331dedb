"""Damaged files of every kind given to the command line: one clear error each, and nothing written.

python -m benchmarks.fuzz_files --count 2000 --seed 1        damages chosen at random; the findings are printed
python -m benchmarks.fuzz_files --only 1234 --keep DIR       repeat one case and keep its files

Every case runs in a process of its own, so that one that dies is a finding like any other.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from amct_onnx.cli import main as command_line
from amct_onnx.errors import ModelError
from amct_onnx.runtime import open_session

SECONDS = 60
_NOT_LOADED = 98
_QUANTIZE = ["quantize", "m.onnx", "--data", "feed.npz", "-o", "out/m", "--no-trial", "--save-statistics", "s.npz"]
_APPLY = ["apply", "m.onnx", "--record", "m_record.txt", "-o", "out/m"]

COMMANDS: dict[str, list[list[str]]] = {
    "m.onnx": [_QUANTIZE[:-2], ["inspect", "m.onnx"], _APPLY, ["check-deploy", "m.onnx"]],
    "external.onnx": [["quantize", "external.onnx", *_QUANTIZE[2:-2]], ["inspect", "external.onnx"]],
    "external.data": [["quantize", "external.onnx", *_QUANTIZE[2:-2]]],
    "m_record.txt": [
        _APPLY,
        ["record", "check", "m_record.txt", "--model", "m.onnx"],
        ["record", "show", "m_record.txt"],
    ],
    "m_tensors.txt": [_APPLY],
    "m_deploy_model.onnx": [["check-deploy", "m_deploy_model.onnx"]],
    "c.cfg": [["config", "show", "c.cfg", "--model", "m.onnx"], [*_QUANTIZE[:-2], "--config", "c.cfg"]],
    "c.json": [["config", "show", "c.json", "--model", "m.onnx"], [*_QUANTIZE[:-2], "--config", "c.json"]],
    "feed.npz": [_QUANTIZE[:-2]],
    "feed.npy": [["quantize", "m.onnx", "--data", "feed.npy", *_QUANTIZE[4:-2]]],
    "bin/0.bin": [
        [
            "quantize",
            "m.onnx",
            "--data",
            "bin",
            "--input-shape",
            "x:2,3,8,8",
            "--data-types",
            "float32",
            *_QUANTIZE[4:-2],
        ]
    ],
    "s.npz": [["quantize", "m.onnx", "--statistics", "s.npz", *_QUANTIZE[4:-2]]],
}


def main() -> None:
    """Make the files, damage them, run the commands, print what is no clear error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one case by its number")
    parser.add_argument("--match", default="", help="only files with this in their name")
    parser.add_argument("--keep", type=Path, help="folder to leave the files of the case in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz_files_") as name:
        whole = Path(name) / "whole"
        _in_child(lambda: _make_files(whole))
        numbers = range(options.seed * 10**6, options.seed * 10**6 + options.count)
        counts: Counter[str] = Counter()
        for number in numbers if options.only is None else [options.only]:
            verdict = _case(number, whole, Path(name) / "case", options.match)
            counts[verdict.split(":")[0]] += 1
            if verdict not in ("error", "accepted"):
                print(f"case {number}: {verdict}", flush=True)
            if options.keep:
                shutil.copytree(Path(name) / "case", options.keep)
        print(dict(counts))


def _make_files(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    os.chdir(folder)
    values = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    onnx.save(_model(), "m.onnx")
    onnx.save(_model(), "external.onnx", save_as_external_data=True, size_threshold=0, location="external.data")
    np.savez("feed.npz", x=values)
    np.save("feed.npy", values)
    values.tofile("bin/0.bin")
    Path("c.cfg").write_text('batch_num: 1\nskip_layers: "last"\ncommon_config { arq_quantize { num_bits: 8 } }\n')
    with contextlib.redirect_stdout(io.StringIO()):
        command_line(_QUANTIZE)
        for name in ("m_record.txt", "m_tensors.txt", "m_deploy_model.onnx"):
            shutil.move(f"out/{name}", name)
    shutil.rmtree("out")
    import amct_onnx

    amct_onnx.create_quant_config("c.json", "m.onnx", batch_num=1)


def _model() -> ModelProto:
    rng = np.random.default_rng(1)
    weights = {"w": (4, 3, 3, 3), "b": (4,), "w2": (2, 4, 3, 3), "m": (6, 5), "k": (5,)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["l"], name="last"),
        helper.make_node("MatMul", ["l", "m"], ["p"], name="product"),
        helper.make_node("Add", ["p", "k"], ["y"], name="add"),
    ]
    stored = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 6, 5])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _case(number: int, whole: Path, folder: Path, match: str) -> str:
    chance = random.Random(number)
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(whole, folder)
    name = chance.choice([name for name in COMMANDS if match in name])
    command = chance.choice(COMMANDS[name])
    way = chance.choice(_STRUCTURAL if name.endswith(".onnx") and chance.random() < 0.6 else _WAYS)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(way(data, chance))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    code, text = _in_child(lambda: _run(folder, command))
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    verdict = _verdict(code, text, before == after)
    return verdict if verdict in ("error", "accepted") else f"{verdict} [{name}, {way.__name__}] {' '.join(command)}"


def _verdict(code: int, text: str, is_untouched: bool) -> str:
    if code in (0, 1):
        return "accepted"
    if code != 2:
        return f"exit code {code}: {text.strip()[-500:]}"
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    if "Traceback" in text or len(errors) != 1:
        return f"unclear: {text.strip()[-500:]}"
    return "error" if is_untouched else f"written: {errors[0]}"


def _run(folder: Path, command: list[str]) -> int:
    os.chdir(folder)
    code = command_line(command)
    made = [Path(f"out/m_{form}_model.onnx") for form in ("fake_quant", "qdq")]
    source = Path(command[1])
    if code == 0 and all(path.exists() for path in made) and _loads(source):
        return 0 if all(map(_loads, made)) else _NOT_LOADED
    return code


def _loads(path: Path) -> bool:
    try:
        open_session(path)
    except ModelError as error:
        sys.stderr.write(f"{path}: {error}\n")
        return False
    return True


def _in_child(work: Callable[[], int | None]) -> tuple[int, str]:
    """Exit code (negative for a signal) and what went to stderr."""
    with tempfile.TemporaryFile() as stream:
        pid = os.fork()
        if not pid:
            signal.alarm(SECONDS)
            os.dup2(stream.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(_guarded(work))
        _, status = os.waitpid(pid, 0)
        stream.seek(0)
        return os.waitstatus_to_exitcode(status), stream.read().decode(errors="replace")


def _guarded(work: Callable[[], int | None]) -> int:
    code = 99
    try:
        code = work() or 0
    except BaseException as error:
        sys.stderr.write(f"Traceback {type(error).__name__}: {error}\n")
    sys.stderr.flush()
    return code


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8, 64])):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(data)), chance.choice([1, 4, 16, 100])
    return data[:start] + chance.randbytes(size) + data[start + size :]


def leave_out(data: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(data)), chance.choice([1, 2, 10, 100])
    return data[:start] + data[start + size :]


def repeat(data: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(data)), chance.choice([1, 8, 100])
    return data[: start + size] + data[start:]


def replace_all(data: bytes, chance: random.Random) -> bytes:
    return chance.choice([b"", b"\0" * 64, chance.randbytes(len(data)), b"{}", b"\xef\xbb\xbf" + data, b"\n" * 10])


def change_number(data: bytes, chance: random.Random) -> bytes:
    places = [index for index, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return flip(data, chance)
    start = chance.choice(places)
    text = chance.choice([b"0", b"-1", b"99999999999999999999", b"1e400", b"nan", b"0.5", b"x", b"", b"1e-50"])
    return data[:start] + text + data[start + 1 :]


def _structural(change: Callable[[ModelProto, random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    def changed(data: bytes, chance: random.Random) -> bytes:
        model = ModelProto.FromString(data)
        change(model, chance)
        return model.SerializeToString()

    changed.__name__ = change.__name__
    return changed


def _dims(model: ModelProto, chance: random.Random) -> None:
    tensor = chance.choice(model.graph.initializer)
    tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice([0, 1, 2, -1, 7, 2**40])


def _rank(model: ModelProto, chance: random.Random) -> None:
    tensor = chance.choice(model.graph.initializer)
    size = int(np.prod(tensor.dims))
    tensor.dims[:] = chance.choice([[], [size], [1, size], [size, 1, 1, 1, 1], [1, 1, size]])


def _type(model: ModelProto, chance: random.Random) -> None:
    chance.choice(model.graph.initializer).data_type = chance.choice([0, 1, 2, 6, 7, 8, 9, 10, 11, 16, 22, 99])


def _attribute(model: ModelProto, chance: random.Random) -> None:
    node = chance.choice(model.graph.node)
    name = chance.choice("pads strides dilations group kernel_shape auto_pad alpha axis transB".split())  # noqa: SIM905
    node.attribute.append(
        helper.make_attribute(
            name, chance.choice([0, -1, 3, [1, 1], [0], [-1] * 4, [2**40] * 2, 1.5, "SAME_UPPER", "x"])
        )
    )


def _operator(model: ModelProto, chance: random.Random) -> None:
    node = chance.choice(model.graph.node)
    node.op_type = chance.choice(["Conv", "MatMul", "Gemm", "Relu", "Add", "AveragePool", "Foo", "LSTM", "If", "Clip"])


def _reading(model: ModelProto, chance: random.Random) -> None:
    node = chance.choice(model.graph.node)
    names = [name for other in model.graph.node for name in (*other.input, *other.output)]
    node.input[chance.randrange(len(node.input))] = chance.choice([*names, "", "nowhere"])


def _writing(model: ModelProto, chance: random.Random) -> None:
    node = chance.choice(model.graph.node)
    node.output[0] = chance.choice([*(name for other in model.graph.node for name in other.output), "", "w", "x"])


def _declared(model: ModelProto, chance: random.Random) -> None:
    info = chance.choice([*model.graph.input, *model.graph.output])
    changes: list[Callable[[], Any]] = [
        lambda: info.type.tensor_type.shape.dim.add(dim_value=3),
        lambda: info.type.tensor_type.shape.ClearField("dim"),
        lambda: setattr(info.type.tensor_type, "elem_type", chance.choice([0, 7, 10, 11, 8, 99])),
        lambda: info.ClearField("type"),
        lambda: setattr(info, "name", chance.choice(["", "w", "c", "z"])),
    ]
    chance.choice(changes)()


def _versions(model: ModelProto, chance: random.Random) -> None:
    if chance.random() < 0.5:
        model.ir_version = chance.choice([0, 3, 99])
    else:
        model.opset_import[0].version = chance.choice([0, -1, 1, 6, 10, 99])


def _removal(model: ModelProto, chance: random.Random) -> None:
    graph = model.graph
    fields: list[Any] = [graph.node, graph.initializer, graph.input, graph.output, model.opset_import]
    field = chance.choice(fields)
    del field[chance.randrange(len(field))]


def _doubling(model: ModelProto, chance: random.Random) -> None:
    fields: list[Any] = [model.graph.node, model.graph.initializer, model.graph.input, model.graph.output]
    field = chance.choice(fields)
    field.append(chance.choice(field))


def _external(model: ModelProto, chance: random.Random) -> None:
    tensor = chance.choice(model.graph.initializer)
    tensor.data_location = TensorProto.EXTERNAL
    key = chance.choice(["location", "offset", "length", "other"])
    tensor.external_data.add(key=key, value=chance.choice(["", "x", "-1", "../m.onnx", "/etc/passwd", "9" * 30, "."]))


_WAYS = [cut, flip, overwrite, leave_out, repeat, replace_all, change_number]
_CHANGES = [_dims, _rank, _type, _attribute, _operator, _reading, _writing, _declared, _versions, _removal, _doubling]
_STRUCTURAL = [_structural(change) for change in [*_CHANGES, _external]]

if __name__ == "__main__":
    main()
