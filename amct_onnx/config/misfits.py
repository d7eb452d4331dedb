"""One finding for all layers that cannot have what a block asks for."""

from __future__ import annotations

from collections.abc import Iterator

from amct_onnx.config.facts import ConfigurableLayer
from amct_onnx.config.limits import Limit, shown
from amct_onnx.config.request import Wish
from amct_onnx.findings import Finding, Severity


class Misfits:
    """Limits that layers met, collected while a config is resolved."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, str, str, int | None], tuple[Wish, Limit, list[str]]] = {}

    def add(self, wish: Wish, limit: Limit, layer: ConfigurableLayer) -> None:
        """Note a limit of a layer for which a block counts."""
        key = (wish.where, limit.name, limit.reason, wish.line)
        self._met.setdefault(key, (wish, limit, []))[2].append(layer.name)

    def findings(self) -> Iterator[Finding]:
        """Yield an error for what a strict block asks for, a warning for what a lenient one does."""
        for wish, limit, layers in self._met.values():
            yield _finding(wish, limit, layers)


def _finding(wish: Wish, limit: Limit, layers: list[str]) -> Finding:
    first, count = layers[0], len(layers) - 1
    others = "" if not count else f" and {count} more layer{'s' if count > 1 else ''}"
    asked = limit.setting
    what = asked.stands_for or f"{asked.key}: {shown(asked.value)}"
    message = f'{what} is not possible for "{first}"{others}: {limit.reason}'
    if wish.strict:
        return Finding(asked.line, "", f"{message}; correct {wish.where}")
    return Finding(asked.line, "", f"{message}; it gets {limit.instead}", Severity.WARNING)
