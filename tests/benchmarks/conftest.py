"""Let the tests import ``benchmarks``, which is not installed, however pytest is started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
