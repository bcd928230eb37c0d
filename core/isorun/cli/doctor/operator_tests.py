"""Tests of a runtime's known faults on its installed version, operator by operator.

``isorun doctor --operators`` reports what has changed: rows of the table that are no longer needed or do not help, and
wrong results that it lacks.
"""

from __future__ import annotations

import os
import tempfile
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

from isorun import Session
from isorun.errors import IsorunError, UnsupportedModel
from isorun.integrations import onnx_backend
from isorun.models import lowering
from isorun.models import source as models
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun.types import CompileConfig
from isorun.types.faults import EMPTY, Fault

_IR_VERSION = 10
_REAL_MODELS = "OnnxBackendRealModelTest"  # AlexNet and the like, which are downloaded


@dataclass(frozen=True, slots=True)
class Tested:
    """What became of the model of a row.

    Attributes:
        raw: what the runtime itself computes: ``right``, ``wrong``, or an error; empty if it was not run.
        session: the same of a session, which works around the fault: also ``refused``, and ``error`` if it
            raises one for invalid feeds.
    """

    raw: str
    session: str


def model_of(fault: Fault) -> onnx.ModelProto:
    """The model of a row."""
    domain = fault.operator.rpartition(".")[0]
    opsets = f'"" : {fault.opset}' + (f', "{domain}" : 1' if domain else "")
    model = onnx.parser.parse_model(f"<ir_version: {_IR_VERSION}, opset_import: [{opsets}]> {fault.model}")
    if fault.operator == EMPTY:
        for tensor in model.graph.initializer:  # as exporters write them
            tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
    return model


def try_row(name: str, fault: Fault, *, with_raw: bool = True) -> Tested:
    """Run the model of a row, on the runtime itself and in a session.

    Args:
        with_raw: run the model on the runtime itself, too, which may read or write memory that is not its own; not
            done where it would end the process.
    """
    model = model_of(fault)
    with tempfile.TemporaryDirectory(prefix="isorun-operators-") as folder:
        path, cache = Path(folder, "model.onnx"), Cache(Path(folder, "cache"))
        onnx.save(model, path)

        def raw() -> list[Any]:
            backend = registry.get(name)
            lowered = lowering.ModelGraphs(models.open_model(path, cache), cache).lower(("onnx",))
            config = CompileConfig(threads=1 if backend.capabilities.sets_threads else None)
            executable = backend.compile(lowered, config)
            try:
                return executable.run(lowered.info.output_names, fault.feeds)
            finally:
                executable.close()

        def session() -> list[Any]:
            with Session(path, name, cache_dir=cache.root) as opened:
                return opened.run(None, fault.feeds)

        def outcome(run: Callable[[], list[Any]], *, invalid: bool = False) -> str:
            return _outcome(run, lambda: _expected(fault, model), invalid=invalid)

        with_raw = with_raw and not fault.ends_process
        return Tested(outcome(raw) if with_raw else "", outcome(session, invalid=fault.invalid))


def wrong_node_tests(name: str, every: int = 1, at: Callable[[str], object] = lambda _: None) -> Iterator[str]:
    """The ONNX project's node tests in which a backend returns wrong outputs; one that raises an error is right to.

    Args:
        every: run one in so many.
        at: called with the name of each test before it runs.
    """
    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="isorun-onnx-home-") as home,
        mock.patch.dict(os.environ, ONNX_HOME=home),  # where its tests of whole models write
    ):
        warnings.simplefilter("ignore")  # ONNX computes some expected values by overflowing on purpose
        from onnx.backend.test import BackendTest

        groups = BackendTest(onnx_backend.adapter(name)).exclude("_cuda$").test_cases
        for group in (cases for title, cases in groups.items() if title != _REAL_MODELS):
            for test in unittest.TestLoader().getTestCaseNames(group)[::every]:
                at(test)
                result = unittest.TestResult()
                group(test).run(result)
                if result.failures:  # an error of isorun is in result.errors
                    yield test.removesuffix("_cpu")


def _expected(fault: Fault, model: onnx.ModelProto) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    if fault.expected is not None:
        return list(fault.expected)
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, dict(fault.feeds)))


def _outcome(run: Callable[[], list[Any]], expected: Callable[[], list[Any]], *, invalid: bool = False) -> str:
    try:
        results = run()
    except UnsupportedModel:
        return "refused"
    except IsorunError as error:
        return "error" if invalid else f"{type(error).__name__}: {error}"
    pairs = list(zip(results, expected(), strict=True))
    close = (np.allclose(result, value, rtol=1e-4, atol=1e-5, equal_nan=True) for result, value in pairs)
    return "right" if all(np.shape(a) == np.shape(b) for a, b in pairs) and all(close) else "wrong"
