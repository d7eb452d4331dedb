"""Memory that outlives what it was needed for, and an arena that several sessions share."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

SHARED_ARENA = "session.use_env_allocators"
_SHRINK = "memory.enable_memory_arena_shrinkage"


LARGE = 2**24


def release_freed(nbytes: int = LARGE) -> None:
    """Give back to the system what was freed; glibc keeps it for later, which peaks on top of what comes next.

    Nothing is done for less than :data:`LARGE` bytes: soon needed again, they cost more than they gain.
    """
    if nbytes < LARGE:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@cache
def make_shared_arena() -> None:
    """Register the arena of the process that sessions with :data:`SHARED_ARENA` take their memory from."""
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    # Whoever embeds us may have registered one already, which serves as well.
    with contextlib.suppress(Exception):
        ort.create_and_register_allocator(info, None)


def empty_shared_arena() -> None:
    """Give back what the shared arena holds and nobody uses; it happens at the end of a run of any session with it."""
    options = ort.SessionOptions()
    options.add_session_config_entry(SHARED_ARENA, "1")
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "shrink", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    run = ort.RunOptions()
    run.add_run_config_entry(_SHRINK, "cpu:0")
    session.run(None, {"x": np.zeros(1, np.float32)}, run)
    release_freed()
