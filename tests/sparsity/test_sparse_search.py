"""Which layers are thinned out to save a share of the multiply-adds: losses beside whole runs in onnxruntime."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.sparsity.options import Selection
from amct_onnx.analyse.sparsity.savings import ZeroSavings
from amct_onnx.analyse.sparsity.sensitivity import SparseSensitivity
from amct_onnx.config.retrain import parse_retrain_request
from amct_onnx.errors import ArgumentError, DataError, UsageError
from tests.models import Array, imported, initializers, normal, parse, run
from tests.sparsity.test_sparsify import THINNED, feeds, masks, network, shared_twice

PLACES = {"first": 64, "deep": 64, "second": 64, "third": 1, "last": 1}
WEIGHTS = {"first": "w", "deep": "k", "second": "v", "third": "m", "last": "n"}
DEARER = "other layers give up more for less loss"


def saved_share(source: ModelProto, sparse: ModelProto) -> float:
    """Zeros of the written weights times the places where each is applied, of the multiply-adds of `network`."""
    before, after = initializers(source), initializers(sparse)
    whole = sum(before[WEIGHTS[name]].size * count for name, count in PLACES.items())
    return sum(int((after[WEIGHTS[name]] == 0).sum()) * count for name, count in PLACES.items()) / whole


def loss(source: ModelProto, other: object, data: Iterable[dict[str, Array]]) -> float:
    """Squared error over variance, of all results."""
    noise = signal = 0.0
    for fed in data:
        for want, got in zip(run(source, fed), run(other, fed), strict=True):
            noise += float(np.square(want.astype(np.float64) - got).sum())
            signal += float(np.square(want.astype(np.float64) - want.mean(dtype=np.float64)).sum())
    return noise / signal


@pytest.mark.parametrize("selection", ["l1", "compensated"])
@pytest.mark.parametrize("saving", [0.01, 0.1, 0.2, 0.35, 0.45])
def test_so_much_is_saved_as_the_zeros_of_the_file_say(selection: str, saving: float) -> None:
    source = network()
    result = amct_onnx.sparsify(source, feeds(10), saving=saving, selection=selection)
    assert result.report.saving == pytest.approx(saved_share(source, result.model.to_proto()), rel=1e-12)
    assert result.report.saving >= saving
    left = {refusal.node: refusal.reason for refusal in result.report.refusals if refusal.node != "deep"}
    assert {*left, *(layer.name for layer in result.report.layers)} == THINNED.keys()
    assert set(left.values()) <= {DEARER}
    assert masks(result).keys() == {layer.name for layer in result.report.layers}


def test_without_a_goal_what_is_saved_is_said_where_sizes_are_known() -> None:
    source = network()
    result = amct_onnx.sparsify(source)
    assert result.report.saving == pytest.approx(saved_share(source, result.model.to_proto()), rel=1e-12)
    assert amct_onnx.restore_sparse(source, result.record).report.saving is None


def twins(redundant: str) -> ModelProto:
    """Two layers of one size; half of the weights of one hardly count, whichever way they are chosen."""
    small = np.tile(np.float32([1, 1e-3, 1, 1e-3]), 4)
    weights = {name: normal(16, 16, seed=seed) for seed, name in enumerate(("u", "v"))}
    weights[redundant] = weights[redundant] * small
    return parse(
        "[one] a = Gemm<transB = 1>(x, u) r = Relu(a) [two] y = Gemm<transB = 1>(r, v)",
        "float[n,16] x",
        "float[n,16] y",
        weights,
    )


@pytest.mark.parametrize("selection", ["l1", "compensated"])
@pytest.mark.parametrize(("redundant", "chosen"), [("u", "one"), ("v", "two")])
def test_the_layer_that_loses_less_is_thinned_out(selection: str, redundant: str, chosen: str) -> None:
    data = [{"x": normal(32, 16, seed=seed)} for seed in range(10)]
    result = amct_onnx.sparsify(twins(redundant), data, saving=0.25, selection=selection)
    assert [layer.name for layer in result.report.layers] == [chosen]
    assert result.report.saving == 0.25
    assert [layer.is_compensated for layer in result.report.layers] == [selection == "compensated"]
    assert loss(twins(redundant), result.model, data) < 1e-3


def test_a_skipped_layer_stays_though_it_loses_least() -> None:
    data = [{"x": normal(32, 16, seed=seed)} for seed in range(10)]
    result = amct_onnx.sparsify(twins("u"), data, saving=0.25, skip="one")
    assert [layer.name for layer in result.report.layers] == ["two"]
    assert {refusal.node: refusal.reason for refusal in result.report.refusals} == {"one": "it is skipped on request"}


BRANCH = """[before] a = MatMul(x, t) b = Relu(a) m = ReduceMax<keepdims = 0>(x) z = Cast<to = 9>(m)
    y = If(z)<then_branch = g () => (float[n,8] p) { [inner] p = MatMul(b, w) },
              else_branch = h () => (float[n,8] q) { q = Relu(b) }>"""
CASES = {
    "a chain": ("[one] a = MatMul(x, t) b = Relu(a) [two] c = MatMul(b, u) d = Relu(c) [three] y = MatMul(d, w)", "y"),
    "two results, one made early": ("[one] y = MatMul(x, t) [two] a = MatMul(x, u) [three] v = MatMul(a, w)", "y v"),
    "one weight read twice": ("[one] a = MatMul(x, t) b = Relu(a) [two] y = MatMul(b, t)", "y"),
    "a layer in a branch": (BRANCH, "y"),
    "a layer that is not fitted": ("[one] y = Gemm<alpha = 0.5>(x, t)", "y"),
}


@pytest.mark.parametrize("selection", list(Selection))
@pytest.mark.parametrize("case", CASES)
def test_what_a_layer_loses_is_what_the_whole_model_loses(case: str, selection: Selection) -> None:
    nodes, results = CASES[case]
    weights = {name: normal(8, 8, seed=seed) for seed, name in enumerate("tuw") if f"{name})" in nodes}
    model = parse(nodes, "float[n,8] x", ", ".join(f"float[n,8] {name}" for name in results.split()), weights)
    mixing = normal(8, 8, seed=30)
    data = [{"x": normal(24, 8, seed=40 + seed) @ mixing} for seed in range(6)]
    fitted, probes = data[:4], data[4:]
    sensitivity = SparseSensitivity(model, None, {}, selection, FittingData(fitted), probes)
    names = [layer.name for layer in amct_onnx.sparsify(model).report.layers if not layer.shares_with]
    # In graph order as the search goes, and back.
    for name in (*names, *names[::-1]):
        others = [other for other in names if other != name]
        alone = amct_onnx.sparsify(model, fitted, skip=others, selection=selection, trial=False)
        wanted = loss(model, alone.model, probes)
        assert wanted > 1e-4
        assert sensitivity.of(name) == pytest.approx(wanted, rel=1e-3)


def test_layers_that_share_a_weight_go_together_and_each_saves_its_own() -> None:
    source = parse(
        "[a] h = MatMul(x, w) [b] i = MatMul(h, w) [c] y = MatMul(i, v)",
        "float[n,8] x",
        "float[n,8] y",
        {"w": normal(8, 8, seed=4) / 3, "v": normal(8, 8, seed=5)},
    )
    data = [{"x": normal(32, 8, seed=seed)} for seed in range(10)]
    result = amct_onnx.sparsify(source, data, saving=0.34)
    found = {layer.name: layer.shares_with for layer in result.report.layers}
    # Two of three: the weight that two layers apply saves a third, the other one a sixth.
    assert found == {"a": "", "b": "a", "c": ""}
    assert result.report.saving == 0.5
    both = amct_onnx.sparsify(source, data, saving=0.3)
    assert [layer.name for layer in both.report.layers] == ["a", "b"]
    assert both.report.saving == pytest.approx(1 / 3)
    assert amct_onnx.sparsify(shared_twice(), data, saving=0.1).report.saving == 0.5


def test_a_layer_in_a_branch_is_offered_by_size() -> None:
    model = parse(BRANCH, "float[n,8] x", "float[n,8] y", {"t": normal(8, 8), "w": normal(8, 8, seed=1)})
    data = [{"x": normal(32, 8, seed=seed)} for seed in range(10)]
    result = amct_onnx.sparsify(model, data, saving=0.5)
    assert {layer.name: layer.is_compensated for layer in result.report.layers} == {"before": True, "inner": False}
    assert result.report.saving == 0.5
    inner = amct_onnx.sparsify(model, data, saving=0.25, skip="before")
    assert [layer.name for layer in inner.report.layers] == ["inner"]


def test_of_branches_the_dearest_counts() -> None:
    branches = """y = If(z)<then_branch = g () => (float[4,8] p) { [cheap] p = MatMul(x, t) },
        else_branch = h () => (float[4,8] q) { [wide] b = MatMul(x, u) [back] q = MatMul(b, w) }>"""
    weights = {"t": normal(8, 8), "u": normal(8, 16), "w": normal(16, 8)}
    model = parse(branches, "bool z, float[4,8] x", "float[4,8] y", weights)
    shapes = {"x": (4, 8), "p": (4, 8), "b": (4, 16), "q": (4, 8)}
    savings = ZeroSavings(imported(model), shapes)
    assert {name: savings.layers[name] for name in ("cheap", "wide", "back")} == {"cheap": 64, "wide": 128, "back": 128}
    assert savings.total == 256
    assert savings.of({"cheap": 0.5}) == 0
    assert savings.of({"wide": 0.5}) == 64
    # What is left of the dearest is then less than the other one.
    assert savings.of({"wide": 1.0, "back": 0.9}) == 192
    data = [{"z": np.array(seed % 2 == 0), "x": normal(4, 8, seed=seed)} for seed in range(10)]
    with pytest.raises(ArgumentError, match=r"saving is 0\.1, but at most 0 of the multiply-adds can go"):
        amct_onnx.sparsify(model, data, saving=0.1, skip=["wide", "back"])


def test_a_layer_of_unknown_size_stays() -> None:
    branches = """m = ReduceMax<keepdims = 0>(x) z = Cast<to = 9>(m) [outer] h = MatMul(x, t)
        y = If(z)<then_branch = g () => (float[m,8] p) { s = Compress<axis = 0>(h, k) [inner] p = MatMul(s, u) },
                  else_branch = e () => (float[m,8] q) { q = Compress<axis = 0>(h, k) }>"""
    weights = {"t": normal(8, 8), "u": normal(8, 8, seed=1)}
    model = parse(branches, "float[n,8] x, bool[n] k", "float[m,8] y", weights)
    data = [{"x": normal(32, 8, seed=seed), "k": np.arange(32) % 3 > 0} for seed in range(10)]
    result = amct_onnx.sparsify(model, data, saving=0.5)
    assert [layer.name for layer in result.report.layers] == ["outer"]
    (left,) = result.report.refusals
    assert (left.node, left.reason) == (
        "inner",
        "what it would save is not known, since the sizes of what it reads or gives are not",
    )


def test_what_is_out_of_reach_says_how_much_is_in_reach() -> None:
    with pytest.raises(
        UsageError, match=r"^saving is 0\.6, but at most ([\d.]+) of .* can go; ask for less$"
    ) as caught:
        amct_onnx.sparsify(network(), feeds(10), saving=0.6)
    told = float(str(caught.value).split("at most ")[1].split()[0])
    most = amct_onnx.sparsify(network()).report.saving
    assert most is not None
    assert most - 0.001 <= told <= most
    result = amct_onnx.sparsify(network(), feeds(10), saving=told)
    assert result.report.saving is not None
    assert told <= result.report.saving <= most


@pytest.mark.parametrize(
    ("options", "fault", "words"),
    [
        ({"data": None}, ArgumentError, "saving finds from data which layers are thinned out; give data, or leave"),
        ({"saving": 0.0}, ArgumentError, r"saving is 0\.0; give a share above 0 and below 1"),
        ({"saving": 1.0}, ArgumentError, r"saving is 1\.0; give a share above 0 and below 1"),
        ({"saving": float("nan")}, ArgumentError, "saving is nan; give a share above 0 and below 1"),
        ({"config": "no.cfg"}, ArgumentError, "config and saving exclude each other: each says which layers"),
        ({"skip": "sceond"}, ArgumentError, "skip: 'sceond' is not in the model"),
        ({"skip": list(THINNED)}, amct_onnx.AmctError, "no layer of the model can be thinned out; 'first': it is skip"),
        (
            {"data": [{"x": np.full((2, 8, 8, 8), np.nan, np.float32)}]},
            ArgumentError,
            "saving goes by what the model's results lose, but none of them is float, finite and varies on data; give",
        ),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], fault: type[Exception], words: str) -> None:
    with pytest.raises(fault, match=words):
        amct_onnx.sparsify(network(), **{"data": feeds(10), "saving": 0.2, **options})


def test_results_that_are_no_floats_tell_nothing() -> None:
    nodes = "[line] t = MatMul(x, w) y = ArgMax<axis = 1, keepdims = 0>(t)"
    source = parse(nodes, "float[n,8] x", "int64[n] y", {"w": normal(8, 8)})
    with pytest.raises(ArgumentError, match="a model that gives scores, or leave saving out"):
        amct_onnx.sparsify(source, [{"x": normal(32, 8)}], saving=0.2)


def test_feeds_to_fit_to_that_are_not_finite_are_an_error() -> None:
    poisoned = [{"x": np.full((2, 8, 8, 8), np.nan, np.float32)}] * 9 + feeds(3)
    with pytest.raises(DataError, match=r"first.*NaN or infinite"):
        amct_onnx.sparsify(network(), poisoned, saving=0.2)


@pytest.mark.parametrize("saving", [0.1, 0.3, 0.45])
def test_the_config_that_is_written_thins_out_the_same(saving: float) -> None:
    source, data = network(), feeds(10)
    found = amct_onnx.sparsify(source, data, saving=saving)
    text = found.config_text()
    again = amct_onnx.sparsify(source, data, config=parse_retrain_request(text))
    assert again.record == found.record
    assert {refusal.node for refusal in again.report.refusals} == {refusal.node for refusal in found.report.refusals}
    quantizing = parse_retrain_request(f"{text}retrain_data_quant_config {{ ulq_quantize {{}} }} batch_num: 10\n")
    done = amct_onnx.compress(source, data, config=quantizing, formats=("qdq",), trial=False)
    record = done.result.record
    nodes = [entry.selective_prune for entry in record.prune]
    assert [node.name for node in nodes if node] == [layer.name for layer in found.report.layers]
    assert record.prune == found.record.prune
    assert len(record.layers) == len(WEIGHTS)


def test_a_config_names_layers_in_bodies_and_those_that_share_a_weight() -> None:
    model = parse(BRANCH, "float[n,8] x", "float[n,8] y", {"t": normal(8, 8), "w": normal(8, 8, seed=1)})
    for source in (model, shared_twice()):
        found = amct_onnx.sparsify(source)
        again = amct_onnx.sparsify(source, config=parse_retrain_request(found.config_text()))
        assert [layer.name for layer in again.report.layers] == [layer.name for layer in found.report.layers]
        assert again.record == found.record


def test_a_config_skips_what_holds_no_weight() -> None:
    source = parse(
        "[line] a = MatMul(x, w) b = Transpose(a) [pair] y = MatMul(a, b)",
        "float[4,8] x",
        "float[4,4] y",
        {"w": normal(8, 8)},
    )
    found = amct_onnx.sparsify(source)
    again = amct_onnx.sparsify(source, config=parse_retrain_request(found.config_text()))
    assert again.record == found.record


def test_the_walk_and_every_measurement_show_their_progress() -> None:
    seen: list[int] = []

    def progress(items: Iterable[Any]) -> Iterable[Any]:
        seen.append(0)
        for item in items:
            seen[-1] += 1
            yield item

    amct_onnx.sparsify(network(), feeds(20), saving=0.3, selection="compensated", trial=False, progress=progress)
    # 64 samples are asked for, at most every fifth feed: four of 16 each; 16 feeds to fit to, then the four layers.
    assert seen[:2] == [16, 4]
    assert seen[:5].count(4) == 4
    assert set(seen[5:]) == {20}


def test_the_same_search_finds_the_same_bytes() -> None:
    first, second = (amct_onnx.sparsify(network(), feeds(10), saving=0.3) for _ in range(2))
    assert first.model.to_proto().SerializeToString() == second.model.to_proto().SerializeToString()
    assert first.record == second.record
