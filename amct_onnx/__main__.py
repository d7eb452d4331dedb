"""``python -m amct_onnx``."""

import sys

from amct_onnx.cli import main

if __name__ == "__main__":
    sys.exit(main())
