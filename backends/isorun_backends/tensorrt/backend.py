"""The backend ``tensorrt``: engines built in advance, for declared shapes.

Written for TensorRT 10.16 and 11.4; not run on a GPU yet (docs/gpu.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from isorun.plugin import (
    Availability,
    Backend,
    BackendUnavailable,
    Cache,
    Capabilities,
    CompileConfig,
    Finding,
    LoweredModel,
    Option,
    RuntimeReport,
    runtime_errors,
)
from isorun_backends.common_types import check_types
from isorun_backends.nvidia import device_memory, engine_cache, gpu
from isorun_backends.nvidia.engine_cache import Target
from isorun_backends.nvidia.graph_precision import graph_precision
from isorun_backends.nvidia.output_shapes import output_shapes
from isorun_backends.nvidia.shape_profiles import Profile, declared
from isorun_backends.tensorrt import builder, cuda_graph
from isorun_backends.tensorrt.engine import Engine, load
from isorun_backends.tensorrt.executable import TensorRTExecutable

_MINIMUM = (10, 14)  # the first version whose parser supports Attention
_INSTALL = "pip install 'tensorrt>=10.14' (its libraries are on NVIDIA's package index: docs/gpu.md)"


class TensorRT(Backend):
    """TensorRT on an NVIDIA GPU, in fp32 (without TF32) or fp16."""

    contract = 2
    capabilities = Capabilities(
        priority=25,
        dialects=("onnx", "primitive"),
        precisions=("fp32", "fp16"),
        typed=("fp16",),
        devices=("cuda",),
        options={
            "shapes": Option(
                "shapes to build engines for, such as ['1x128', '1..8x1..128..512']; "
                "if omitted, 1..8..32 x 1..128..512",
                "list",
            ),
            "on_miss": Option(
                "for a shape outside all of them: reject the run, or also build an engine for it in the background",
                "str",
                choices=("error", "build"),
                default="error",
            ),
            "contexts": Option(
                "how many runs of a profile may be in flight, each with buffers of its own; further runs wait",
                "int",
                default=2,
                minimum=1,
            ),
            "cuda_graphs": gpu.CUDA_GRAPHS,
            "device_id": gpu.DEVICE_ID,
            "workspace": Option("bytes of scratch memory for kernels; 0 for TensorRT's limit", "int", (), 0, 0),
            "optimization_level": Option("how long a build searches for faster kernels", "int", (), 3, 0, 5),
        },
        dynamic_shapes=True,
        thread_safe=True,
        usable_after_failure=True,  # a context whose run failed is not used again
        package="tensorrt",
        requirement="tensorrt>=10.14",
        reports=("placement",),
        device_arrays=True,
    )

    def installed(self) -> Availability:
        package = super().installed()
        if not package.ok:
            return Availability(False, package.reason, f"Install it: {_INSTALL}")
        if problem := self._installation_problem():
            return Availability(False, *problem)
        return package

    def probe(self) -> Availability:
        return gpu.availability()

    def diagnose(self) -> list[Finding]:
        problem = self._installation_problem()
        if problem is None:
            return []
        reason, remedy = problem
        return [
            Finding(f"the backend {self.name}", "error", reason, "TensorRT is installed but cannot be used", remedy)
        ]

    def _installation_problem(self) -> tuple[str, str] | None:
        """What is wrong with the installed packages, and the remedy."""
        version = self.version()
        numbers = tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])
        if numbers and numbers < _MINIMUM:
            return f"TensorRT {version} is too old: its parser does not support Attention", f"Install it: {_INSTALL}"
        if not device_memory.is_installed():
            return "the package 'pycuda' is not installed", device_memory.INSTALL
        return None

    def compile(self, model: LoweredModel, config: CompileConfig) -> TensorRTExecutable:
        check_types(self.name, model.info)
        options = self.read_options(config.options)
        profiles = declared(self.name, model.info, options["shapes"])
        output_shapes(model.info, profiles[0].maxima())  # raises for shapes that do not follow from the inputs
        index = options["device_id"]
        card = gpu.select(self.name, index)
        if options["cuda_graphs"]:
            cuda_graph.require(self.name)
        trt = _import(self.name)
        with runtime_errors(f"{self.name} cannot read {model.path}"):
            precision = _precision(model)
        memory = device_memory.open_memory(self.name, index)
        target = Target.of(trt.__version__, card)
        make_engine = partial(_engine, self.name, trt, model, config, options, target)
        with runtime_errors(f"{self.name} cannot build an engine"), memory.current():
            engine = make_engine(profiles)
        return TensorRTExecutable(
            self.name,
            trt,
            model.info,
            engine,
            memory,
            index,
            make_engine if options["on_miss"] == "build" else None,
            partial(_report, precision, target),
            contexts=options["contexts"],
            graphs=options["cuda_graphs"],
        )


def _engine(
    name: str,
    trt: Any,
    model: LoweredModel,
    config: CompileConfig,
    options: Mapping[str, Any],
    target: Target,
    profiles: Sequence[Profile],
) -> Engine:
    """An engine for these profiles, from the cache or newly built."""
    cache = Cache(config.cache_dir)
    settings = {key: options[key] for key in ("workspace", "optimization_level")}
    content, entry = engine_cache.load_or_build(
        cache,
        engine_cache.key(model, config.precision, profiles, target, **settings),
        lambda: builder.build(name, trt, model, profiles, target.timings(cache), settings),
        {"profiles": [str(profile) for profile in profiles], **vars(target)},
        model.fingerprint,
    )
    return load(name, trt, content, entry.folder, model.info, profiles)


def _report(precision: str, target: Target, layers: Mapping[str, int], details: Mapping[str, Any]) -> RuntimeReport:
    return RuntimeReport(
        device=target.gpu,
        precision=precision,
        operators={"TensorRT": layers},
        versions={"tensorrt": target.runtime, "cuda driver": target.driver},
        details={**details, "compute_capability": target.compute},
    )


def _precision(model: LoweredModel) -> str:
    import onnx

    return graph_precision(onnx.load(model.path, load_external_data=False).graph)


def _import(name: str) -> Any:
    try:
        import tensorrt
    except ImportError as error:
        raise BackendUnavailable(
            name, f"the package 'tensorrt' does not import: {error}", f"Install it: {_INSTALL}"
        ) from error
    return tensorrt
