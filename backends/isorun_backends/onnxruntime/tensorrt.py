"""The backend ``ort-tensorrt``: ONNX Runtime's TensorRT provider, with its CUDA provider for unsupported operators.

A build of ONNX Runtime supports one major version of TensorRT and does not load with another: the version is read from
its library, and reported if another one is installed. Not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.plugin import (
    Availability,
    Backend,
    BackendUnavailable,
    Cache,
    Capabilities,
    CompileConfig,
    Feeds,
    Finding,
    InvalidOption,
    LoweredModel,
    Option,
    RuntimeReport,
    runtime_errors,
)
from isorun_backends.nvidia import engine_cache, gpu, shape_profiles
from isorun_backends.nvidia.cuda_driver import Gpu
from isorun_backends.nvidia.output_shapes import sizes_of
from isorun_backends.nvidia.pinned import Pinned
from isorun_backends.onnxruntime import placement
from isorun_backends.onnxruntime.cuda import libraries
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.backend import GPU_OPTIONS, gpu_report, on_stream
from isorun_backends.onnxruntime.cuda.executable import CudaExecutable, Device
from isorun_backends.onnxruntime.session import OPTIONS, as_text, checked, open_session, session_options, versions

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER, _FALLBACK = "TensorrtExecutionProvider", "CUDAExecutionProvider"
_NEEDED = re.compile(rb"libnvinfer\.so\.(\d+)")
_KIND = "ort-engines"
_DISTRIBUTIONS = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-libs", "tensorrt-cu12-libs")
_TF32 = "NVIDIA_TF32_OVERRIDE"


class OrtTensorRT(Backend):
    """TensorRT through ONNX Runtime, in fp16, or in fp32 if the environment disables TF32."""

    contract = 2
    capabilities = Capabilities(
        priority=20,
        dialects=("primitive", "onnx"),  # any TensorRT 10.x may be installed; its parser supports Attention from 10.14
        precisions=("fp16", "fp32"),
        typed=("fp16",),
        devices=("cuda",),
        options={
            **OPTIONS,
            **GPU_OPTIONS,
            "shapes": Option(
                "one range of shapes to build for, such as ['1..8x1..128..512']; if omitted, 1..8..32 x 1..128..512",
                "list",
            ),
        },
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        package="onnxruntime",
        requirement="onnxruntime-gpu",
        reports=("placement",),
        device_arrays=True,
    )

    def installed(self) -> Availability:
        availability = libraries.installed("tensorrt", super().installed())
        if availability.ok and (mismatch := _mismatch()):
            reason, command = mismatch
            return Availability(False, reason, f"In a separate environment: {command}")
        return availability

    def probe(self) -> Availability:
        availability = gpu.availability()
        if availability.ok and installed() is None:  # the system may have it
            library = checked(lambda: _require_library(self.name))
            return availability if library.ok else library
        return availability

    def diagnose(self) -> list[Finding]:
        if installed() is None:  # not wanted
            return []
        if mismatch := _mismatch():
            what, command = mismatch
            why = "the provider looks for the library of that version by name, and does not load"
            return [Finding(f"the backend {self.name}", "error", what, why, command)]
        _preload()
        return libraries.diagnose(self.name, "tensorrt")

    def compile(self, model: LoweredModel, config: CompileConfig) -> CudaExecutable:
        import onnx

        options = self.read_options(config.options)
        if config.precision == "fp32" and os.environ.get(_TF32) != "0":
            raise BackendUnavailable(
                self.name,
                "TensorRT computes fp32 products in TF32 (a mantissa of 10 bits), and ONNX Runtime cannot disable it",
                f"Set {_TF32}=0 before the process starts, or use precision='fp16' or the backend tensorrt.",
            )
        profiles = shape_profiles.declared(self.name, model.info, options["shapes"])
        if len(profiles) > 1:
            raise InvalidOption(self.name, "shapes", f"option 'shapes' must have one range, got {len(profiles)}")
        index, profile = options["device_id"], profiles[0]
        provider = {
            **self._provider_options(model, config, profile, gpu.select(self.name, index)),
            "device_id": str(index),
            **as_text(options["provider_options"]),
        }
        fallback = {"device_id": str(index), "use_tf32": "0"}
        preloaded = libraries.preload()
        _preload()
        _require_library(self.name)
        with runtime_errors(f"{self.name} cannot read {model.path}"):
            shapes = placement.shape_nodes(onnx.load(model.path, load_external_data=False).graph)

        def open_form(_: str, handle: int | None) -> onnxruntime.InferenceSession:
            stream = on_stream(handle)
            providers = [(_PROVIDER, {**provider, **stream}), (_FALLBACK, {**fallback, **stream})]
            session = open_session(self.name, model, session_options(options, config.threads), providers)
            libraries.require_providers(self.name, session, {_PROVIDER: "tensorrt", _FALLBACK: "cuda"}, preloaded)
            placement.require(
                self.name,
                _PROVIDER,
                placement.assigned(self.name, session),
                model.path,
                allow_cpu_nodes=options["allow_cpu_nodes"],
                shapes=shapes,
                also=(_FALLBACK,),
            )
            return session

        describe = partial(_describe, self.name, config.precision, index, profile)
        masks, pinned = Masks(None, "plain"), Pinned(index)
        device = Device("cuda", index)
        return OrtTensorRTExecutable(profile, self.name, open_form, model.info, device, masks, describe, pinned=pinned)

    def _provider_options(
        self, model: LoweredModel, config: CompileConfig, profile: shape_profiles.Profile, card: Gpu
    ) -> dict[str, str]:
        """The provider's options.

        Engines have a folder for this model and these shapes alone, so that none is used for another model. The shapes
        come from the profile, so that the engine is built when the session is opened.
        """
        cache = Cache(config.cache_dir)
        runtime = " ".join(f"{name} {number}" for name, number in versions().items())
        target = engine_cache.Target.of(f"{runtime} TensorRT {installed() or needed_major()}", card)
        engine_cache.private_folder(self.name, cache.root / _KIND)
        folder = cache.root / _KIND / engine_cache.key(model, config.precision, [profile], target)
        folder.mkdir(exist_ok=True, mode=0o700)
        timings = target.timings(cache).parent
        timings.mkdir(parents=True, exist_ok=True)
        shapes = shape_profiles.shapes_for(model.info, profile)
        minimum, optimum, maximum = (
            ",".join(f"{tensor}:{'x'.join(map(str, sizes[end]))}" for tensor, sizes in shapes.items())
            for end in range(3)
        )
        return {
            "trt_engine_cache_enable": "True",  # the binding rejects "1", which the CUDA provider accepts
            "trt_engine_cache_path": str(folder),
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": str(timings),
            "trt_fp16_enable": str(config.precision == "fp16"),
            "trt_profile_min_shapes": minimum,
            "trt_profile_opt_shapes": optimum,
            "trt_profile_max_shapes": maximum,
        }


class OrtTensorRTExecutable(CudaExecutable):
    """A model limited to the shapes of its engine: outside them, ONNX Runtime would build another one during a run."""

    def __init__(self, profile: shape_profiles.Profile, *arguments: Any, **keywords: Any) -> None:
        self._profile = profile
        super().__init__(*arguments, **keywords)

    def form(self, feeds: Feeds) -> str:
        shape_profiles.select([self._profile], sizes_of(self.info, feeds))
        return super().form(feeds)


def _mismatch() -> tuple[str, str] | None:
    """Why the installed TensorRT does not fit ONNX Runtime, and the command that installs the right version."""
    needed, present = needed_major(), installed()
    if needed is None or present is None or present.partition(".")[0] == needed:
        return None
    reason = f"TensorRT {present} is installed, and this build of ONNX Runtime needs TensorRT {needed}"
    return reason, f"pip install 'tensorrt=={needed}.*'"


def needed_major() -> str | None:
    """The major version of TensorRT that ONNX Runtime needs; ``None`` if it has no TensorRT provider."""
    active = libraries.build()
    if active is None:
        return None
    try:
        content = (active.folder / "libonnxruntime_providers_tensorrt.so").read_bytes()
    except OSError:
        return None
    match = _NEEDED.search(content)
    return None if match is None else match[1].decode()


def installed() -> str | None:
    """The version of the TensorRT distribution; ``None`` if there is none: the system may have it."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _preload() -> None:
    """Load TensorRT's libraries from their wheel, where the linker does not look."""
    spec = importlib.util.find_spec("tensorrt_libs")
    if spec is None or spec.origin is None:
        return
    for stem in ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser"):
        for path in sorted(Path(spec.origin).parent.glob(f"{stem}.so.*")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _require_library(name: str) -> None:
    """Report a missing TensorRT library: ONNX Runtime does not.

    Raises:
        BackendUnavailable: it cannot be loaded.
    """
    needed = needed_major()
    if needed is None:
        return
    library = f"libnvinfer.so.{needed}"
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        remedy = f"Install it from NVIDIA's package index: pip install 'tensorrt=={needed}.*' (docs/gpu.md)."
        raise BackendUnavailable(name, f"its provider needs {library}: {error}", remedy) from error


def _describe(
    name: str,
    precision: str,
    index: int,
    profile: shape_profiles.Profile,
    sessions: Mapping[str, onnxruntime.InferenceSession],
    details: Mapping[str, Any],
) -> RuntimeReport:
    nodes = placement.assigned(name, next(iter(sessions.values())))
    packages = {"tensorrt": installed() or f"{needed_major()} (the system's)"}
    return gpu_report(index, precision, nodes, packages, {"profiles": [str(profile)], **details})
