"""Every exception this package raises on purpose, as one tree.

All of them derive from :class:`AmctError`, so ``except AmctError`` catches what a user can act on and lets
programming errors through. The command line prints the message alone and exits with the class's ``exit_code``.
"""

from __future__ import annotations


class AmctError(Exception):
    """Base of all deliberate errors; the message names the object, the rule and the remedy."""

    exit_code = 2


class UsageError(AmctError):
    """Arguments or flags that do not fit together, or an output path that may not be written."""


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
