"""The record: a compression plan as text. Reading, checking and writing it.

A record read with :func:`load_record` obeys every rule that needs no model; :func:`validate_record` checks the rest.
Everything that does not hold is a :class:`amct_onnx.errors.RecordError` that lists all faults with their lines.
"""

from amct_onnx.record.check import check_record
from amct_onnx.record.findings import Finding, Severity
from amct_onnx.record.header import FORMAT_VERSION, RecordHeader, WeightState
from amct_onnx.record.layer_rules import FLT_EPSILON
from amct_onnx.record.layers import KVCacheRecord, LayerRecord
from amct_onnx.record.load import load_record, parse_record
from amct_onnx.record.model import LoadedRecord, Record
from amct_onnx.record.prune import AttrType, PruneAttr, PruneNode, PruneRecord, pack_mask, unpack_mask
from amct_onnx.record.validate import LayerFacts, validate_record
from amct_onnx.record.write import format_record, save_record

__all__ = [
    "FLT_EPSILON",
    "FORMAT_VERSION",
    "AttrType",
    "Finding",
    "KVCacheRecord",
    "LayerFacts",
    "LayerRecord",
    "LoadedRecord",
    "PruneAttr",
    "PruneNode",
    "PruneRecord",
    "Record",
    "RecordHeader",
    "Severity",
    "WeightState",
    "check_record",
    "format_record",
    "load_record",
    "pack_mask",
    "parse_record",
    "save_record",
    "unpack_mask",
    "validate_record",
]
