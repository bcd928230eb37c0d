"""Opening an ONNX Runtime session: its options, its providers, and what its errors mean."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.plugin import (
    Availability,
    BackendUnavailable,
    InvalidModel,
    InvalidOption,
    IsorunError,
    LoweredModel,
    Option,
    UnsupportedModel,
    import_runtime,
    runtime_errors,
    usable_cores,
)
from isorun_backends.common_types import check_types
from isorun_backends.onnxruntime import builds

if TYPE_CHECKING:
    import onnxruntime

_LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "layout": "ORT_ENABLE_LAYOUT",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "disable": "ORT_DISABLE_ALL",
}
SESSION_CONFIG = "session_config"
OPTIONS = {
    "graph_optimization_level": Option(
        "how far ONNX Runtime rewrites the graph", "str", choices=tuple(_LEVELS), default="all"
    ),
    "inter_op_threads": Option(
        "threads that run independent nodes in parallel", "int", default=1, minimum=1, maximum=1024
    ),
    "deterministic": Option("use only kernels whose results are the same in every run", "bool", default=False),
    "custom_ops": Option("paths of libraries with custom operators to register", "list", default=()),
    SESSION_CONFIG: Option(
        "ONNX Runtime's session configuration entries, such as session.disable_prepacking", "mapping", default={}
    ),
    "profile_prefix": Option("path prefix of ONNX Runtime's own profile, with the time of every node", "path"),
}
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
SILENT = 4  # fatal messages only: everything else is also raised
_STOP_SPINNING = "session.force_spinning_stop"
_ACTIVATIONS = "session.qdq_matmulnbits_accuracy_level"
_DEFAULTS = {
    RECORD_ASSIGNMENT: "1",
    # Threads that spin after a run slow down whatever runs next, other sessions above all.
    _STOP_SPINNING: "1",
    # 1 is fp32. By default, 4, activations are rounded to 8 bits where QDQ has weights of 4 bits.
    _ACTIVATIONS: "1",
}
_NO_KERNEL = r"Could not find an implementation for (\S+?)\("
_NO_SCHEMA = r"(\S+?)\(-?\d*\) is not a registered function/op"


def session_options(name: str, options: Mapping[str, Any], threads: int | None) -> onnxruntime.SessionOptions:
    """ONNX Runtime's session options.

    Args:
        threads: threads of one run; ``None`` for all usable cores.

    Raises:
        BackendFailed: a library of custom operators cannot be registered.
        InvalidOption: a library is missing, or an entry is no text or too long; or a profile cannot be written, of
            which ONNX Runtime would write none without an error.
    """
    onnxruntime = import_runtime("onnxruntime")
    ort_options = onnxruntime.SessionOptions()
    ort_options.intra_op_num_threads = threads or usable_cores()
    ort_options.inter_op_num_threads = options["inter_op_threads"]
    if options["inter_op_threads"] > 1:
        ort_options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    ort_options.use_deterministic_compute = options["deterministic"]
    ort_options.log_severity_level = SILENT
    level = _LEVELS[options["graph_optimization_level"]]
    ort_options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    for key, value in {**_DEFAULTS, **as_text(name, SESSION_CONFIG, options[SESSION_CONFIG])}.items():
        try:
            ort_options.add_session_config_entry(key, value)
        except RuntimeError as error:
            message = f"option {SESSION_CONFIG!r} has an invalid entry {key[:80]!r}: {error}"
            raise InvalidOption(name, SESSION_CONFIG, message) from error
    if options["profile_prefix"] is not None:
        folder = Path(options["profile_prefix"]).absolute().parent
        if not os.access(folder, os.W_OK):
            raise InvalidOption(name, "profile_prefix", f"option 'profile_prefix': {folder} is not a writable folder")
        ort_options.enable_profiling = True
        ort_options.profile_file_prefix = str(options["profile_prefix"])
    for path in options["custom_ops"]:
        if not isinstance(path, str | os.PathLike) or not Path(path).is_file():
            raise InvalidOption(name, "custom_ops", f"option 'custom_ops': there is no file {path!s}")
        with runtime_errors(f"Cannot register the custom operators of {path}"):
            ort_options.register_custom_ops_library(os.fspath(path))
    return ort_options


def checked(check: Callable[[], object]) -> Availability:
    """The availability by a check: not available if it raises ``BackendUnavailable``."""
    try:
        check()
    except BackendUnavailable as error:
        return Availability(ok=False, reason=error.reason, remedy=error.remedy)
    return Availability(ok=True)


def as_text(name: str, option: str, entries: Mapping[Any, Any]) -> dict[str, str]:
    """Entries as ONNX Runtime accepts them. Those of a session are 0 or 1 where they are flags, which it ignores in any
    other form; of providers, True or False.

    Args:
        entries: texts, numbers and flags by their names.

    Raises:
        InvalidOption: an entry is something else.
    """
    for key, value in entries.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float) or value != value:
            expected = "texts, numbers, true or false, by names"
            raise InvalidOption(name, option, f"option {option!r} must have {expected}, got {key!r}: {value!r}")
    flags = option == SESSION_CONFIG
    return {key: str(int(value) if flags and isinstance(value, bool) else value) for key, value in entries.items()}


def open_session(
    name: str,
    model: LoweredModel,
    options: onnxruntime.SessionOptions,
    providers: Sequence[Any],
    *,
    disabled_optimizers: Sequence[str] = (),
    content: bytes | None = None,
) -> onnxruntime.InferenceSession:
    """Load a model on the given providers and no others.

    Args:
        disabled_optimizers: ONNX Runtime's names of graph optimizers to leave out.
        content: a serialized model to load instead of the model's file.

    Raises:
        InvalidModel: ONNX Runtime rejects the graph.
        UnsupportedModel: ONNX Runtime has no kernel for some operator, or NumPy lacks the type of an input or output.
        BackendFailed: any other error of ONNX Runtime.
    """
    check_types(name, model.info)
    # From the module that defines it: `isorun.compat.install()` replaces the name in `onnxruntime`.
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    # A plan of the memory is kept for every shape that was run: 10 MiB for MiniLM's batches, and no faster.
    options.enable_mem_pattern = all(
        spec.shape is not None and all(isinstance(size, int) for size in spec.shape) for spec in model.info.inputs
    )
    with runtime_errors(f"{name} cannot load {model.path}", partial(_recognize, name, model)):
        # By default ONNX Runtime replaces a provider that fails, now or during a run, and prints a line.
        return InferenceSession(
            content or str(model.path),
            options,
            providers=list(providers),
            disabled_optimizers=list(disabled_optimizers),
            enable_fallback=0,
        )


def versions() -> dict[str, str]:
    """The active distribution of ONNX Runtime (several share one import package), and its version."""
    onnxruntime = import_runtime("onnxruntime")
    build = builds.build()  # no record of it is in releases before 1.16, such as onnxruntime-azure's
    return {(build and build.package) or "onnxruntime": onnxruntime.__version__}


def title() -> str:
    """The active distribution of ONNX Runtime and its version, for messages."""
    return " ".join(next(iter(versions().items())))


def require_placement(name: str, remedy: str = "Use a build of ONNX Runtime 1.24 or newer.") -> None:
    """Raise ``BackendUnavailable`` for a build older than 1.24, which cannot report which provider runs which node."""
    import_runtime("onnxruntime")
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    if not hasattr(InferenceSession, "get_provider_graph_assignment_info"):
        reason = f"{title()} cannot report which provider runs which node, so that nodes on the CPU would go unnoticed"
        raise BackendUnavailable(name, reason, remedy)


def _recognize(name: str, model: LoweredModel, error: Exception) -> IsorunError | None:
    """The specific meaning of an error in loading a model, if it has one."""
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    missing = re.findall(_NO_KERNEL, str(error)) or re.findall(_NO_SCHEMA, str(error))
    missing = [operator.replace(":", ".").removeprefix("ai.onnx.") for operator in missing]
    if isinstance(error, errors.NotImplemented) or missing:
        return UnsupportedModel(f"{name} does not support an operator of {model.path}: {error}", missing)
    if isinstance(error, errors.InvalidGraph | errors.InvalidProtobuf):
        return InvalidModel(f"ONNX Runtime rejects {model.path}: {error}")
    return None
