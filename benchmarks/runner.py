"""A session as the workloads call it."""

from __future__ import annotations

import numpy as np

from amct_onnx.runtime import InferenceSession, fetch
from benchmarks.workloads.base import Feed, Outputs, Run


def runner(session: InferenceSession) -> Run:
    """Run feeds; results are copies, for views would keep all memory of the session."""
    names = [output.name for output in session.get_outputs()]

    def run(feed: Feed) -> Outputs:
        return [np.array(array) for array in fetch(session, names, feed)]

    return run
