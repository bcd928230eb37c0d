"""ONNX Runtime's CUDA provider.

Where its library does not load, ONNX Runtime logs a line and runs on the CPU: here that is an error which names
the library that is missing. What has been seen: that error, and everything that does not need a GPU. The provider
itself has not been run on hardware yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from isorun.errors import BackendUnavailable, did_you_mean
from isorun.plugin.backend import Backend, runtime_errors
from isorun.types import Availability, Capabilities, CompileConfig, Finding, LoweredModel, RuntimeReport
from isorun_backends import cuda_driver
from isorun_backends.cuda_driver import driver
from isorun_backends.onnxruntime.cuda import attention, libraries, placement
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.pinned import Pinned
from isorun_backends.onnxruntime.cuda.session import CudaExecutable, Device
from isorun_backends.onnxruntime.session import OPTIONS, open_session, operators, options, versions

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "CUDAExecutionProvider"
_STREAM = "user_compute_stream"
_NEED_CUDNN = frozenset((("com.microsoft", "Attention"), ("com.microsoft", "MultiHeadAttention")))
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
GPU_OPTIONS = {
    "device_id": "which GPU; default 0",
    "allow_cpu_nodes": "true lets ONNX Runtime run on the CPU what its provider does not take; default false",
    "provider_options": "a mapping of the provider's own options, such as gpu_mem_limit or user_compute_stream",
}


class OrtCuda(Backend):
    """ONNX Runtime on an NVIDIA GPU, in fp32 (without TF32) or, where the graph is written in it, fp16."""

    capabilities = Capabilities(
        dialects=("fused",),
        precisions=("fp32", "fp16"),
        typed=("fp16",),
        devices=("cuda",),
        options={
            **OPTIONS,
            **GPU_OPTIONS,
            "attention": "the form in which masks reach the kernels: auto (default: what each mask allows), lengths, "
            "bias or plain; where padding is removed, packed or plain",
            "cuda_graphs": "how many shapes to keep as CUDA graphs; default 0, none",
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
        return libraries.availability("cuda", super().availability())

    def diagnose(self) -> list[Finding]:
        return libraries.diagnose(self.name, "cuda")

    def compile(self, model: LoweredModel, config: CompileConfig) -> CudaExecutable:
        given = config.options
        wanted = given.get("attention", "auto")
        choices = ("auto", *attention.FORMS)
        if wanted not in choices:
            raise BackendUnavailable(
                self.name, f"it has no attention {wanted!r}{did_you_mean(str(wanted), choices)}", "Leave it out."
            )
        graphs = whole_number(self.name, given, "cuda_graphs")
        device = gpu(self.name, given)
        with runtime_errors(f"{self.name} cannot read {model.path}"):
            forms = attention.forms(model.path)
        if wanted != "auto" and wanted not in forms.models:
            raise BackendUnavailable(
                self.name, f"this model has no attention {wanted!r}: {forms.why}", "Leave the option out."
            )
        masks = Masks(forms.mask, wanted, forms.packing, forms.recordable)
        if graphs and masks.first() not in forms.recordable:
            raise BackendUnavailable(
                self.name,
                "no CUDA graph can hold this model's attention: "
                + (forms.why if "packed" not in forms.models else f"{wanted!r} waits for numbers from the GPU"),
                "Leave cuda_graphs out, or ask for padding='keep'.",
            )
        provider = {
            "device_id": str(device.number),
            "use_tf32": "0",  # by default fp32 products would have 10 bits
            **text_options(self.name, given),
        }
        stream = cuda_driver.Stream(device.number) if graphs and _STREAM not in provider else None
        if stream is not None:
            provider.update(on_stream(stream.handle))  # its own would be out of reach of the events that time runs
        said = libraries.preload()
        graphs_of = {form: _graph(content) for form, content in forms.models.items()}
        shapes = frozenset().union(*map(placement.shape_nodes, graphs_of.values()))

        def open_form(form: str, on: int | None) -> onnxruntime.InferenceSession:
            made = options(self.name, config)
            made.add_session_config_entry(_WEIGHTS_FOLDER, str(model.path.parent))
            record = {"enable_cuda_graph": "1"} if graphs and form in forms.recordable else {}
            wishes = [(_PROVIDER, {**record, **provider, **on_stream(on)})]
            session = open_session(self.name, model, made, wishes, content=forms.models[form])
            if _PROVIDER not in session.get_providers():
                raise libraries.not_loaded(self.name, "cuda", said)
            if any((node.domain, node.op_type) in _NEED_CUDNN for node in graphs_of[form].node):
                libraries.require_cudnn(self.name)
            if not given.get("allow_cpu_nodes", False):
                with runtime_errors(f"{self.name} does not say where its nodes run"):
                    found = placement.on_cpu(placement.assigned(session), shapes)
                placement.refuse_others(self.name, _PROVIDER, found.others)
            return session

        describe = partial(_describe, self.name, config.precision, device.number, forms, shapes)
        pinned = Pinned(device.number)
        return CudaExecutable(self.name, open_form, model.info, device, masks, describe, graphs, stream, pinned)


def _describe(
    name: str,
    precision: str,
    number: int,
    forms: attention.Forms,
    shapes: frozenset[str],
    sessions: Mapping[str, onnxruntime.InferenceSession],
    graphs: Mapping[str, Any],
) -> RuntimeReport:
    found = {form: placement.on_cpu(placement.assigned(session), shapes) for form, session in sessions.items()}
    return RuntimeReport(
        device=driver().gpus[number].name,
        precision=precision,
        operators=operators(name, next(iter(sessions.values()))),
        versions={**versions(), "cuda driver": driver().cuda},
        details={
            "attention": {"forms": list(sessions), "mask": forms.mask, "why_plain": "" if forms.mask else forms.why},
            "cpu_nodes": {form: {"shapes": each.shapes, "others": each.others} for form, each in found.items()},
            "compute_capability": driver().gpus[number].compute,
            **graphs,
        },
    )


def _graph(content: bytes) -> Any:
    import onnx

    return onnx.load_model_from_string(content).graph


def gpu(name: str, given: Mapping[str, Any]) -> Device:
    """The GPU that the option ``device_id`` names.

    Raises:
        BackendUnavailable: there is none of that number.
    """
    number, there = whole_number(name, given, "device_id"), driver().gpus
    if number >= len(there):
        raise BackendUnavailable(
            name, f"there is no GPU {number}: the driver sees {len(there)}", "device_id counts from 0."
        )
    return Device("cuda", number)


def whole_number(name: str, given: Mapping[str, Any], key: str) -> int:
    """An option that is 0 or more.

    Raises:
        BackendUnavailable: it is something else.
    """
    value = given.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BackendUnavailable(name, f"{key} is {value!r}", "Give a whole number, 0 or more.")
    return value


def on_stream(handle: int | None) -> dict[str, str]:
    """The option of both providers that has them run on a stream of the caller's; nothing for one of their own."""
    return {} if handle is None else {_STREAM: str(handle)}


def text_options(name: str, given: Mapping[str, Any]) -> dict[str, str]:
    """``provider_options`` as ONNX Runtime takes them: ``True`` and ``False`` of both providers, numbers of one alone.

    Raises:
        BackendUnavailable: it is no mapping.
    """
    options = given.get("provider_options", {})
    if not isinstance(options, Mapping):
        raise BackendUnavailable(name, f"provider_options is {options!r}", "Give a mapping of names to values.")
    return {str(key): str(value) for key, value in options.items()}
