"""Releases are judged at real tokens, whatever marks padding, and only by outputs that can be compared."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import isorun
from isorun.errors import IsorunError
from isorun.parity import DEFAULT_TOLERANCES
from isorun_conformance.sample_models import parsed
from isorun_matrix.execution.bisection.outputs import ByOutputs
from isorun_matrix.execution.bisection.subject import Subject
from isorun_matrix.execution.progress import Lines
from written_encoders import LOWEST, WIDTH, Graph

MASK = "src_key_padding_mask"


class Changed:
    """A session whose outputs a release changes."""

    def __init__(self, session: isorun.Session, change: Callable[[np.ndarray, np.ndarray], None]) -> None:
        self._session, self._change = session, change
        self.model_info, self.get_outputs = session.model_info, session.get_outputs

    def run(self, names: Any, feeds: Any) -> list[np.ndarray]:
        outputs = [output.copy() for output in self._session.run(names, feeds)]
        for output in outputs:
            self._change(output, feeds[MASK])
        return outputs


class Here(Subject):
    """Releases that are this installation, changed."""

    @contextmanager
    def open(self, release: str, progress: Lines, model: Path | None = None, **_: Any) -> Iterator[Any]:
        with isorun.Session(self.model, "ort-cpu") as session:
            yield Changed(session, CHANGES[release]) if release in CHANGES else session


def at_padding(output: np.ndarray, is_padding: np.ndarray) -> None:
    output[is_padding] += 7


def at_tokens(output: np.ndarray, is_padding: np.ndarray) -> None:
    output[~is_padding] = 0


CHANGES = {"at padding": at_padding, "at tokens": at_tokens}


def judge(path: Path, content: bytes, shape: str) -> ByOutputs:
    path.write_bytes(content)
    return ByOutputs(Here(path, "ort-cpu", "onnxruntime", shape=shape), "1.0", DEFAULT_TOLERANCES["fp32"], Lines())


@pytest.mark.parametrize(("release", "verdict"), [("the same", "good"), ("at padding", "good"), ("at tokens", "bad")])
def test_what_a_mask_of_padding_masks_does_not_count(tmp_path: Path, release: str, verdict: str) -> None:
    graph = Graph()
    ids = graph.input("input_ids", "B", "S")
    masked = graph.node("Unsqueeze", graph.input(MASK, "B", "S", kind=TensorProto.BOOL), [1, 2])
    hidden = graph.layer(graph.embedded(ids), lambda scores: str(graph.node("Where", masked, LOWEST, scores)))
    graph.output(hidden, "hidden", "B", "S", WIDTH)
    content = graph.model().SerializeToString()
    assert judge(tmp_path / "m.onnx", content, "4x8")(release).verdict == verdict


def test_a_good_release_without_finite_outputs_is_no_measure(tmp_path: Path) -> None:
    graph = "g (float[B, 4] x) => (float[B, 4] y) { z = Sub (x, x) y = Div (z, z) }"
    text = f'<ir_version: 8, opset_import: ["" : 17]> {graph}'
    with pytest.raises(IsorunError, match="cannot be compared"):
        judge(tmp_path / "m.onnx", parsed(text), "2")("1.1")
