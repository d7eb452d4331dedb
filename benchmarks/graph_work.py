"""What graph surgery costs, calibration excluded: many nodes, or many gigabytes.

python -m benchmarks.graph_work               4,000 and 20,000 nodes, CPU seconds step by step
python -m benchmarks.graph_work --external    2.7 GB of external weights: a record applied, one child per form, and
                                              quantized with data; --products 12 for 1.3 GB
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tabulate import tabulate

import amct_onnx
from amct_onnx.graph import digest, import_model, read_model
from amct_onnx.passes.locate import Layer, locate_layers
from amct_onnx.passes.qdq_placement import place_pairs
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.record import LayerRecord, Record, RecordHeader, save_record
from amct_onnx.rewrite import OutputForm, Prepared, prepare, rewrite_all

T = TypeVar("T")

CHANNELS = 4
SIZES = (4_000, 20_000)
PRODUCTS, WIDTH = 24, 5_300
_MODEL = "products.onnx"


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--external", action="store_true", help="apply a record to a model with large external weights")
    parser.add_argument("--products", type=int, default=PRODUCTS, help="how many weights of 112 MB (default: 24)")
    parser.add_argument("--quantize", nargs=2, metavar=("MODEL", "PREFIX"), help=argparse.SUPPRESS)
    parser.add_argument("--apply", nargs=3, metavar=("MODEL", "FORM", "PREFIX"), help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.apply:
        _apply(*options.apply)
    elif options.quantize:
        _quantize(*options.quantize)
    elif options.make:
        _write_record(_write_products(options.make, options.products), options.products)
    elif options.external:
        print(
            tabulate(
                _external_rows(options.products),
                headers=("work", "CPU s", "wall s", "peak MB", "written MB"),
                floatfmt=".1f",
            )
        )
    else:
        print(_node_table())


def residual_network(nodes: int) -> ModelProto:
    """Blocks of Conv, Relu, Conv, Add with weights of their own."""
    weight = np.ones((CHANNELS, CHANNELS, 1, 1), np.float32)
    bias = np.zeros(CHANNELS, np.float32)
    made: list[onnx.NodeProto] = []
    initializers: list[TensorProto] = []

    def conv(data: str, name: str) -> str:
        initializers.append(numpy_helper.from_array(weight, f"{name}.weight"))
        initializers.append(numpy_helper.from_array(bias, f"{name}.bias"))
        made.append(helper.make_node("Conv", [data, f"{name}.weight", f"{name}.bias"], [f"{name}.out"], name))
        return f"{name}.out"

    tensor = "x"
    for block in range(nodes // 4):
        first = conv(tensor, f"block{block}.conv1")
        made.append(helper.make_node("Relu", [first], [f"block{block}.relu.out"], f"block{block}.relu"))
        second = conv(f"block{block}.relu.out", f"block{block}.conv2")
        made.append(helper.make_node("Add", [tensor, second], [f"block{block}.out"], f"block{block}.add"))
        tensor = f"block{block}.out"
    shape = [1, CHANNELS, 8, 8]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)]
    graph = helper.make_graph(made, "residual", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _node_table() -> str:
    columns = {nodes: dict(_steps(residual_network(nodes))) for nodes in SIZES}
    steps = next(iter(columns.values()))
    rows = [[step, *(columns[nodes][step] for nodes in SIZES)] for step in steps]
    return tabulate(rows, headers=["CPU seconds", *(f"{nodes:,} nodes" for nodes in SIZES)], floatfmt=".3f")


def _steps(proto: ModelProto) -> Iterator[tuple[str, float]]:
    """Every step with its CPU seconds; importing stands alone as well as within preparing, and counts once."""
    seconds, _ = _timed(lambda: import_model(proto))
    yield "import", seconds
    total, prepared = _timed(lambda: prepare(proto, None))
    yield "name and fuse", max(0.0, total - seconds)
    seconds, survey = _timed(lambda: locate_layers(prepared.model))
    yield "locate layers", seconds
    seconds, placement = _timed(lambda: place_pairs(prepared.model, survey.layers))
    yield "place pairs", seconds
    quants = {layer.name: _layer_quant(layer) for layer in survey.layers}
    pairs = {name: TensorQuant(0.05, 0) for name in placement.tensors}
    for forms in (["ascend"], ["qdq"], ["qdq", "fake_quant"], ["ascend", "fake_quant", "qdq"]):
        kinds = [OutputForm(form) for form in forms]
        yield f"rewrite as {', '.join(forms)}", _rewrite_seconds(prepared, quants, pairs, kinds)


def _layer_quant(layer: Layer) -> LayerQuant:
    return LayerQuant(TensorQuant(0.05, 0), np.full(layer.channels_out or 1, 0.01, np.float32))


def _rewrite_seconds(
    prepared: Prepared, quants: dict[str, LayerQuant], pairs: dict[str, TensorQuant], forms: list[OutputForm]
) -> float:
    """With the serialized bytes, which is where lazy weights are computed."""

    def work() -> None:
        for built, _ in rewrite_all(prepared, quants, forms, pairs=pairs).values():
            built.to_proto().SerializeToString()

    seconds, _ = _timed(work)
    return seconds


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def _external_rows(products: int) -> list[list[str | float]]:
    with tempfile.TemporaryDirectory(prefix="graph_work_") as name:
        folder = Path(name)
        # A child starts with the peak of its parent on its account, so the parent never holds a weight.
        _child("--make", str(folder / "source"), "--products", str(products))
        model = folder / "source" / _MODEL
        rows = [
            _measure(f"apply, {form.value}", folder / form.value, "--apply", str(model), form.value)
            for form in OutputForm
        ]
        return [*rows, _measure("quantize, all forms", folder / "all", "--quantize", str(model))]


def _child(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.graph_work", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _write_products(folder: Path, products: int) -> Path:
    """A chain of matrix products, its weights in one external file, written block by block."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    block = rng.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
    initializers: list[TensorProto] = []
    made: list[onnx.NodeProto] = []
    with (folder / "products.data").open("wb") as stream:
        for index in range(products):
            tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=block.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "products.data"), ("offset", stream.tell()), ("length", block.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            stream.write(np.roll(block, index, axis=0).data)
            initializers.append(tensor)
            made.append(helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"x{index + 1}"], f"product{index}"))
    ends = [helper.make_tensor_value_info(f"x{end}", TensorProto.FLOAT, [1, WIDTH]) for end in (0, products)]
    graph = helper.make_graph(made, "products", ends[:1], ends[1:], initializers)
    path = folder / _MODEL
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def _write_record(model: Path, products: int) -> None:
    entry = LayerRecord(scale_d=0.05, offset_d=0, scale_w=(0.001,), offset_w=(0,), act_type="INT8", wts_type="INT8")
    layers = {f"product{index}": entry for index in range(products)}
    header = RecordHeader(source_sha256=digest(*read_model(model)))
    save_record(Record(layers, header=header), _record_path(model))


def _record_path(model: Path) -> Path:
    return model.with_name("products_record.txt")


def _measure(label: str, folder: Path, *arguments: str) -> list[str | float]:
    """A row of what a child took and wrote; what it wrote goes again."""
    figures = _child(*arguments, str(folder / "out"))
    cpu, wall, peak = (float(value) for value in figures.split())
    written = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    for file in folder.iterdir():
        file.unlink()
    return [label, cpu, wall, peak, written]


def _apply(model: str, form: str, prefix: str) -> None:
    """Body of a child process: apply and save."""
    _measured(lambda: amct_onnx.apply(model, _record_path(Path(model)), formats=[form]).save(prefix))


def _quantize(model: str, prefix: str) -> None:
    """Body of a child process: calibrate on two feeds, quantize and save."""
    feeds = [np.random.default_rng(seed).normal(size=(1, WIDTH)).astype(np.float32) for seed in range(2)]
    _measured(lambda: amct_onnx.quantize(model, feeds).save(prefix))


def _measured(work: Callable[[], object]) -> None:
    """Do the work and say what it took: CPU seconds, seconds, peak megabytes."""
    begin = time.perf_counter()
    work()
    wall = time.perf_counter() - begin
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(time.process_time(), wall, usage.ru_maxrss / 1e3)


if __name__ == "__main__":
    main()
