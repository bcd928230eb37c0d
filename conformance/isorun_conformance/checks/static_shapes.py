"""Checks of backends that compile one shape at a time: executables of several shapes, and what closed ones leave."""

from __future__ import annotations

import gc
from contextlib import ExitStack

import numpy as np
import pytest

from isorun.parity.samples import MASKS
from isorun.system import process_usage
from isorun_conformance.checks.base import DOES_NOT_APPLY, Checks, proves
from isorun_conformance.sample_models import IR_VERSION, OPSET, encoder

_SHAPES = ((1, 8), (3, 8), (3, 24), (1, 24))
_FIRST, _MORE = 20, 40
_WIDTH = 512
_KEPT = 0.5  # MiB of every further executable, which has 1 MiB of weights


class StaticShapes(Checks):
    """Executables of one shape each. That a session rounds shapes, pads and cuts is isorun's work."""

    @proves("static shapes")
    def test_executables_of_several_shapes_are_independent(self) -> None:
        """All of them are open at once, and run alternately."""
        self._require_static()
        models = [encoder("bert-1x32", dynamic=True, shape=shape) for shape in _SHAPES]
        with ExitStack() as stack:
            executables = [stack.enter_context(self.under_test.compiled(self.under_test.lowered(m))) for m in models]
            for seed, mask in enumerate(MASKS):
                for model, executable in zip(models, executables, strict=True):
                    if model.batch == 1 and mask == "masked-row":
                        continue  # has nothing to compare
                    feeds, what = model.feeds(seed, mask=mask), f"{model.batch} x {model.sequence}, mask {mask},"
                    (hidden,) = executable.run(["last_hidden_state"], feeds)
                    expected = self.under_test.expected(model, feeds)["last_hidden_state"]
                    assert hidden.shape == expected.shape, f"{what} must be {expected.shape}, got {hidden.shape}"
                    kept = feeds["attention_mask"] != 0
                    np.testing.assert_allclose(hidden[kept], expected[kept], rtol=0.1, atol=0.2, err_msg=what)

    @proves("static shapes")
    def test_closed_executables_leave_no_weights(self) -> None:
        """A session closes the least recently used executable when it needs another one."""
        self._require_static()
        if self.under_test.environment is not None:
            pytest.skip(f"{DOES_NOT_APPLY}: the memory is that of another process")
        static = self.under_test.capabilities.static_shapes
        assert static is not None
        weights = np.random.default_rng(0).standard_normal((_WIDTH, _WIDTH), np.float32)
        with self.under_test.open(_product(weights)) as session:

            def run(length: int) -> None:
                x = np.random.default_rng(length).standard_normal((1, length, _WIDTH), np.float32)
                (y,) = session.run(None, {"x": x})
                what = f"the executable for the length {length}"
                np.testing.assert_allclose(y, x @ weights, rtol=0.1, atol=2.0, err_msg=what)

            first = _FIRST + static.executables
            for length in range(1, first):
                run(length)
            before = _held()
            for length in range(first, first + _MORE):
                run(length)
            grown, allowed = _held() - before, _MORE * _KEPT
            assert grown <= allowed, (
                f"{_MORE} closed executables with 1 MiB of weights each left {grown:.0f} MiB; at most {allowed:g} MiB "
                "are allowed: release the weights in close()"
            )

    def _require_static(self) -> None:
        self.under_test.require(self.under_test.capabilities.static_shapes, "static shapes")


def _product(weights: np.ndarray) -> bytes:
    """``x @ weights`` for any number of positions, which cannot be rounded, since it is no batch and has no mask."""
    import onnx
    from onnx import numpy_helper

    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, "n", _WIDTH]) for name in "xy")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weights, "w")])
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    content: bytes = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()
    return content


def _held() -> float:
    """MiB that this process holds, without what allocators keep."""
    gc.collect()
    process_usage.return_free_memory()
    return process_usage.anonymous_mib() or 0.0  # where it is unknown, nothing grows
