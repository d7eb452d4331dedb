"""Of every four weights along the input channels the two largest stay (AMCT's ``l1_selective_prune``, M4N2)."""

from __future__ import annotations

import numpy as np

from amct_onnx.graph.weights import Array
from amct_onnx.passes.sparsity.candidates import GROUP, KEPT
from amct_onnx.passes.sparsity.input_axis import InputAxis
from amct_onnx.passes.sparsity.mask_weights import Mask


def largest_of_four(weight: Array, axis: InputAxis) -> Mask:
    """The mask of a weight, True where it stays, in its shape.

    Groups are taken separately for every output channel and place in the kernel, and within every group of a
    convolution. Of a last group of fewer than four still two stay, so one of one or two loses none, one of three loses
    one. Of equal weights the lower index stays.

    Args:
        weight: float.
        axis: where its input channels lie.
    """
    seen = np.abs(axis.seen(weight)).astype(np.float64)
    groups, count, others = seen.shape
    whole = -(-count // GROUP) * GROUP
    # What is missing in the last group is smaller than any weight, so that it goes first.
    padded = np.full((groups, whole, others), -1.0)
    padded[:, :count] = seen
    fours = padded.reshape(groups, -1, GROUP, others)
    order = np.argsort(-fours, axis=2, kind="stable")
    mask = np.zeros(fours.shape, np.bool_)
    np.put_along_axis(mask, order[:, :, :KEPT], True, axis=2)
    return axis.stored(mask.reshape(groups, whole, others)[:, :count])
