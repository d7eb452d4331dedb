"""Labels of channels: which must go together, and which must stay."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

LabelArray = NDArray[np.int64]
"""One label per position of an axis."""

FIXED = 0
"""The label of positions that are nobody's channel: they stay."""


class Labels:
    """A union-find over labels. Those of one set go together; a set that is fixed stays, for one reason."""

    def __init__(self) -> None:
        self._count = 1
        self._parent = np.zeros(1, np.int64)
        self._reason = np.zeros(1, np.int64)
        self._reasons: list[str] = [""]
        self.fix(np.zeros(1, np.int64), "it is no channel of a layer")

    def __len__(self) -> int:
        """How many labels there are."""
        return self._count

    def fresh(self, count: int) -> LabelArray:
        """New labels, each in a set of its own: [count]."""
        new = np.arange(self._count, self._count + count, dtype=np.int64)
        self._count += count
        if self._count > self._parent.size:
            # Twice as much as needed, so that growing stays linear.
            more = np.zeros(2 * self._count - self._parent.size, np.int64)
            self._parent = np.concatenate([self._parent, more])
            self._reason = np.concatenate([self._reason, more])
        self._parent[new] = new
        return new

    def find(self, labels: LabelArray) -> LabelArray:
        """The set of each label, as the label that stands for it; shape of `labels`."""
        roots = self._parent[labels]
        while True:
            above = self._parent[roots]
            if np.array_equal(above, roots):
                self._parent[labels] = roots
                return np.asarray(roots)
            roots = self._parent[above]

    def unite(self, first: LabelArray, second: LabelArray) -> None:
        """Let the labels at equal positions go together; both of one shape."""
        while True:
            one, other = self.find(first), self.find(second)
            differ = one != other
            if not differ.any():
                return
            low, high = np.minimum(one, other)[differ], np.maximum(one, other)[differ]
            # Where one root meets several others, the smallest wins; the next round joins the rest.
            joined, inverse = np.unique(high, return_inverse=True)
            parents = np.full(joined.size, np.iinfo(np.int64).max)
            np.minimum.at(parents, inverse.reshape(-1), low)
            self._parent[joined] = parents
            reasons = self._reason[joined]
            np.maximum.at(self._reason, self.find(joined), reasons)

    def fix(self, labels: LabelArray, reason: str) -> None:
        """Labels that must stay, with the reason; the first one given counts."""
        roots = np.unique(self.find(np.asarray(labels).reshape(-1)))
        free = roots[self._reason[roots] == 0]
        if free.size:
            if self._reasons[-1] != reason:
                self._reasons.append(reason)
            self._reason[free] = len(self._reasons) - 1

    def keep_one_of_each(self, parts: Iterable[tuple[LabelArray, str]]) -> None:
        """Fix as few labels as leave one of each part, since parts may share them; each with the reason."""
        waiting = [(np.unique(self.find(part)), why) for part, why in parts if not self.is_fixed(part).any()]
        while waiting:
            roots, counts = np.unique(np.concatenate([part for part, _ in waiting]), return_counts=True)
            chosen = roots[counts.argmax()]
            self.fix(chosen, next(why for part, why in waiting if chosen in part))
            waiting = [(part, why) for part, why in waiting if chosen not in part]

    def is_fixed(self, labels: LabelArray) -> NDArray[np.bool_]:
        """Which of them must stay; shape of `labels`."""
        return np.asarray(self._reason[self.find(labels)] > 0)

    def reason(self, label: int) -> str:
        """Why a label must stay; empty when it need not."""
        return self._reasons[int(self._reason[self.find(np.array([label]))[0]])]
