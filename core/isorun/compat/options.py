"""ONNX Runtime's ``SessionOptions`` and ``RunOptions``, and what they mean for isorun."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

from onnxruntime import GraphOptimizationLevel
from onnxruntime.capi import _pybind_state as raw

from isorun.errors import InvalidArgument, InvalidType, did_you_mean

_logger = logging.getLogger("isorun")

_LEVELS = {
    GraphOptimizationLevel.ORT_DISABLE_ALL: "disable",
    GraphOptimizationLevel.ORT_ENABLE_BASIC: "basic",
    GraphOptimizationLevel.ORT_ENABLE_EXTENDED: "extended",
    GraphOptimizationLevel.ORT_ENABLE_LAYOUT: "layout",
}
_INSTEAD = "Use onnxruntime's own class for this session, outside isorun.compat.install()"
# What has an effect on results or files that isorun cannot reproduce: the attribute or method, and the remedy.
_REFUSED = {
    "optimized_model_filepath": f"isorun writes no optimized model. {_INSTEAD}, or use `isorun fuse`",
    "add_initializer": f"isorun reads a model's weights from its file. {_INSTEAD}",
    "add_external_initializers": f"isorun reads a model's weights from its file. {_INSTEAD}",
    "add_external_initializers_from_files_in_memory": f"isorun reads a model's weights from its file. {_INSTEAD}",
    "add_provider": "Pass providers= to the session",
    "add_provider_for_devices": "Pass backend='ort-ep:NAME' to the session; `isorun backends` lists the names",
    "set_provider_selection_policy_delegate": "Pass providers= or backend= to the session",
}
_REFUSED_RUN = {
    "add_active_adapter": f"isorun does not support adapters. {_INSTEAD}",
    "terminate": "The run was not started; a run in progress cannot be terminated",
}
_REFUSED_ENTRY = "session.model_external_initializers_file_folder_path"
# What has an effect here, and what only reads.
_USED = (
    *("execution_mode", "inter_op_num_threads", "intra_op_num_threads", "graph_optimization_level"),
    *("enable_profiling", "profile_file_prefix", "use_deterministic_compute"),
    *("add_session_config_entry", "register_custom_ops_library", "set_provider_selection_policy"),
)
# The kinds of devices that a policy stands for, in order of preference. ONNX Runtime 1.31 implements no others.
_CPUS, _GPUS, _NPUS = ("cpu",), ("cuda", "gpu", "cpu"), ("npu", "cpu")
_POLICIES = {
    **{"DEFAULT": _CPUS, "PREFER_CPU": _CPUS, "PREFER_GPU": _GPUS, "MAX_PERFORMANCE": _GPUS},
    **{"PREFER_NPU": _NPUS, "MAX_EFFICIENCY": _NPUS, "MIN_OVERALL_POWER": _NPUS},
}
_READERS = ("get_run_config_entry", "get_session_config_entry", "has_providers")
# What decides speed, memory or messages of ONNX Runtime only.
_IGNORED = (
    *("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_order", "use_per_session_threads"),
    *("log_severity_level", "log_verbosity_level", "logid"),
)
_IGNORED_METHODS = (
    *("add_free_dimension_override_by_denotation", "add_free_dimension_override_by_name"),
    *("clear_ep_context_data_read_func", "set_ep_context_data_read_func", "set_load_cancellation_flag"),
)
_IGNORED_RUN = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches")
_IGNORED_RUN_METHODS = ("add_run_config_entry",)


def members(options: type) -> list[str]:
    """The attributes and methods of ONNX Runtime's options."""
    return [name for name in dir(options) if not name.startswith("_")]


class _Recording:
    """Options that remember what their methods were called with: it cannot be read back from ONNX Runtime.

    As with ONNX Runtime's, an attribute that they do not have cannot be set; subclasses may add some.

    Attributes:
        calls: the name and the arguments of each call, in order.
    """

    __slots__ = ()
    calls: list[tuple[str, tuple[Any, ...]]]

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def __init_subclass__(cls, records: type | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in members(records) if records else ():
            if callable(original := getattr(cls, name)) and name not in _READERS:
                setattr(cls, name, _recorded(original))

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError:
            if hasattr(type(self), name):  # read-only
                raise
            known = [known for known in members(type(self)) if known != "calls"]
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}{did_you_mean(name, known)}"
            ) from None


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def method(self: _Recording, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        self.calls.append((original.__name__, (*arguments, *keywords.values())))
        return result

    return method


class SessionOptions(
    _Recording,
    raw.SessionOptions,  # type: ignore[misc]  # untyped
    records=raw.SessionOptions,
):
    """``onnxruntime.SessionOptions`` that remembers the calls of its methods."""

    __slots__ = ("calls",)


class RunOptions(_Recording, raw.RunOptions, records=raw.RunOptions):  # type: ignore[misc]  # untyped
    """``onnxruntime.RunOptions`` that remembers the calls of its methods."""

    __slots__ = ("calls",)


@dataclass
class Translated:
    """Session options in isorun's terms.

    Attributes:
        threads: the threads of a run; ``None`` for isorun's default.
        options: options of the ONNX Runtime backends.
        ignored: names of options without a meaning here.
        devices: the kinds of devices that a selection policy prefers, in order; empty without one.
    """

    threads: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    devices: tuple[str, ...] = ()


def translate(sess_options: Any) -> Translated:
    """Session options in isorun's terms.

    Args:
        sess_options: ``onnxruntime.SessionOptions``; ``None`` for the defaults. What methods have set on them is known
            only if they are this module's.

    Raises:
        InvalidArgument: an option that changes results or writes files cannot be honoured.
        InvalidType: they are something else.
    """
    if sess_options is None:
        return Translated()
    if not isinstance(sess_options, raw.SessionOptions):
        raise InvalidType(f"sess_options must be an onnxruntime.SessionOptions, got {type(sess_options).__name__}")
    calls = getattr(sess_options, "calls", None)
    if calls is None and sess_options.has_providers():
        _refuse("add_provider")
    translated = Translated(threads=sess_options.intra_op_num_threads or None)
    parallel = sess_options.execution_mode == raw.ExecutionMode.ORT_PARALLEL
    if parallel and sess_options.inter_op_num_threads > 1:
        translated.options["inter_op_threads"] = sess_options.inter_op_num_threads
    elif parallel or sess_options.inter_op_num_threads > 1:
        translated.ignored.append("execution_mode" if parallel else "inter_op_num_threads")
    if sess_options.graph_optimization_level in _LEVELS:
        translated.options["graph_optimization_level"] = _LEVELS[sess_options.graph_optimization_level]
    if sess_options.enable_profiling:
        translated.options["profile_prefix"] = sess_options.profile_file_prefix
    if sess_options.use_deterministic_compute:
        translated.options["deterministic"] = True
    changed = _changed(sess_options, raw.SessionOptions)
    translated.ignored += [name for name in changed if name in _IGNORED]
    for name in changed:
        if name not in (*_USED, *_IGNORED):
            _refuse(name)
    for name, arguments in calls or ():
        if name == "add_session_config_entry":
            if arguments[0] == _REFUSED_ENTRY:
                _refuse(_REFUSED_ENTRY, f"isorun reads a model's weights from its folder. {_INSTEAD}")
            translated.options.setdefault("session_config", {})[arguments[0]] = arguments[1]
        elif name == "register_custom_ops_library":
            translated.options.setdefault("custom_ops", []).append(arguments[0])
        elif name == "set_provider_selection_policy":
            policy = arguments[0].name
            if policy not in _POLICIES:
                _refuse(f"the selection policy {policy}")
            translated.devices = _POLICIES[policy]
        elif name in _IGNORED_METHODS:
            translated.ignored.append(name)
        else:
            _refuse(name)
    return translated


def check_run_options(run_options: Any) -> None:
    """Accept run options that do not change results, and ``None``.

    Raises:
        InvalidArgument: they have an adapter, terminate the run, or have an unknown option.
        InvalidType: they are something else.
    """
    if run_options is None:
        return
    if not isinstance(run_options, raw.RunOptions):
        raise InvalidType(f"run_options must be an onnxruntime.RunOptions, got {type(run_options).__name__}")
    called = [name for name, _ in getattr(run_options, "calls", ())]
    for name in (*_changed(run_options, raw.RunOptions), *called):
        if name not in (*_IGNORED_RUN, *_IGNORED_RUN_METHODS):
            _refuse(name)


def _changed(options: Any, kind: type) -> list[str]:
    """The attributes that differ from their defaults."""
    return [name for name, default in _defaults(kind) if getattr(options, name) != default]


@cache
def _defaults(kind: type) -> list[tuple[str, Any]]:
    default = kind()
    values = [(name, getattr(default, name)) for name in members(kind)]
    return [(name, value) for name, value in values if not callable(value)]


def _refuse(name: str, why: str = "") -> None:
    """Reject an option by name; one of a newer ONNX Runtime may change results."""
    why = why or (_REFUSED | _REFUSED_RUN).get(name, f"Its effect on results is unknown. {_INSTEAD}")
    raise InvalidArgument(f"isorun.compat does not support {name}. {why}")
