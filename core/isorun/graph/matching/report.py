"""The result of a fusion: the candidates, those that were fused, and why the others were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from isorun.graph.analysis.evaluate import CannotEvaluate

KINDS = ("EmbedLayerNormalization", "SelfAttention", "SkipLayerNormalization", "BiasGelu", "GatedActivation")


def kind(operator: str) -> str | None:
    """The kind of candidate that becomes a fused operator; ``None`` for one that is not counted."""
    if operator.startswith("Gated"):
        return "GatedActivation"
    if operator.startswith("Embed"):
        return "EmbedLayerNormalization"
    name = operator.replace("SingleQuery", "Self")  # of the last layer
    return next((kind for kind in KINDS if name.startswith(kind)), None)  # BiasGeluTanh


@dataclass(frozen=True, slots=True)
class Refusal:
    """A candidate for a fused operator that was not fused.

    Attributes:
        kind: one of :data:`KINDS`.
        node: the name of the node that identifies the candidate, such as an attention's ``Softmax``.
        reason: why it was not fused.
    """

    kind: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.node!r}: {self.reason}"


@dataclass(slots=True)
class FusionReport:
    """The result of fusing a graph.

    Attributes:
        found: the number of candidates of each kind.
        fused: the number of fused operators of each kind.
        refusals: the candidates that were not fused.
        unread: why the graph was not analysed, or nothing in it can be fused; empty if it was.
    """

    found: Counter[str] = field(default_factory=Counter)
    fused: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    unread: str = ""

    @property
    def is_encoder(self) -> bool:
        """Whether any self-attention was fused; without one, the runtime should get the original graph."""
        return self.fused["SelfAttention"] > 0

    @property
    def complete(self) -> bool:
        """Whether it is an encoder and every candidate was fused."""
        return self.is_encoder and not self.refusals

    @contextmanager
    def candidate(self, kind: str, node: str | None) -> Iterator[None]:
        """Count a candidate as fused, or as refused if the block raises :class:`CannotFuse` or
        :class:`isorun.graph.analysis.evaluate.CannotEvaluate`.

        Args:
            kind: one of :data:`KINDS`.
            node: the name of the node that identifies it.
        """
        try:
            yield
        except (CannotFuse, CannotEvaluate) as why:
            self.refuse(kind, node, str(why))
        else:
            self.accept(kind)

    def accept(self, kind: str) -> None:
        self.found[kind] += 1
        self.fused[kind] += 1

    def refuse(self, kind: str, node: str | None, reason: str) -> None:
        self.found[kind] += 1
        self.refusals.append(Refusal(kind, node or "", reason))

    def __str__(self) -> str:
        if self.unread:
            return f"The graph is unchanged: {self.unread}"
        if not self.found:
            return "No part of an encoder was found: the graph is unchanged"
        lines = [f"{kind}: {self.fused[kind]} of {self.found[kind]}" for kind in KINDS if self.found[kind]]
        if not self.is_encoder:
            lines.insert(0, "No self-attention was fused: the graph is unchanged")
        return "\n".join([*lines, *(f"not fused: {refusal}" for refusal in self.refusals)])


class CannotFuse(Exception):
    """A candidate is not fused; the message is the reason."""
