"""ONNX Runtime's TensorRT provider, with its CUDA provider for what TensorRT's parser lacks.

A build of ONNX Runtime is made for one major version of TensorRT, and does not load with another: which one it wants is
read from its library, and named where it does not match what is installed. Not run on hardware yet.
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

from isorun.errors import BackendUnavailable
from isorun.plugin.backend import Backend, runtime_errors
from isorun.system.cache import Cache
from isorun.types import Availability, Capabilities, CompileConfig, Feeds, Finding, LoweredModel, RuntimeReport
from isorun_backends.cuda_driver import driver
from isorun_backends.onnxruntime.cuda import GPU_OPTIONS, gpu, libraries, on_stream, placement, text_options
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.pinned import Pinned
from isorun_backends.onnxruntime.cuda.session import CudaExecutable, Device
from isorun_backends.onnxruntime.session import OPTIONS, open_session, operators, options, versions
from isorun_backends.output_shapes import sizes_of
from isorun_backends.tensorrt import engines, profiles

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER, _OTHER = "TensorrtExecutionProvider", "CUDAExecutionProvider"
_WANTED = re.compile(rb"libnvinfer\.so\.(\d+)")
_KIND = "ort-engines"
_DISTRIBUTIONS = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-libs", "tensorrt-cu12-libs")
_TF32 = "NVIDIA_TF32_OVERRIDE"


class OrtTensorRT(Backend):
    """TensorRT through ONNX Runtime, in fp16, or in fp32 where the environment turns TF32 off."""

    capabilities = Capabilities(
        dialects=("primitive", "onnx"),  # its parser is TensorRT's of any 10.x; Attention came with 10.14
        precisions=("fp16", "fp32"),
        typed=("fp16",),
        devices=("cuda",),
        options={
            **OPTIONS,
            **GPU_OPTIONS,
            "shapes": "one range of shapes to build for, such as ['1..8x1..128..512']; default 1..8..32 x 1..128..512",
        },
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        package="onnxruntime",
        requirement="onnxruntime-gpu",
        reports=("placement",),
        device_arrays=True,
    )

    def availability(self) -> Availability:
        here = libraries.availability("tensorrt", super().availability())
        if here.ok and (mismatch := _mismatch()):
            reason, command = mismatch
            return Availability(False, reason, f"In an environment of its own: {command}")
        if here.ok and installed() is None:  # it may be the system's
            try:
                _check_library(self.name)
            except BackendUnavailable as error:
                return Availability(False, error.reason, error.remedy)
        return here

    def diagnose(self) -> list[Finding]:
        if installed() is None:  # nobody asked for it
            return []
        if mismatch := _mismatch():
            what, command = mismatch
            why = "its provider looks for the library of that version by name, and does not load"
            return [Finding(f"the backend {self.name}", "error", what, why, command)]
        _preload()
        return libraries.diagnose(self.name, "tensorrt")

    def compile(self, model: LoweredModel, config: CompileConfig) -> CudaExecutable:
        given = config.options
        if config.precision == "fp32" and os.environ.get(_TF32) != "0":
            raise BackendUnavailable(
                self.name,
                "TensorRT's products in fp32 are TF32's, with 10 bits, and ONNX Runtime has no option against it",
                f"Set {_TF32}=0 before the process starts, or ask for precision='fp16', or for the backend tensorrt.",
            )
        ranges = profiles.declared(self.name, model.info, given.get("shapes"))
        if len(ranges) > 1:
            raise BackendUnavailable(
                self.name, f"it takes one range of shapes, and {len(ranges)} came", "Give one, or take tensorrt."
            )
        device = gpu(self.name, given)
        provider = {
            **self._provider(model, config, ranges[0], device),
            **text_options(self.name, given),
        }
        other = {"device_id": str(device.number), "use_tf32": "0"}
        said = libraries.preload()
        _preload()
        _check_library(self.name)
        with runtime_errors(f"{self.name} cannot read {model.path}"):
            shapes = placement.shape_nodes(_graph(model.path))

        def open_form(_: str, on: int | None) -> onnxruntime.InferenceSession:
            wishes = [(_PROVIDER, {**provider, **on_stream(on)}), (_OTHER, {**other, **on_stream(on)})]
            session = open_session(self.name, model, options(self.name, config), wishes)
            for each, part in ((_PROVIDER, "tensorrt"), (_OTHER, "cuda")):
                if each not in session.get_providers():
                    raise libraries.not_loaded(self.name, part, said)
            with runtime_errors(f"{self.name} does not say where its nodes run"):
                placed = placement.assigned(session)
            if not any(place == _PROVIDER for place, _, _ in placed):
                raise BackendUnavailable(
                    self.name, "TensorRT took no node of this model", "Take ort-cuda, or look at ONNX Runtime's log."
                )
            if not given.get("allow_cpu_nodes", False):
                placement.refuse_others(self.name, _PROVIDER, placement.on_cpu(placed, shapes).others)
            return session

        describe = partial(_describe, self.name, config.precision, device.number, ranges[0])
        masks, pinned = Masks(None, "plain"), Pinned(device.number)
        return OrtTensorRTExecutable(
            ranges[0], self.name, open_form, model.info, device, masks, describe, pinned=pinned
        )

    def _provider(
        self, model: LoweredModel, config: CompileConfig, profile: profiles.Profile, device: Device
    ) -> dict[str, str]:
        """The provider's options: engines in a folder for this model and shapes alone, where none can be taken for
        another's; shapes from the profile, so that the engine is built when the session is opened."""
        cache = Cache(config.cache_dir)
        card = driver().gpus[device.number]
        made = " ".join(f"{name} {each}" for name, each in versions().items())
        runtime = f"{made} TensorRT {installed() or wanted_major()}"
        place = engines.Place(runtime, card.name, card.compute, driver().cuda)
        engines.own(self.name, cache.root / _KIND)
        folder = cache.root / _KIND / engines.key(model, config.precision, [profile], place)
        folder.mkdir(exist_ok=True, mode=0o700)
        timings = engines.timings(cache, place).parent
        timings.mkdir(parents=True, exist_ok=True)
        by_end = profiles.shapes_for(model.info, profile)
        texts = [
            ",".join(f"{tensor}:{'x'.join(map(str, sizes[end]))}" for tensor, sizes in by_end.items())
            for end in range(3)
        ]
        return {
            "device_id": str(device.number),
            "trt_engine_cache_enable": "True",  # the binding refuses "1", which the CUDA provider's takes
            "trt_engine_cache_path": str(folder),
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": str(timings),
            "trt_fp16_enable": str(config.precision == "fp16"),
            "trt_profile_min_shapes": texts[0],
            "trt_profile_opt_shapes": texts[1],
            "trt_profile_max_shapes": texts[2],
        }


class OrtTensorRTExecutable(CudaExecutable):
    """A model whose runs are held to the shapes that its engine was built for: outside them, ONNX Runtime would build
    another while the run waits."""

    def __init__(self, profile: profiles.Profile, *rest: Any, **more: Any) -> None:
        self._profile = profile
        super().__init__(*rest, **more)

    def form(self, feeds: Feeds) -> str:
        profiles.select([self._profile], sizes_of(self.info, feeds))
        return super().form(feeds)


def _mismatch() -> tuple[str, str] | None:
    """Where TensorRT and ONNX Runtime cannot go together: why, and the command that brings the version wanted."""
    wanted, there = wanted_major(), installed()
    if wanted is None or there is None or there.partition(".")[0] == wanted:
        return None
    reason = f"TensorRT {there} is installed, and this build of ONNX Runtime was made for TensorRT {wanted}"
    return reason, f"pip install 'tensorrt=={wanted}.*'"


def wanted_major() -> str | None:
    """The major version of TensorRT that the installed ONNX Runtime was made for; ``None`` where it has no provider."""
    found = libraries.build()
    if found is None:
        return None
    try:
        content = (found.folder / "libonnxruntime_providers_tensorrt.so").read_bytes()
    except OSError:
        return None
    match = _WANTED.search(content)
    return None if match is None else match[1].decode()


def installed() -> str | None:
    """The version of TensorRT that a distribution brought; ``None`` where none did: it may be the system's."""
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


def _check_library(name: str) -> None:
    """Name TensorRT's own library where it is missing: ONNX Runtime, which opens it first, only asks for it.

    Raises:
        BackendUnavailable: it cannot be loaded.
    """
    wanted = wanted_major()
    if wanted is None:
        return
    library = f"libnvinfer.so.{wanted}"
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        remedy = f"pip install 'tensorrt=={wanted}.*', from NVIDIA's own package index: docs/gpu.md"
        raise BackendUnavailable(name, f"its provider needs {library}: {error}", remedy) from error


def _graph(path: Path) -> Any:
    import onnx

    return onnx.load(path, load_external_data=False).graph


def _describe(
    name: str,
    precision: str,
    number: int,
    profile: profiles.Profile,
    sessions: Mapping[str, onnxruntime.InferenceSession],
    graphs: Mapping[str, Any],
) -> RuntimeReport:
    session = next(iter(sessions.values()))
    card = driver().gpus[number]
    return RuntimeReport(
        device=card.name,
        precision=precision,
        operators=operators(name, session),
        versions={**versions(), "tensorrt": installed() or f"{wanted_major()} (the system's)", "driver": driver().cuda},
        details={"profiles": [str(profile)], "compute_capability": card.compute, **graphs},
    )
