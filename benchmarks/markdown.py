"""The results as one markdown table."""

from __future__ import annotations

from typing import Any

from benchmarks.fidelity import MOST_DECIBEL
from benchmarks.kernels import Kernels
from benchmarks.rows import ROWS
from benchmarks.statistics import Figure
from benchmarks.workloads.registry import WORKLOADS

HEADINGS = (
    "workload",
    "row",
    "score",
    "difference to float",
    "agreement with float",
    "worst channel SNR, dB",
    "integer kernels",
    "size, MB",
    "ms, one thread",
    "speed-up, one thread",
    "speed-up, all threads",
    "quantizing CPU, s",
    "/ plain inference",
    "peak, MB",
    "/ plain inference",
)
FLOAT_ROW = "float"


def render(results: dict[str, Any]) -> str:
    """Write machine, table and legend."""
    lines = [f"{key}: {value}" for key, value in results["machine"].items()] + [""]
    lines += [_line(HEADINGS), _line(["---"] * len(HEADINGS))]
    for workload, rows in results["workloads"].items():
        for row, result in rows.items():
            lines += [_line(cells) for cells in _row_cells(workload, row, result, rows.get(FLOAT_ROW))]
    lines += ["", "Brackets hold 95 % intervals. Score and agreement mean:"]
    for workload in results["workloads"]:
        kind = WORKLOADS[workload]
        lines.append(f"- {workload}: {kind.metric}; {kind.likeness}")
    return "\n".join(lines)


def _row_cells(workload: str, row: str, result: dict[str, Any], base: dict[str, Any] | None) -> list[list[str]]:
    """Return the cells of a row's lines, one line for each form that is judged."""
    title = ROWS[row].title
    if "failure" in result:
        return [[workload, title, result["failure"], *[""] * (len(HEADINGS) - 3)]]
    lines = []
    for form, assessed in result["forms"].items():
        name = f"{title}, {form}" if len(ROWS[row].forms) > 1 else title
        cells = [assessed["failure"], *[""] * 8] if "failure" in assessed else _quality_cells(assessed)
        lines.append([workload, name, *cells, *_cost_cells(result, base)])
    return lines


def _quality_cells(assessed: dict[str, Any]) -> list[str]:
    """Return what was measured on one model."""
    one_thread, default = assessed["latency"]["one_thread"], assessed["latency"]["default"]
    return [
        str(Figure(**assessed["score"])),
        _signed(Figure(**assessed["difference"])),
        str(Figure(**assessed["agreement"])),
        _decibel(assessed["worst_channel_snr"]),
        str(Kernels(**assessed["kernels"])),
        _number(assessed["bytes"] / 1e6, 2),
        _number(one_thread["model_ms"], 3),
        _ratio(Figure(**one_thread["speed_up"])),
        _ratio(Figure(**default["speed_up"])),
    ]


def _cost_cells(result: dict[str, Any], base: dict[str, Any] | None) -> list[str]:
    """Return what the making cost, and how it compares with plain inference of the same feeds."""
    cpu, peak = result["cost"]["cpu"], result["peak_bytes"]
    ratios = ["", ""]
    if base and "failure" not in base:
        ratios = [_number(cpu / base["cost"]["cpu"], 2), _number(peak / base["peak_bytes"], 2)]
    return [_number(cpu, 2), ratios[0], _number(peak / 1e6, 0), ratios[1]]


def _line(cells: tuple[str, ...] | list[str]) -> str:
    # A bar inside a cell, as an error message may hold, would end the cell.
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}"


def _decibel(value: float) -> str:
    return f"{value:.1f}" if abs(value) < MOST_DECIBEL else "exact" if value > 0 else "not finite"


def _signed(figure: Figure) -> str:
    return f"{figure.value:+.4f} [{figure.low:+.4f}, {figure.high:+.4f}]"


def _ratio(figure: Figure) -> str:
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"
