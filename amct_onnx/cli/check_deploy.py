"""``amct_onnx check-deploy``."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from amct_onnx.api import check_deploy
from amct_onnx.cli.console import Console
from amct_onnx.cli.report import show_deploy_findings


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check a deploy model; 1 when something stops the compiler."""
    findings = check_deploy(arguments.model)
    stopping = sum(finding.stops for finding in findings)
    console.result(
        {
            "file": str(arguments.model),
            "compiles": not stopping,
            "findings": [asdict(finding) for finding in findings],
        }
    )
    show_deploy_findings(console, findings)
    verdict = f"{stopping} findings stop the Ascend compiler" if stopping else "nothing found that stops the compiler"
    console.say(f"{arguments.model}: {verdict}")
    return 1 if stopping else 0
