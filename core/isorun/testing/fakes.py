"""Backends that misbehave, each in a way of its own, for tests of what others make of it.

==================  ==============================================================================================
``fake-echo``       computes nothing: every output is the first feed
``fake-failing``    its runtime raises, ``when`` a model is compiled, run or closed; ``wrapped`` or not
``fake-slow``       right, ``seconds`` late
``fake-lying``      right, and reports another precision, device, placement or version than the true one
``fake-crashing``   ends its process, ``when`` a model is compiled, run or closed
==================  ==============================================================================================

They are in no entry point of isorun's. :func:`installed` puts them where backends are looked for::

    with fakes.installed():
        isorun.Session("model.onnx", "fake-slow", options={"seconds": 0.1})

What they compute, ONNX's reference evaluator computes for them.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

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
"""The fakes' names, and where their classes are."""

_HONEST = Capabilities(
    dialects=("primitive",), dynamic_shapes=True, package="onnx", requirement="onnx", reports=("placement",)
)
_MOMENTS = ("compile", "run", "close")


@contextmanager
def installed(names: Mapping[str, str] = NAMES) -> Iterator[Path]:
    """Have backends found by name, here and in processes that are started, as if their distribution were installed.

    Args:
        names: backend's name to ``module:Class``.

    Yields:
        The folder on ``sys.path`` that holds the distribution, to put modules in.
    """
    with tempfile.TemporaryDirectory(prefix="isorun-fakes-") as folder:
        information = Path(folder) / "isorun_fakes-0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: isorun-fakes\nVersion: 0\n")
        lines = [f"[{registry.GROUP}]", *(f"{name} = {value}" for name, value in names.items())]
        (information / "entry_points.txt").write_text("\n".join([*lines, ""]))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        sys.path.insert(0, folder)
        registry.refresh()
        try:
            yield Path(folder)
        finally:
            sys.path.remove(folder)
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before
            registry.refresh()


class Right(Backend):
    """Right in everything: what the fakes that compute start from."""

    capabilities = _HONEST

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        return RightExecutable(model, config)


class RightExecutable(Executable):
    """A model in ONNX's reference evaluator."""

    def __init__(self, model: LoweredModel, config: CompileConfig) -> None:
        self._right = registry.get("reference").compile(model, replace(config, options={}))
        self._options = config.options

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        return self._right.run(output_names, feeds)

    def report(self) -> RuntimeReport:
        return self._right.report()

    def close(self) -> None:
        self._right.close()


class Echo(Backend):
    """Computes nothing: every output is the first feed."""

    capabilities = Capabilities(dialects=("primitive",), dynamic_shapes=True)

    def compile(self, model: LoweredModel, _: CompileConfig) -> Executable:
        return _Echo([spec.name for spec in model.info.outputs])


class _Echo(Executable):
    def __init__(self, outputs: Sequence[str]) -> None:
        self._outputs = outputs

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        first = next(iter(feeds.values()))
        return [np.array(first) for _ in output_names or self._outputs]

    def report(self) -> RuntimeReport:
        return RuntimeReport(device="an echo", precision="fp32", operators={}, versions={})


class Failing(Backend):
    """Its runtime raises ``RuntimeError``, at the moment and in the way that its options say."""

    capabilities = replace(
        _HONEST,
        options={
            "when": "compile, run (default) or close",
            "wrapped": "whether the error comes as isorun's own, with its cause: true by default",
        },
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        when = _choice(self, config.options, "when", _MOMENTS, "run")
        executable = _Failing(model, config, when)
        executable.fail_at("compile")
        return executable


class _Failing(RightExecutable):
    def __init__(self, model: LoweredModel, config: CompileConfig, when: str) -> None:
        super().__init__(model, config)
        self._when = when

    def fail_at(self, moment: str) -> None:
        if moment == self._when:
            with runtime_errors("the fake fails") if self._options.get("wrapped", True) else nullcontext():
                raise RuntimeError(f"it was told to fail at {moment}")

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        self.fail_at("run")
        return super().run(output_names, feeds)

    def close(self) -> None:
        super().close()
        self.fail_at("close")


class Slow(Right):
    """Right, and late."""

    capabilities = replace(_HONEST, options={"seconds": "how much longer a run takes: 0.01 by default"})

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        return _Slow(model, config)


class _Slow(RightExecutable):
    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        time.sleep(float(self._options.get("seconds", 0.01)))
        return super().run(output_names, feeds)


class Lying(Right):
    """Right in its answers, and wrong in what it says of them.

    It declares bf16. Lying about precision, it computes in fp32 and reports bf16; otherwise it refuses bf16.
    """

    lies: Mapping[str, Mapping[str, Any]] = {
        "precision": {"precision": "bf16"},
        "device": {"device": "NVIDIA H200"},
        "placement": {"operators": {"CUDAExecutionProvider": {"MatMul": 100}}},
        "versions": {"versions": {"onnx": "0.0.0"}},
    }
    """What it can lie about, and what it reports then."""

    capabilities = replace(
        _HONEST, precisions=("fp32", "bf16"), options={"about": f"{', '.join(lies)}: precision by default"}
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        about = _choice(self, config.options, "about", tuple(self.lies), "precision")
        if config.precision == "bf16" and about != "precision":
            raise BackendUnavailable(self.name, "it has no bf16 arithmetic", "Ask for precision='fp32'.")
        lie = self.lies[about]
        if about == "precision":
            lie = {"precision": config.precision}
        return _Lying(model, replace(config, precision="fp32"), lie)


class _Lying(RightExecutable):
    def __init__(self, model: LoweredModel, config: CompileConfig, lie: Mapping[str, Any]) -> None:
        super().__init__(model, config)
        self._lie = lie

    def report(self) -> RuntimeReport:
        return replace(super().report(), **self._lie)


class Crashing(Backend):
    """Ends its process."""

    capabilities = replace(
        _HONEST,
        options={
            "when": "compile, run (default) or close",
            "how": "a signal's name, SIGSEGV by default, or an exit code",
        },
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        when = _choice(self, config.options, "when", _MOMENTS, "run")
        executable = _Crashing(model, config, when)
        executable.crash_at("compile")
        return executable


class _Crashing(RightExecutable):
    def __init__(self, model: LoweredModel, config: CompileConfig, when: str) -> None:
        super().__init__(model, config)
        self._when = when

    def crash_at(self, moment: str) -> None:
        if moment != self._when:
            return
        how = self._options.get("how", "SIGSEGV")
        if isinstance(how, int):
            os._exit(how)
        os.kill(os.getpid(), signal.Signals[how])

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        self.crash_at("run")
        return super().run(output_names, feeds)

    def close(self) -> None:
        super().close()
        self.crash_at("close")


def _choice(backend: Backend, options: Mapping[str, Any], key: str, known: Sequence[str], default: str) -> str:
    chosen = options.get(key, default)
    if chosen not in known:
        raise BackendUnavailable(
            backend.name, f"it has no {key} {chosen!r}{did_you_mean(str(chosen), known)}", "Choose one of them."
        )
    return str(chosen)
