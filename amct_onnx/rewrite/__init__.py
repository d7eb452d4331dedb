"""From a plan and a model to compressed models: one pipeline of passes per output form."""

from amct_onnx.rewrite.forms import OutputForm, rewrite, rewrite_all
from amct_onnx.rewrite.prepare import Prepared, prepare

__all__ = ["OutputForm", "Prepared", "prepare", "rewrite", "rewrite_all"]
