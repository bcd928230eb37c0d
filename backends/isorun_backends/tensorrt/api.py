"""The parts of TensorRT's Python API that isorun uses, as protocols: 10.14 and later, and 11.

The type checker holds this package to the protocols; ``tests/backends/test_tensorrt_bindings.py`` makes every call
through the official bindings, without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Network(Protocol):
    """``INetworkDefinition``: filled by the parser."""


class OptimizationProfile(Protocol):
    """``IOptimizationProfile``."""

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None: ...


class HostMemory(Protocol):
    """``IHostMemory``: bytes, through the buffer protocol."""

    @property
    def nbytes(self) -> int: ...


class TimingCache(Protocol):
    """``ITimingCache``."""

    def serialize(self) -> HostMemory: ...


class BuilderConfig(Protocol):
    """``IBuilderConfig``."""

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None: ...
    def clear_flag(self, flag: Any) -> None: ...
    def add_optimization_profile(self, profile: OptimizationProfile) -> int: ...
    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache | None: ...
    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool: ...
    def get_timing_cache(self) -> TimingCache: ...

    builder_optimization_level: int
    profiling_verbosity: Any


class Builder(Protocol):
    """``Builder``."""

    def create_network(self, flags: int) -> Network: ...
    def create_builder_config(self) -> BuilderConfig: ...
    def create_optimization_profile(self) -> OptimizationProfile: ...
    def build_serialized_network(self, network: Network, config: BuilderConfig) -> HostMemory | None: ...


class ParserError(Protocol):
    """``ParserError``."""

    def desc(self) -> str: ...
    def node_name(self) -> str: ...
    def node_operator(self) -> str: ...


class Parser(Protocol):
    """``OnnxParser``."""

    @property
    def num_errors(self) -> int: ...
    def parse_from_file(self, model: str) -> bool: ...
    def get_error(self, index: int) -> ParserError: ...


class Context(Protocol):
    """``IExecutionContext``. Not thread-safe."""

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool: ...
    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool: ...
    def set_tensor_address(self, name: str, memory: int) -> bool: ...
    def get_tensor_shape(self, name: str) -> Sequence[int]: ...
    def execute_async_v3(self, stream_handle: int) -> bool: ...


class Inspector(Protocol):
    """``EngineInspector``."""

    def get_engine_information(self, format: Any) -> str: ...


class Engine(Protocol):
    """``ICudaEngine``."""

    @property
    def num_io_tensors(self) -> int: ...
    def get_tensor_name(self, index: int) -> str: ...
    def get_tensor_dtype(self, name: str) -> Any: ...
    def create_execution_context(self) -> Context | None: ...
    def create_engine_inspector(self) -> Inspector: ...


class Runtime(Protocol):
    """``Runtime``."""

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None: ...


class Module(Protocol):
    """The module ``tensorrt``: classes, and enumerations by attribute."""

    __version__: str
    Logger: Any
    NetworkDefinitionCreationFlag: Any
    BuilderFlag: Any
    MemoryPoolType: Any
    ProfilingVerbosity: Any
    LayerInformationFormat: Any

    def __hash__(self) -> int: ...
    def Builder(self, logger: Any) -> Builder: ...
    def OnnxParser(self, network: Network, logger: Any) -> Parser: ...
    def Runtime(self, logger: Any) -> Runtime: ...
    def nptype(self, trt_type: Any) -> type[Any]: ...
