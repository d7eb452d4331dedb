"""What becomes of one model when it is pruned without data."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

import amct_onnx
from amct_onnx.analyse.shapes import sample_feed, tensor_shapes
from amct_onnx.api.prune import prune_groups
from amct_onnx.errors import AmctError, NothingToCompressError
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.rewrite.pruning import Prunable, open_prunable, prune_model, units_of_records
from benchmarks.outcomes import Feed, first_line, run
from benchmarks.silence import exact_units, silenced

RATIO = 0.3
LEAST_SAVING = 0.2
"""Of the multiply-adds; a model that loses less is pinned."""
MOST_ERROR = 1e-3
SIDES = {"height": (128, 160), "width": (128, 192)}
BATCHES = (2, 3)
"""Free sizes while analysing, and others at which the pruned model must run, too."""
REASONS = 4

Sizes = dict[str, list[int]]


def outcome_of(path: Path) -> dict[str, Any]:
    """Prune a model and run it at several sizes; what happened, as the report keeps it."""
    proto = onnx.load(path)
    sizes = _sizes(proto, 0)
    try:
        feed = sample_feed(proto, None, sizes)
        run(proto, feed)
    except Exception as error:  # the source model is the runtime's affair
        return {"outcome": "not run by onnxruntime", "detail": first_line(error)}
    try:
        return _pruned(proto, sizes, feed)
    except AmctError as error:
        return {"outcome": "failed", "detail": first_line(error)}


def _pruned(proto: ModelProto, sizes: Sizes, feed: Feed) -> dict[str, Any]:
    shapes = tensor_shapes(proto, None, feed)
    begin = time.perf_counter()
    prunable = open_prunable(proto, None, shapes)
    known: dict[str, Any] = {"nodes": len(proto.graph.node), "analysis": round(time.perf_counter() - begin, 2)}
    try:
        result = amct_onnx.prune(proto, ratio=RATIO, input_shapes=sizes)
    except NothingToCompressError:
        report = prune_groups(proto, input_shapes=sizes)
        return {"outcome": "pinned", **known, "multiply_adds": 0.0, "parameters": 0.0, "reasons": _top(report)}
    report = result.report
    known["multiply_adds"] = round(1 - report.after.multiply_adds / max(1, report.before.multiply_adds), 3)
    known["parameters"] = round(1 - report.after.parameters / max(1, report.before.parameters), 3)
    known["reasons"] = _top(report)
    units = units_of_records(prunable, result.record.prune, "record")
    fault = _fault(proto, result.model.to_proto()) or _trace(proto, shapes, prunable, units, feed)
    word = "failed" if fault else "pruned" if known["multiply_adds"] >= LEAST_SAVING else "pinned"
    return {"outcome": word, "detail": fault, **known}


def _sizes(proto: ModelProto, which: int, *, other_sides: bool = False) -> Sizes:
    """Every input's shape, with the first or the second choice for free sizes."""

    def size(dim: onnx.TensorShapeProto.Dimension, axis: int) -> int:
        if not dim.dim_param:
            return int(dim.dim_value)
        if axis == 0:
            return BATCHES[which]
        return SIDES["height" if axis == 2 else "width"][int(other_sides)]

    return {
        info.name: [size(dim, axis) for axis, dim in enumerate(info.type.tensor_type.shape.dim)]
        for info in proto.graph.input
    }


def _fault(proto: ModelProto, pruned: ModelProto) -> str:
    """What is wrong with the results of a pruned model at the sizes at which its source runs; empty for nothing."""
    for which, other_sides in ((0, False), (1, False), (1, True)):
        sizes = _sizes(proto, which, other_sides=other_sides)
        feed = sample_feed(proto, None, sizes)
        try:
            wanted = run(proto, feed)
        except Exception:
            # Where the source does not run, nothing is asked of the pruned model.
            continue
        try:
            got = run(pruned, feed)
        except Exception as error:
            return f"at {list(sizes.values())}: {first_line(error)}"
        shapes = [[np.shape(value) for value in values] for values in (wanted, got)]
        # Detections have as many rows as the values bring about.
        if shapes[0] != shapes[1] and not _counts_findings(proto):
            return f"at {list(sizes.values())}: results of {shapes[0]} became {shapes[1]}"
    return ""


def _counts_findings(proto: ModelProto) -> bool:
    return any(node.op_type in ("NonMaxSuppression", "NonZero") for node in proto.graph.node)


def _trace(
    proto: ModelProto, shapes: dict[str, tuple[int, ...]], prunable: Prunable, units: LabelArray, feed: Feed
) -> str:
    """Where channels that nothing mixes leave a trace when they go; empty when nowhere."""
    exact = exact_units(prunable, units)
    if not exact.size or _counts_findings(proto):
        return ""
    silent = silenced(open_prunable(proto, None, shapes), exact)
    wanted, got = run(silent, feed), run(prune_model(prunable, exact).to_proto(), feed)
    for want, have in zip(wanted, got, strict=True):
        largest = float(np.abs(want).max(initial=0))
        error = float(np.abs(np.asarray(want, np.float64) - have).max(initial=0))
        if not error <= MOST_ERROR * max(largest, 1e-6):
            return f"dead channels leave a trace: an error of {error:.2g} in results up to {largest:.2g}"
    return ""


def _top(report: amct_onnx.PruneReport) -> list[str]:
    """The reasons that keep most multiply-adds, each with its share of those of all groups."""
    total = sum(group.multiply_adds for group in report.groups)
    by_reason: defaultdict[str, int] = defaultdict(int)
    for group in report.groups:
        if not group.removed:
            by_reason[_without_names(group.reason)] += group.multiply_adds
    return list(_shares(sorted(by_reason.items(), key=lambda item: -item[1])[:REASONS], total))


def _without_names(reason: str) -> str:
    return re.sub(r"(?<= )'[^']*'", "'...'", reason, count=1)


def _shares(reasons: list[tuple[str, int]], total: int) -> Iterable[str]:
    for reason, cost in reasons:
        yield f"{cost / max(1, total):.0%} {reason}"
