"""Hidden units of LSTM, GRU and RNN: what counts for one, what it costs, and what a user sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import amct_onnx
from amct_onnx.analyse.cost import layer_multiply_adds
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.pruning.reader_views import ReaderMoments
from amct_onnx.analyse.shapes import tensor_shapes
from amct_onnx.api.prune import prune_groups
from amct_onnx.cli import main
from amct_onnx.errors import NothingToCompressError
from amct_onnx.graph import BuiltModel
from amct_onnx.rewrite.pruning import open_prunable
from tests.models import Array, imported, initializers, node_named, normal, parse, run

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, INPUTS, STEPS = 8, 5, 6


def network(op: str, directions: int = 1, weights: dict[str, Array] | None = None) -> ModelProto:
    """One layer whose states a matrix product reads; float[6, n, 5] to float[6, n, 3]."""
    way = "bidirectional" if directions == 2 else "forward"
    rows = GATES[op] * HIDDEN
    return parse(
        f"""[rec] a = {op}<hidden_size = {HIDDEN}, direction = "{way}">(x, W, R, B)
            b = Transpose<perm = [0,2,1,3]>(a) s = Reshape(b, flat) [last] y = MatMul(s, v)""",
        f"float[{STEPS},n,{INPUTS}] x",
        f"float[{STEPS},n,3] y",
        {
            "W": normal(directions, rows, INPUTS, seed=1),
            "R": normal(directions, rows, HIDDEN, seed=2),
            "B": normal(directions, 2 * rows, seed=3),
            "v": normal(directions * HIDDEN, 3, seed=4),
            "flat": np.array([0, 0, -1]),
            **(weights or {}),
        },
    )


def per_unit(weight: Array) -> Array:
    """[directions, gates * hidden, columns] as [hidden, others], spelled out."""
    return np.stack(
        [
            np.concatenate([weight[:, g * HIDDEN + unit].reshape(-1) for g in range(weight.shape[1] // HIDDEN)])
            for unit in range(HIDDEN)
        ]
    )


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("op", GATES)
def test_the_units_with_the_smallest_gates_go(op: str, directions: int) -> None:
    proto = network(op, directions)
    before = initializers(proto)
    norms = np.linalg.norm(np.concatenate([per_unit(before["W"]), per_unit(before["R"])], axis=1), axis=1)
    kept = np.sort(np.argsort(norms)[2:])
    after = initializers(amct_onnx.prune(proto, ratio=0.25).model.to_proto())
    rows = np.concatenate([gate * HIDDEN + kept for gate in range(GATES[op])])
    np.testing.assert_array_equal(after["W"], before["W"][:, rows])
    np.testing.assert_array_equal(after["R"], before["R"][:, rows][:, :, kept])
    halves = [rows, GATES[op] * HIDDEN + rows]
    np.testing.assert_array_equal(after["B"], before["B"][:, np.concatenate(halves)])
    read = np.concatenate([direction * HIDDEN + kept for direction in range(directions)])
    np.testing.assert_array_equal(after["v"], before["v"][read])


@pytest.mark.parametrize("op", GATES)
def test_multiply_adds_are_those_of_both_weights_in_every_step(op: str) -> None:
    pruned = amct_onnx.prune(network(op, 2), ratio=0.5).model.to_proto()
    for hidden, proto in ((HIDDEN, network(op, 2)), (HIDDEN // 2, pruned)):
        cost = layer_multiply_adds(node_named(imported(proto), "rec"), {"x": (STEPS, 7, INPUTS)})
        assert cost == STEPS * 2 * GATES[op] * hidden * (INPUTS + hidden)


def error(proto: ModelProto, pruned: BuiltModel, feeds: list[dict[str, Array]]) -> float:
    return sum(float(np.square(run(pruned, feed)[0] - run(proto, feed)[0]).sum()) for feed in feeds)


@pytest.mark.parametrize("op", GATES)
def test_with_data_the_readers_are_fitted(op: str) -> None:
    proto = network(op, 2)
    feeds = [{"x": normal(STEPS, 4, INPUTS, seed=index)} for index in range(8)]
    result = amct_onnx.prune(proto, feeds, ratio=0.25)
    assert result.report.fitted == ("last",)
    plain = amct_onnx.prune(proto, feeds, ratio=0.25, recover=False)
    assert error(proto, result.model, feeds) < error(proto, plain.model, feeds)


@pytest.mark.parametrize("op", GATES)
def test_from_the_command_line_and_back(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(network(op), "m.onnx")
    assert main(["prune", "m.onnx", "--ratio", "0.5", "-o", "p", "--save-config", "p.cfg", "--quiet"]) == 0
    assert main(["apply", "m.onnx", "--record", "p_record.txt", "-o", "again", "--quiet"]) == 0
    assert main(["prune", "m.onnx", "--config", "p.cfg", "-o", "by_config", "--quiet"]) == 0
    pruned = Path("p_pruned_model.onnx").read_bytes()
    assert Path("again_pruned_model.onnx").read_bytes() == pruned
    assert Path("by_config_pruned_model.onnx").read_bytes() == pruned
    (node,) = [node for node in onnx.load("p_pruned_model.onnx").graph.node if node.op_type == op]
    (size,) = [attribute.i for attribute in node.attribute if attribute.name == "hidden_size"]
    assert size == HIDDEN // 2
    assert main(["record", "check", "p_record.txt", "--model", "m.onnx", "--quiet"]) == 0


def test_a_weight_that_is_computed_keeps_all_units() -> None:
    proto = network("LSTM")
    made = parse("R = Neg(minus)", "float[1,32,8] minus", "float[1,32,8] R").graph
    proto.graph.node.insert(0, made.node[0])
    proto.graph.input.extend(made.input)
    (weight,) = [entry for entry in proto.graph.initializer if entry.name == "R"]
    proto.graph.initializer.remove(weight)
    with pytest.raises(NothingToCompressError, match="model's output 'y'"):
        amct_onnx.prune(proto, ratio=0.5)
    assert [group.layers for group in prune_groups(proto).groups] == [("last",)]


def test_a_batch_that_comes_first_keeps_all_units() -> None:
    proto = network("GRU")
    attribute = onnx.helper.make_attribute("layout", 1)
    proto.graph.node[0].attribute.append(attribute)
    with pytest.raises(NothingToCompressError):
        amct_onnx.prune(proto, ratio=0.5)


def test_units_that_another_dimension_meets_go_with_it() -> None:
    # What is added to the states loses the same units, and its own input is fitted to nothing.
    proto = parse(
        f"""[rec] a = LSTM<hidden_size = {HIDDEN}>(x, W, R) s = Squeeze(a, one) [side] p = MatMul(x, u) t = Add(s, p)
            [last] y = MatMul(t, v)""",
        f"float[{STEPS},n,{INPUTS}] x",
        f"float[{STEPS},n,3] y",
        {
            "W": normal(1, 32, INPUTS, seed=1),
            "R": normal(1, 32, HIDDEN, seed=2),
            "u": normal(INPUTS, HIDDEN, seed=3),
            "v": normal(HIDDEN, 3, seed=4),
            "one": np.array([1]),
        },
    )
    result = amct_onnx.prune(proto, ratio=0.5)
    assert [group.layers for group in result.report.groups if group.removed] == [("rec", "side")]
    sizes = {entry.name: numpy_helper.to_array(entry).shape for entry in result.model.to_proto().graph.initializer}
    assert sizes == {"W": (1, 16, 5), "R": (1, 16, 4), "u": (5, 4), "v": (4, 3), "one": (1,)}


def zeros_shared_by(layers: str, readout: str) -> ModelProto:
    """Layers that begin with zeros, which are made once, as torch exports them."""
    return parse(
        f"""h = Shape(x) n = Slice(h, one, two) to = Concat<axis = 0>(one, n, eight) z = Expand(zero, to)
            {layers} s = Squeeze(b, one) [last] y = {readout}""",
        f"float[{STEPS},n,{INPUTS}] x",
        f"float[{STEPS},n,3] y",
        {
            "W": normal(1, 32, INPUTS, seed=1),
            "R": normal(1, 32, HIDDEN, seed=2),
            "W2": normal(1, 32, HIDDEN, seed=3),
            "R2": normal(1, 32, HIDDEN, seed=4),
            "v": normal(HIDDEN, 3, seed=5),
            "zero": np.zeros((1, 1, 1), np.float32),
            "one": np.array([1]),
            "two": np.array([2]),
            "eight": np.array([HIDDEN]),
        },
    )


STACK = f"""[rec] a, , = LSTM<hidden_size = {HIDDEN}>(x, W, R, , , z, z) t = Squeeze(a, one)
            [top] b, , = LSTM<hidden_size = {HIDDEN}>(t, W2, R2, , , z, z)"""


def test_zeros_that_layers_share_do_not_tie_them() -> None:
    proto = zeros_shared_by(STACK, "MatMul(s, v)")
    result = amct_onnx.prune(proto, ratio=0.5)
    assert [group.layers for group in result.report.groups if group.removed] == [("rec",), ("top",)]
    pruned = result.model.to_proto()
    onnx.checker.check_model(pruned)
    # Nothing is left of what made them.
    assert {node.op_type for node in pruned.graph.node} == {"LSTM", "Squeeze", "MatMul"}
    # One layer that stays keeps its zeros.
    half = amct_onnx.prune(proto, ratio=0.5, skip=["rec"]).model.to_proto()
    inputs = {node.name: list(node.input) for node in half.graph.node}
    assert (inputs["rec"][5:], inputs["top"][5:]) == (["z", "z"], ["", ""])
    assert run(half, {"x": normal(STEPS, 2, INPUTS)})[0].shape == (STEPS, 2, 3)


def test_with_data_a_unit_that_only_the_gates_read_counts() -> None:
    # Unit 0 is nothing to the readout and carries all that the other units get to see through R.
    weights = {"R": np.zeros((1, HIDDEN, HIDDEN), np.float32), "v": normal(HIDDEN, 3, seed=4)}
    weights["R"][0, 1:, 0] = 3.0
    weights["v"][0] = 0.0
    proto = network("RNN", 1, {**weights, "B": np.zeros((1, 2 * HIDDEN), np.float32)})
    feeds = [{"x": normal(STEPS, 4, INPUTS, seed=index)} for index in range(8)]
    result = amct_onnx.prune(proto, feeds, ratio=0.5)
    (record,) = result.record.prune
    assert 0 not in (record.producers[0].prune_index or ())
    assert len(record.producers[0].prune_index or ()) == HIDDEN // 2


@pytest.mark.parametrize("directions", [1, 2])
def test_gates_see_inputs_and_states(directions: int) -> None:
    # Second moments by numpy, of what onnxruntime gives.
    proto = network("GRU", directions)
    feeds = [{"x": normal(STEPS, 4, INPUTS, seed=index)} for index in range(3)]
    shapes = tensor_shapes(proto, None, feeds[0])
    prunable = open_prunable(proto, None, shapes)
    moments = ReaderMoments([*prunable.flow.readers, *prunable.flow.recurrences], proto, None, FittingData(feeds))
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    shown.graph.output.append(onnx.helper.make_empty_tensor_value_info("a"))
    states = [run(shown, feed)[1] for feed in feeds]
    for direction, of in enumerate(moments["rec:2"]):
        rows = np.concatenate([state[:, direction].reshape(-1, HIDDEN) for state in states]).astype(np.float64)
        np.testing.assert_allclose(of.xx, rows.T @ rows, rtol=1e-6)
        assert of.rows == len(rows)


@pytest.mark.parametrize(("skip", "removed"), [("", 4), ('skip_layers: "rec"', 0)])
def test_a_global_block_prunes_hidden_units(tmp_path: Path, skip: str, removed: int) -> None:
    # The product beside the layer is pruned in any case.
    proto = parse(
        f"""[rec] a, = GRU<hidden_size = {HIDDEN}>(x, W, R) s = Squeeze(a, one) [mid] m = MatMul(s, u)
            [last] y = MatMul(m, v)""",
        f"float[{STEPS},n,{INPUTS}] x",
        f"float[{STEPS},n,3] y",
        {
            "W": normal(1, 24, INPUTS, seed=1),
            "R": normal(1, 24, HIDDEN, seed=2),
            "u": normal(HIDDEN, 6, seed=3),
            "v": normal(6, 3, seed=4),
            "one": np.array([1]),
        },
    )
    config = tmp_path / "p.cfg"
    pruner = "balanced_l2_norm_filter_prune { prune_ratio: 0.5 ascend_optimized: false }"
    config.write_text(f"prune_config {{ filter_pruner {{ {pruner} }} }} {skip}")
    result = amct_onnx.prune(proto, config=config)
    assert {group.layers: group.removed for group in result.report.groups} == {
        ("rec",): removed,
        ("mid",): 3,
        ("last",): 0,
    }


@pytest.mark.parametrize("saving", [0.2, 0.4])
def test_a_saving_is_reached_in_recurrent_layers(saving: float) -> None:
    wide = 32
    proto = parse(
        f"""[rec] a, = GRU<hidden_size = {wide}>(x, W, R) s = Squeeze(a, one)
            [top] b, = GRU<hidden_size = {wide}>(s, W2, R) t = Squeeze(b, one) [last] y = MatMul(t, v)""",
        f"float[{STEPS},n,{INPUTS}] x",
        f"float[{STEPS},n,3] y",
        {
            "W": normal(1, 3 * wide, INPUTS, seed=1),
            "R": normal(1, 3 * wide, wide, seed=2) / np.float32(wide),
            "W2": normal(1, 3 * wide, wide, seed=3),
            "v": normal(wide, 3, seed=4),
            "one": np.array([1]),
        },
    )
    feeds = [{"x": normal(STEPS, 16, INPUTS, seed=index)} for index in range(8)]
    report = amct_onnx.prune(proto, feeds, saving=saving).report
    assert report.after.multiply_adds <= (1 - saving) * report.before.multiply_adds


@pytest.mark.parametrize("saving", [0.1, 0.2, 0.4, 0.6])
@pytest.mark.parametrize("op", GATES)
def test_no_more_units_go_than_a_saving_takes(op: str, saving: float) -> None:
    wide, directions = 64, 2
    rows = GATES[op] * wide
    proto = parse(
        f"""[rec] a = {op}<hidden_size = {wide}, direction = "bidirectional">(x, W, R)
            b = Transpose<perm = [0,2,1,3]>(a) s = Reshape(b, flat) [last] y = MatMul(s, v)""",
        f"float[{STEPS},n,{INPUTS}] x",
        f"float[{STEPS},n,3] y",
        {
            "W": normal(directions, rows, INPUTS, seed=1),
            "R": normal(directions, rows, wide, seed=2) / np.float32(wide),
            "v": normal(directions * wide, 3, seed=4),
            "flat": np.array([0, 0, -1]),
        },
    )
    samples = 4

    def cost(hidden: int) -> int:
        return STEPS * directions * GATES[op] * hidden * (INPUTS + hidden) + samples * directions * hidden * 3

    feeds = [{"x": normal(STEPS, samples, INPUTS, seed=index)} for index in range(8)]
    written = amct_onnx.prune(proto, feeds, saving=saving).model.to_proto()
    hidden = initializers(written)["R"].shape[2]
    # Units go by eights.
    assert hidden == max(size for size in range(8, wide, 8) if cost(size) <= (1 - saving) * cost(wide))
