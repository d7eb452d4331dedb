"""Plans edited by hand: refused with the line and a remedy, or applied with a note."""

import re

import onnx
import pytest
from small_models import FEED, conv_net, random

import amct_onnx
from amct_onnx.errors import RecordError
from amct_onnx.record import load_record, parse_record
from amct_onnx.runtime import fetch, open_session


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    amct_onnx.quantize(conv_net(), [FEED], trial=False).save(folder / "m")
    return (folder / "m_record.txt").read_text(), (folder / "m_tensors.txt").read_text()


def apply(record, tensors=None, **options):
    extra = None if tensors is None else parse_record(tensors, source="tensors")
    return amct_onnx.apply(conv_net(), parse_record(record), tensors=extra, **options)


def with_field(record, layer, field):
    return record.replace(f'key: "{layer}"\n  value {{', f'key: "{layer}"\n  value {{\n    {field}')


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("cluster: 0 " * 16, "clustered weights are not applied"),
    ],
)
def test_what_scales_depend_on_and_is_not_applied_is_refused(plan, field, words):
    with pytest.raises(RecordError, match=rf'line \d+, "conv": {words}'):
        apply(with_field(plan[0], "conv", field))


def test_pruning_that_names_no_channel_is_refused(plan):
    node = 'name: "{}" attr {{ name: "type" type: STRING s: "Conv2D" }} attr {{ name: "begin" type: INT i: 0 }}'
    node += ' attr {{ name: "end" type: INT i: 4 }}'
    prune = f"prune_record {{ producer {{ {node.format('conv')} }} consumer {{ {node.format('last')} }} }}\n"
    with pytest.raises(RecordError, match="prune_record of 'conv': no prune_index says which channels go"):
        apply(plan[0] + prune)


@pytest.mark.parametrize(
    ("addition", "words"),
    [
        ('record { key: "last" kv_cache_value { scale: 0.1 offset: 0 } }\n', "caches is not applied"),
    ],
)
def test_what_else_is_not_applied_is_noted(plan, addition, words):
    assert any(words in note for note in apply(plan[0] + addition).report.notes)
    with pytest.raises(RecordError, match=words):
        apply(plan[0] + addition, strict=True)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("scale_h: 1.0", "recurrent layers"),
        ('fakequant_precision_mode: "FORCE_FP16_QUANT"', "float32 all the same"),
    ],
)
def test_fields_without_effect_are_noted(plan, field, words):
    assert any(words in note for note in apply(with_field(plan[0], "conv", field)).report.notes)


def test_an_entry_that_stands_twice_is_noted(plan):
    twice = plan[0] + plan[0][plan[0].index("record {") :]
    assert any("second entry" in note for note in apply(twice).report.notes)


def test_a_record_without_entries_is_noted(plan):
    result = apply(plan[0][: plan[0].index("record {")])
    assert any("quantizes no layer" in note for note in result.report.notes)
    assert {refusal.node for refusal in result.report.refusals} == {"conv", "last"}


def test_a_layer_left_float_by_an_empty_entry(plan):
    text = re.sub(r'(?s)(key: "last"\n  value \{).*?\n  \}', r"\1 }", plan[0])
    result = apply(text, plan[1])
    assert [layer.name for layer in result.report.layers] == ["conv"]
    assert [refusal.node for refusal in result.report.refusals] == ["last"]


@pytest.mark.parametrize(
    ("pattern", "replacement", "words"),
    [
        (r"    offset_d: \S+\n", "", "offset_d is missing"),
        (r"    scale_d: \S+\n", "", "scale_d is missing"),
        (r'"INT8"', '"INT16"', "INT16; tensors of the QDQ form take INT8"),
    ],
)
def test_tensor_entries_that_break_a_rule(plan, pattern, replacement, words):
    with pytest.raises(RecordError, match=rf'tensors, line \d+, "y": .*{words}'):
        apply(plan[0], re.sub(pattern, replacement, plan[1]))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('record { key: "nope" value { scale_d: 0.1 offset_d: 0 } }\n', "no such tensor"),
        ('record { key: "x" value { scale_d: 9.0 offset_d: 0 } }\n', 'input of layer "conv"'),
    ],
)
def test_tensor_entries_without_effect_are_noted(plan, entry, words):
    result = apply(plan[0], plan[1] + entry)
    assert any(words in note for note in result.report.notes)
    assert result.model("qdq").SerializeToString(deterministic=True) == (
        apply(*plan).model("qdq").SerializeToString(deterministic=True)
    )


def test_a_tensor_may_be_left_float(plan):
    result = apply(plan[0], plan[1] + 'record { key: "c" value { } }\n')
    assert result.report.notes == ()


def test_files_of_another_model_or_swapped(plan):
    other = amct_onnx.quantize(conv_net(weight=random(4, 3, 3, 3, seed=9)), [FEED], trial=False)
    with pytest.raises(RecordError, match="tensors file was made for another model"):
        amct_onnx.apply(conv_net(), parse_record(plan[0]), tensors=other.tensors)
    with pytest.raises(RecordError, match='"y": the model has no such node'):
        apply(plan[1], plan[0])
    assert any("no such tensor" in note for note in apply(plan[0], plan[0]).report.notes)


def test_tensorrt_takes_no_zero_points(plan):
    with pytest.raises(RecordError, match=r'"conv": offset_d is -?\d+; TensorRT takes no zero points'):
        apply(*plan, qdq_target="tensorrt")


def test_two_scales_for_one_tensor_are_noted():
    net = conv_net()
    twin = net.graph.node.add()
    twin.CopyFrom(net.graph.node[2])
    twin.name, twin.output[0] = "twin", "z"
    net.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, None))
    result = amct_onnx.quantize(net, [FEED], trial=False)
    assert result.report.notes == ()
    text = result.record_text()
    tail = text.index('key: "twin"')
    edited = text[:tail] + re.sub(r"scale_d: \S+", "scale_d: 0.5", text[tail:], count=1)
    notes = amct_onnx.apply(net, parse_record(edited), tensors=result.tensors).report.notes
    assert any("'last' and 'twin' read tensor 'r'" in note for note in notes)


def test_applying_without_tensors_twice(plan, tmp_path):
    (tmp_path / "m_record.txt").write_text(plan[0][plan[0].index("record {") :])
    for _ in range(2):
        result = amct_onnx.apply(conv_net(), tmp_path / "m_record.txt")
        assert any("only layer inputs are quantized" in note for note in result.report.notes)
        result.save(tmp_path / "m", keep=[tmp_path / "m_record.txt"])
    assert load_record(tmp_path / "m_tensors.txt").record.layers == {}


def test_any_scale_a_record_may_hold_gives_models_that_run(plan):
    for scale in ("1.2e-07", "8388608"):
        result = apply(re.sub(r"scale_d: \S+", f"scale_d: {scale}", plan[0]), plan[1])
        for form in ("fake_quant", "qdq"):
            fetch(open_session(result.model(form)), ["y"], {"x": FEED})
