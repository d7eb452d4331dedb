"""Entry point: parse, run one command, turn errors into one line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

from amct_onnx.cli.console import Console, make_streams_tolerant
from amct_onnx.cli.parser import build_parser
from amct_onnx.errors import AmctError

EXIT_DONE = 0
EXIT_CHECK_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERNAL = 3
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 done, 1 done but a requested check failed, 2 bad usage or input, 3 internal error.
    """
    make_streams_tolerant()
    parser = build_parser()
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    console = Console(quiet=arguments.quiet, verbose=arguments.verbose, as_json=getattr(arguments, "json", False))
    console.install_logging()
    try:
        code = int(arguments.run(arguments, console))
        sys.stdout.flush()
        return code
    except AmctError as error:
        return _fail(f"error: {error}", error.exit_code, arguments.traceback)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED, False)
    except BrokenPipeError:
        _give_up_stdout()
        return EXIT_DONE
    except OSError as error:
        # Our own files are spoken for; what reaches here is the world around, as a full disk behind stdout.
        _give_up_stdout()
        return _fail(f"error: {error}", EXIT_BAD_INPUT, arguments.traceback)
    except MemoryError:
        return _fail("error: out of memory; use smaller feeds or fewer --format", EXIT_BAD_INPUT, arguments.traceback)
    except Exception as error:
        message = f"internal error: {type(error).__name__}: {error}; run again with --traceback and report it"
        return _fail(message, EXIT_INTERNAL, arguments.traceback)


def _give_up_stdout() -> None:
    """Let what a dead stdout has not taken go nowhere, or Python complains when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def _fail(message: str, code: int, with_traceback: bool) -> int:
    logging.getLogger("amct_onnx").debug("failed", exc_info=True)
    if with_traceback:
        traceback.print_exc()
    sys.stderr.write(message + "\n")
    return code
