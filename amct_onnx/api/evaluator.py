"""Evaluators: a user's own code that runs a model on data, as AMCT's command line takes it."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from amct_onnx.errors import UsageError

_MODULE = "amct_onnx_user_evaluator"


class AutoCalibrationEvaluatorBase(ABC):
    """What an evaluator has to offer; what else a script defines in it, like ``evaluate``, is not asked for."""

    @abstractmethod
    def calibration(self, model_file: str) -> None:
        """Run the model ``batch_num`` times under ``amct_onnx.AMCT_SO``."""


def load_evaluator(path: Path) -> Any:
    """The evaluator in a Python file: an object with a ``calibration`` method, or the one class that makes such.

    Raises:
        UsageError: the file cannot be run, or holds no such object, or several.
    """
    module = _run(path)
    objects = {
        name: value
        for name, value in vars(module).items()
        if not inspect.isclass(value) and not inspect.ismodule(value) and callable(getattr(value, "calibration", None))
    }
    distinct = list({id(value): value for value in objects.values()}.values())
    if len(distinct) == 1:
        return distinct[0]
    if distinct:
        raise UsageError(f"{path}: several evaluators stand in it: {', '.join(sorted(objects))}; keep one")
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == _MODULE and callable(getattr(value, "calibration", None))
    ]
    if len(classes) != 1:
        raise UsageError(
            f"{path}: no evaluator stands in it; end it with an object that has calibration(self, model_file)"
        )
    try:
        with _among_its_neighbours(path):
            return classes[0]()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path}: {classes[0].__name__}() fails: {type(error).__name__}: {error}; make the object in the file"
        ) from error


def calibrate_by(evaluator: Any, model_file: str, path: Path) -> None:
    """Let an evaluator run a calibration model.

    Raises:
        UsageError: it raises something, or would end the process.
    """
    try:
        with _among_its_neighbours(path):
            evaluator.calibration(model_file)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path}: calibration({model_file!r}) fails: {type(error).__name__}: {error}; --traceback shows where"
        ) from error


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give the Python file that holds the evaluator")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: this is no Python file; give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        with _among_its_neighbours(path):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path}: running it fails: {type(error).__name__}: {error}; correct the file") from error
    return module


@contextmanager
def _among_its_neighbours(path: Path) -> Iterator[None]:
    """As when the file is run by itself, its neighbours can be imported; afterwards we are in the folder we were in."""
    parent, here = str(path.resolve().parent), Path.cwd()
    sys.path.insert(0, parent)
    # Nor does that leave compiled files beside it.
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_none
        with suppress(ValueError):
            sys.path.remove(parent)
        os.chdir(here)
