"""What a check of a deploy model finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeployFinding:
    """Something that the Ascend compiler will refuse, or that a user should know before compiling.

    Attributes:
        rule: short name of the rule, the same in every release.
        node: the node (or inputs) concerned; empty when it is the whole model.
        message: what was found.
        remedy: what to do about it.
        stops: whether the compiler refuses the model, or computes something else, as it stands.
    """

    rule: str
    node: str
    message: str
    remedy: str
    stops: bool = True

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.message}; {self.remedy}"
