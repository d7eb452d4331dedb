"""The values that settings may have, whatever the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amct_onnx.config.options import ActivationOptions
from amct_onnx.config.request import ACTIVATION_BITS, MIGRATION_STRENGTH, WEIGHT_BITS, Request, Setting, Wish
from amct_onnx.findings import Finding

_Bound = tuple[Callable[[Any], bool], str]

_BIN_COUNTS = (1024, 2048, 4096, 8192)
_SHARE: _Bound = (lambda value: 0.5 < value <= 1, "is more than 0.5 and at most 1")
_BETWEEN_0_AND_1: _Bound = (lambda value: 0 < value < 1, "lies above 0 and below 1")
_AT_LEAST_1: _Bound = (lambda value: value >= 1, "is at least 1")

_BOUNDS: Mapping[str, _Bound] = {
    "batch_num": _AT_LEAST_1,
    ACTIVATION_BITS: (lambda value: value in (4, 8, 16), "is 8 or 16"),
    WEIGHT_BITS: (lambda value: value in (4, 6, 7, 8), "is 4, 6, 7 or 8"),
    MIGRATION_STRENGTH: (lambda value: 0.2 <= value <= 0.8, "lies between 0.2 and 0.8, both allowed"),
    "activation.max_percentile": _SHARE,
    "activation.min_percentile": _SHARE,
    "activation.num_of_bins": (lambda value: value in _BIN_COUNTS, "is 1024, 2048, 4096 or 8192"),
    "ada.num_iteration": _AT_LEAST_1,
    "ada.reg_param": _BETWEEN_0_AND_1,
    "ada.warm_start": _BETWEEN_0_AND_1,
    "nuq.num_steps": (lambda value: 16 <= value <= 32, "lies between 16 and 32, both allowed"),
    "nuq.num_of_iteration": (lambda value: 0 <= value <= 5, "lies between 0 and 5, both allowed"),
}
_DEFAULTS = ActivationOptions()
_ADA_BETA = (20.0, 2.0)
_MOST_STEPS = 10_000
"""IFMR tries every step on every tensor: the default has 60, and this many take a quarter of a second each time."""
_ROUNDING = 1e-9  # of decimal fractions: 1.2 - 0.8 is a little less than 0.4


def bound_findings(request: Request) -> Iterator[Finding]:
    """Yield a finding for every value that is out of bounds."""
    yield from setting_findings(request.settings)
    for wish in request.wishes():
        yield from setting_findings(wish.settings)
        yield from _search_range(wish)
        yield from _beta_range(wish)


def in_bounds(name: str, value: Any) -> bool:
    """Whether a setting may have a value at all, whatever the layer."""
    return name not in _BOUNDS or bool(_BOUNDS[name][0](value))


def setting_findings(settings: Mapping[str, Setting]) -> Iterator[Finding]:
    """Yield a finding for every value that is out of its bounds by itself."""
    for name, setting in settings.items():
        if not in_bounds(name, setting.value):
            words = _BOUNDS[name][1]
            yield Finding(setting.line, "", f"{setting.key} is {setting.value}, but it {words}; correct it")


def _search_range(wish: Wish) -> Iterator[Finding]:
    names = ("activation.search_start", "activation.search_end", "activation.search_step")
    if not any(name in wish.settings for name in names):
        return
    start = wish.value(names[0], _DEFAULTS.search_start)
    end = wish.value(names[1], _DEFAULTS.search_end)
    step = wish.value(names[2], _DEFAULTS.search_step)
    line = next(wish.settings[name].line for name in names if name in wish.settings)
    step_line = wish.settings[names[2]].line if names[2] in wish.settings else line
    if not 0 < start < end < float("inf"):
        yield Finding(line, "", f"the search range is {start} to {end}, but 0 < start < end; correct it")
    elif not 0 < step <= end - start + _ROUNDING:
        message = f"search_step is {step}, but it is more than 0 and at most the width of the range, {end - start:g}"
        yield Finding(step_line, "", f"{message}; correct it")
    elif (end - start) / step > _MOST_STEPS:
        message = f"search_step {step:g} divides the range {start:g} to {end:g} into more than {_MOST_STEPS} steps"
        yield Finding(step_line, "", f"{message}; make it larger")


def _beta_range(wish: Wish) -> Iterator[Finding]:
    names = ("ada.beta_start", "ada.beta_end")
    given = [wish.settings[name] for name in names if name in wish.settings]
    if not given:
        return
    start, end = (wish.value(name, default) for name, default in zip(names, _ADA_BETA, strict=True))
    if not 0 < end < start < float("inf"):
        message = f"the beta range is {start} to {end}, but it falls: start > end > 0; correct it"
        yield Finding(given[0].line, "", message)
