"""Known faults of runtimes: operators that they compute wrongly without an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

CONSTANTS = "int64 constants"
"""In the place of an operator: integer constants that 32 bits cannot hold. ``applies`` gets their ``ir.Value``."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of the table: an operator that a runtime computes wrongly under some condition.

    Attributes:
        operator: of the standard domain; or :data:`CONSTANTS`.
        condition: when the result is wrong, in words.
        result: what the runtime computes.
        versions: the versions of the runtime in which it was seen.
        applies: whether a node is affected, by its attributes and what is statically known of its inputs: gets the node
            (an ``onnx_ir.Node``) and the opset. ``None`` if only values at run time can tell: the row is documented.
        rewrite: the nodes of an equivalent, in order; the outputs of the last replace those of the node, as many as it
            has. ``None`` if there is no simple one: such models are refused with ``UnsupportedModel``.
        model: a model with the fault: an ONNX graph in text form, without the header.
        opset: of ``model``.
        feeds: its inputs.
        expected: its correct outputs; ``None`` for those of ONNX's reference evaluator.
    """

    operator: str
    condition: str
    result: str
    versions: str
    applies: Callable[[Any, int], bool] | None = None
    rewrite: Callable[[ir.Node], Sequence[ir.Node]] | None = None
    model: str
    opset: int = 17
    feeds: Mapping[str, Any] = field(default_factory=dict)
    expected: Sequence[Any] | None = None

    @property
    def action(self) -> str:
        """What isorun does: ``rewritten``, ``refused`` or ``documented``."""
        if self.applies is None:
            return "documented"
        return "refused" if self.rewrite is None else "rewritten"


@dataclass(frozen=True, kw_only=True)
class KnownFaults:
    """All that is known of a runtime's faults: what ``Capabilities.faults`` names.

    Attributes:
        rows: the operators that it computes wrongly.
        checks: names of conformance checks that fail, each with the reason.
        node_tests: names of the ONNX project's node tests whose outputs are wrong, each with the reason.
    """

    rows: tuple[Fault, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    node_tests: Mapping[str, str] = field(default_factory=dict)
