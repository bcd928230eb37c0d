"""Known faults of runtimes: operators that they compute wrongly without an error, and conformance checks that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidArgument

if TYPE_CHECKING:
    import onnx_ir as ir

CONSTANTS = "int64 constants"
"""In the place of an operator: integer constants that 32 bits cannot hold. ``applies`` gets their ``ir.Value``."""
EMPTY = "constants without elements"
"""The same of constants that have a size of 0."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of the table: an operator that a runtime computes wrongly under some condition.

    Attributes:
        operator: of the standard domain; of another one, after it, as in ``com.microsoft.QuantizeLinear``; or
            :data:`CONSTANTS` or :data:`EMPTY`.
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
        invalid: whether ``feeds`` are invalid: with the equivalent, the runtime raises an error.
        ends_process: whether the runtime itself ends the process, or never returns, so that ``model`` is run in a
            session alone.
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
    invalid: bool = False
    ends_process: bool = False

    @property
    def action(self) -> str:
        """What isorun does: ``rewritten``, ``checked`` (invalid values are an error), ``refused`` or ``documented``."""
        if self.applies is None:
            return "documented"
        if self.rewrite is None:
            return "refused"
        return "checked" if self.invalid else "rewritten"


KINDS = ("not_implemented", "not_yet", "never")
"""Why a check fails: the runtime lacks a feature; a fault is to be fixed; the runtime computes so by design."""
ENDINGS = ("crash", "timeout")
"""In the place of an exception: the check ends its process, or exceeds its time limit."""
_TOO_WIDE = ("BaseException", "Exception")


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """A conformance check that is known to fail on a backend, and how.

    Attributes:
        reason: why it fails.
        kind: one of :data:`KINDS`.
        exception: the name of the class of the exception that the check raises, or of a base class; or one of
            :data:`ENDINGS`.
        reference: the URL of an issue or a page of the runtime's authors; or ``none: `` and why there is none.

    Raises:
        InvalidArgument: a field is invalid.
    """

    reason: str
    kind: str
    exception: str
    reference: str

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise InvalidArgument(problem)

    def _problems(self) -> Iterator[str]:
        for field_ in fields(self):
            value = getattr(self, field_.name)
            if not isinstance(value, str) or not value.strip():
                yield f"`{field_.name}` must be a non-empty string, got {value!r}"
        if self.kind not in KINDS:
            yield f"`kind` must be one of {', '.join(KINDS)}, got {self.kind!r}"
        if self.exception not in ENDINGS and not self.exception.isidentifier():
            yield (
                f"`exception` must be the name of a class without its module, or {' or '.join(ENDINGS)}, "
                f"got {self.exception!r}"
            )
        if self.exception in _TOO_WIDE:
            yield f"`exception` must be narrower than {self.exception}, which every failure raises"
        reason_for_none = self.reference.removeprefix("none:") if self.reference.startswith("none:") else ""
        if not self.reference.startswith(("https://", "http://")) and not reason_for_none.strip():
            yield f"`reference` must be a URL, or 'none: ' and why there is none, got {self.reference!r}"


@dataclass(frozen=True, kw_only=True)
class KnownFaults:
    """All that is known of a runtime's faults: what ``Capabilities.faults`` names.

    Attributes:
        rows: the operators that it computes wrongly.
        checks: names of conformance checks that fail, with their parameters or for any, and how they fail.
        node_tests: names of the ONNX project's node tests whose outputs are wrong, each with the reason.
    """

    rows: tuple[Fault, ...] = ()
    checks: Mapping[str, KnownFailure] = field(default_factory=dict)
    node_tests: Mapping[str, str] = field(default_factory=dict)
