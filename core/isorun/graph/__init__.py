"""isorun's fused form of an encoder, and every pass that makes or changes it.

- ``io/``: reading and writing ONNX files
- ``analysis/``: what a graph computes and contains
- ``matching/``: recognizing subgraphs, by structure and by numeric probes
- ``canonicalize/``: one spelling for what exporters and other tools write in several
- ``fusion/``: one file for each fusion
- ``transforms/``: passes over the fused form
- ``ops/``: the fused operators, their dialects, lowering
- ``builders/``: the fused form from a checkpoint's weights
- ``pipeline.py``: the order in which passes run; ``inspect.py``: a summary of a graph

Nothing here is imported before a model has to be read; a session on a model that is in the cache reads none.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx
    import onnx_ir

    from isorun.graph.matching.report import FusionReport


def fuse(model: onnx.ModelProto | onnx_ir.Model) -> FusionReport:
    """Bring an encoder to the fused form, in place. A model that is none, or that has it, stays as it came.

    Args:
        model: an ``onnx.ModelProto`` with its weights in it, or an ``onnx_ir.Model``, whose weights may be on disk.
            Inputs and outputs keep their names, types and shapes.

    Returns:
        For each kind of fused operator how many were found and fused, and why the others were not.

    Raises:
        InvalidModel: the graph is not valid (two of its values have one name, say), or its weights are elsewhere.
        TypeError: it is no model.
    """
    import onnx
    import onnx_ir

    from isorun.errors import InvalidModel
    from isorun.graph import pipeline
    from isorun.graph.io import files, structure

    if isinstance(model, onnx.ModelProto):
        if outside := files.external_files(model):
            raise InvalidModel(
                f"The onnx.ModelProto keeps weights in the file {outside[0]!r}: load it with them, or give what "
                "isorun.graph.io.files.read makes of its path, whose weights stay on disk"
            )
        with files.reading("The onnx.ModelProto"):
            structure.check(model, "The onnx.ModelProto")
            made = files.from_proto(model, "The onnx.ModelProto")
            report = pipeline.fuse(made)
            if report.is_encoder:
                model.CopyFrom(onnx_ir.serde.serialize_model(made))
                return report
        return _with_those_there(report, made)
    if not isinstance(model, onnx_ir.Model):
        raise TypeError(f"A model is an onnx.ModelProto or an onnx_ir.Model; a {type(model).__name__} came")
    with files.reading("The onnx_ir.Model"):
        made = model.clone()
        report = pipeline.fuse(made)
    if report.is_encoder:
        model.graph, model.ir_version = made.graph, made.ir_version
        model.functions.clear()
        model.functions.update(made.functions)
        return report
    return _with_those_there(report, model)


def _with_those_there(report: FusionReport, model: onnx_ir.Model) -> FusionReport:
    """The report of a model that was left as it came, with the fused operators that it came with."""
    from isorun.graph.matching.report import KINDS
    from isorun.graph.ops import functions

    for node in model.graph:
        if functions.is_fused(node):
            kind = node.op_type.replace("SingleQuery", "Self")  # of the last layer
            report.accept(next(each for each in KINDS if each in kind))  # BiasGeluTanh
    return report


@functools.cache
def code_digest() -> str:
    """SHA-256 of the code that writes graphs: what older code has left in a cache is not taken for its work."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*")):
        if path.suffix in (".py", ".onnxtxt"):
            digest.update(path.read_bytes())
    return digest.hexdigest()
