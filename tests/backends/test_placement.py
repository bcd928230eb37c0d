"""A provider that leaves nodes to another."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from isorun.errors import BackendUnavailable, UnsupportedModel
from isorun.types import CompileConfig, LoweredModel, ModelInfo, RuntimeReport
from isorun_backends.onnxruntime import placement
from isorun_backends.onnxruntime.session import OrtExecutable, open_session, options


class Plain(OrtExecutable):
    """A session as it was opened."""

    def report(self) -> RuntimeReport:
        return RuntimeReport("cpu", "fp32", self.operators(), {})


class Placed(Plain):
    """A session that says of one operator that another provider took it."""

    def operators(self):
        placed = super().operators()["CPUExecutionProvider"]
        return {
            "Mine": {name: count for name, count in placed.items() if name != "Det"},
            "CPUExecutionProvider": {"Det": placed["Det"]},
        }


@pytest.fixture
def model(tmp_path: Path) -> LoweredModel:
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[3,3] x) => (float y) { d = Det(x)  y = Neg(d) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "det.onnx")
    return LoweredModel(tmp_path / "det.onnx", "onnx", "", ModelInfo((), (), 17), cached=False)


def executable(cls, model):
    made = options("b", CompileConfig())
    return cls("b", open_session("b", model, made, ["CPUExecutionProvider"]))


def check(cls, model, provider, **given):
    placement.check("b", provider, executable(cls, model), model, CompileConfig(options=given))


def test_one_that_takes_every_node(model):
    check(Plain, model, "CPUExecutionProvider")
    assert executable(Plain, model).operators() == {"CPUExecutionProvider": {"Det": 1, "Neg": 1}}


def test_nodes_elsewhere_are_an_error_that_names_them(model):
    with pytest.raises(UnsupportedModel, match=r"b leaves nodes of .*det.onnx to other providers: Det \(1\)") as caught:
        check(Placed, model, "Mine")
    assert caught.value.operators == ("Det",)
    assert "options={'allow_cpu_nodes': True} lets them run there" in str(caught.value)


def test_nodes_elsewhere_may_be_allowed(model):
    check(Placed, model, "Mine", allow_cpu_nodes=True)
    with pytest.raises(BackendUnavailable, match=r"'allow_cpu_nodes' is 'yes'\. Give true or false"):
        check(Placed, model, "Mine", allow_cpu_nodes="yes")


def test_one_that_takes_no_node(model):
    for allowed in (True, False):
        with pytest.raises(UnsupportedModel, match=r"b takes no node of .*: Det \(1\), Neg \(1\)"):
            check(Plain, model, "Mine", allow_cpu_nodes=allowed)
