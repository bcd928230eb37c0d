"""The order in which passes run: from any exporter's graph to the fused form, and from there to what a backend reads.

:data:`PASSES` is the only place that knows this order. Sessions, calibration and ``isorun fuse`` run the same list.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import UnsupportedModel
from isorun.graph.analysis import batch_independence, index_bounds, output_shapes
from isorun.graph.canonicalize import choices, constants, layouts, opset_upgrade
from isorun.graph.canonicalize.simplify import simplify
from isorun.graph.fusion import bias_gelu, embeddings, groups, skip_layer_normalization
from isorun.graph.fusion.self_attention.fuse import fuse as fuse_attention
from isorun.graph.io import files, maps, shape_inference
from isorun.graph.matching.report import FusionReport
from isorun.graph.ops import functions, inline, lower, opset
from isorun.graph.transforms import first_pass, index_checks, last_layer, padding_removal, precision, select_outputs
from isorun.graph.transforms.precision import int8, whole
from isorun.types import INDEX_NOTE

_logger = logging.getLogger(__name__)

OPSETS = range(opset_upgrade.FIRST_UPGRADED, 26)
"""The ONNX opsets that are read; a graph in another stays unchanged."""


@dataclass(frozen=True, slots=True)
class Target:
    """The graph to produce.

    Attributes:
        outputs: the outputs to keep, in this order; ``None`` for all.
        packed: remove padding.
        taps: add what the dense layers read as outputs, for calibration.
        precision: what to write the graph in (:data:`isorun.graph.transforms.precision.PRECISIONS`); ``None`` keeps
            its types.
        table: quantize the dense layers in this table.
        dialect: what to lower the fused operators to; ``None`` keeps them.
        checks: check the indices that the bounds of the inputs do not protect.
        narrow: compute the last layer for one position alone if the graph reads no other.
    """

    outputs: Sequence[str] | None = None
    packed: bool = False
    taps: bool = False
    precision: str | None = None
    table: int8.Table | None = None
    dialect: str | None = None
    checks: bool = False
    narrow: bool = True


@dataclass(slots=True)
class Job:
    """One run of passes over one graph.

    Attributes:
        target: the graph to produce.
        report: what the fusions found.
        notes: what the passes have to say about the result, as plain data for provenance and reports.
        flattened: the values of multiple choice that are inputs during fusion.
        weights, readers, unsmoothed: with ``target.taps``, the results of
            :func:`isorun.graph.transforms.precision.int8.tap`.
    """

    target: Target = field(default_factory=Target)
    report: FusionReport = field(default_factory=FusionReport)
    notes: dict[str, Any] = field(default_factory=dict)
    flattened: choices.Flattened = field(default_factory=dict)
    weights: Mapping[str, ir.TensorProtocol] = field(default_factory=dict)
    readers: Mapping[str, list[str]] = field(default_factory=dict)
    unsmoothed: Collection[str] = ()


class Stage(Enum):
    """What a pass reads."""

    GIVEN = auto()  # any graph
    FUSION = auto()  # a graph on its way to the fused form
    FUSED = auto()  # the fused form, made here or given
    TARGET = auto()  # the fused form, or the graph as given if it is not an encoder


class Pass(NamedTuple):
    """A rewrite of a graph, in place.

    Attributes:
        name: for the log.
        stage: when it runs.
        apply: does it.
        when: whether the target needs it.
    """

    name: str
    stage: Stage
    apply: Callable[[ir.Model, Job], object]
    when: Callable[[Target], object] = lambda _: True


def _set_opset(model: ir.Model, _: Job) -> None:
    try:
        opset.move(model.graph, functions.opset(functions.BODIES))
    except UnsupportedModel as error:  # not fatal: the graph runs in its own opset, and lowering reports the same
        _logger.info("%s", error)


def _inline(model: ir.Model, _: Job) -> None:
    if inline.inline(model):
        files.check_files(model)
        files.mark_changed(model)


def _remove_padding(model: ir.Model, _: Job) -> None:
    rows = batch_independence.find(model)
    padding_removal.remove(model)
    if not rows.mixed_by:
        batch_independence.mark(model, rows)


def _tap(model: ir.Model, job: Job) -> None:
    job.weights, job.readers, job.unsmoothed = int8.tap(model)
    if not job.weights:
        raise UnsupportedModel(f"None of the model's dense layers can be quantized: {int8.refusal(model)}")
    int8.check_finite(model, job.weights)


PASSES = (
    # First, so that nothing that only unwanted outputs need gets in the way of a fusion.
    Pass(
        "select outputs",
        Stage.GIVEN,
        lambda model, job: select_outputs.keep(model, job.target.outputs or ()),
        lambda target: target.outputs is not None,
    ),
    Pass("inline functions", Stage.GIVEN, _inline),
    Pass(
        "keep the first pass",
        Stage.GIVEN,
        lambda model, _: first_pass.keep(model),
        lambda target: target.outputs is not None,
    ),
    Pass("correct output shapes", Stage.GIVEN, lambda model, _: shape_inference.correct_outputs(model)),
    Pass("upgrade the opset", Stage.FUSION, lambda model, _: opset_upgrade.upgrade(model)),
    Pass("simplify", Stage.FUSION, lambda model, job: simplify(model, job.report)),
    Pass("batch first, width last", Stage.FUSION, lambda model, _: layouts.rewrite(model)),
    Pass("flatten choices", Stage.FUSION, lambda model, job: job.flattened.update(choices.flatten(model.graph))),
    Pass("fuse attention", Stage.FUSION, lambda model, job: fuse_attention(model, job.report)),
    Pass("fuse embeddings", Stage.FUSION, lambda model, job: embeddings.fuse(model, job.report)),
    Pass("fuse GELU", Stage.FUSION, lambda model, job: bias_gelu.fuse(model, job.report)),
    Pass("fuse skip connections", Stage.FUSION, lambda model, job: skip_layer_normalization.fuse(model, job.report)),
    Pass("restore choices", Stage.FUSION, lambda model, job: choices.restore(model.graph, job.flattened)),
    Pass("remove unused nodes", Stage.FUSION, lambda model, _: common.RemoveUnusedNodesPass()(model)),
    Pass("keep groups apart", Stage.FUSION, lambda model, _: groups.keep_apart(model.graph)),
    Pass("set the opset", Stage.FUSION, _set_opset),
    Pass("add function bodies", Stage.FUSION, lambda model, _: functions.carry(model)),
    Pass("narrow the last layer", Stage.FUSED, lambda model, _: last_layer.narrow(model), lambda target: target.narrow),
    Pass("remove padding", Stage.TARGET, _remove_padding, lambda target: target.packed),
    Pass(
        "compute in fp32",  # what is not quantized, as the scales assume
        Stage.TARGET,
        lambda model, _: whole.convert(model) if whole.has_halves(model) else 0,
        lambda target: target.taps or target.table is not None,
    ),
    Pass("tap dense layers", Stage.TARGET, _tap, lambda target: target.taps),
    Pass(
        "quantize",
        Stage.TARGET,
        lambda model, job: int8.quantize(model, job.target.table or {}),
        lambda target: target.table is not None,
    ),
    Pass(
        "convert precision",
        Stage.TARGET,
        lambda model, job: job.notes.update(precision.write(model, job.target.precision or "")),
        lambda target: target.precision is not None,
    ),
    Pass(
        "lower",
        Stage.TARGET,
        lambda model, job: lower.lower(model, job.target.dialect or ""),
        lambda target: target.dialect is not None,
    ),
    # The other dialects' runtimes do this themselves.
    Pass(
        "fold constants",
        Stage.TARGET,
        lambda model, _: constants.simplify(model),
        lambda target: getattr(target.dialect, "base", target.dialect) == functions.BODIES,
    ),
)
"""Every pass, in order. To add one, add an entry."""


class Fused(NamedTuple):
    """A model that was read.

    Attributes:
        model: in the fused form, or as given if it is not an encoder.
        fused_here: whether this reading fused it; false for a model that was given in the fused form.
        report: what the fusions found; empty for a model that was given in the fused form.
    """

    model: ir.Model
    fused_here: bool
    report: FusionReport


def read(path: Path, outputs: Sequence[str] | None = None, *, fused: bool = True, narrow: bool = True) -> Fused:
    """Read a model and bring it to the fused form.

    Args:
        path: an ONNX file.
        outputs: the outputs to compute; ``None`` for all.
        fused: whether to fuse it; otherwise it is returned as given.
        narrow: as for :class:`Target`.

    Raises:
        InvalidModel: the file cannot be read, or is not a valid model.
        InvalidFeeds: the model lacks one of the outputs.
    """
    job = Job(Target(outputs, narrow=narrow))

    def as_given() -> ir.Model:
        model = files.read(path)
        _run(model, job, Stage.GIVEN)
        return model

    with files.reading(str(path)):
        model = as_given()
        if not fused:
            output_shapes.correct(model)
            return Fused(model, False, job.report)
        if any(functions.is_fused(node) for node in model.graph):
            _run(model, job, Stage.FUSED)
            return Fused(model, False, job.report)
        report = fuse(model, narrow=narrow)
        if report.is_encoder:  # more is known of fused operators
            shape_inference.correct_outputs(model)
        else:
            model = as_given()
            output_shapes.correct(model)
        return Fused(model, report.is_encoder, report)


def fuse(model: ir.Model, *, narrow: bool = True) -> FusionReport:
    """Bring an encoder to the fused form, in place.

    Inputs and outputs keep their names, types and shapes. Weights are not copied, and only a few elements of large ones
    are read. Weights that are composed of others (Q, K and V side by side) are computed when they are read.

    Args:
        model: any model, with weights in memory or on disk. A model without attention is normalized but not fused;
            use the original in that case (``report.is_encoder``).
        narrow: as for :class:`Target`.

    Returns:
        What was found, what was fused, and why the rest was not.
    """
    job = Job(Target(narrow=narrow))
    current = model.graph.opset_imports.get("", 0)
    if current not in OPSETS:
        job.report.unread = f"it is in opset {current} of ONNX's operators, and {OPSETS[0]} to {OPSETS[-1]} are read"
        return job.report
    if maps.among(model.graph):
        job.report.unread = "some of its values are maps, which no encoder has"
        return job.report
    declared = [value.shape for value in model.graph.outputs]
    try:
        inline.inline(model)
        _run(model, job, Stage.FUSION, Stage.FUSED)
    except UnsupportedModel as error:  # the upgrade of the opset, or functions of another one
        job.report.unread = str(error)
        return job.report
    if not job.report.is_encoder and any(value.const_value is not None for value in model.graph.inputs):
        job.report.unread = (
            "its weights are inputs, so that a caller may feed others. Export it with keep_initializers_as_inputs=False"
        )
    for value, shape in zip(model.graph.outputs, declared, strict=True):
        value.shape = shape  # as declared to callers, whatever shape inference found since
    return job.report


def transform(model: ir.Model, target: Target) -> Job:
    """Make the graph of a target from what :func:`read` returned, in place. ``target.outputs`` is ignored.

    Raises:
        UnsupportedModel: the graph cannot be brought to the target; it is unusable afterwards.
        InvalidModel: with ``taps``, a weight is not finite.
    """
    job = Job(target)
    # Found in the graph that bounds are known for, without the lookups that are added for packing
    unprotected = []
    if target.checks:
        unprotected = [index_checks.outlasting(lookup) for lookup in index_bounds.unprotected(model.graph)]
    _run(model, job, Stage.TARGET)
    if unprotected:
        job.notes[INDEX_NOTE] = index_checks.add(model, unprotected)
    return job


def _run(model: ir.Model, job: Job, *stages: Stage) -> None:
    with _quiet_onnx_ir():
        for step in PASSES:
            if step.stage in stages and step.when(job.target):
                start = time.perf_counter()
                step.apply(model, job)
                _logger.debug("%s: %.0f ms, %d nodes", step.name, 1e3 * (time.perf_counter() - start), len(model.graph))


_quiet_lock = threading.Lock()
_quiet_users = 0


@contextmanager
def _quiet_onnx_ir() -> Iterator[None]:
    """Keep onnx_ir's log at ERROR, unless the application has chosen a level: its passes log hundreds of lines, and
    tracebacks where they leave a model as it is."""
    global _quiet_users
    logger = logging.getLogger("onnx_ir")
    with _quiet_lock:
        mine = _quiet_users > 0 or logger.level == logging.NOTSET
        if mine:
            _quiet_users += 1
            logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_users -= mine
            if mine and not _quiet_users:
                logger.setLevel(logging.NOTSET)
