"""``amct_onnx check-deploy``."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import asdict

from amct_onnx.api import check_deploy
from amct_onnx.cli.console import Console
from amct_onnx.cli.report import show_deploy_findings
from amct_onnx.passes.deploy_findings import DeployFinding
from amct_onnx.wording import counted


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
    console.say(f"{arguments.model}: {_verdict(findings, stopping)}")
    return 1 if stopping else 0


def _verdict(findings: Collection[DeployFinding], stopping: int) -> str:
    if stopping:
        return f"{counted(stopping, 'finding')} that stop{'s' if stopping == 1 else ''} the Ascend compiler"
    if any(finding.rule == "not_quantized" for finding in findings):
        return "this is no deploy model, so nothing that quantizes was checked"
    return "nothing found that stops the compiler"
