"""What ``apply`` checks before it takes out of a model what a record names."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from amct_onnx.api.saving import check_outputs


def record_to_keep(arguments: argparse.Namespace, paths: Mapping[str, Path]) -> list[Path]:
    """The record, where an output of its name is the same; one of a structure alone is not, so it is written.

    Raises:
        UsageError: an output would overwrite an input.
    """
    keep = [] if arguments.structure_only else [arguments.record]
    written = {kind: path for kind, path in paths.items() if kind != "record" or not keep}
    check_outputs(written, [arguments.model, arguments.record])
    return keep
