import pytest

from amct_onnx.runtime.machine import saturation_note


@pytest.mark.parametrize(
    ("flags", "words"),
    [("fpu avx2 avx512_vnni", "has VNNI"), ("fpu avx2 avx_vnni", "has VNNI"), ("fpu avx2", "--reduce-range")],
)
def test_flags_decide(tmp_path, flags, words):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert words in saturation_note(cpuinfo, "x86_64")


def test_nothing_is_said_where_nothing_is_known(tmp_path):
    assert saturation_note(tmp_path / "none", "x86_64") is None
    assert saturation_note(tmp_path / "none", "aarch64") is None
    empty = tmp_path / "empty"
    empty.write_text("model name : x\n")
    assert saturation_note(empty, "AMD64") is None
