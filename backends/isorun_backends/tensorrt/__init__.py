"""NVIDIA's TensorRT, its own runtime: engines built beforehand, for shapes that are declared.

Run through the official bindings of 10.16 and 11.4 over libraries that are played; not on hardware yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from isorun.errors import BackendUnavailable, did_you_mean
from isorun.plugin.backend import Backend, runtime_errors
from isorun.system.cache import Cache
from isorun.types import Availability, Capabilities, CompileConfig, Finding, LoweredModel, RuntimeReport
from isorun_backends.cuda_driver import driver
from isorun_backends.output_shapes import output_shapes
from isorun_backends.tensorrt import builder, engines, memory, profiles
from isorun_backends.tensorrt.api import Module
from isorun_backends.tensorrt.engine import TensorRTExecutable
from isorun_backends.tensorrt.loaded import Loaded, load

_OLDEST = (10, 14)  # the first whose parser has Attention
_INSTALL = (
    "pip install 'tensorrt>=10.14' pycuda cuda-bindings (TensorRT's libraries come from NVIDIA's own package index: "
    "docs/gpu.md)"
)
_ON_MISS = ("error", "build")
_NUMBERS = {"device_id": 0, "workspace": 0, "optimization_level": 3, "cuda_graphs": 0}


class TensorRT(Backend):
    """TensorRT on an NVIDIA GPU, in fp32 (without TF32) or fp16."""

    capabilities = Capabilities(
        dialects=("onnx", "primitive"),
        precisions=("fp32", "fp16"),
        typed=("fp16",),
        devices=("cuda",),
        options={
            "shapes": "the shapes to build for, a list such as ['1x128', '1..8x1..128..512']; default 1..8..32 x "
            "1..128..512",
            "on_miss": "a shape outside all of them is an error (default), or 'build': an engine is built aside, and "
            "the run is refused until it is there",
            "cuda_graphs": "how many shapes to keep as CUDA graphs, each with a context of its own; default 0, none",
            "device_id": "which GPU; default 0",
            "workspace": "bytes that kernels may use for themselves; default TensorRT's own",
            "optimization_level": "0 to 5: how long a build looks for faster kernels; default 3",
        },
        dynamic_shapes=True,
        thread_safe=True,
        package="tensorrt",
        requirement="tensorrt>=10.14",
        reports=("placement",),
        device_arrays=True,
    )

    def availability(self) -> Availability:
        here = super().availability()
        if not here.ok:
            return Availability(False, here.reason, f"Install it: {_INSTALL}")
        if lacking := self._lacking():
            reason, command = lacking
            return Availability(False, reason, f"Install it: {command}")
        if trouble := driver().trouble:
            return Availability(False, trouble, "This backend needs an NVIDIA GPU and its driver.")
        return Availability(True)

    def diagnose(self) -> list[Finding]:
        lacking = self._lacking()
        if lacking is None:
            return []
        what, command = lacking
        return [Finding(f"the backend {self.name}", "error", what, "TensorRT is installed, and not used", command)]

    def _lacking(self) -> tuple[str, str] | None:
        """What has to be installed beside TensorRT, or in its place, and the command for it."""
        version = self.version()
        numbers = tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])
        if numbers and numbers < _OLDEST:
            return f"TensorRT {version} is too old: its parser has no Attention", "pip install 'tensorrt>=10.14'"
        if memory.available() is None:
            return "neither pycuda nor cuda-bindings is installed", "pip install pycuda"
        return None

    def compile(self, model: LoweredModel, config: CompileConfig) -> TensorRTExecutable:
        given = config.options
        numbers = {key: _number(self.name, given, key, default) for key, default in _NUMBERS.items()}
        on_miss = given.get("on_miss", "error")
        if on_miss not in _ON_MISS:
            raise BackendUnavailable(
                self.name, f"it has no on_miss {on_miss!r}{did_you_mean(str(on_miss), _ON_MISS)}", "Choose one of them."
            )
        wanted = profiles.declared(self.name, model.info, given.get("shapes"))
        output_shapes(model.info, {symbol: most for symbol, (_, _, most) in wanted[0].sizes.items()})  # or it raises
        gpus, number = driver().gpus, numbers["device_id"]
        if number >= len(gpus):
            raise BackendUnavailable(self.name, f"there is no GPU {number}", f"The driver sees {len(gpus)}.")
        trt = _import(self.name)
        held = memory.open_memory(self.name, number)
        place = engines.Place(trt.__version__, gpus[number].name, gpus[number].compute, driver().cuda)
        make = partial(_engine, self.name, trt, model, config, numbers, place)
        with runtime_errors(f"{self.name} cannot build an engine"), held.current():
            first = make(wanted)
        found = {"precision": config.precision, "place": place}
        return TensorRTExecutable(
            self.name,
            trt,
            model.info,
            first,
            held,
            number,
            make if on_miss == "build" else None,
            partial(_describe, found),
            graphs=numbers["cuda_graphs"],
        )


def _engine(
    name: str,
    trt: Module,
    model: LoweredModel,
    config: CompileConfig,
    numbers: Mapping[str, int],
    place: engines.Place,
    wanted: Sequence[profiles.Profile],
) -> Loaded:
    """An engine for profiles: from the cache, or built."""
    cache = Cache(config.cache_dir)
    settings = {key: numbers[key] for key in ("workspace", "optimization_level")}
    identity = engines.key(model, config.precision, wanted, place, **settings)
    timings = engines.timings(cache, place)
    content, entry = engines.load_or_build(
        name,
        cache,
        identity,
        lambda: builder.build(name, trt, model, wanted, timings, settings),
        {"profiles": [str(each) for each in wanted], **vars(place)},
    )
    return load(name, trt, content, entry.folder, model.info, wanted)


def _describe(found: Mapping[str, Any], layers: Mapping[str, int], details: Mapping[str, Any]) -> RuntimeReport:
    place: engines.Place = found["place"]
    return RuntimeReport(
        device=place.gpu,
        precision=found["precision"],
        operators={"TensorRT": layers},
        versions={"tensorrt": place.runtime, "cuda driver": place.driver},
        details={**details, "compute_capability": place.compute},
    )


def _import(name: str) -> Module:
    try:
        import tensorrt
    except ImportError as error:
        raise BackendUnavailable(name, f"TensorRT does not load: {error}", _INSTALL) from error
    return cast(Module, tensorrt)


def _number(name: str, given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BackendUnavailable(name, f"{key} is {value!r}", "Give a whole number, 0 or more.")
    return value
