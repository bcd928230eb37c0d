"""The backend ``ort-tensorrt``: ONNX Runtime's TensorRT provider, with its CUDA provider for unsupported operators.

A build of ONNX Runtime supports one major version of TensorRT and does not load with another: the version is read from
its library, and reported if another one is installed. Not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
    ModelInfo,
    Option,
    RuntimeReport,
    UnsupportedModel,
    runtime_errors,
)
from isorun_backends.nvidia import engine_cache, gpu, shape_profiles
from isorun_backends.nvidia.cuda_driver import Gpu
from isorun_backends.nvidia.device_memory import open_memory
from isorun_backends.nvidia.graph_precision import graph_precision
from isorun_backends.nvidia.inner_shapes import SEPARATORS, inner_shapes, rename_inner_tensors
from isorun_backends.nvidia.output_shapes import sizes_of
from isorun_backends.onnxruntime import builds, placement
from isorun_backends.onnxruntime.cuda import libraries
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.backend import GPU_OPTIONS, further_options, gpu_report, on_stream
from isorun_backends.onnxruntime.cuda.executable import CudaExecutable, Device
from isorun_backends.onnxruntime.session import (
    OPTIONS,
    WEIGHTS_FOLDER,
    checked,
    open_session,
    session_options,
    versions,
)

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_PROVIDER, _FALLBACK = "TensorrtExecutionProvider", "CUDAExecutionProvider"
_NEEDED = re.compile(rb"libnvinfer\.so\.(\d+)")
_KIND = "ort-engines"
_DISTRIBUTIONS = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-libs", "tensorrt-cu12-libs")
_TF32 = "NVIDIA_TF32_OVERRIDE"
_ON = ("1", "True")
_T = TypeVar("_T")


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
        faults="isorun_backends.onnxruntime.faults:OPTIMIZERS",
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
        libraries.preload()
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
        index, profile, more = options["device_id"], profiles[0], further_options(self.name, options)
        card = gpu.select(self.name, index)
        libraries.preload()
        _preload()
        _require_library(self.name)
        with runtime_errors(f"{self.name} cannot read {model.path}"):
            loaded = onnx.load(model.path, load_external_data=False)
            rename_inner_tensors(loaded)
            content = loaded.SerializeToString()
            shapes, precision = placement.shape_nodes(loaded.graph), graph_precision(loaded.graph)
            provider = {**provider_options(loaded, model.info, config.precision, profile), "device_id": str(index)}
        fallback = {"device_id": str(index), "use_tf32": "0"}

        def session_in(folder: Path, handle: int | None) -> onnxruntime.InferenceSession:
            """A session with its engines in a folder: those there, or new ones."""
            stream = on_stream(handle)
            own = {**provider, "trt_engine_cache_path": str(folder), **more, **stream}
            providers = [(_PROVIDER, own), (_FALLBACK, {**fallback, **stream})]
            ort_options = session_options(self.name, options, config.threads)
            ort_options.add_session_config_entry(WEIGHTS_FOLDER, str(model.path.parent))
            session = open_session(self.name, model, ort_options, providers, content=content)
            libraries.require_providers(self.name, session, {_PROVIDER: "tensorrt", _FALLBACK: "cuda"})
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

        cache, key = Cache(config.cache_dir), self._key(model, config, options, profile, card)

        def open_form(_: str, handle: int | None) -> onnxruntime.InferenceSession:
            return with_engines(cache, key, model.fingerprint, lambda folder: session_in(folder, handle))

        describe = partial(_describe, self.name, precision, index, profile)
        device, masks = Device("cuda", index), Masks(None, "plain")
        memory = functools.cache(partial(open_memory, self.name, index))
        return OrtTensorRTExecutable(profile, self.name, open_form, model.info, device, masks, describe, memory)

    def _key(
        self,
        model: LoweredModel,
        config: CompileConfig,
        options: Mapping[str, Any],
        profile: shape_profiles.Profile,
        card: Gpu,
    ) -> str:
        """The key of the engines: ONNX Runtime's own names for them are the same for other weights and shapes."""
        runtime = " ".join(f"{name} {number}" for name, number in versions().items())
        target = engine_cache.Target.of(f"{runtime} TensorRT {installed() or needed_major()}", card)
        settings = {name: repr(value) for name, value in options.items() if name not in ("device_id", "shapes")}
        return engine_cache.key(model, config.precision, [profile], target, **settings)


def provider_options(
    model: onnx.ModelProto, info: ModelInfo, precision: str, profile: shape_profiles.Profile
) -> dict[str, str]:
    """The provider's options for building engines when the session is opened.

    Kernel timings are not shared between models: ONNX Runtime writes their file without a lock.
    """
    shapes = shape_profiles.shapes_for(info, profile)
    if named := [name for name in shapes if not SEPARATORS.isdisjoint(name)]:
        raise UnsupportedModel(
            f"Input {named[0]!r} has a ':' or ',' in its name, so ONNX Runtime cannot give TensorRT its range of "
            "shapes. Rename it, or use the backend tensorrt"
        )
    shapes |= inner_shapes(model, profile) if shapes else {}
    minimum, optimum, maximum = (
        ",".join(f"{tensor}:{'x'.join(map(str, sizes[end]))}" for tensor, sizes in shapes.items()) for end in range(3)
    )
    return {
        "trt_engine_cache_enable": "True",  # the binding rejects "1", which the CUDA provider accepts
        "trt_fp16_enable": str(precision == "fp16"),
        "trt_profile_min_shapes": minimum,
        "trt_profile_opt_shapes": optimum,
        "trt_profile_max_shapes": maximum,
    }


def with_engines(cache: Cache, key: str, fingerprint: str, open_in: Callable[[Path], _T]) -> _T:
    """What opens engines, from their folder in the cache: ``open_in`` loads them there, or builds them in the one
    process that holds the lock."""
    built: list[_T] = []

    def build(folder: Path) -> dict[str, Any]:
        built.append(open_in(folder))
        return {}

    entry = cache.get_or_make(_KIND, key, build, models=[fingerprint])
    return built[0] if built else open_in(entry.folder)


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
    active = builds.build()
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
    """Raise ``BackendUnavailable`` if TensorRT's library cannot be loaded: ONNX Runtime does not report it."""
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
    session = next(iter(sessions.values()))
    nodes, own = placement.assigned(name, session), session.get_provider_options().get(_PROVIDER, {})
    if own.get("trt_fp16_enable") in _ON:  # TensorRT may then run any product in it
        precision = precision.replace("fp32", "fp16")
    packages = {"tensorrt": installed() or f"{needed_major()} (the system's)"}
    return gpu_report(index, precision, nodes, packages, {"profiles": [str(profile)], **details})
