"""ONNX Runtime's ``Attention`` of queries whose keys are all masked by the lowest float."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import exports
from isorun.graph.transforms import work_around
from isorun_backends.onnxruntime import attentions


def _model(opset: int, kind: str = "float", heads: str = "2", mask: str = "m", attributes: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> '
        f"g ({kind}[b, {heads}, s, 4] q, {kind}[b, 1, s, 4] k, {kind}[s, s] m, bool[s, s] c) => ({kind}[d, e, f, g] y) "
        f"<float zero = {{0}}, float low = {{-3.4028234663852886e38}}, "
        f"float some = {{-10000}}> {{ x = {mask} y = Attention{attributes} (q, k, k, x) }}"
    )


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("attributes", ["", " <is_causal = 1>"])
@pytest.mark.parametrize("heads", ["2", "h"])
def test_attends_to_all_keys_alike_only_below_the_lowest_float(
    opset: int, kind: str, attributes: str, heads: str
) -> None:
    model = _model(opset, kind, heads, "Identity (m)", attributes)
    dtype = np.float16 if kind == "float16" else np.float32
    generator = np.random.default_rng(0)
    mask = np.zeros((5, 5))
    mask[:2] = mask[:, 3] = np.finfo(dtype).min
    mask[1, 0] = -np.inf
    mask[4] = -np.inf
    feeds = {
        "q": 3 * generator.standard_normal((1, 2, 5, 4)),
        "k": 3 * generator.standard_normal((1, 1, 5, 4)),
        "m": mask,
    }
    feeds = {name: value.astype(dtype) for name, value in feeds.items()} | {"c": mask == 0}
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, feeds)[0]
    rewritten = ir.serde.deserialize_model(model)
    assert work_around.apply(rewritten, attentions.ROWS)
    (result,) = exports.run(rewritten, feeds)  # a session casts fp16
    np.testing.assert_allclose(result, expected, atol=1e-2 if kind == "float16" else 1e-5)


@pytest.mark.parametrize(
    ("mask", "rewritten"),
    [
        ("Identity (m)", 1),
        ("Where (c, zero, low)", 1),
        ("Where (c, zero, some)", 0),
        ("Identity (c)", 0),
    ],
)
def test_other_masks_stay(mask: str, rewritten: int) -> None:
    model = ir.serde.deserialize_model(_model(23, mask=mask))
    assert len(work_around.apply(model, attentions.ROWS)) == rewritten
