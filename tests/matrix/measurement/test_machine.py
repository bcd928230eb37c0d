from __future__ import annotations

import json
import os

from isorun_matrix.measurement import machine as environment


def test_what_would_explain_other_figures_is_there() -> None:
    found = environment.collect(["ort-cpu", "reference"])
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"]["model"]
    assert 1 <= found["cpu"]["usable_cores"] <= (os.cpu_count() or 1)
    assert found["memory_mib"] > 100
    assert len(found["load_average"]) == 3
    assert {"isorun", "numpy", "onnx", "ort-cpu", "reference"} <= set(found["packages"])
