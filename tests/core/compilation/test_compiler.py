"""Which models a backend is given."""

from dataclasses import replace

import numpy as np
import pytest

import backends
import isorun
from isorun.errors import BackendUnavailable
from isorun_conformance import fakes
from isorun_conformance.sample_models import parsed

DOUBLED = '<ir_version: 8, opset_import: ["": 17]> agraph (float[{shape}] x) => (float[{shape}] y) {{ y = Add (x, x) }}'


class OfFixedShapes(fakes.Right):
    capabilities = replace(fakes.Right.capabilities, dynamic_shapes=False)


def test_symbolic_dimensions_need_a_declaration() -> None:
    """An engine that keeps the shape of its first run would return wrong numbers for the next."""
    feeds = {"x": np.ones((1, 2), np.float32)}
    with backends.registered(fixed=OfFixedShapes):
        for shape in ("1, length", "rows, 2"):
            symbolic = parsed(DOUBLED.format(shape=shape))
            with pytest.raises(BackendUnavailable, match=r"dynamic_shapes.*'x'") as caught:
                isorun.Session(symbolic, "fixed")
            assert caught.value.backend == "fixed"
            with isorun.Session(symbolic, ["fixed", "reference"]) as session:
                assert session.provenance.backend == "reference"
        with isorun.Session(parsed(DOUBLED.format(shape="1, 2")), "fixed") as session:
            (result,) = session.run(None, feeds)
    np.testing.assert_array_equal(result, [[2, 2]])
