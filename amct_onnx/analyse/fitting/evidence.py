"""What the data held for the layers that were looked at, and what a user should know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from amct_onnx.analyse.fitting.moments import Moments
from amct_onnx.errors import DataError
from amct_onnx.wording import counted


@dataclass(frozen=True)
class Evidence:
    """What a layer was fed.

    Attributes:
        rows: rows that count, in that group of it which has the fewest.
        columns: columns of one group.
        left_out: rows that do not, since they hold a value that is not finite.
        first_left_out: in which feed the first of these was.
        is_fitted: whether the layer was fitted to them.
        lost: share of the variance of the results wanted of it that it does not give, on these rows; None where it was
            not fitted.
    """

    rows: int
    columns: int
    left_out: int = 0
    first_left_out: str = ""
    is_fitted: bool = False
    lost: float | None = None


def evidence(moments: Sequence[Moments], *, is_fitted: bool = False, lost: float | None = None) -> Evidence:
    """What the moments of a layer's groups rest on."""
    least = min(moments, key=lambda one: one.rows)
    dirty = max(moments, key=lambda one: one.left_out)
    return Evidence(least.rows, least.x.size, dirty.left_out, dirty.first_left_out, is_fitted, lost)


def check_finite(found: Mapping[str, Evidence]) -> None:
    """Whether some layer saw some row that counts.

    Raises:
        DataError: none did, since every row holds a value that is not finite.
    """
    if not found or any(one.rows for one in found.values()):
        return
    name, first = next(iter(found.items()))
    if first.left_out:
        raise DataError(
            f"{first.first_left_out}: what '{name}' and all other layers read or give holds NaN or infinite values, in "
            "every row of every feed; correct the data, or check that the float model gives finite results on it"
        )


def data_notes(found: Mapping[str, Evidence]) -> Iterator[str]:
    """What a report should say of the data: rows that did not count, and layers with too few of them."""
    dirty = {name: one for name, one in found.items() if one.left_out}
    if dirty:
        name, first = next(iter(dirty.items()))
        yield (
            f"rows with NaN or infinite values were left out, of {counted(len(dirty), 'layer')}, first of '{name}' "
            f"({first.left_out} of {first.rows + first.left_out}), in {first.first_left_out}; check the data"
        )
    few = {name: one for name, one in found.items() if one.rows < one.columns}
    if few:
        name = min(few, key=lambda name: few[name].rows / few[name].columns)
        least = few[name]
        yield (
            f"the data holds fewer rows than columns for {len(few)} of {counted(len(found), 'layer')}, least for "
            f"'{name}': {least.rows} rows for {least.columns} columns, {least.rows / least.columns:.2g} per column; "
            "what is chosen or fitted there may not hold on other data: give more feeds"
        )
