"""Build a serialized engine from an ONNX file. Networks are strongly typed: the graph decides the precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from isorun.plugin import (
    BackendFailed,
    BackendUnavailable,
    InvalidOption,
    LoweredModel,
    UnsupportedModel,
    write_atomically,
)
from isorun_backends.nvidia.shape_profiles import Profile, Range, shapes_for
from isorun_backends.tensorrt.log import Log, logger

_SHOWN = 8  # parser errors in one exception
_T = TypeVar("_T")


def build(
    name: str, trt: Any, model: LoweredModel, profiles: Sequence[Profile], timings: Path, settings: Mapping[str, int]
) -> bytes:
    """Build an engine. Takes minutes, and is never called while a run waits.

    Args:
        timings: the file of kernel timings, read before the build and written after it.
        settings: ``workspace`` in bytes (0: TensorRT's default), ``optimization_level`` from 0 to 5.

    Raises:
        UnsupportedModel: the parser does not support some operator.
        BackendUnavailable: TensorRT does not start on this machine.
        InvalidOption: TensorRT rejects a profile.
        BackendFailed: the build fails; the message has TensorRT's log.
    """
    log = Log()
    builder = start(name, lambda: trt.Builder(logger(trt)))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger(trt))
    if not parser.parse_from_file(str(model.path)):
        raise _refusal(name, model, parser, log) from log.error()
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)  # otherwise fp32 products have a mantissa of 10 bits
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # for the report of layers
    config.builder_optimization_level = settings["optimization_level"]
    if settings["workspace"]:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings["workspace"])
    _load_timings(name, config, timings, log)
    for profile in profiles:
        _add_profile(name, builder, config, profile, shapes_for(model.info, profile), log)
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise BackendFailed(f"{name} cannot build an engine of {model.path}: {log}") from log.error()
    timings.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(timings, bytes(memoryview(config.get_timing_cache().serialize())))
    return bytes(memoryview(serialized))


def start(name: str, create: Callable[[], _T]) -> _T:
    """Create a builder or a runtime, which initializes CUDA. Raises ``BackendUnavailable`` if CUDA does not start,
    where the bindings raise a ``TypeError`` without a reason."""
    log = Log()
    try:
        return create()
    except TypeError as error:
        raise BackendUnavailable(
            name,
            f"TensorRT does not start: {log}",
            "Check with nvidia-smi that the driver supports the CUDA version of this TensorRT.",
        ) from error


def _load_timings(name: str, config: Any, timings: Path, log: Log) -> None:
    """Use the timings of an earlier build. A file that TensorRT rejects is ignored; the build replaces it."""
    kept = timings.read_bytes() if timings.is_file() else b""
    for content in (kept, b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return
    raise BackendFailed(f"{name} cannot create a timing cache: {log}") from log.error()


def _add_profile(
    name: str, builder: Any, config: Any, declared: Profile, shapes: Mapping[str, Range], log: Log
) -> None:
    if not shapes:
        return
    profile = builder.create_optimization_profile()
    for tensor, (minimum, optimum, maximum) in shapes.items():
        profile.set_shape(tensor, minimum, optimum, maximum)
    if config.add_optimization_profile(profile) < 0:
        raise InvalidOption(name, "shapes", f"TensorRT rejects the profile {declared}: {log}") from log.error()


def _refusal(name: str, model: LoweredModel, parser: Any, log: Log) -> UnsupportedModel:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    operators = dict.fromkeys(error.node_operator() for error in errors)
    messages = "; ".join(f"{error.node_operator()} {error.node_name()}: {error.desc()}" for error in errors[:_SHOWN])
    return UnsupportedModel(f"{name} cannot read {model.path}: {messages or log}", list(operators))
