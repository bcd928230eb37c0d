"""The backend ``ort-cuda``: ONNX Runtime's CUDA provider.

If the provider's library does not load, ONNX Runtime logs a line and runs on the CPU; here that is an error with the
missing library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from isorun.plugin import (
    Availability,
    Backend,
    BackendFailed,
    BackendUnavailable,
    Capabilities,
    CompileConfig,
    Finding,
    InvalidOption,
    LoweredModel,
    Option,
    RuntimeReport,
    UnsupportedModel,
    runtime_errors,
)
from isorun_backends.nvidia import cuda_driver, gpu, recording
from isorun_backends.nvidia.device_memory import open_memory
from isorun_backends.nvidia.graph_precision import graph_precision
from isorun_backends.nvidia.output_shapes import require_known_shapes
from isorun_backends.onnxruntime import placement
from isorun_backends.onnxruntime.cuda import attention, libraries
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.executable import CudaExecutable, Device
from isorun_backends.onnxruntime.session import (
    OPTIONS,
    WEIGHTS_FOLDER,
    as_text,
    open_session,
    session_options,
    versions,
)

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "CUDAExecutionProvider"
_STREAM = "user_compute_stream"
_PREFERS_CUDNN = 9.0
"""The compute capability from which ONNX Runtime prefers cuDNN's attention."""
_WITHOUT_CUDNN = str(1 | 2 | 4 | 16 | 32 | 64)
"""ONNX Runtime's flags of attention kernels: all that it uses by default, but cuDNN's (8)."""
_NO_CAPTURE = "cannot use the graph capture feature"  # in ONNX Runtime's message
_NEED_CUDNN = frozenset((("com.microsoft", "Attention"), ("com.microsoft", "MultiHeadAttention")))
GPU_OPTIONS = {
    "device_id": gpu.DEVICE_ID,
    "allow_cpu_nodes": placement.ALLOW_CPU_NODES,
    "provider_options": Option(
        "the provider's own options, such as gpu_mem_limit or user_compute_stream", "mapping", default={}
    ),
}


class OrtCuda(Backend):
    """ONNX Runtime on an NVIDIA GPU, in fp32 (without TF32) or, for graphs in fp16, fp16."""

    contract = 2
    capabilities = Capabilities(
        priority=30,
        dialects=("fused",),
        precisions=("fp32", "fp16"),
        typed=("fp16",),
        devices=("cuda",),
        options={
            **OPTIONS,
            **GPU_OPTIONS,
            "attention": Option(
                "the form in which masks reach the kernels; auto uses the fastest form that each mask allows",
                "str",
                choices=("auto", *attention.FORMS),
                default="auto",
            ),
            "cuda_graphs": gpu.CUDA_GRAPHS,
        },
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        usable_after_failure=True,
        package="onnxruntime",
        faults="isorun_backends.onnxruntime.faults:OPTIMIZERS",
        requirement="onnxruntime-gpu",
        reports=("placement",),
        device_arrays=True,
    )

    def installed(self) -> Availability:
        return libraries.installed("cuda", super().installed())

    def probe(self) -> Availability:
        return gpu.availability()

    def diagnose(self) -> list[Finding]:
        return libraries.diagnose(self.name, "cuda")

    def compile(self, model: LoweredModel, config: CompileConfig) -> CudaExecutable:
        import onnx

        options = self.read_options(config.options)
        index, graphs = options["device_id"], options["cuda_graphs"]
        card = gpu.select(self.name, index)
        with runtime_errors(f"{self.name} cannot read {model.path}"):
            forms = attention.forms(model.path)
        further = further_options(self.name, options)
        planned = (
            graphs or options["attention"] != "auto" or "sdpa_kernel" in further or float(card.compute) < _PREFERS_CUDNN
        )
        masks = self._masks(forms, options["attention"], graphs)
        masks = masks._replace(forms=attention.PLANNED if planned else attention.UNPLANNED)
        provider = {
            "device_id": str(index),
            "use_tf32": "0",  # by default fp32 products have a mantissa of 10 bits
            **({} if planned else {"sdpa_kernel": _WITHOUT_CUDNN}),
            **further,
        }
        if graphs:
            require_known_shapes(model.info)
        libraries.preload()
        memory, stream = cache(partial(open_memory, self.name, index)), None
        if graphs:
            if _STREAM in provider:
                raise InvalidOption(
                    self.name, "cuda_graphs", f"CUDA graphs need a stream of their own, got {_STREAM}. Omit one of them"
                )
            with recording.running(), memory().current():
                stream = memory().stream()
            provider.update(on_stream(stream))
        protos = {form: onnx.load_model_from_string(content) for form, content in forms.models.items()}
        graphs_by_form = {form: proto.graph for form, proto in protos.items()}
        graphs_nodes = frozenset(node.name for graph in graphs_by_form.values() for node in graph.node)
        on_host = (*map(placement.shape_nodes, graphs_by_form.values()), *map(placement.integer_nodes, protos.values()))
        shapes = partial(placement.with_inserted, frozenset().union(*on_host), graphs_nodes)

        def open_form(form: str, handle: int | None) -> onnxruntime.InferenceSession:
            ort_options = session_options(self.name, options, config.threads)
            ort_options.add_session_config_entry(WEIGHTS_FOLDER, str(model.path.parent))
            record = {"enable_cuda_graph": "1"} if graphs and form in forms.recordable else {}
            providers = [(_PROVIDER, {**record, **provider, **on_stream(handle)})]
            try:
                session = open_session(self.name, model, ort_options, providers, content=forms.models[form])
            except BackendFailed as error:
                if record and _NO_CAPTURE in str(error):
                    raise UnsupportedModel(
                        f"{self.name}: this model cannot be recorded as a CUDA graph: ONNX Runtime runs some of its "
                        "nodes on the CPU. Omit cuda_graphs"
                    ) from error
                raise
            libraries.require_providers(self.name, session, {_PROVIDER: "cuda"})
            if any((node.domain, node.op_type) in _NEED_CUDNN for node in graphs_by_form[form].node):
                libraries.require_cudnn(self.name)
            nodes = placement.assigned(self.name, session)
            placement.require(
                self.name,
                _PROVIDER,
                nodes,
                model.path,
                allow_cpu_nodes=options["allow_cpu_nodes"],
                shapes=shapes(nodes),
            )
            return session

        precision = graph_precision(next(iter(graphs_by_form.values())))
        describe = partial(_describe, self.name, precision, index, forms, shapes)
        device = Device("cuda", index)
        return CudaExecutable(self.name, open_form, model.info, device, masks, describe, memory, graphs, stream)

    def _masks(self, forms: attention.Forms, requested: str, graphs: int) -> Masks:
        """How forms are chosen, once it is known that the model has the requested one."""
        if requested != "auto" and requested not in forms.models:
            raise BackendUnavailable(
                self.name, f"attention={requested!r} does not apply to this model: {forms.why}", "Omit the option."
            )
        masks = Masks(forms.mask, requested, forms.packing, forms.recordable)
        if graphs and masks.first() not in forms.recordable:
            why = f"attention={requested!r} waits for results from the GPU" if "packed" in forms.models else forms.why
            raise BackendUnavailable(
                self.name,
                f"this model's attention cannot be recorded as a CUDA graph: {why}",
                "Omit cuda_graphs, or use padding='keep'.",
            )
        return masks


def _describe(
    name: str,
    precision: str,
    index: int,
    forms: attention.Forms,
    shapes: Callable[[Iterable[placement.Node]], frozenset[str]],
    sessions: Mapping[str, onnxruntime.InferenceSession],
    details: Mapping[str, Any],
) -> RuntimeReport:
    nodes = {form: placement.assigned(name, session) for form, session in sessions.items()}
    return gpu_report(
        index,
        with_tf32(precision, next(iter(sessions.values()))),
        next(iter(nodes.values())),
        {},
        {
            "attention": {"forms": list(sessions), "mask": forms.mask, "why_plain": "" if forms.mask else forms.why},
            "cpu_nodes": {form: _cpu_nodes(placed, shapes(placed)) for form, placed in nodes.items()},
            **details,
        },
    )


def gpu_report(
    index: int, precision: str, nodes: list[placement.Node], packages: Mapping[str, str], details: Mapping[str, Any]
) -> RuntimeReport:
    """The report of a session on a GPU."""
    driver = cuda_driver.driver()
    card = driver.gpus[index]
    return RuntimeReport(
        device=card.name,
        precision=precision,
        operators=placement.count(nodes),
        versions={**versions(), **packages, "cuda driver": driver.cuda},
        details={**details, "compute_capability": card.compute},
    )


def with_tf32(precision: str, session: onnxruntime.InferenceSession) -> str:
    """What a graph's precision becomes by the CUDA provider's options in effect, which a caller may have set."""
    options = session.get_provider_options().get(_PROVIDER, {})
    return precision.replace("fp32", "tf32") if options.get("use_tf32") == "1" else precision


def _cpu_nodes(nodes: list[placement.Node], shapes: frozenset[str]) -> dict[str, list[str]]:
    """The nodes on the CPU that compute with shapes, and the others."""
    on_cpu = [node for node in nodes if node.provider != _PROVIDER]
    kinds: dict[str, list[str]] = {"shapes": [], "others": []}
    for node in on_cpu:
        kind = "shapes" if placement.is_shape_node(node, shapes) else "others"
        kinds[kind].append(f"{node.operator} {node.name}")
    return kinds


def further_options(name: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The provider's options that the caller gives. Raises ``InvalidOption`` if they select a GPU: feeds and outputs
    would be on another one."""
    further = as_text(name, "provider_options", options["provider_options"])
    if "device_id" in further:
        raise InvalidOption(
            name, "provider_options", "option 'provider_options' must not contain 'device_id'. Use the option device_id"
        )
    return further


def on_stream(handle: int | None) -> dict[str, str]:
    """The option of both providers for the caller's stream; none for the provider's own."""
    return {} if handle is None else {_STREAM: str(handle)}
