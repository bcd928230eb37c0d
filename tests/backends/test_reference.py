"""What sets reference apart; what it shares with every backend is in tests/core/test_session.py."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import isorun
import numpy_bert
import tiny


@pytest.mark.parametrize("kind", tiny.MASKS)
def test_fp64_computes_in_double_precision(bert, kind):
    feeds = tiny.feeds(kind=kind)
    with isorun.Session(bert, backend="reference", precision="fp64", padding="keep") as session:
        assert session.provenance.precision == "fp64"
        outputs = session.run(None, feeds)
    expected = numpy_bert.run(tiny.CONFIG, tiny.weights(), feeds)
    for found, array in zip(outputs, expected.values(), strict=True):
        assert found.dtype == np.float64
        # The rest is the rounding of constants such as sqrt(2), which the graph has in float32.
        np.testing.assert_allclose(found, array, rtol=0, atol=1e-6)


def test_fp32_stays_fp32(bert):
    with isorun.Session(bert, backend="reference") as session:
        assert {array.dtype for array in session.run(None, tiny.feeds())} == {np.dtype(np.float32)}
        assert session.provenance.operators["numpy"]["MatMul"] > 10


def test_fp64_rejects_models_with_local_functions():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "mine" : 1]>
        g (float[N] x) => (float[N] y) { y = mine.Twice (x) }
        <domain: "mine", opset_import: ["" : 17]> Twice (a) => (b) { b = Add (a, a) }""")
    with isorun.Session(model, backend="reference") as session:
        np.testing.assert_array_equal(session.run(None, {"x": np.ones(2, np.float32)})[0], [2, 2])
    with pytest.raises(isorun.UnsupportedModel, match="local functions"):
        isorun.Session(model, backend="reference", precision="fp64")
