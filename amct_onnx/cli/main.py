"""Entry point: parse, run one command, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from amct_onnx.cli.console import Console, make_streams_tolerant
from amct_onnx.cli.flags import flag_of
from amct_onnx.cli.parser import build_parser
from amct_onnx.cli.strict_parser import Misuse
from amct_onnx.errors import AmctError, ArgumentError

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
    try:
        make_streams_tolerant()
        arguments = build_parser().parse_args(argv)
    except Misuse as misuse:
        as_json = "--json" in (sys.argv[1:] if argv is None else argv)
        return _fail(Console(as_json=as_json), "", misuse.message, EXIT_BAD_INPUT)
    except SystemExit as stop:
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _fail(Console(), "interrupted", "", EXIT_INTERRUPTED)
    except OSError:
        # Only usage and help are written here, to a stream that takes nothing more.
        return EXIT_BAD_INPUT
    console = Console(quiet=arguments.quiet, verbose=arguments.verbose, as_json=getattr(arguments, "json", False))
    console.install_logging()
    return _run(arguments, console)


def _run(arguments: argparse.Namespace, console: Console) -> int:
    trace = arguments.traceback
    try:
        code = int(arguments.run(arguments, console))
        sys.stdout.flush()
        return code
    except AmctError as error:
        message = error.worded(flag_of) if isinstance(error, ArgumentError) else str(error)
        return _fail(console, f"error: {message}", message, error.exit_code, trace)
    except KeyboardInterrupt:
        return _fail(console, "interrupted", "interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        _give_up_stdout()
        return EXIT_DONE
    except OSError as error:
        # Our own files are spoken for; what reaches here is the world around, as a full disk behind stdout.
        _give_up_stdout()
        return _fail(console, f"error: {error}", "", EXIT_BAD_INPUT, trace)
    except MemoryError:
        message = "out of memory; use smaller feeds or sizes, or fewer --format where there is one"
        return _fail(console, f"error: {message}", message, EXIT_BAD_INPUT, trace)
    except Exception as error:
        message = f"internal error: {type(error).__name__}: {error}; run again with --traceback and report it"
        return _fail(console, message, message, EXIT_INTERNAL, trace)


def _give_up_stdout() -> None:
    """Let what a dead stdout has not taken go nowhere, or Python complains when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def _fail(console: Console, text: str, message: str, code: int, with_traceback: bool = False) -> int:
    """Say on stderr what went wrong, and as JSON where asked for; nothing where a text is empty."""
    logging.getLogger("amct_onnx").debug("failed", exc_info=True)
    # A stream that takes nothing more changes nothing of what went wrong; the exit code still says it.
    with suppress(OSError):
        if with_traceback:
            traceback.print_exc()
        sys.stderr.write(text + "\n" if text else "")
    try:
        if message:
            console.result({"error": {"message": message, "exit_code": code}})
        sys.stdout.flush()
    except OSError:
        _give_up_stdout()
    return code
