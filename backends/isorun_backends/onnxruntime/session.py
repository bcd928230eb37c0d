"""What every ONNX Runtime provider shares: opening a session strictly, running it, asking what it did."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.errors import BackendFailed, BackendUnavailable, InvalidModel, IsorunError, UnsupportedModel
from isorun.plugin.backend import Binding, Executable, runtime_errors
from isorun.system.threads import usable_cores
from isorun.types import CompileConfig, Feeds, LoweredModel

if TYPE_CHECKING:
    import onnxruntime

OPTIONS = {
    "graph_optimization_level": "all (default), extended, basic or disable: how far ONNX Runtime rewrites the graph",
    "inter_op_threads": "threads that run independent nodes side by side; default 1, one node after another",
    "session_config": "a mapping of ONNX Runtime's session configuration entries, such as session.disable_prepacking",
    "profile_prefix": "a path: ONNX Runtime writes its own profile there, with the time of every node",
}

_LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "disable": "ORT_DISABLE_ALL",
}
RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_STOP_SPINNING = "session.force_spinning_stop"
SILENT = 4  # what is less than fatal is raised as well: on standard error every bad request would be a line
_NO_KERNEL = r"Could not find an implementation for (\S+?)\("
_NO_SCHEMA = r"(\S+?)\(-?\d*\) is not a registered function/op"


def options(name: str, config: CompileConfig) -> onnxruntime.SessionOptions:
    """ONNX Runtime's own options for what a session asks.

    Raises:
        BackendUnavailable: an option has a value that means nothing.
    """
    import onnxruntime

    given = config.options
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = config.threads or usable_cores()
    made.inter_op_num_threads = _number(name, given.get("inter_op_threads", 1))
    made.log_severity_level = SILENT
    level = given.get("graph_optimization_level", "all")
    if not isinstance(level, str) or level not in _LEVELS:
        raise BackendUnavailable(
            name, f"it has no graph_optimization_level {level!r}", f"Choose one of {', '.join(_LEVELS)}."
        )
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[level])
    # Its threads would spin on after a run, in the way of whatever runs next: another session, above all.
    entries = {RECORD_ASSIGNMENT: "1", _STOP_SPINNING: "1", **mapping(name, config, "session_config")}
    for key, value in entries.items():
        made.add_session_config_entry(key, value)
    if "profile_prefix" in given:
        made.enable_profiling = True
        made.profile_file_prefix = str(given["profile_prefix"])
    return made


def mapping(name: str, config: CompileConfig, key: str) -> dict[str, str]:
    """An option that is a mapping, as strings to strings; empty where it is left out.

    Raises:
        BackendUnavailable: it is none.
    """
    given = config.options.get(key, {})
    if not isinstance(given, Mapping):
        raise BackendUnavailable(name, f"its option {key!r} is a {type(given).__name__}", "Give a mapping.")
    return {str(each): str(value) for each, value in given.items()}


def open_session(
    name: str,
    model: LoweredModel,
    made: onnxruntime.SessionOptions,
    providers: Sequence[Any],
    without: Sequence[str] = (),
    content: bytes | None = None,
) -> onnxruntime.InferenceSession:
    """Load a model, and let nothing but the providers named take it.

    Args:
        name: the backend's.
        model: what to load.
        made: ONNX Runtime's options.
        providers: its execution providers.
        without: rewritings of its own that it leaves out, by ONNX Runtime's names.
        content: what to load in the place of the model's file, serialized.

    Raises:
        InvalidModel: ONNX Runtime finds the graph wrong.
        UnsupportedModel: it has no kernel for some operator.
        BackendFailed: anything else that it says.
    """
    import onnxruntime

    with runtime_errors(f"{name} cannot load {model.path}", partial(_recognise, name, model)):
        # Without enable_fallback=0 a provider that fails, here or at run time, is replaced by another, with a line on
        # standard output.
        return onnxruntime.InferenceSession(
            content or str(model.path),
            made,
            providers=list(providers),
            disabled_optimizers=list(without),
            enable_fallback=0,
        )


def executed(
    name: str,
    model: LoweredModel,
    made: onnxruntime.SessionOptions,
    providers: Sequence[Any],
    without: Sequence[str] = (),
) -> dict[str, dict[str, int]]:
    """Provider to operators and how many nodes of each it runs, after all of ONNX Runtime's rewritings.

    What it says of a session that is open (:meth:`OrtExecutable.operators`) is from before the last of them, which turn
    quantized operators into integer ones. So the model is loaded once more and written as it was rewritten; what the
    file holds is the answer.

    Args:
        name, model, providers, without: as for :func:`open_session`.
        made: options of its own; they are changed.
    """
    with tempfile.TemporaryDirectory(prefix="isorun-") as folder:
        path = Path(folder) / "rewritten.onnx"
        made.enable_profiling = False
        made.optimized_model_filepath = str(path)
        made.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        open_session(name, model, made, providers, without)
        as_it_is = options(name, CompileConfig(threads=1, options={"graph_optimization_level": "disable"}))
        rewritten = open_session(name, replace(model, path=path), as_it_is, providers)
        return operators(name, rewritten)


def operators(name: str, session: onnxruntime.InferenceSession) -> dict[str, dict[str, int]]:
    """Provider to operators and how many nodes of each it took, as ONNX Runtime assigned them."""
    placed: dict[str, Counter[str]] = {}
    with runtime_errors(f"{name} does not say where its nodes run"):
        for part in session.get_provider_graph_assignment_info():
            counts = placed.setdefault(part.ep_name, Counter())
            counts.update(_operator(node.domain, node.op_type) for node in part.get_nodes())
    return {provider: dict(counts.most_common()) for provider, counts in placed.items()}


def _recognise(name: str, model: LoweredModel, error: Exception) -> IsorunError | None:
    """What an error in loading a model means, where ONNX Runtime says it plainly."""
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    missing = re.findall(_NO_KERNEL, str(error)) or re.findall(_NO_SCHEMA, str(error))
    missing = [operator.replace(":", ".").removeprefix("ai.onnx.") for operator in missing]
    if isinstance(error, errors.NotImplemented) or missing:
        return UnsupportedModel(f"{name} lacks an operator of {model.path}: {error}", missing)
    if isinstance(error, errors.InvalidGraph | errors.InvalidProtobuf):
        return InvalidModel(f"ONNX Runtime finds {model.path} wrong: {error}")
    return None


class OrtExecutable(Executable):
    """A loaded model. ONNX Runtime's sessions may be run from many threads at once.

    Args:
        name: the backend's.
        session: ONNX Runtime's, with its assignment of nodes recorded.
    """

    def __init__(self, name: str, session: onnxruntime.InferenceSession) -> None:
        self._name = name
        self._session = session
        self._run = session.run

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        try:
            results: list[Any] = self._run(output_names, feeds)
        except Exception as error:
            raise BackendFailed(f"{self._name} failed while running: {error}") from error
        return results

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        if any(array.dtype.kind in "OU" for array in feeds.values()):
            return super().bind(feeds, outputs)  # ONNX Runtime binds no strings
        with runtime_errors(f"{self._name} cannot bind"):
            return _OrtBinding(self._name, self._session, feeds, outputs)

    def operators(self) -> dict[str, dict[str, int]]:
        """Provider to operators and how many nodes of each it took, as ONNX Runtime assigned them."""
        return operators(self._name, self._session)

    def close(self) -> None:
        # A run in flight on another thread holds the session; the last one to let go of it frees it.
        del self._session, self._run


class _OrtBinding(Binding):
    """ONNX Runtime's own binding: inputs are read in place, results written to the memory given."""

    def __init__(
        self,
        name: str,
        session: onnxruntime.InferenceSession,
        feeds: Feeds,
        outputs: Mapping[str, np.ndarray | None],
    ) -> None:
        import onnxruntime

        self._name = name
        self._session = session
        self._given = list(outputs.values())
        self._new = [key for key, given in outputs.items() if given is None]
        self._feeds = {key: np.ascontiguousarray(array) for key, array in feeds.items()}
        self._copied = [(feeds[key], held) for key, held in self._feeds.items() if held is not feeds[key]]
        self._binding = session.io_binding()
        for key, array in self._feeds.items():
            self._binding.bind_ortvalue_input(key, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for key, given in outputs.items():
            if given is None:
                self._binding.bind_output(key)
            else:
                self._binding.bind_output(key, "cpu", 0, given.dtype, given.shape, given.ctypes.data)

    def run(self) -> list[Any]:
        for source, held in self._copied:
            np.copyto(held, source)
        with runtime_errors(f"{self._name} failed while running"):
            for key in self._new:  # otherwise ONNX Runtime writes over what the last run gave
                self._binding.bind_output(key)
            self._session.run_with_iobinding(self._binding)
            values = self._binding.get_outputs()
            return [value.numpy() if given is None else given for value, given in zip(values, self._given, strict=True)]


def versions() -> dict[str, str]:
    """The distribution of ONNX Runtime that is in use (three of them share one import package), and its version."""
    import onnxruntime
    from onnxruntime.capi import build_and_package_info

    return {build_and_package_info.package_name: onnxruntime.__version__}


def _operator(domain: str, name: str) -> str:
    return f"{domain}.{name}" if domain not in ("", "ai.onnx") else name


def _number(name: str, value: object) -> int:
    if isinstance(value, int) and value > 0:
        return value
    raise BackendUnavailable(name, f"inter_op_threads is {value!r}", "Give a whole number above 0.")
