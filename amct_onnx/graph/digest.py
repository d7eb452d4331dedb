"""What makes two models the same: their structure and the values of their weights, wherever these are stored."""

from __future__ import annotations

import hashlib
from pathlib import Path

from onnx import ModelProto, TensorProto

from amct_onnx.graph.protos import copy_header, copy_structure
from amct_onnx.graph.weights import StoredValues


def digest(proto: ModelProto, base_dir: Path | None) -> str:
    """SHA-256 (hex) of a model: its structure without weight bytes, then the digest of each weight.

    How and where weights are stored does not matter, so a file, its copy with external weights and the ModelProto
    agree. Weights are read one at a time.

    Raises:
        ModelError: an external weight cannot be read.
    """
    tensors: list[TensorProto] = []

    def keep_header(source: TensorProto, target: TensorProto) -> None:
        copy_header(source, target)
        tensors.append(source)

    structure = copy_structure(proto, keep_header)
    sha = hashlib.sha256(structure.SerializeToString(deterministic=True))
    for tensor in tensors:
        sha.update(_value_digest(tensor, base_dir))
    return sha.hexdigest()


def _value_digest(tensor: TensorProto, base_dir: Path | None) -> bytes:
    if tensor.data_type == TensorProto.STRING:
        parts = b"".join(len(text).to_bytes(8, "little") + text for text in tensor.string_data)
        return hashlib.sha256(parts).digest()
    return hashlib.sha256(StoredValues(tensor, base_dir).stored_bytes().data).digest()
