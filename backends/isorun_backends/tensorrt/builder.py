"""From an ONNX file to a serialized engine, strongly typed: the precision is what the graph is written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from isorun.errors import BackendFailed, BackendUnavailable, UnsupportedModel
from isorun.system.cache import write_atomically
from isorun.types import LoweredModel
from isorun_backends.tensorrt.api import Builder, BuilderConfig, Module, Parser
from isorun_backends.tensorrt.log import Log, logger
from isorun_backends.tensorrt.profiles import Profile, shapes_for

_LAST = 8  # errors of the parser
_T = TypeVar("_T")


def build(
    name: str,
    trt: Module,
    model: LoweredModel,
    profiles: Sequence[Profile],
    timings: Path,
    settings: Mapping[str, int],
) -> bytes:
    """Build an engine. Takes minutes: never called while a run waits.

    Args:
        name: the backend's.
        trt: TensorRT.
        model: what to build it of.
        profiles: the shapes that it is to take.
        timings: the file of kernels' times, read before and written after.
        settings: ``workspace`` in bytes (0: TensorRT's own), ``optimization_level`` 0 to 5.

    Raises:
        UnsupportedModel: the parser has no converter for some operator.
        BackendUnavailable: TensorRT does not start here, or refuses a profile.
        BackendFailed: TensorRT cannot build it, with its own messages.
    """
    log = Log()
    builder = started(name, lambda: trt.Builder(logger(trt)))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger(trt))
    if not parser.parse_from_file(str(model.path)):
        raise _refusal(name, model, parser, log) from log.error()
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)  # otherwise products in fp32 have 10 bits
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # so that an engine can say what it is made of
    config.builder_optimization_level = settings["optimization_level"]
    if settings["workspace"]:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings["workspace"])
    _take_timings(name, config, timings, log)
    for each in profiles:
        _add_profile(name, builder, config, each, shapes_for(model.info, each), log)
    made = builder.build_serialized_network(network, config)
    if made is None:
        raise BackendFailed(f"{name} cannot build an engine of {model.path}: {log}") from log.error()
    timings.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(timings, bytes(memoryview(config.get_timing_cache().serialize())))  # type: ignore[arg-type]
    return bytes(memoryview(made))  # type: ignore[arg-type]


def started(name: str, make: Callable[[], _T]) -> _T:
    """A builder or a runtime: the first thing that TensorRT asks of the GPU.

    Raises:
        BackendUnavailable: it has none to give. The bindings raise TypeError then, which says nothing.
    """
    log = Log()
    try:
        return make()
    except TypeError as error:
        raise BackendUnavailable(
            name,
            f"TensorRT does not start: {log}",
            "Look whether the driver is new enough for the CUDA that this TensorRT was made for (nvidia-smi).",
        ) from error


def _take_timings(name: str, config: BuilderConfig, timings: Path, log: Log) -> None:
    """What an earlier build measured. A file that TensorRT does not take is of no use: a build writes it anew."""
    kept = timings.read_bytes() if timings.is_file() else b""
    for content in (kept, b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return
    raise BackendFailed(f"{name} has no place for the times of kernels: {log}") from log.error()


def _add_profile(
    name: str,
    builder: Builder,
    config: BuilderConfig,
    each: Profile,
    shapes: Mapping[str, tuple[list[int], list[int], list[int]]],
    log: Log,
) -> None:
    if not shapes:
        return
    profile = builder.create_optimization_profile()
    for tensor, (least, best, most) in shapes.items():
        profile.set_shape(tensor, least, best, most)
    if config.add_optimization_profile(profile) < 0:
        raise BackendUnavailable(
            name, f"TensorRT refuses the profile {each}: {log}", "Declare other shapes."
        ) from log.error()


def _refusal(name: str, model: LoweredModel, parser: Parser, log: Log) -> UnsupportedModel:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    operators = dict.fromkeys(error.node_operator() for error in errors)
    said = "; ".join(f"{error.node_operator()} {error.node_name()}: {error.desc()}" for error in errors[:_LAST])
    return UnsupportedModel(f"{name} cannot read {model.path}: {said or log}", list(operators))
