"""The JSON files through which the processes of a measurement speak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.makers.files import replacing


def write_report(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as JSON, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_report(path: Path) -> dict[str, Any]:
    """Read what ``write_report`` wrote."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
