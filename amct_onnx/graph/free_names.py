"""Names that nobody has yet."""

from __future__ import annotations

from collections.abc import Iterable


class FreeNames:
    """Hands out unused names; each wanted name goes on where it stopped last, so that many doubles stay cheap."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def release(self, name: str) -> None:
        """What had this name is gone."""
        self._taken.discard(name)

    def like(self, wanted: str) -> str:
        """`wanted` itself when it is free, else with the first numeric suffix that is."""
        name = wanted
        while name in self._taken:
            self._next[wanted] = self._next.get(wanted, 0) + 1
            name = f"{wanted}_{self._next[wanted]}"
        self._taken.add(name)
        return name
