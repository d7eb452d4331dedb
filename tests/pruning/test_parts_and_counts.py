"""Nothing is left without a channel, and what is computed from the number of channels does not change with them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import amct_onnx
from amct_onnx.errors import NothingToCompressError, RecordError
from amct_onnx.record import format_record, parse_record
from tests.models import Array, normal, parse, run

IMAGE = "float[n,3,h,k] x"
Y = "float[a,b,c,d] y"
W = {"w": normal(8, 3, 3, 3), "v": normal(4, 8, 1, 1, seed=1)}
ONE = {"one": np.array([1], np.int64), "at": np.array(1, np.int64), "twice": np.array(2, np.int64)}
SHAPES = {"x": (2, 3, 8, 8)}


def model(nodes: str, weights: dict[str, Array], outputs: str = Y, inputs: str = IMAGE) -> ModelProto:
    return parse(nodes, inputs, outputs, weights, opset=17)


COUNTED = {
    "Size of a tensor": ("[first] s = Conv(x, w) n = Size(s) m = Cast<to = 1>(n) t = Div(s, m) y = Conv(t, v)", Y),
    "a scale that the feed decides, too": (
        """[first] s = Conv(x, w) h = Shape(s) f = Cast<to = 1>(h) r = ReduceProd<keepdims = 0>(f) t = Div(s, r)
           y = Conv(t, v)""",
        Y,
    ),
    "a shape given out": (
        "[first] s = Conv(x, w) t = Relu(s) z = Shape(s) y = Conv(t, v)",
        f"{Y}, int64[4] z",
    ),
    "indices of a pool": (
        """[first] s = Conv(x, w) t, i = MaxPool<kernel_shape = [2, 2]>(s) j = Cast<to = 1>(i) u = Mul(t, j)
           y = Conv(u, v)""",
        Y,
    ),
    "statistics given out": (
        """[first] s = Conv(x, w) t, mean, var = BatchNormalization<training_mode = 1>(s, ones, c, c, ones)
           y = Conv(t, v)""",
        f"{Y}, float[8] mean",
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_counts_channels_keeps_them(name: str) -> None:
    nodes, outputs = COUNTED[name]
    proto = model(nodes, {**W, **ONE, "ones": np.ones(8, np.float32), "c": normal(8, seed=3)}, outputs)
    with pytest.raises(NothingToCompressError, match="'first': "):
        amct_onnx.prune(proto, ratio=0.5, input_shapes=SHAPES)


def test_a_squeeze_without_axes_never_takes_the_channels_along() -> None:
    proto = model(
        "[first] s = Conv(x, w) p = GlobalAveragePool(s) q = Squeeze(p) y = MatMul(q, m)",
        {**W, "m": normal(8, 4, seed=2)},
        "float[a,b] y",
    )
    pruned = amct_onnx.prune(proto, ratio=0.9, input_shapes=SHAPES).model.to_proto()
    feed = {"x": normal(2, 3, 9, 9)}
    assert _channels(pruned, "w") == 2
    assert run(pruned, feed)[0].shape == run(proto, feed)[0].shape


PARTS = {
    "layers side by side that one gate scales": (
        """[a] s = Conv(x, w) [b] r = Conv(x, w2) t = Concat<axis = 1>(s, r) p = GlobalAveragePool(t)
           [gate] g = Conv(p, wg) u = Mul(t, g) y = Conv(u, v12)""",
        {"w": W["w"], "w2": normal(4, 3, 3, 3, seed=4), "wg": normal(12, 12, 1, 1, seed=5)},
        {"w": 1, "w2": 1},
    ),
    "gathered channels": (
        "[first] s = Conv(x, w) t = Gather<axis = 1>(s, two) y = Conv(s, v) z = Conv(t, v2)",
        {
            "two": np.array([0, -1], np.int64),
            "w": W["w"] * np.array([1e-3, *[1] * 6, 1e-3], np.float32)[:, None, None, None],
        },
        {"w": 1},
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_every_part_keeps_a_channel(name: str) -> None:
    nodes, weights, least = PARTS[name]
    readers = {"v12": normal(4, 12, 1, 1, seed=6), "v2": normal(2, 2, 1, 1, seed=7), "v": W["v"]}
    outputs = f"{Y}, float[e,f,g,i] z" if "z =" in nodes else Y
    proto = model(nodes, {**readers, **weights}, outputs)
    result = amct_onnx.prune(proto, ratio=0.9, input_shapes=SHAPES)
    pruned = result.model.to_proto()
    assert all(_channels(pruned, weight) >= count for weight, count in least.items())
    assert min(size for tensor in pruned.graph.initializer for size in tensor.dims) > 0
    again = amct_onnx.restore_pruned(proto, parse_record(format_record(result.record)), input_shapes=SHAPES)
    assert again.model.to_proto().SerializeToString(deterministic=True) == pruned.SerializeToString(deterministic=True)


def test_a_depthwise_layer_behind_layers_side_by_side_replays() -> None:
    nodes = """[a] s = Conv(x, w) [b] r = Conv(x, w2) t = Concat<axis = 1>(s, r) d = Conv<group = 14>(t, wd)
               y = Conv(d, v14)"""
    weights = {
        "w": W["w"],
        "w2": normal(6, 3, 3, 3, seed=4),
        "wd": normal(14, 1, 3, 3, seed=5),
        "v14": normal(4, 14, 1, 1, seed=6),
    }
    proto = model(nodes, weights)
    result = amct_onnx.prune(proto, ratio=0.3, input_shapes=SHAPES)
    again = amct_onnx.restore_pruned(proto, parse_record(format_record(result.record)), input_shapes=SHAPES)
    assert again.model.to_proto() == result.model.to_proto()


def test_what_a_branch_declares_is_no_longer_than_it_gives() -> None:
    """The checker and onnxruntime both believe a branch's declared result."""
    proto = model(
        """[first] s = Conv(x, w)
           t = If(yes) <
               then_branch = p () => (float[2,8,6,6] a) { a = Relu(s) },
               else_branch = q () => (float[2,8,6,6] d) { d = Neg(s) }>
           y = Conv(t, v)""",
        {**W, "yes": np.array(True)},
        "float[2,4,6,6] y",
        "float[2,3,8,8] x",
    )
    pruned = amct_onnx.prune(proto, ratio=0.5).model.to_proto()
    onnx.checker.check_model(pruned, full_check=True)


def test_a_record_that_does_not_fit_at_these_sizes_says_what_may_help() -> None:
    proto = model("s = Conv(x, w) t = Conv(s, k) y = Conv(t, v)", {**W, "k": normal(8, 8, 3, 3, seed=5)})
    result = amct_onnx.prune(proto, ratio=0.5, input_shapes=SHAPES)
    with pytest.raises(RecordError, match=r"is not known.*does not run at x:1,3,2,2.*--input-shape"):
        amct_onnx.restore_pruned(proto, result.record, input_shapes={"x": (1, 3, 2, 2)})


def _channels(proto: ModelProto, weight: str) -> int:
    (tensor,) = (entry for entry in proto.graph.initializer if entry.name.split(".")[0] == weight)
    return len(numpy_helper.to_array(tensor))


def test_what_stands_beside_fixed_channels_in_groups_stays() -> None:
    nodes = "[first] s = Conv<pads = [1,1,1,1]>(x, w) z = Concat<axis = 1>(x, s) [grouped] y = Conv<group = 2>(z, k)"
    proto = model(nodes, {"w": normal(3, 3, 3, 3), "k": normal(4, 3, 1, 1)})
    with pytest.raises(NothingToCompressError, match="'first': convolutions in groups ask for blocks of channels"):
        amct_onnx.prune(proto, ratio=0.3, input_shapes=SHAPES)


@pytest.mark.parametrize(("sizes", "groups"), [((8, 8), 2), ((8, 8), 8), ((4, 12), 2), ((4, 12), 4)])
def test_groups_of_a_normalization_across_layers_stay_of_one_size(sizes: tuple[int, int], groups: int) -> None:
    nodes = f"""[first] s = Conv(x, w) [second] r = Conv(x, k) z = Concat<axis = 1>(s, r)
                t = GroupNormalization<num_groups = {groups}>(z, g, b) y = Conv(t, v)"""
    weights = {
        "w": normal(sizes[0], 3, 3, 3),
        "k": normal(sizes[1], 3, 3, 3, seed=1),
        "v": normal(4, 16, 1, 1, seed=2),
        "g": normal(16, seed=3),
        "b": normal(16, seed=4),
    }
    proto = parse(nodes, IMAGE, Y, weights, opset=21)
    result = amct_onnx.prune(proto, ratio=0.5, input_shapes=SHAPES)
    pruned = result.model.to_proto()
    left = [_channels(pruned, name) for name in ("w", "k")]
    of_group = 16 // groups
    whole = np.repeat(np.arange(groups), of_group)
    (entry,) = result.record.prune
    gone = {node.name: node.prune_index for node in entry.producers}
    starts = {"first": 0, "second": sizes[0]}
    lost = [whole[starts[name] + index] for name, indices in gone.items() for index in indices or ()]
    assert set(np.bincount(lost, minlength=groups).tolist()) == {of_group // 2}
    assert sum(left) == 8
    assert run(pruned, {"x": normal(2, 3, 8, 8)})[0].shape == (2, 4, 6, 6)
