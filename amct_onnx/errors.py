"""Every exception this package raises on purpose, as one tree.

All of them derive from :class:`AmctError`, so ``except AmctError`` catches what a user can act on and lets
programming errors through. The command line prints the message alone and exits with the class's ``exit_code``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class AmctError(Exception):
    """Base of all deliberate errors; the message names the object, the rule and the remedy."""

    exit_code = 2


class UsageError(AmctError):
    """Arguments or flags that do not fit together, or an output path that may not be written."""


class ArgumentError(UsageError):
    """An argument of a function with a wrong value, or several that do not fit together.

    Whoever wraps the function calls its arguments otherwise: the command line has flags for them.
    """

    def __init__(self, template: str, **values: object) -> None:
        """Name the arguments.

        Args:
            template: the message, as for :meth:`str.format`; a field that `values` does not hold is an argument.
            values: what else stands in the message.
        """
        self._template, self._values = template, values
        super().__init__(self.worded(str))

    def worded(self, word: Callable[[str], str]) -> str:
        """The message with `word` of every argument's name in its place."""
        return self._template.format_map(_Words(self._values, word))


class _Words(dict[str, Any]):
    def __init__(self, values: dict[str, object], word: Callable[[str], str]) -> None:
        super().__init__(values)
        self._word = word

    def __missing__(self, name: str) -> str:
        return self._word(name)


class ModelError(AmctError):
    """The model file is unreadable, not legal ONNX, or outside what the asked-for operation supports."""


class DataError(AmctError):
    """Calibration data that does not match the model's inputs, or that cannot be read."""


class RecordError(AmctError):
    """A record or tensors file that cannot be parsed, breaks a rule, or does not fit the model."""


class ConfigError(AmctError):
    """A quantization config that cannot be parsed, breaks a bound, or names what the model does not have."""


class NothingToCompressError(ModelError):
    """The model holds no node that the asked-for compression can change."""
