"""isorun's fused form of an encoder, and every pass that makes or changes it.

- ``io/``: reading and writing ONNX files
- ``analysis/``: what a graph computes and contains
- ``matching/``: recognizing subgraphs, by structure and by numeric probes
- ``canonicalize/``: one spelling for what exporters and other tools write in several
- ``fusion/``: one file for each fusion
- ``transforms/``: passes over the fused form
- ``ops/``: the fused operators, their dialects, lowering
- ``builders/``: the fused form from a checkpoint's weights
- ``pipeline.py``: every pass, in order; ``inspect.py``: a summary of a graph
- ``tasks.py``: what heads are for

Nothing else here is imported until a model must be read. A session on a cached model reads none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx
    import onnx_ir

    from isorun.graph.matching.report import FusionReport


def fuse(model: onnx.ModelProto | onnx_ir.Model) -> FusionReport:
    """Fuse an encoder in place. A model that is not an encoder, or is already fused, is unchanged.

    Args:
        model: an ``onnx.ModelProto`` with its weights loaded, or an ``onnx_ir.Model``, whose weights may be on disk.
            Inputs and outputs keep their names, types and shapes.

    Returns:
        The number of candidates and of fused operators of each kind, and why the others were not fused.

    Raises:
        InvalidModel: the graph is invalid (two values have the same name, for example), or its weights are not loaded.
        InvalidType: it is not a model.
    """
    import onnx
    import onnx_ir

    from isorun.errors import InvalidModel, InvalidType
    from isorun.graph import pipeline
    from isorun.graph.io import files, structure

    if isinstance(model, onnx.ModelProto):
        if outside := files.external_files(model):
            raise InvalidModel(
                f"The onnx.ModelProto keeps weights in the file {outside[0]!r}. Load the proto with its external data, "
                "or pass isorun.graph.io.files.read(path), which leaves them on disk"
            )
        with files.reading("The onnx.ModelProto"):
            structure.check(model, "The onnx.ModelProto")
            fused = files.from_proto(model, "The onnx.ModelProto")
            report = pipeline.fuse(fused)
            if report.is_encoder:
                model.CopyFrom(onnx_ir.serde.serialize_model(fused))
                return report
        return _with_existing_operators(report, fused)
    if not isinstance(model, onnx_ir.Model):
        raise InvalidType(f"model must be an onnx.ModelProto or an onnx_ir.Model, got {type(model).__name__}")
    with files.reading("The onnx_ir.Model"):
        fused = model.clone()
        report = pipeline.fuse(fused)
    if report.is_encoder:
        model.graph, model.ir_version = fused.graph, fused.ir_version
        model.functions.clear()
        model.functions.update(fused.functions)
        return report
    return _with_existing_operators(report, model)


def _with_existing_operators(report: FusionReport, model: onnx_ir.Model) -> FusionReport:
    """Add the fused operators of an unchanged model to its report."""
    from isorun.graph.matching.report import kind
    from isorun.graph.ops import functions

    for node in model.graph:
        if functions.is_fused(node) and (name := kind(node.op_type)) is not None:
            report.accept(name)
    return report
