"""What a fusion found, what it fused, and why it left the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

KINDS = ("EmbedLayerNormalization", "SelfAttention", "SkipLayerNormalization", "BiasGelu")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A place that looks like a kind of fused operator and is none.

    Attributes:
        kind: one of :data:`KINDS`.
        node: the name of the node that it is found by, such as an attention's ``Softmax``.
        reason: why it was left as it is.
    """

    kind: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.node!r}: {self.reason}"


@dataclass(slots=True)
class FusionReport:
    """What became of a graph.

    Attributes:
        found: for each kind, how many places look like it.
        fused: for each kind, how many are one fused operator now.
        refusals: the others.
        unread: why the graph was not looked at; empty where it was.
    """

    found: Counter[str] = field(default_factory=Counter)
    fused: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    unread: str = ""

    @property
    def is_encoder(self) -> bool:
        """Whether any self-attention was fused: without one, the graph is better left to the runtime as it came."""
        return self.fused["SelfAttention"] > 0

    @property
    def complete(self) -> bool:
        """Whether it is an encoder and everything found was fused."""
        return self.is_encoder and not self.refusals

    def accept(self, kind: str) -> None:
        self.found[kind] += 1
        self.fused[kind] += 1

    def refuse(self, kind: str, node: str | None, reason: str) -> None:
        self.found[kind] += 1
        self.refusals.append(Refusal(kind, node or "", reason))

    def __str__(self) -> str:
        if self.unread:
            return f"The graph stays as it is: {self.unread}"
        if not self.found:
            return "No part of an encoder was found: the graph stays as it is"
        lines = [f"{kind}: {self.fused[kind]} of {self.found[kind]}" for kind in KINDS if self.found[kind]]
        return "\n".join([*lines, *(f"left: {refusal}" for refusal in self.refusals)])


class Refused(Exception):
    """A place is not fused; the message says why."""
