"""Reading raw ``.bin`` data, where scripts for AMCT import it from."""

from amct_onnx.analyse.bin_feeds import load_data

__all__ = ["load_data"]
