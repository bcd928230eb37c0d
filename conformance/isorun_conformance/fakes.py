"""Backends that misbehave, each in one way, for tests of code that uses backends.

isorun registers none of them. :func:`installed` does, for a while::

    with fakes.installed():
        isorun.Session("model.onnx", "fake-slow", options={"seconds": 0.1})

ONNX's reference evaluator computes their outputs.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from isorun.errors import BackendUnavailable, did_you_mean
from isorun.plugin import registry
from isorun.plugin.backend import Backend, Executable, runtime_errors
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel, RuntimeReport

NAMES: Mapping[str, str] = {
    "fake-echo": f"{__name__}:Echo",
    "fake-failing": f"{__name__}:Failing",
    "fake-slow": f"{__name__}:Slow",
    "fake-lying": f"{__name__}:Lying",
    "fake-crashing": f"{__name__}:Crashing",
}
"""Name to ``module:Class``, as an entry point has it."""

_HONEST = Capabilities(
    dialects=("primitive",),
    dynamic_shapes=True,
    package="onnx",
    requirement="onnx",
    reports=("placement",),
    faults="isorun_backends.reference_faults:FAULTS",
)
_MOMENTS = ("compile", "run", "close")


@contextmanager
def installed(names: Mapping[str, str] = NAMES) -> Iterator[Path]:
    """Register backends, in this process and its children, as if a distribution with them were installed.

    Args:
        names: name of the backend to ``module:Class``.

    Yields:
        The distribution's folder on ``sys.path``, for modules.
    """
    with tempfile.TemporaryDirectory(prefix="isorun-fakes-") as folder:
        information = Path(folder) / "isorun_fakes-0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: isorun-fakes\nVersion: 0\n", encoding="utf-8"
        )
        lines = [f"[{registry.GROUP}]", *(f"{name} = {value}" for name, value in names.items())]
        (information / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
        children = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        sys.path.insert(0, folder)
        registry.refresh()
        try:
            with mock.patch.dict(os.environ, PYTHONPATH=children):
                yield Path(folder)
        finally:
            sys.path.remove(folder)
            registry.refresh()


class Right(Backend):
    """A backend without a flaw, for others to subclass."""

    contract = 2
    capabilities = _HONEST

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        return RightExecutable(model, config)


class RightExecutable(Executable):
    """A model in ONNX's reference evaluator."""

    def __init__(self, model: LoweredModel, config: CompileConfig) -> None:
        self._right = registry.get("reference").compile(model, replace(config, options={}))
        self._options = config.options

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        return self._right.run(output_names, feeds)

    def report(self) -> RuntimeReport:
        return self._right.report()

    def close(self) -> None:
        self._right.close()


class Echo(Backend):
    """Computes nothing: every output is the first feed."""

    contract = 2
    capabilities = Capabilities(dialects=("primitive",), dynamic_shapes=True)

    def compile(self, _model: LoweredModel, _config: CompileConfig) -> Executable:
        return _Echo()


class _Echo(Executable):
    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        first = next(iter(feeds.values()))
        return [np.array(first) for _ in output_names]

    def report(self) -> RuntimeReport:
        return RuntimeReport(device="an echo", precision="fp32", operators={}, versions={})


class Failing(Backend):
    """Raises ``RuntimeError`` when and how its options say."""

    contract = 2
    capabilities = replace(
        _HONEST,
        options={
            "when": "compile, run (default) or close",
            "wrapped": "whether the error is wrapped in BackendFailed; default true",
        },
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        def fail(moment: str) -> None:
            with runtime_errors("the fake fails") if config.options.get("wrapped", True) else nullcontext():
                raise RuntimeError(f"it was told to fail at {moment}")

        return _ActingExecutable(model, config, _choice(self, config.options, "when", _MOMENTS, "run"), fail)


class Crashing(Backend):
    """Ends its process when and how its options say."""

    contract = 2
    capabilities = replace(
        _HONEST,
        options={
            "when": "compile, run (default) or close",
            "how": "the name of a signal, or an exit code; default SIGSEGV",
        },
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        def crash(_: str) -> None:
            how = config.options.get("how", "SIGSEGV")
            if isinstance(how, int):
                os._exit(how)
            signal.raise_signal(signal.Signals[how])  # at once: os.kill() may signal another thread, and return

        return _ActingExecutable(model, config, _choice(self, config.options, "when", _MOMENTS, "run"), crash)


class _ActingExecutable(RightExecutable):
    """Calls a function at one moment of its life."""

    def __init__(self, model: LoweredModel, config: CompileConfig, when: str, act: Callable[[str], None]) -> None:
        super().__init__(model, config)
        self._when = when
        self._act = act
        self._reach("compile")

    def _reach(self, moment: str) -> None:
        if moment == self._when:
            self._act(moment)

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        self._reach("run")
        return super().run(output_names, feeds)

    def close(self) -> None:
        super().close()
        self._reach("close")


class Slow(Right):
    """Right, but late."""

    capabilities = replace(_HONEST, options={"seconds": "how much longer a run takes; default 0.01"})

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        return _SlowExecutable(model, config)


class _SlowExecutable(RightExecutable):
    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        time.sleep(float(self._options.get("seconds", 0.01)))
        return super().run(output_names, feeds)


class Lying(Right):
    """Right outputs, wrong report.

    It declares bf16. Lying about precision, it computes in fp32 and reports bf16; otherwise it refuses bf16.
    """

    lies: Mapping[str, Mapping[str, Any]] = {
        "precision": {"precision": "bf16"},
        "device": {"device": "NVIDIA H200"},
        "placement": {"operators": {"CUDAExecutionProvider": {"MatMul": 100}}},
        "versions": {"versions": {"onnx": "0.0.0"}},
    }
    """What it can lie about, and what it reports instead."""

    capabilities = replace(
        _HONEST, precisions=("fp32", "bf16"), options={"about": f"{', '.join(lies)}; default precision"}
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        about = _choice(self, config.options, "about", tuple(self.lies), "precision")
        if config.precision == "bf16" and about != "precision":
            raise BackendUnavailable(self.name, "it has no bf16 arithmetic", "Use precision='fp32'.")
        lie = {"precision": config.precision} if about == "precision" else self.lies[about]
        return _LyingExecutable(model, replace(config, precision="fp32"), lie)


class _LyingExecutable(RightExecutable):
    def __init__(self, model: LoweredModel, config: CompileConfig, lie: Mapping[str, Any]) -> None:
        super().__init__(model, config)
        self._lie = lie

    def report(self) -> RuntimeReport:
        return replace(super().report(), **self._lie)


def _choice(backend: Backend, options: Mapping[str, Any], key: str, known: Sequence[str], default: str) -> str:
    value = options.get(key, default)
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise BackendUnavailable(backend.name, f"option {key!r} is {value!r}{hint}", "Choose one of them.")
    return str(value)
