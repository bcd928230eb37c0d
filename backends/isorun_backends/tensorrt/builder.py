"""From an ONNX file to a serialized engine, strongly typed: the precision is what the graph is written in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isorun.cache import write_atomically
from isorun.errors import BackendFailed, BackendUnavailable, UnsupportedModel
from isorun.types import LoweredModel
from isorun_backends.tensorrt.api import Module, Parser
from isorun_backends.tensorrt.profiles import Profile, shapes_for

_LAST = 8  # messages


class Log:
    """TensorRT's log: errors and warnings are kept for the error that follows, and nothing is printed.

    Attributes:
        sink: what TensorRT takes as its logger.
    """

    def __init__(self, trt: Any) -> None:
        self.messages: deque[str] = deque(maxlen=_LAST)
        kept = self.messages
        worth = {trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR, trt.ILogger.Severity.WARNING}

        class Sink(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                if severity in worth:
                    kept.append(msg)

        self.sink = Sink()

    def __str__(self) -> str:
        return "; ".join(self.messages) or "TensorRT gives no reason"


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
        BackendFailed: TensorRT cannot build it, with its own messages.
    """
    log = Log(trt)
    builder = trt.Builder(log.sink)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log.sink)
    if not parser.parse_from_file(str(model.path)):
        raise _refusal(name, model, parser)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)  # otherwise products in fp32 have 10 bits
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # so that an engine can say what it is made of
    config.builder_optimization_level = settings["optimization_level"]
    if settings["workspace"]:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings["workspace"])
    cache = config.create_timing_cache(timings.read_bytes() if timings.is_file() else b"")
    config.set_timing_cache(cache, False)
    for each in profiles:
        shapes = shapes_for(model.info, each)
        if shapes:
            profile = builder.create_optimization_profile()
            for tensor, (least, best, most) in shapes.items():
                profile.set_shape(tensor, least, best, most)
            if config.add_optimization_profile(profile) < 0:
                raise BackendUnavailable(name, f"TensorRT refuses the profile {each}: {log}", "Declare other shapes.")
    made = builder.build_serialized_network(network, config)
    if made is None:
        raise BackendFailed(f"{name} cannot build an engine of {model.path}: {log}")
    timings.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(timings, bytes(memoryview(config.get_timing_cache().serialize())))  # type: ignore[arg-type]
    return bytes(memoryview(made))  # type: ignore[arg-type]


def _refusal(name: str, model: LoweredModel, parser: Parser) -> UnsupportedModel:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    operators = dict.fromkeys(error.node_operator() for error in errors)
    said = "; ".join(f"{error.node_operator()} {error.node_name()}: {error.desc()}" for error in errors[:_LAST])
    return UnsupportedModel(f"{name} cannot read {model.path}: {said or 'the parser gives no reason'}", list(operators))
