"""An argparse parser whose complaints are those of the command that was called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Misuse(SystemExit):
    """The exit of a parser that refuses its arguments, with what it says of them."""

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = message


class StrictParser(argparse.ArgumentParser):
    """Refuses what is wrong with the short usage of the command, and names the flag that an unknown one is near to."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and raise :class:`Misuse`."""
        self.print_usage(sys.stderr)
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        raise Misuse(message)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the arguments of this command; what it does not know, argparse would leave to the whole program."""
        given = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            self._refuse_unknown(given)
        found, rest = super().parse_known_args(given, namespace)
        if rest and self._subparsers is None:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def _refuse_unknown(self, given: Sequence[str]) -> None:
        """Refuse an unknown flag first: what argparse misses then may be what the flag was to give."""
        flags = given[: given.index("--")] if "--" in given else given
        for flag in flags:
            name = flag.partition("=")[0]
            if not name.startswith("--") or " " in name or self._begins_a_flag(name):
                continue
            near = get_close_matches(name, self._option_string_actions, n=1)
            self.error(f"unknown flag {name}; " + (f"did you mean {near[0]}?" if near else f"see {self.prog} --help"))

    def _begins_a_flag(self, name: str) -> bool:
        return any(known.startswith(name) for known in self._option_string_actions)
