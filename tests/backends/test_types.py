"""Types that NumPy lacks are refused before a runtime returns them as others."""

import onnx
import pytest

import isorun

TYPES = ("bfloat16", "float8e4m3fn", "float8e5m2", "int4", "uint4")


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("where", ["input", "output", "sequence"])
def test_types_that_numpy_lacks_are_refused_by_name(backend: str, kind: str, where: str) -> None:
    """ONNX Runtime returned fp8 as uint8, and failed in runs with the others."""
    graph = {
        "input": f"({kind}[N] x) => (float[N] y) {{ y = Cast <to = 1> (x) }}",
        "output": f"(float[N] x) => ({kind}[N] y) {{ y = Cast <to = {getattr(onnx.TensorProto, kind.upper())}> (x) }}",
        "sequence": f"(seq({kind}[N]) x) => (float[N] y) <int64 i = {{0}}> "
        "{ z = SequenceAt (x, i) y = Cast <to = 1> (z) }",
    }[where]
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {graph}')
    with pytest.raises(isorun.UnsupportedModel, match=rf"{'output .y' if where == 'output' else 'input .x'}.*{kind}"):
        isorun.Session(model.SerializeToString(), backend)
