"""Variants of operators beyond the ONNX project's node tests, run by sessions: right, refused, or documented.

What is right is what the reference evaluator computes; where that is known to be wrong, or cannot run the model, what
the bare ONNX Runtime computes.
"""

import re
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import exports
import isorun
from isorun.errors import IsorunError
from operator_variants import Variant, variants
from variants_of_images import images
from variants_of_numbers import arithmetic, casts
from variants_of_products import attentions, indexing, products
from variants_of_reductions import extremes, normalizations, reductions
from variants_of_shapes import shapes, slices

SUBJECTS = (
    *(shapes, slices, reductions, extremes, normalizations, images),
    *(arithmetic, casts, indexing, products, attentions),
)

# What the reference evaluator (onnx 1.23.2) computes wrongly. ONNX Runtime and OpenVINO agree on another result.
REFERENCE = re.compile(
    r"(Softmax|LogSoftmax|Hardmax)-(7|11)\("  # along one axis, instead of over all from the axis on
    r"|BatchNormalization-9"  # with the batch's own statistics
    r"|LRN|LpNormalization-1\(.*p=1|LpPool.*ceil_mode"  # sums of fewer channels; of signed numbers; whole windows
    r"|(LSTM|GRU|RNN)-14.*clip="  # ignored
    r"|MaxPool-12.*(SAME_LOWER|pads=\[1, 0|ceil_mode)|GlobalMaxPool"  # shapes
    r"|Slice-.* int64\[1\](, int64\[1\]){3}"  # nothing from before the start backward
    r"|GridSample-20.*cubic.*border|ReduceSumSquare-.*int32|LogSoftmax-13\(float32\[2, 2\]|ReduceLogSumExp.*inf"
    r"|Unique.*sorted=0, axis|Attention-23.*output_mode=0"
)
# Rows of the tables that only values at run time can tell.
DOCUMENTED = {
    "openvino": re.compile(
        r"(Celu|Clip|Exp|HardSigmoid|Max|Min|Relu|ReduceMax|ReduceMin)-.* NaN|(Softmax|LogSoftmax)-.* inf|Gelu-.* inf"
        r"|.*float64[^,]* inf|Cast-.* inf, to=11|TopK-|QuantizeLinear-.*, u?int(8|16)\[\]"
        r"|GatherND-13\(float32\[2, 3, 4\], int64\[0, 2\], 1 constant"  # a constant [0, 2] is read as a scalar
    ),
    "ort-cpu": re.compile(r"Attention-23.*output_mode=2"),  # finite where it is masked
}


def by_reference(variant: Variant) -> list[np.ndarray]:
    if REFERENCE.match(variant.name):
        raise LookupError("the evaluator is known to compute it wrongly")
    return [np.asarray(result) for result in ReferenceEvaluator(variant.model).run(None, dict(variant.feeds))]


def by_onnxruntime(variant: Variant) -> list[np.ndarray]:
    return exports.run(variant.model, variant.feeds)


def expected(variant: Variant) -> list[np.ndarray] | str:
    """The right outputs, of the first evaluator that runs the model; or why none does."""
    causes = []
    for evaluate in (by_reference, by_onnxruntime):
        try:
            return evaluate(variant)
        except Exception as error:  # noqa: BLE001 - neither evaluator has a class for its errors
            causes.append(f"{evaluate.__name__}: {type(error).__name__}: {error}")
    return "; ".join(causes)


def is_right(got: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    for result, value in zip(got, wanted, strict=True):
        if result.shape != value.shape or result.dtype != value.dtype:
            return False
        tolerance = {"f": 2e-3 if value.dtype == np.float16 else 1e-4}.get(value.dtype.kind, 0)
        if not np.allclose(result, value, rtol=tolerance, atol=tolerance / 10, equal_nan=value.dtype.kind == "f"):
            return False
    return True


def wrong(backend: str, subject: Iterator[Variant]) -> list[str]:
    """The variants of which a session returns wrong outputs; one that raises an error is right to.

    Fails if too many have no expected outputs, with the causes.
    """
    names, judged, causes = [], 0, []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluator overflows on purpose
        for variant in variants(subject):
            if isinstance(wanted := expected(variant), str):
                causes.append(f"{variant.name}: {wanted}")
                continue
            judged += 1
            try:
                with isorun.Session(variant.model, backend) as session:
                    got = session.run(None, variant.feeds)
            except IsorunError:
                continue
            if not is_right(got, wanted):
                names.append(variant.name)
    assert len(causes) <= judged, causes
    return names


@pytest.mark.long
@pytest.mark.parametrize("backend", DOCUMENTED)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.__name__)
def test_no_variant_is_wrong_that_the_table_does_not_show(backend: str, subject) -> None:
    assert [name for name in wrong(backend, subject()) if not DOCUMENTED[backend].match(name)] == []


@pytest.mark.parametrize("backend", DOCUMENTED)
def test_every_120th_variant_is_right_or_documented(backend: str) -> None:
    every = [variant for subject in SUBJECTS for variant in subject()][::120]
    assert [name for name in wrong(backend, iter(every)) if not DOCUMENTED[backend].match(name)] == []
