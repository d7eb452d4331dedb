"""Pruned models after layers were fitted again, against the float model in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.api.belonging import TAKEN_AS_IT_IS
from amct_onnx.errors import DataError, RecordError, UsageError
from tests.models import Array, normal, parse, run


def low_rank(out: int, inner: int, kernel: int, rank: int, seed: int) -> Array:
    """Filters that are mixtures of a few, so that some channels can be made up for by others."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(out, rank)) @ rng.normal(size=(rank, inner * kernel * kernel))
    return (mixed / np.sqrt(rank * inner)).reshape(out, inner, kernel, kernel).astype(np.float32)


def network() -> ModelProto:
    return parse(
        """[first] s = Conv<pads = [1,1,1,1]>(x, w, b) [second] t = Conv<pads = [1,1,1,1], strides = [2,2]>(s, v)
           r = Relu(t) [third] u = Conv(r, k, c) p = GlobalAveragePool(u) f = Flatten(p)
           [last] y = Gemm<transB = 1>(f, g, h)""",
        "float[n,3,12,12] x",
        "float[n,5] y",
        {
            "w": low_rank(16, 3, 3, 6, 1),
            "b": normal(16, seed=2),
            "v": low_rank(12, 16, 3, 12, 3),
            "k": low_rank(16, 12, 1, 12, 4),
            "c": normal(16, seed=5),
            "g": normal(5, 16, seed=6),
            "h": normal(5, seed=7),
        },
    )


def feeds(count: int = 12, seed: int = 0) -> list[dict[str, Array]]:
    return [{"x": normal(4, 3, 12, 12, seed=seed + index)} for index in range(count)]


def error(first: ModelProto, second: ModelProto) -> float:
    noise = signal = 0.0
    for fed in feeds(6, seed=100):
        want, got = run(first, fed)[0], run(second, fed)[0]
        noise += float(np.square(want - got).sum())
        signal += float(np.square(want - want.mean(axis=0)).sum())
    return noise / signal


def test_channels_that_others_make_up_for_go_without_loss() -> None:
    # Of 16 linear mixtures of 6, ten are superfluous once the reader is fitted again.
    source = network()
    skip = ["second", "third"]
    plain = amct_onnx.prune(source, ratio=0.5, skip=skip)
    fitted = amct_onnx.prune(source, feeds(), ratio=0.5, skip=skip)
    assert "second" in fitted.report.fitted
    assert error(source, fitted.model.to_proto()) < 0.05 * error(source, plain.model.to_proto())


@pytest.mark.parametrize("importance", ["l2", "bn_scale", "energy", "taylor", "reconstruction"])
def test_fitting_helps_whatever_ranks_the_channels(importance: str) -> None:
    source = network()
    plain = amct_onnx.prune(source, feeds(), ratio=0.3, importance=importance, recover=False)
    fitted = amct_onnx.prune(source, feeds(), ratio=0.3, importance=importance)
    assert error(source, fitted.model.to_proto()) < 0.5 * error(source, plain.model.to_proto())


def test_a_saving_is_reached() -> None:
    source = network()
    result = amct_onnx.prune(source, feeds(), saving=0.3)
    left = result.report.after.multiply_adds / result.report.before.multiply_adds
    assert 0.45 < left <= 0.7
    assert error(source, result.model.to_proto()) < 0.5


def test_the_same_call_gives_the_same_bytes() -> None:
    first, second = (amct_onnx.prune(network(), feeds(), ratio=0.3) for _ in range(2))
    assert first.model.to_proto().SerializeToString() == second.model.to_proto().SerializeToString()


def test_a_product_with_a_bias_behind_it_is_fitted() -> None:
    source = parse(
        """[first] s = MatMul(x, w) t = Add(s, b) r = Relu(t) [second] u = MatMul(r, v) y = Add(c, u)""",
        "float[n,7,6] x",
        "float[n,7,4] y",
        {"w": normal(6, 16), "b": normal(16, seed=1) + 2, "v": normal(16, 4, seed=2), "c": normal(4, seed=3)},
    )
    data = [{"x": normal(8, 7, 6, seed=index)} for index in range(8)]
    plain, fitted = (amct_onnx.prune(source, data, ratio=0.25, recover=recover) for recover in (False, True))
    fed = {"x": normal(8, 7, 6, seed=50)}
    want = run(source, fed)[0]
    losses = [np.square(run(result.model.to_proto(), fed)[0] - want).mean() for result in (plain, fitted)]
    assert losses[1] < 0.3 * losses[0]


READERS = {
    "a transposed convolution": ("ConvTranspose<strides = [2,2], pads = [1,1,1,1]>(s, v, b)", (16, 6, 4, 4)),
    "one whose phases differ": ("ConvTranspose<strides = [2,2]>(s, v)", (16, 6, 3, 3)),
    "one in groups": ("ConvTranspose<strides = [2,2], group = 2>(s, v, b)", (16, 3, 2, 2)),
    "a product whose weight comes first": ("MatMul(v, f)", (6, 16)),
    "a product with factors": ("Gemm<alpha = 0.5, beta = 2.0>(g, v, b)", (16, 6)),
    "a product that adds to every row": ("Gemm(g, v, c)", (16, 6)),
}


@pytest.mark.parametrize("options", [{"ratio": 0.5}, {"saving": 0.4}])
@pytest.mark.parametrize("reader", READERS)
def test_readers_of_every_kind_are_fitted(reader: str, options: dict[str, float]) -> None:
    call, shape = READERS[reader]
    between = {"f)": "f = Reshape(s, t)", "(g": "m = Transpose<perm = [0,2,3,1]>(s) g = Reshape(m, u)"}
    used = {
        "w": low_rank(16, 3, 3, 4, 1),
        "v": normal(*shape, seed=2),
        "b": normal(6, seed=3),
        "c": normal(400, 6, seed=4),
        "t": np.array([4, 16, 100]),
        "u": np.array([400, 16]),
    }
    middle = next((text for word, text in between.items() if word in call), "")
    nodes = f"[first] s = Conv(x, w) {middle} [reader] y = {call}"
    read = nodes.translate(str.maketrans("(),", "   ")).split()
    constants = {name: value for name, value in used.items() if name in read}
    source = parse(nodes, "float[4,3,12,12] x", "float y", constants)
    fitted = amct_onnx.prune(source, feeds(), **options)
    assert fitted.report.fitted == ("reader",)
    plain = amct_onnx.prune(source, feeds(), recover=False, **options)
    assert error(source, fitted.model.to_proto()) < 0.05 * error(source, plain.model.to_proto())


def test_a_fitted_model_is_not_replayed_from_its_source(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    amct_onnx.prune(tmp_path / "m.onnx", feeds(), ratio=0.3).save(tmp_path / "p")
    with pytest.raises(
        RecordError, match=r"p_record\.txt: .*weights were modified .*\*_pruned_model.*\(--structure-only\)$"
    ):
        amct_onnx.restore_pruned(tmp_path / "m.onnx", tmp_path / "p_record.txt")
    again = amct_onnx.restore_pruned(tmp_path / "m.onnx", tmp_path / "p_record.txt", structure_only=True)
    shapes = [
        {entry.name: tuple(entry.dims) for entry in proto.graph.initializer}
        for proto in (again.model.to_proto(), onnx.load(tmp_path / "p_pruned_model.onnx"))
    ]
    assert {name: shapes[1][name] for name in shapes[0]} == shapes[0]


def test_a_fitted_model_stays_as_it_is_under_its_own_record(tmp_path: Path) -> None:
    amct_onnx.prune(network(), feeds(), ratio=0.3).save(tmp_path / "p")
    again = amct_onnx.restore_pruned(tmp_path / "p_pruned_model.onnx", tmp_path / "p_record.txt")
    again.save(tmp_path / "again")
    for end in ("pruned_model.onnx", "record.txt"):
        assert (tmp_path / f"again_{end}").read_bytes() == (tmp_path / f"p_{end}").read_bytes()
    assert again.report.notes == (TAKEN_AS_IT_IS,)
    assert {group.reason for group in again.report.groups} == {
        "what the record takes out is gone already",
        "it is the model's output 'y'",
    }


def test_a_plain_record_is_replayed_to_the_same_bytes(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    amct_onnx.prune(tmp_path / "m.onnx", ratio=0.3).save(tmp_path / "a")
    amct_onnx.restore_pruned(tmp_path / "m.onnx", tmp_path / "a_record.txt").save(tmp_path / "b")
    assert (tmp_path / "a_pruned_model.onnx").read_bytes() == (tmp_path / "b_pruned_model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 0.3, "saving": 0.2}, "^ratio and saving exclude each other"),
        ({}, "^give one of ratio .*, saving .*, config and auto_config"),
        ({"ratio": 1.5}, "above 0 and below 1"),
        ({"saving": 0.2}, "give data, or ratio"),
        ({"ratio": 0.3, "importance": "energy"}, "give data, or choose l2"),
        ({"ratio": 0.3, "importance": "size"}, "choose from l2, bn_scale, energy, taylor, reconstruction"),
        ({"ratio": 0.3, "recover": True}, "fits layers on data"),
    ],
)
def test_what_does_not_go_together(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        amct_onnx.prune(network(), **options)  # type: ignore[arg-type]


def test_data_must_last() -> None:
    with pytest.raises(DataError, match="walked once"):
        amct_onnx.prune(network(), iter(feeds()), ratio=0.3)


def test_layers_in_functions_are_pruned_too(tmp_path: Path) -> None:
    source = parse(
        "[call] s = my.block(x, w) [last] y = Conv(s, v)",
        "float[n,3,6,6] x",
        "float[n,4,6,6] y",
        {"w": normal(16, 3, 1, 1), "v": normal(4, 16, 1, 1, seed=1)},
        domains='"my": 1',
        functions='<domain: "my", opset_import: ["": 17]> block (a, k) => (b) { c = Conv(a, k) b = Relu(c) }',
    )
    onnx.save(source, tmp_path / "m.onnx")
    result = amct_onnx.prune(tmp_path / "m.onnx", ratio=0.5)
    assert [group.removed for group in result.report.groups if group.removed] == [8]
    result.save(tmp_path / "a")
    again = amct_onnx.restore_pruned(tmp_path / "m.onnx", tmp_path / "a_record.txt")
    assert again.model.to_proto().SerializeToString() == result.model.to_proto().SerializeToString()
    assert run(tmp_path / "a_pruned_model.onnx", {"x": normal(2, 3, 6, 6)})[0].shape == (2, 4, 6, 6)


def test_the_record_that_was_read_is_not_overwritten(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    amct_onnx.prune(tmp_path / "m.onnx", ratio=0.3).save(tmp_path / "a")
    again = amct_onnx.restore_pruned(tmp_path / "m.onnx", tmp_path / "a_record.txt")
    with pytest.raises(UsageError, match="overwrite an input"):
        again.save(tmp_path / "a")


def with_constants(padding: int = 0) -> ModelProto:
    """Four of twelve filters are zero, so that their channels hold their shift, through normalization and Relu."""
    w = normal(12, 3, 3, 3)
    w[[1, 4, 5, 9]] = 0
    return parse(
        f"""[first] s = Conv(x, w, b) r = BatchNormalization(s, g, h, m, u) t = Relu(r)
            [last] y = Conv<pads = [{padding},{padding},{padding},{padding}]>(t, v, c)""",
        "float[n,3,8,8] x",
        "float[n,4,k,l] y",
        {
            "w": w,
            "b": normal(12, seed=1) + 1,
            "g": np.abs(normal(12, seed=2)),
            "h": normal(12, seed=3) + 1,
            "m": normal(12, seed=4),
            "u": np.ones(12, np.float32),
            "v": normal(4, 12, 3, 3, seed=5),
            "c": normal(4, seed=6),
        },
    )


def test_what_constant_channels_added_stays_in_the_bias(tmp_path: Path) -> None:
    onnx.save(with_constants(), tmp_path / "m.onnx")
    result = amct_onnx.prune(tmp_path / "m.onnx", ratio=0.34)
    (producer,) = result.record.prune[0].producers
    assert producer.prune_index == (1, 4, 5, 9)
    fed = {"x": normal(3, 3, 8, 8, seed=8)}
    want = run(with_constants(), fed)[0]
    np.testing.assert_allclose(run(result.model.to_proto(), fed)[0], want, atol=1e-5 * np.abs(want).max())
    result.save(tmp_path / "a")
    again = amct_onnx.restore_pruned(tmp_path / "m.onnx", tmp_path / "a_record.txt")
    assert again.model.to_proto().SerializeToString() == result.model.to_proto().SerializeToString()


def test_a_padded_border_does_not_see_a_constant() -> None:
    source = with_constants(padding=1)
    bias = {entry.name: onnx.numpy_helper.to_array(entry) for entry in source.graph.initializer}["c"]
    pruned = amct_onnx.prune(source, ratio=0.34).model.to_proto()
    kept = {entry.name: onnx.numpy_helper.to_array(entry) for entry in pruned.graph.initializer}["c"]
    np.testing.assert_array_equal(kept, bias)


def test_a_config_of_what_was_found_prunes_as_much(tmp_path: Path) -> None:
    found = amct_onnx.prune(network(), feeds(), saving=0.3)
    path = tmp_path / "found.cfg"
    path.write_text(found.config_text())
    again = amct_onnx.prune(network(), config=path)
    assert [(g.layers, g.removed) for g in again.report.groups] == [(g.layers, g.removed) for g in found.report.groups]
    assert any(group.removed for group in again.report.groups)


def test_a_product_without_a_bias_is_fitted_without_one() -> None:
    # Its inputs are far from zero, so a fit that counts on a bias would miss its results by far.
    source = parse(
        "[first] s = MatMul(x, w) t = Sigmoid(s) [last] y = MatMul(t, v)",
        "float[n,6] x",
        "float[n,3] y",
        {"w": normal(6, 12), "v": normal(12, 3, seed=1)},
    )
    given = [{"x": normal(64, 6, seed=index)} for index in range(4)]
    errors = []
    for recover in (True, False):
        pruned = amct_onnx.prune(source, given, ratio=0.5, recover=recover).model
        errors.append(sum(np.square(run(source, feed)[0] - run(pruned, feed)[0]).sum() for feed in given))
    # The best that six of the twelve can do without a bias, by numpy.
    chosen = amct_onnx.prune(source, given, ratio=0.5).model.to_proto()
    weights = {entry.name: onnx.numpy_helper.to_array(entry) for entry in chosen.graph.initializer}
    rows = np.concatenate([1 / (1 + np.exp(-feed["x"] @ weights["w"])) for feed in given])
    want = np.concatenate([run(source, feed)[0] for feed in given])
    best = np.square(want - rows @ np.linalg.lstsq(rows, want, rcond=None)[0]).sum()
    assert best <= errors[0] < 1.3 * best < errors[1]


@pytest.mark.parametrize("added", ["[last] y = Gemm(r, v, c)", "[last] y = MatMul(r, v)"])
def test_what_a_layer_lost_is_measured_on_the_data(added: str) -> None:
    weights = {"w": normal(6, 16), "b": normal(16, seed=1), "v": normal(16, 4, seed=2), "c": normal(4, seed=3)}
    source = parse(f"[first] s = Gemm(x, w, b) r = Relu(s) {added}", "float[n,6] x", "float[n,4] y", weights)
    data = [{"x": normal(50, 6, seed=index)} for index in range(4)]
    result = amct_onnx.prune(source, data, ratio=0.25)
    want, got = (np.concatenate([run(proto, feed)[0] for feed in data]) for proto in (source, result.model.to_proto()))
    about = want.mean(axis=0) if "Gemm" in added else 0
    share = np.square(want - got).sum() / np.square(want - about).sum()
    assert result.report.losses == {"last": pytest.approx(share, rel=1e-3)}
    assert share > 1e-3
