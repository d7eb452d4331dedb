"""The examples of retrain configs in AMCT's documentation, as it prints them: names broken over lines."""

from __future__ import annotations

QUANT = """\
# global quantize parameter
retrain_data_quant_config: {
ulq_quantize: {
clip_max_min: {
clip_max: 6.0
clip_min: -6.0
}
dst_type: INT8
}
}
retrain_weight_quant_config: {
arq_retrain: {
channel_wise: true
dst_type: INT8
}
}
skip_layers: "
conv_1
"
override_layer_types : {
layer_type: "
Optype
"
retrain_weight_quant_config: {
arq_retrain: {
channel_wise: false
dst_type: INT8
}
}
}
override_layer_configs : {
layer_name: "
Opname
"
retrain_weight_quant_config: {
arq_retrain: {
channel_wise: false
dst_type: INT8
}
}
}
"""

PRUNE = """\
# global prune parameter
prune_config{
filter_pruner {
balanced_l2_norm_filter_prune {
prune_ratio: 0.3
ascend_optimized: True
}
}
}
# skip layers
regular_prune_skip_layers: "
Opname
"
regular_prune_skip_layers: "
Opname
"
# overide specific layers
override_layer_configs: {
layer_name: "
Opname
"
prune_config : {
filter_pruner: {
balanced_l2_norm_filter_prune: {
prune_ratio: 0.5
ascend_optimized: True
}
}
}
}
"""

SELECTIVE_PRUNE = """\
# global prune parameter
prune_config{
n_out_of_m_pruner {
l1_selective_prune {
n_out_of_m_type: M4N2
update_freq: 0
}
}
}
# skip layers
regular_prune_skip_layers: "
Opname
"
regular_prune_skip_layers: "
Opname
"
# overide specific layers
override_layer_configs: {
layer_name: "
Opname
"
prune_config : {
n_out_of_m_pruner: {
l1_selective_prune: {
n_out_of_m_type: M4N2
update_freq: 1
}
}
}
}
"""

COMPRESSED1 = """\
prune_config : {
filter_pruner : {
balanced_l2_norm_filter_prune : {
prune_ratio : 0.3
ascend_optimized: True
}
}
}
# skip_layers: "skip_layers_name_0"
skip_layer_types: "
Optype
"
quant_skip_layers: "
Opname
"
quant_skip_types: "
Optype
"
retrain_weight_quant_config: {
arq_retrain: {
channel_wise: true
dst_type: INT8
}
}
override_layer_types : {
layer_type: "
Optype
"
retrain_weight_quant_config: {
arq_retrain: {
channel_wise: false
dst_type: INT8
}
}
retrain_data_quant_config : {
ulq_quantize : {
clip_max_min : {
clip_max : 6.0
clip_min : -6.0
}
}
}
prune_config : {
filter_pruner : {
balanced_l2_norm_filter_prune : {
prune_ratio : 0.5
ascend_optimized: True
}
}
}
}
"""

COMPRESSED2 = """\
prune_config{
n_out_of_m_pruner {
l1_selective_prune {
n_out_of_m_type: M4N2
update_freq: 0
}
}
}
# skip_layers: "skip_layers_name_0"
skip_layer_types: "
Optype
"
quant_skip_layers: "
Opname
"
quant_skip_types: "
Optype
"
retrain_weight_quant_config: {
arq_retrain: {
channel_wise: true
dst_type: INT8
}
}
override_layer_types : {
layer_type: "
Optype
"
retrain_weight_quant_config: {
arq_retrain: {
channel_wise: false
dst_type: INT8
}
}
retrain_data_quant_config : {
ulq_quantize : {
clip_max_min : {
clip_max : 6.0
clip_min : -6.0
}
}
}
prune_config{
n_out_of_m_pruner {
l1_selective_prune {
n_out_of_m_type: M4N2
update_freq: 1
}
}
}
}
"""

EXAMPLES = {
    "quant.cfg": QUANT,
    "prune.cfg": PRUNE,
    "selective_prune.cfg": SELECTIVE_PRUNE,
    "compressed1.cfg": COMPRESSED1,
    "compressed2.cfg": COMPRESSED2,
}


def with_names(text: str, *names: str) -> str:
    """An example with its placeholders, `Opname` and `Optype`, replaced in turn."""
    for name in names:
        place = min(found for found in (text.find("Opname"), text.find("Optype")) if found >= 0)
        text = text[:place] + name + text[place + len("Opname") :]
    return text
