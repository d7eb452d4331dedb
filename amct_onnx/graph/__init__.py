"""Ground floor: how ONNX models are read, named, edited and written, and what each operator means."""

from amct_onnx.graph.build import BuiltModel, build
from amct_onnx.graph.digest import digest
from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.external import ExternalNaming
from amct_onnx.graph.files import read_model
from amct_onnx.graph.model import Model, constant_array, import_model
from amct_onnx.graph.naming import name_nodes
from amct_onnx.graph.parts import Node, Tensor

__all__ = [
    "BuiltModel",
    "Editor",
    "ExternalNaming",
    "Model",
    "Node",
    "Tensor",
    "build",
    "constant_array",
    "digest",
    "import_model",
    "name_nodes",
    "read_model",
    "replace_input",
]
