"""Which graph a session runs: the one that computes padding, the packed one, or the better for each batch.

:mod:`isorun.graph.transforms.padding_removal` defines the packed graph. Gathering real tokens and scattering them back
costs time, so with ``padding="auto"`` every run inspects its mask; batches with enough padding use the packed graph.
It is compiled when the first such batch arrives. Other batches use the unpacked graph, whose token outputs are then set
to zero at padding, so that outputs do not depend on the choice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isorun.compilation.choice import Choice
from isorun.compilation.guard import Guarded, Recompilations, compile_guarded
from isorun.errors import (
    BackendFailed,
    BackendUnavailable,
    CacheError,
    InvalidModel,
    UnsupportedModel,
    WorkerDied,
    WorkerTimeout,
)
from isorun.models.lowering import ModelGraphs, Quantized
from isorun.models.source import check_unchanged
from isorun.plugin import faults
from isorun.plugin.backend import Backend, Executable
from isorun.system.progress import logged
from isorun.types import CompileConfig, Feeds, LoweredModel, ModelInfo, RuntimeReport

# The packed graph must save this share of a batch's tokens, and this many more. It computes whole steps of tokens, as
# ``graph/ops/padding.onnxtxt`` rounds them up. Measured with three layers, 768 wide, on two cores (docs/padding.md).
_SHARE, _TOKENS, _STEP = 1 / 12, 4, 16

_logger = logging.getLogger("isorun")


def compile_model(
    graphs: ModelGraphs,
    backend: Backend,
    config: CompileConfig,
    padding: str,
    quantized: Quantized | None = None,
    recompilations: Recompilations | None = None,
) -> tuple[LoweredModel, Executable]:
    """Lower a model for a backend and compile it, with padding kept, removed, or either as a batch needs.

    Args:
        graphs: the model.
        backend, config, padding: as for a session.
        quantized: what the precision ``int8`` needs.
        recompilations: counts compilations after failed runs.

    Raises:
        UnsupportedModel: padding is to be removed and the graph does not allow it, or the backend lacks an operator.
        BackendUnavailable, BackendFailed: as :meth:`isorun.plugin.backend.Backend.compile` says.
    """
    dialects, known = backend.capabilities.dialects, faults.of(backend)
    precision = config.precision if config.precision in backend.capabilities.typed else "fp32"

    checks = not backend.capabilities.checks_indices

    def compiled(*, packed: bool) -> tuple[LoweredModel, Guarded]:
        lowered = graphs.lower(
            dialects, packed=packed, precision=precision, quantized=quantized, checks=checks, faults=known.rows
        )
        own = lowered.path == graphs.source.path and not lowered.path.is_relative_to(graphs.cache.root)

        def verify() -> None:
            if own:
                check_unchanged(graphs.source, graphs.cache)  # the runtime has just read the user's own file

        with logged("compiled %s on %s", lowered.path, backend.name):
            executable = compile_guarded(backend, lowered, config, verify=verify, recompilations=recompilations)
        return lowered, executable

    packs = backend.capabilities.data_dependent_shapes
    if padding == "remove":
        if not packs:
            raise BackendUnavailable(
                backend.name,
                "it does not support data-dependent shapes, which padding='remove' requires",
                "Use padding='auto' or 'keep', or another backend.",
            )
        lowered, executable = compiled(packed=True)
        executable.details["padding"] = {"asked": padding, "removed": "always"}
        return lowered, executable
    lowered, executable = compiled(packed=False)
    info = lowered.info
    if padding == "keep" or (not info.fused and info.mask is None):
        return lowered, executable
    if not info.fused:
        kept = "the model is not fused"
    elif not backend.capabilities.dynamic_shapes or config.device != "cpu":
        kept = "not known to pay on this backend"
    elif not packs:
        kept = "the backend does not support data-dependent shapes"
    elif info.keeps_padding or info.mask is None:
        kept = info.keeps_padding or "the key mask is not one of the model's inputs"
    elif unproven := _unproven_output(info):
        kept = f"the output {unproven!r} may have a value for each token, and is not known to be zero at padding"
    else:
        return lowered, AdaptivePadding(executable, lambda: compiled(packed=True)[1], info)
    executable.details["padding"] = {"asked": padding, "removed": f"never: {kept}"}
    return lowered, executable


def _unproven_output(info: ModelInfo) -> str:
    """An output that may be token-level but is not recognized: padding in it would depend on the graph that ran."""
    mask = next(spec for spec in info.inputs if spec.name == info.mask)
    length = mask.shape[1] if mask.shape is not None and len(mask.shape) == 2 else None
    for spec in info.outputs:
        if spec.name in (info.token_outputs or ()):
            continue
        if spec.shape is None or len(spec.shape) > 2 or (len(spec.shape) == 2 and spec.shape[1] in (None, length)):
            return spec.name
    return ""


class AdaptivePadding(Choice):
    """Two executables of one model, unpacked and packed. The mask of each run decides between them.

    Args:
        padded: the unpacked model.
        make_packed: compiles the packed one. Called once, by the first run that needs it.
        info: the model; its mask must be known.
    """

    def __init__(self, padded: Executable, make_packed: Callable[[], Executable], info: ModelInfo) -> None:
        super().__init__(info)
        self._padded = padded
        self._make_packed = make_packed
        self._packed: Executable | None = None
        self._refusal = ""
        self._lock = threading.Lock()

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        mask = feeds.get(self._mask or "")
        if mask is None:  # the packed graph reads the model's default mask
            return self.packed().run(output_names, feeds)
        padding = mask.size - np.count_nonzero(mask)
        if not padding:
            return self._padded.run(output_names, feeds)
        executable = (self._packed or self.packed()) if _pays(padding, mask.size) else self._padded
        return self.finish(executable, output_names, executable.run(output_names, feeds), feeds)

    def choose(self, feeds: Feeds) -> Executable:
        mask = feeds.get(self._mask or "")
        return self.packed() if mask is None or _pays(mask.size - np.count_nonzero(mask), mask.size) else self._padded

    def finish(self, chosen: Any, output_names: Sequence[str], results: list[Any], feeds: Feeds) -> list[Any]:
        return self.without_padding(output_names, results, feeds) if chosen is self._padded else results

    def packed(self) -> Executable:
        """The packed executable, or the unpacked one if there is none."""
        with self._lock:
            if self._packed is None:
                try:
                    self._packed = self._make_packed()
                except (WorkerDied, WorkerTimeout):  # nothing is known of the graph: the next run tries again
                    raise
                # The backend lacks an operator that only the packed graph has, or fails to compile it; or, since the
                # session was opened, the model's file was removed or replaced, or the cache became full.
                except (UnsupportedModel, BackendFailed, BackendUnavailable, InvalidModel, CacheError) as error:
                    self._packed, self._refusal = self._padded, str(error)
                    _logger.warning("padding is kept from now on, since the packed graph cannot be compiled: %s", error)
            return self._packed

    def report(self) -> RuntimeReport:
        report = self._padded.report()
        note: dict[str, Any] = {"asked": "auto", "removed": "from batches that have enough of it"}
        if self._refusal:
            note["removed"] = f"never: {self._refusal}"
        elif self._packed is not None:
            note["operators"] = self._packed.report().operators
        return replace(report, details={**report.details, "padding": note})

    def close(self) -> None:
        try:
            self._padded.close()
        finally:
            if self._packed is not None and self._packed is not self._padded:
                self._packed.close()


def _pays(padding: int, tokens: int) -> bool:
    computed = -(-(tokens - padding) // _STEP) * _STEP
    return tokens - computed > tokens * _SHARE + _TOKENS
