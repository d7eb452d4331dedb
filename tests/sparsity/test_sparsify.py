"""Sparse models in onnxruntime, and their records: replayed, turned, refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import amct_onnx
from amct_onnx import resolve_prune_config
from amct_onnx.config.retrain import parse_retrain_request
from amct_onnx.errors import ArgumentError, ConfigError, DataError, RecordError
from amct_onnx.record import PruneNode, PruneRecord, Record, WeightState
from amct_onnx.record.prune import pack_mask, unpack_mask
from tests.models import Array, initializers, normal, parse, run


def network(seed: int = 0) -> ModelProto:
    """Convolutions, one of them depthwise, and two products; what is read hangs together."""
    return parse(
        """[first] s = Conv<pads = [1,1,1,1]>(x, w, b) r = Relu(s) [deep] d = Conv<group = 16, pads = [1,1,1,1]>(r, k)
           [second] t = Conv(d, v) u = Relu(t) p = GlobalAveragePool(u) f = Flatten(p)
           [third] g = Gemm<transB = 1>(f, m, c) [last] y = MatMul(g, n)""",
        "float[batch,8,8,8] x",
        "float[batch,5] y",
        {
            "w": normal(16, 8, 3, 3, seed=seed + 1),
            "b": normal(16, seed=seed + 2),
            "k": normal(16, 1, 3, 3, seed=seed + 3),
            "v": normal(24, 16, 1, 1, seed=seed + 4),
            "m": normal(12, 24, seed=seed + 5),
            "c": normal(12, seed=seed + 6),
            "n": normal(12, 5, seed=seed + 7),
        },
    )


def feeds(count: int = 8, seed: int = 0) -> list[dict[str, Array]]:
    """Inputs of which half the channels follow from the others."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(8, 4))
    return [
        {"x": np.einsum("cd,ndhw->nchw", mixing, rng.normal(size=(16, 4, 8, 8))).astype(np.float32)}
        for _ in range(count)
    ]


def error(first: ModelProto, second: object) -> float:
    noise = signal = 0.0
    for fed in feeds(4, seed=50):
        want, got = run(first, fed)[0], run(second, fed)[0]
        noise += float(np.square(want - got).sum())
        signal += float(np.square(want - want.mean(axis=0)).sum())
    return noise / signal


def masks(result: amct_onnx.SparsifyResult) -> dict[str, Array]:
    nodes = [entry.selective_prune for entry in result.record.prune]
    return {node.name: unpack_mask(node.selective_mask, node.mask_shape) for node in nodes if node}


THINNED = {"first": ("w", 1), "second": ("v", 1), "third": ("m", 1), "last": ("n", 0)}
"""Layer -> its weight, and the axis of the input channels in it."""


def test_the_largest_two_of_four_stay_and_nothing_else_changes() -> None:
    source = network()
    result = amct_onnx.sparsify(source)
    before, after = initializers(source), initializers(result.model.to_proto())
    assert before.keys() == after.keys()
    assert masks(result).keys() == THINNED.keys()
    for layer, (name, axis) in THINNED.items():
        mask = masks(result)[layer]
        np.testing.assert_array_equal(after[name], np.where(mask, before[name], 0))
        lines = np.moveaxis(np.abs(before[name]), axis, -1)
        kept = np.moveaxis(mask, axis, -1)
        for begin in range(0, lines.shape[-1], 4):
            four, stay = lines[..., begin : begin + 4], kept[..., begin : begin + 4]
            assert (stay.sum(axis=-1) == 2).all()
            assert (np.where(stay, four, np.inf).min(axis=-1) >= np.where(stay, 0, four).max(axis=-1)).all()
    for name in ("b", "k", "c"):
        np.testing.assert_array_equal(after[name], before[name])
    assert result.record.header is not None
    assert result.record.header.weights is WeightState.RECOMPUTABLE
    assert [(refusal.node, refusal.op_type) for refusal in result.report.refusals] == [("deep", "Conv")]
    weights = {layer.name: (layer.weights, layer.zeros) for layer in result.report.layers}
    assert weights == {
        layer: (before[name].size, int((after[name] == 0).sum())) for layer, (name, _) in THINNED.items()
    }


def test_the_others_make_up_for_the_weights_that_went() -> None:
    source = network()
    by_size, fitted = amct_onnx.sparsify(source), amct_onnx.sparsify(source, feeds())
    after = initializers(fitted.model.to_proto())
    for layer, (name, axis) in THINNED.items():
        zero = after[name] == 0
        np.testing.assert_array_equal(zero, ~masks(fitted)[layer])
        assert zero.mean() == 0.5
        assert (np.moveaxis(~zero, axis, -1).reshape(-1, 2).sum(axis=-1) <= 2).all()
    assert error(source, fitted.model) < 0.2 * error(source, by_size.model)
    assert all(layer.is_compensated for layer in fitted.report.layers)
    assert fitted.report.trials[0].form == "sparse"


def test_redundant_inputs_lose_half_their_weights_nearly_without_loss() -> None:
    # Four channels that two decide: nearly any two weights can stand for four, but those that are largest do not yet.
    source = parse("[line] y = Gemm<transB = 1>(x, w)", "float[n,4] x", "float[n,3] y", {"w": normal(3, 4)})
    mixing = normal(4, 2, seed=3)
    data = [{"x": normal(64, 2, seed=index) @ mixing.T} for index in range(4)]

    def loss(result: amct_onnx.SparsifyResult) -> float:
        pairs = [(run(source, fed)[0], run(result.model, fed)[0]) for fed in data]
        return sum(float(np.square(want - got).sum()) for want, got in pairs) / sum(
            float(np.square(want).sum()) for want, _ in pairs
        )

    # The fit stays a little near the old weights.
    assert loss(amct_onnx.sparsify(source, data)) < 0.02
    assert loss(amct_onnx.sparsify(source)) > 0.1


def test_a_product_without_a_bias_is_fitted_about_zero() -> None:
    source = parse("[line] y = MatMul(x, w)", "float[n,8] x", "float[n,4] y", {"w": normal(8, 4)})
    data = [{"x": normal(64, 8, seed=index) + 3} for index in range(4)]
    by_size, fitted = amct_onnx.sparsify(source), amct_onnx.sparsify(source, data)
    losses = [
        sum(float(np.square(run(source, fed)[0] - run(result.model, fed)[0]).sum()) for fed in data)
        for result in (by_size, fitted)
    ]
    assert losses[1] < 0.3 * losses[0]
    assert [node.op_type for node in fitted.model.to_proto().graph.node] == ["MatMul"]


def shared_twice(second: str = "[b] y = MatMul(h, w)") -> ModelProto:
    added = {"c": normal(8, seed=5)} if "c)" in second else {"v": normal(8, 8, seed=6)} if "v)" in second else {}
    return parse(
        f"[a] h = MatMul(x, w) {second}", "float[n,8] x", "float[n,8] y", {"w": normal(8, 8, seed=4) / 3, **added}
    )


def test_layers_that_share_a_weight_share_its_mask_which_the_record_holds_once() -> None:
    source = shared_twice()
    result = amct_onnx.sparsify(source)
    assert list(masks(result)) == ["a"]
    assert len(initializers(result.model.to_proto())) == 1
    assert [layer.shares_with for layer in result.report.layers] == ["", "a"]
    assert (result.report.weights, result.report.zeros) == (64, 32)
    again = amct_onnx.restore_sparse(source, result.record)
    assert again.model.to_proto().SerializeToString() == result.model.to_proto().SerializeToString()
    assert [layer.zeros for layer in again.report.layers] == [32, 32]


KINDS = {
    "a factor of the product": ("Gemm<transB = 1, alpha = 0.5>(x, w, b)", (4, 8), (64, 8)),
    "a factor of the bias": ("Gemm<beta = 2.0>(x, w, b)", (8, 4), (64, 8)),
    "a bias that does not count": ("Gemm<beta = 0.0>(x, w, b)", (8, 4), (64, 8)),
    "something else added to every row": ("Gemm(x, w, c)", (8, 4), (64, 8)),
    "something computed added": ("Gemm(x, w, d)", (8, 4), (64, 8)),
    "a turned input": ("Gemm<transA = 1>(x, w)", (8, 4), (8, 64)),
    "the weight first": ("MatMul(w, x)", (4, 8), (8, 64)),
    "the weight first, many inputs": ("MatMul(w, x)", (4, 8), (2, 8, 32)),
    "many matrices": ("MatMul(x, w)", (3, 8, 4), (64, 8)),
    "many matrices first": ("MatMul(w, x)", (3, 4, 8), (3, 8, 40)),
    "a transposed convolution": ("ConvTranspose<strides = [2,2]>(x, w, b)", (8, 4, 2, 2), (4, 8, 5, 5)),
    "one without a bias": ("ConvTranspose<strides = [2,2], pads = [1,1,1,1]>(x, w)", (8, 4, 3, 3), (4, 8, 5, 5)),
    "one in groups": ("ConvTranspose<group = 2, strides = [2,1]>(x, w)", (16, 3, 4, 2), (4, 16, 5, 5)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_every_kind_are_made_up_for(kind: str) -> None:
    """The error in onnxruntime is what the report says, and well below that of the largest weights."""
    call, weight, shape = KINDS[kind]
    used = {"w": normal(*weight), "b": normal(4, seed=1), "c": normal(64, 4, seed=2)}
    constants = {name: value for name, value in used.items() if f"{name})" in call or f"{name}," in call}
    inputs = f"float[{','.join(map(str, shape))}] x" + (", float[64,4] d" if "d)" in call else "")
    source = parse(f"[layer] y = {call}", inputs, "float y", constants)
    feed = {"x": _hanging_together(shape, axis=_input_axis(call)), "d": normal(64, 4, seed=3)}
    feed = feed if "d)" in call else {"x": feed["x"]}
    fitted = amct_onnx.sparsify(source, [feed])
    (layer,) = fitted.report.layers
    assert (layer.is_compensated, layer.reason) == (True, "")
    assert layer.zeros * 2 == layer.weights
    wanted = run(source, feed)[0]

    def error(result: amct_onnx.SparsifyResult) -> float:
        return float(np.square(run(result.model.to_proto(), feed)[0] - wanted).sum())

    assert error(fitted) < 0.5 * error(amct_onnx.sparsify(source))
    mask = masks(fitted)["layer"]
    written = initializers(fitted.model.to_proto())
    np.testing.assert_array_equal(next(value for value in written.values() if value.shape == weight) != 0, mask)


def _hanging_together(shape: tuple[int, ...], *, axis: int) -> Array:
    """Values whose channels are mixtures of half as many, nearly."""
    axis %= len(shape)
    channels = shape[axis]
    rng = np.random.default_rng(5)
    base = rng.normal(size=(*shape[:axis], *shape[axis + 1 :], channels // 2))
    mixed = base @ rng.normal(size=(channels // 2, channels)) + 0.05 * rng.normal(size=(*base.shape[:-1], channels))
    return np.ascontiguousarray(np.moveaxis(mixed, -1, axis)).astype(np.float32)


def _input_axis(call: str) -> int:
    if call.startswith("Conv"):
        return 1
    return -2 if "MatMul(w" in call or "transA" in call else -1


def test_what_is_not_fitted_says_why() -> None:
    source = parse(
        "e = Reshape(x, s) [line] y = ConvTranspose<strides = [2,2]>(e, w)",
        "float[8,8] x",
        "float y",
        {"w": normal(8, 4, 1, 1), "s": np.array([1, 8, 2, 4])},
    )
    (layer,) = amct_onnx.sparsify(source, [{"x": normal(8, 8)}]).report.layers
    assert "meet no place of its kernel" in layer.reason


def test_layers_that_stay_dense_are_named_where_a_weight_is_shared_no_more() -> None:
    """A record of layers that share a weight names the first; of another model they may have one each."""
    record = amct_onnx.sparsify(shared_twice()).record
    parted = parse(
        "[a] h = MatMul(x, w) [b] y = MatMul(h, v)",
        "float[n,8] x",
        "float[n,8] y",
        {"w": normal(8, 8), "v": normal(8, 8, seed=1)},
    )
    restored = amct_onnx.restore_sparse(parted, record, structure_only=True)
    assert (initializers(restored.model.to_proto())["v"] != 0).all()
    (note,) = restored.report.notes
    assert note.startswith("no weight goes of 'b': the record has no mask for it")
    assert not amct_onnx.restore_sparse(shared_twice(), record, structure_only=True).report.notes


def test_feeds_that_go_missing_are_told(caplog) -> None:
    """Data that can be walked again holds the same feeds each time."""
    feeds = [{"x": normal(16, 8, seed=seed)} for seed in range(8)]

    class Shrinking:
        def __init__(self, feeds_left: int) -> None:
            self.left = feeds_left

        def __iter__(self):
            self.left -= 1
            return iter(feeds[: max(self.left, 0)])

    amct_onnx.sparsify(shared_twice("[b] y = MatMul(h, v)"), Shrinking(9), trial=False)
    assert "feeds went missing: the data held 7 in one walk, 6 in a later one; give a list" in caplog.text
    with pytest.raises(DataError, match="held no feed in a later walk; give a list"):
        amct_onnx.sparsify(shared_twice("[b] y = MatMul(h, v)"), Shrinking(2), trial=False)


def test_a_record_may_name_every_layer_that_shares_a_weight_but_with_one_mask() -> None:
    source = shared_twice()
    result = amct_onnx.sparsify(source)
    (entry,) = result.record.prune
    own = masks(result)["a"]
    same, unsaid, other = (
        PruneRecord(selective_prune=node)
        for node in (
            replace(entry.selective_prune, name="b"),
            PruneNode("b"),
            PruneNode("b").with_attr("mask_shape", (8, 8)).with_attr("selective_mask", pack_mask(~own)),
        )
    )
    for second in (same, unsaid):
        again = amct_onnx.restore_sparse(source, replace(result.record, prune=(second, entry)))
        assert again.model.to_proto().SerializeToString() == result.model.to_proto().SerializeToString()
    with pytest.raises(RecordError, match="'b' shares its weight and has another mask"):
        amct_onnx.restore_sparse(source, replace(result.record, prune=(entry, other)))


def test_layers_that_apply_one_weight_alike_are_made_up_for_together() -> None:
    source = shared_twice()
    feeds = [{"x": normal(64, 8, seed=seed) @ normal(8, 8, seed=9)} for seed in range(3)]
    by_size, made_up = amct_onnx.sparsify(source), amct_onnx.sparsify(source, feeds)
    assert [layer.is_compensated for layer in made_up.report.layers] == [True, True]
    assert len(initializers(made_up.model.to_proto())) == 1
    fed = {"x": normal(64, 8, seed=20) @ normal(8, 8, seed=9)}
    want = run(source, fed)[0]
    losses = [np.square(run(result.model, fed)[0] - want).sum() for result in (by_size, made_up)]
    assert losses[1] < 0.8 * losses[0]


def test_steps_of_an_unrolled_network_are_made_up_for_together() -> None:
    """Each step multiplies its state with one weight, and adds what it makes of its input."""
    steps = [
        f"[in{step}] a{step} = Gemm(x{step}, w, b) [step{step}] g{step} = Gemm<transB = 1>(h{step}, r, a{step}) "
        f"h{step + 1} = Tanh(g{step})"
        for step in range(3)
    ]
    inputs = ", ".join(f"float[n,8] {name}" for name in ("h0", "x0", "x1", "x2"))
    constants = {"w": normal(8, 16, seed=1), "b": normal(16, seed=2), "r": normal(16, 16, seed=3) / 3}
    text = " ".join(steps).replace("h0", "z").replace("float[n,8] h0", "float[n,16] z")
    source = parse(text, inputs.replace("float[n,8] h0", "float[n,16] z"), "float[n,16] h3", constants)

    def feed(seed: int) -> dict[str, Array]:
        xs = {f"x{step}": normal(64, 8, seed=seed + step) for step in range(3)}
        return {"z": np.zeros((64, 16), np.float32), **xs}

    skip = ["in0", "in1", "in2"]
    by_size = amct_onnx.sparsify(source, skip=skip)
    made_up = amct_onnx.sparsify(source, [feed(10 * seed) for seed in range(8)], skip=skip)
    assert [layer.is_compensated for layer in made_up.report.layers] == [True] * 3
    assert list(masks(made_up)) == ["step0"]
    fed = feed(500)
    want = run(source, fed)[0]
    losses = [np.square(run(result.model, fed)[0] - want).sum() for result in (by_size, made_up)]
    assert losses[1] < 0.8 * losses[0]


def test_layers_that_differ_in_what_they_add_go_by_size() -> None:
    source = shared_twice("[b] t = MatMul(h, w) y = Add(t, c)")
    result = amct_onnx.sparsify(source, [{"x": normal(32, 8)}])
    assert {layer.reason for layer in result.report.layers} == {
        "layers share its weight that differ in bias or attributes"
    }


def test_layers_in_bodies_are_thinned_out_by_size() -> None:
    body = "then_branch = g1 () => (float[n,8] a) { [inner] a = MatMul(x, w) }"
    other = "else_branch = g2 () => (float[n,8] e) { e = Relu(x) }"
    source = parse(f"y = If<{body}, {other}>(t)", "bool t, float[n,8] x", "float[n,8] y", {"w": normal(8, 8)})
    result = amct_onnx.sparsify(source)
    (summary,) = result.report.layers
    assert (summary.weights, summary.zeros) == (64, 32)
    fed = {"t": np.array(True), "x": normal(3, 8)}
    (mask,) = masks(result).values()
    np.testing.assert_allclose(run(result.model, fed)[0], fed["x"] @ np.where(mask, normal(8, 8), 0), rtol=1e-5)


def test_with_data_layers_in_bodies_go_by_size_with_the_reason() -> None:
    body = "then_branch = g1 () => (float[n,8] a) { [inner] a = MatMul(s, v) }"
    other = "else_branch = g2 () => (float[n,8] e) { e = Relu(s) }"
    source = parse(
        f"[outer] s = MatMul(x, w) y = If<{body}, {other}>(t)",
        "bool t, float[n,8] x",
        "float[n,8] y",
        {"w": normal(8, 8), "v": normal(8, 8, seed=1)},
    )
    data = [{"t": np.array(True), "x": normal(32, 8, seed=seed)} for seed in range(3)]
    layers = {layer.name: layer for layer in amct_onnx.sparsify(source, data).report.layers}
    assert layers["outer"].is_compensated
    assert (layers["inner"].zeros, layers["inner"].is_compensated) == (32, False)
    assert "body" in layers["inner"].reason


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_keep_their_type(dtype: type) -> None:
    word = {np.float16: "float16", np.float64: "double"}[dtype]
    weight = normal(8, 4).astype(dtype)
    source = parse("[line] y = MatMul(x, w)", f"{word}[n,8] x", f"{word}[n,4] y", {"w": weight})
    after = initializers(amct_onnx.sparsify(source).model.to_proto())["w"]
    assert after.dtype == dtype
    assert (after == 0).mean() == 0.5


def test_a_record_gives_the_same_bytes_again() -> None:
    source = network()
    for result, model in (
        (first := amct_onnx.sparsify(source), source),
        (second := amct_onnx.sparsify(source, feeds()), second.model.to_proto()),
    ):
        again = amct_onnx.restore_sparse(model, result.record)
        assert again.model.to_proto().SerializeToString() == result.model.to_proto().SerializeToString()
    assert first.record.header is not None
    with pytest.raises(RecordError, match="weights were modified"):
        amct_onnx.restore_sparse(source, second.record)
    with pytest.raises(RecordError, match="made for another model"):
        amct_onnx.restore_sparse(network(seed=50), first.record)


def test_the_structure_alone_is_laid_over_other_weights() -> None:
    result = amct_onnx.sparsify(network(), feeds())
    other = network(seed=50)
    again = amct_onnx.restore_sparse(other, result.record, structure_only=True)
    after = initializers(again.model.to_proto())
    for layer, (name, _) in THINNED.items():
        np.testing.assert_array_equal(after[name], np.where(masks(result)[layer], initializers(other)[name], 0))
    replayed = amct_onnx.restore_sparse(other, again.record)
    assert replayed.model.to_proto().SerializeToString() == again.model.to_proto().SerializeToString()


def selective(name: str, shape: tuple[int, ...], mask: Array | None = None) -> Record:
    node = PruneNode(name).with_attr("mask_shape", shape)
    return Record(
        prune=(
            PruneRecord(selective_prune=node if mask is None else node.with_attr("selective_mask", pack_mask(mask))),
        )
    )


def test_a_record_without_a_mask_takes_the_largest() -> None:
    source = network()
    result = amct_onnx.restore_sparse(source, selective("second", (24, 16, 1, 1)))
    expected = initializers(amct_onnx.sparsify(source).model.to_proto())["v"]
    np.testing.assert_array_equal(initializers(result.model.to_proto())["v"], expected)
    assert any("has no selective_mask; the largest weights stay" in note for note in result.report.notes)
    assert {refusal.node for refusal in result.report.refusals} == {"deep", "first", "third", "last"}


def test_a_mask_in_another_layout_is_turned_where_that_is_clear() -> None:
    source = network()
    mask = masks(amct_onnx.sparsify(source))["last"]
    turned = amct_onnx.restore_sparse(source, selective("last", (5, 12), mask.T))
    expected = np.where(mask, initializers(source)["n"], 0)
    np.testing.assert_array_equal(initializers(turned.model.to_proto())["n"], expected)


BAD = {
    "unclear turn": (selective("first", (3, 3, 8, 16), np.zeros((3, 3, 8, 16), np.bool_)), "in several ways"),
    "no turn": (selective("third", (7, 4), np.zeros((7, 4), np.bool_)), "cannot be turned into it"),
    "dense": (selective("third", (12, 24), np.ones((12, 24), np.bool_)), "keeps more than 2 of 4"),
    "depthwise": (selective("deep", (16, 1, 3, 3)), "it cannot be thinned out: of every four weights 2 stay"),
    "unknown": (selective("nobody", (4, 4)), "'nobody'.*it is no layer of the model"),
    "no mask record": (Record(), "no prune_record with selective_prune"),
}


@pytest.mark.parametrize("case", BAD)
def test_masks_that_do_not_fit_are_refused(case: str) -> None:
    record, words = BAD[case]
    with pytest.raises(RecordError, match=words):
        amct_onnx.restore_sparse(network(), record)


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="selection: 'size' is unknown; choose from l1, compensated"):
        amct_onnx.sparsify(network(), selection="size")
    with pytest.raises(ArgumentError, match="selection compensated chooses by data"):
        amct_onnx.sparsify(network(), selection="compensated")
    with pytest.raises(DataError, match="thinning out walks over the data several times"):
        amct_onnx.sparsify(network(), (fed for fed in feeds()))
    with pytest.raises(ArgumentError, match="'sceond' is not in the model"):
        amct_onnx.sparsify(network(), skip="sceond")
    broken = [{"x": np.full((2, 8, 8, 8), np.nan, np.float32)}]
    with pytest.raises(DataError, match="NaN or infinite"):
        amct_onnx.sparsify(network(), broken)


def test_data_that_does_not_vary_leaves_the_choice_to_size() -> None:
    source = parse("[line] y = Gemm<transB = 1>(x, w)", "float[n,8] x", "float[n,4] y", {"w": normal(4, 8)})
    result = amct_onnx.sparsify(source, [{"x": np.full((4, 8), 3, np.float32)}])
    assert [layer.reason for layer in result.report.layers] == ["it was fed nothing that varies"]
    by_size = initializers(amct_onnx.sparsify(source).model.to_proto())["w"]
    np.testing.assert_array_equal(initializers(result.model.to_proto())["w"], by_size)


def write(folder, text: str):
    path = folder / "my.cfg"
    path.write_text(text)
    return path


SPARSE = "n_out_of_m_pruner { l1_selective_prune { n_out_of_m_type: M4N2 } }"
FILTER = "filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 } }"


def test_a_config_says_which_layers(tmp_path) -> None:
    config = write(
        tmp_path, f'prune_config {{ {SPARSE} }} regular_prune_skip_layers: "third" skip_layer_types: "MatMul"'
    )
    result = amct_onnx.sparsify(network(), config=config)
    assert [layer.name for layer in result.report.layers] == ["first", "second"]
    reasons = {refusal.node: refusal.reason for refusal in result.report.refusals}
    assert "regular_prune_skip_layers" in reasons["third"]
    assert "skip_layer_types" in reasons["last"]


def test_layers_of_a_mixed_config_are_told_apart(tmp_path) -> None:
    override = f'override_layer_configs {{ layer_name: "second" prune_config {{ {FILTER} }} }}'
    config = write(tmp_path, f"prune_config {{ {SPARSE} }} {override}")
    result = amct_onnx.sparsify(network(), config=config)
    assert [layer.name for layer in result.report.layers] == ["first", "third", "last"]
    assert any("channels of 'second' are not pruned here" in note for note in result.report.notes)
    assert {refusal.node: refusal.reason for refusal in result.report.refusals} == {
        "deep": "of every four weights 2 stay, and it has 1 input channel per group",
        "second": "its block prunes channels instead",
    }


def test_a_config_shows_which_layers_cannot_be_thinned_out() -> None:
    layers = resolve_prune_config(network(), parse_retrain_request(f"prune_config {{ {SPARSE} }}")).layers
    assert {name: layer.why_whole for name, layer in layers.items() if layer.sparsity is None} == {
        "deep": "of every four weights 2 stay, and it has 1 input channel per group"
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"prune_config {{ {FILTER} }}", "prunes channels alone"),
        ("batch_num: 2", "holds no prune_config"),
        (
            f'prune_config {{ {SPARSE} }} skip_layer_types: "Conv" skip_layer_types: "Gemm" skip_layer_types: "MatMul"',
            "leaves no layer to thin out",
        ),
    ],
)
def test_configs_that_thin_out_nothing(tmp_path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        amct_onnx.sparsify(network(), config=write(tmp_path, text))


def test_quantizing_keeps_every_zero(tmp_path) -> None:
    sparse = amct_onnx.sparsify(network(), feeds())
    quantized = amct_onnx.quantize(sparse.model.to_proto(), feeds())
    for form, built in quantized.models.items():
        halves = []
        for tensor in built.to_proto().graph.initializer:
            values = numpy_helper.to_array(tensor)
            if values.size in (16 * 8 * 9, 24 * 16, 12 * 24, 12 * 5):
                halves.append(float((values == 0).mean()))
        assert len(halves) == 4, form
        assert min(halves) >= 0.5, form


def test_the_same_data_gives_the_same_bytes() -> None:
    results = [amct_onnx.sparsify(network(), feeds()).model.to_proto().SerializeToString() for _ in range(2)]
    assert results[0] == results[1]


def test_files_are_saved_and_loaded(tmp_path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    paths = amct_onnx.sparsify(tmp_path / "m.onnx").save(tmp_path / "out" / "m")
    assert sorted(path.name for path in paths.values()) == ["m_record.txt", "m_sparse_model.onnx"]
    again = amct_onnx.restore_sparse(tmp_path / "m.onnx", paths["record"])
    assert again.model.to_proto().SerializeToString() == (tmp_path / "out" / "m_sparse_model.onnx").read_bytes()


def test_a_header_names_the_model_that_holds_the_weights() -> None:
    result = amct_onnx.sparsify(network(), feeds())
    header = result.record.header
    assert header is not None
    assert header.modified_sha256 is not None
    forgotten = replace(result.record, header=replace(header, modified_sha256=None))
    with pytest.raises(RecordError, match="weights were modified"):
        amct_onnx.restore_sparse(result.model.to_proto(), forgotten)


def test_what_each_layer_lost_is_measured_on_the_data() -> None:
    source = parse(
        "[a] y = Gemm(x, w, c) [b] z = Gemm(x, v)",
        "float[n,8] x",
        "float[n,8] y, float[n,4] z",
        {"w": normal(8, 8), "c": normal(8, seed=1), "v": normal(8, 4, seed=2)},
    )
    feeds = [{"x": normal(64, 8, seed=seed) @ normal(8, 8, seed=9)} for seed in range(3)]
    result = amct_onnx.sparsify(source, feeds)
    pairs = [list(zip(run(source, feed), run(result.model, feed), strict=True)) for feed in feeds]
    for index, layer in enumerate(result.report.layers):
        want, got = (np.concatenate([pair[index][which] for pair in pairs]) for which in range(2))
        share = np.square(want - got).sum() / np.square(want - want.mean(axis=0)).sum()
        assert layer.lost == pytest.approx(share, rel=1e-3)
        assert share > 1e-4
    assert all(layer.lost is None for layer in amct_onnx.sparsify(source).report.layers)
