"""What the machine at hand means for 8-bit kernels."""

from __future__ import annotations

import platform
from pathlib import Path

_VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"})
_CPUINFO = Path("/proc/cpuinfo")


def saturation_note(cpuinfo: Path = _CPUINFO, machine: str | None = None) -> str | None:
    """A sentence about products of uint8 and int8 on this machine, None when it cannot be told.

    On x86 without VNNI the runtime adds pairs of such products in 16 bits, which saturates for large weights.

    Args:
        cpuinfo: where the kernel lists processor flags.
        machine: processor architecture; by default that of this machine.
    """
    if (machine or platform.machine()).lower() not in ("x86_64", "amd64"):
        return None
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), None)
    if flags is None:
        return None
    if flags & _VNNI_FLAGS:
        return "this machine has VNNI: its 8-bit kernels are exact, and int8 is at its fastest"
    return (
        "this machine has no VNNI: its 8-bit kernels saturate for large weights; if the QDQ model is to run on such "
        "machines, quantize with --reduce-range"
    )
