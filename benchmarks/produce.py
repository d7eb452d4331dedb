"""Child process: make the models of one row, and account for the making alone."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import cost
from benchmarks.reports import write_report
from benchmarks.rows import ROWS
from benchmarks.workloads.registry import WORKLOADS


def main() -> None:
    """Make the models and write their paths and the cost as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the models go")
    parser.add_argument("--report", type=Path, required=True, help="JSON to write")
    options = parser.parse_args()

    workload = WORKLOADS[options.workload]()
    feeds = workload.calibration_feeds()
    models, spent = cost(lambda: ROWS[options.row].make(workload, feeds, options.folder))
    paths = {form: str(path) for form, path in models.items()}
    write_report(options.report, {"models": paths, "cost": asdict(spent)})


if __name__ == "__main__":
    main()
