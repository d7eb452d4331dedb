"""What the Ascend compiler will ask of a deploy model, in a file or just made."""

from __future__ import annotations

from amct_onnx.api.source import Source, load_source
from amct_onnx.graph import BuiltModel, import_model, name_nodes
from amct_onnx.passes.check_deploy import check_deploy as check_model
from amct_onnx.passes.deploy_findings import DeployFinding


def check_deploy(model: Source) -> tuple[DeployFinding, ...]:
    """Check a deploy model: path or ModelProto.

    Returns:
        What was found, what stops the compiler first.

    Raises:
        ModelError: the model cannot be read.
    """
    imported = import_model(*load_source(model))
    name_nodes(imported)
    return check_model(imported)


def check_built(built: BuiltModel) -> tuple[DeployFinding, ...]:
    """Check a deploy model whose weights are still references."""
    return check_model(built.to_model())
