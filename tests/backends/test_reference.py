"""What sets reference apart; the rest is proved by the conformance suite."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import isorun


def test_fp64_rejects_models_with_local_functions():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "mine" : 1]>
        g (float[N] x) => (float[N] y) { y = mine.Twice (x) }
        <domain: "mine", opset_import: ["" : 17]> Twice (a) => (b) { b = Add (a, a) }""")
    with isorun.Session(model, backend="reference") as session:
        np.testing.assert_array_equal(session.run(None, {"x": np.ones(2, np.float32)})[0], [2, 2])
    with pytest.raises(isorun.UnsupportedModel, match="local functions"):
        isorun.Session(model, backend="reference", precision="fp64")
