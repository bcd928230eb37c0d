"""One model and a session's options, compiled for one backend or another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from isorun.compilation.compiled_model import AS_GIVEN, MAIN, PACKED, CompiledModel
from isorun.compilation.options import AUTO, Options
from isorun.compilation.padding import removal
from isorun.compilation.recompilation import Recompilations
from isorun.errors import BackendUnavailable, InvalidArgument, UnsupportedModel, nearest
from isorun.models.fixed_shapes import fix
from isorun.models.lowering import OWN_TYPES, ModelGraphs, Quantized
from isorun.models.source import ModelSource, check_unchanged
from isorun.plugin import faults, registry
from isorun.plugin.backend import Backend
from isorun.system import threads as thread_counts
from isorun.system.cache import Cache
from isorun.types import DEVICES, PRECISIONS, CompileConfig, LoweredModel, ModelInfo, devices

if TYPE_CHECKING:
    from isorun.compilation.corpus import Samples


class Compiler:
    """Compiles one model with a session's options.

    Args:
        cache: where lowered models, calibration tables and measured choices are kept.

    Attributes:
        recompilations: how often a model was compiled again after a failed run.
    """

    def __init__(self, source: ModelSource, options: Options, cache: Cache) -> None:
        self.source = source
        self.options = options
        self.cache = cache
        self.recompilations: Recompilations = Recompilations()
        self._calibrated: tuple[Samples | None, Quantized] | None = None

    @cached_property
    def graphs(self) -> ModelGraphs:
        """The model's graphs. The first access reads the model unless the cache has its description."""
        # The attention of one query sums over the width of its batch.
        return ModelGraphs(self.source, self.cache, narrow=not self.options.deterministic)

    def config(self, backend: Backend, requested: Collection[str] = ()) -> CompileConfig:
        """The options as a backend gets them, checked against its capabilities.

        Args:
            requested: the names of all requested backends, each of which may have its own options.

        Raises:
            BackendUnavailable: the backend cannot be used here, or does not support an option that others do.
            InvalidArgument: no backend knows the precision or the device; or the backend does not accept an option.
        """
        availability = registry.availability(backend)
        if not availability.ok:
            raise BackendUnavailable(backend.name, availability.reason, availability.remedy)
        options, offers = self.options, backend.capabilities
        _check(backend, "precision", options.precision, offers.precisions, PRECISIONS, (AUTO,))
        device = offers.devices[0] if options.device is None else options.device
        check_device(backend, device)
        device = devices.canonical(device, offers.devices) or device
        accelerators = registry.accelerators(backend, device)
        fixed = offers.fixed_threads
        if options.threads is not None and not offers.sets_threads and options.threads != fixed:
            raise BackendUnavailable(
                backend.name,
                f"it does not support `threads` (got {options.threads})"
                + ("" if fixed is None else f": its thread count is fixed at {fixed}"),
                "Omit it, or choose another backend.",
            )
        backend_options = options.of_backend(backend.name, requested)
        _check_owners(backend_options, offers.options, requested)
        backend.read_options(backend_options)
        threads = options.threads or thread_counts.usable_cores() if offers.sets_threads else fixed
        folder = str(self.cache.root)
        return CompileConfig(options.precision, device, threads, backend_options, folder, accelerators)

    def compile(self, backend: Backend, config: CompileConfig, samples: Samples | None = None) -> CompiledModel:
        """Compile the model in the precision of a config, after calibration if it is int8.

        Args:
            config: from :meth:`config`.
            samples: what int8 is calibrated on; ``None`` for texts that come with isorun.

        Raises:
            UnsupportedModel: padding cannot be removed as requested, or the backend lacks an operator; or as
                :meth:`_one_graph` says.
            BackendUnavailable: the model has symbolic dimensions, which the backend does not declare; it is quantized
                already, and the backend would run it in floating point; or as
                :meth:`isorun.plugin.backend.Backend.compile` says.
            BackendFailed: the runtime failed.
            InvalidFeeds: the model does not accept the samples.
        """
        _check_shapes(backend, self.graphs.info)
        quantized = None
        if config.precision == "int8" and not self.graphs.quantized:
            quantized = self.calibrate(backend, config, samples)
        offers = backend.capabilities
        padding = self._one_graph(backend, config) if self.options.deterministic else self.options.padding
        if padding == "remove" and not offers.data_dependent_shapes:
            raise BackendUnavailable(
                backend.name,
                "it does not support data-dependent shapes, which padding='remove' requires",
                "Use padding='auto' or 'keep', or another backend.",
            )
        precision = config.precision if config.precision in offers.typed else OWN_TYPES
        known = faults.of(backend)

        lowered_before: set[str] = set()

        def lower(graph: str) -> LoweredModel:
            as_given = graph == AS_GIVEN
            if graph in lowered_before:  # its file may be damaged, which the graph in memory reads its weights from
                self.graphs.release()
            lowered_before.add(graph)
            lowered = (self.graphs.unfused() if as_given else self.graphs).lower(
                offers.dialects,
                packed=graph == PACKED or (graph == MAIN and padding == "remove"),
                precision=precision,
                quantized=None if as_given else quantized,
                checks=not offers.checks_indices,
                faults=known.rows,
            )
            if not as_given:
                return lowered
            reason = "masks with other values than 0 and 1 may see padding"
            return replace(lowered, info=replace(lowered.info, keeps_padding=lowered.info.keeps_padding or reason))

        lowered = lower(MAIN)
        binary = "with precision='int8', which quantizes the fused graph" if quantized else ""
        if self.options.deterministic:
            binary = "with deterministic=True, which runs one graph"
        model = CompiledModel(
            backend,
            config,
            lowered,
            removal=removal(padding, lowered.info, backend, config),
            lower=lower,
            single_rows=self.options.deterministic and self._is_by_row(backend),
            fix=None if offers.static_shapes is None else partial(fix, self.graphs),
            binary=binary,
            verify=self._verify,
            recompilations=self.recompilations,
        )
        if config.precision == "int8" and quantized is None:
            _check_in_8_bits(backend, model)
        return model

    def _one_graph(self, backend: Backend, config: CompileConfig) -> str:
        """Whether every batch runs without its padding or with it, in the place of ``"auto"``.

        Raises:
            BackendUnavailable: the backend does not compute rows alike in every batch.
            UnsupportedModel: it is not known to for this model.
        """
        offers = backend.capabilities
        if not offers.deterministic and not offers.repeatable:
            raise BackendUnavailable(
                backend.name,
                "a row's results depend on its batch, in the last bits, which deterministic=True excludes",
                "Use ort-cpu or openvino, or omit deterministic.",
            )
        info = self.graphs.info
        if info.random:
            raise UnsupportedModel(
                f"deterministic=True: {self.source.path} draws random numbers, by the node {info.random}. If that is a "
                "dropout, export the model again after `model.eval()`"
            )
        if info.mixes_rows:
            raise UnsupportedModel(
                f"deterministic=True: in {self.source.path}, a row's results depend on the other rows, by the node "
                f"{info.mixes_rows!r}"
            )
        if not info.fused:
            raise UnsupportedModel(f"deterministic=True: {self.source.path} is not an encoder that isorun fuses")
        if "SingleQueryAttention" in info.fused and offers.deterministic:
            raise UnsupportedModel(
                f"deterministic=True: {self.source.path} was fused for one position of its last layer, whose attention "
                "sums over the width of its batch. Open the file that it was made from"
            )
        if info.window is not None and offers.deterministic:
            raise UnsupportedModel(
                f"deterministic=True: {self.source.path} attends within windows, in blocks whose sums have another "
                "order in another batch"
            )
        if self.options.padding != AUTO:
            return self.options.padding
        return "keep" if self._is_by_row(backend) or not removal(AUTO, info, backend, config).by_batch else "remove"

    def _is_by_row(self, backend: Backend) -> bool:
        """Whether rows have the same bits in any batch only if each is a run of its own."""
        return not backend.capabilities.deterministic or bool(self.graphs.info.sums)

    def _verify(self, lowered: LoweredModel) -> None:
        """Check that a user's own file, which a runtime has just read, is what was opened."""
        if lowered.path == self.source.path and not lowered.path.is_relative_to(self.cache.root):
            check_unchanged(self.source, self.cache)

    def calibrate(self, backend: Backend, config: CompileConfig, samples: Samples | None = None) -> Quantized:
        """:func:`isorun.compilation.calibration.calibrate` for this model, once for the same samples."""
        from isorun.compilation import calibration

        if self._calibrated is None or self._calibrated[0] != samples:
            self._calibrated = samples, calibration.calibrate(self.graphs, backend, config, samples)
        return self._calibrated[1]


def check_device(backend: Backend, device: str) -> None:
    """Check that a backend declares a device.

    Raises:
        BackendUnavailable: others do, and it does not.
        InvalidArgument: no backend knows it.
    """
    _check(backend, "device", device, backend.capabilities.devices, DEVICES, matches=_is_device)


def _check(
    backend: Backend,
    argument: str,
    value: Any,
    supported: Collection[str],
    known: Collection[str],
    others: Collection[str] = (),
    matches: Callable[[Any, Collection[str]], bool] = lambda value, names: value in names,
) -> None:
    """Reject a value that a backend does not support, or that no backend knows."""
    accepted = [*supported, *others]
    if matches(value, accepted):
        return
    if not matches(value, known):
        names = list(dict.fromkeys([*known, *accepted]))
        near = nearest(str(value).casefold().replace("float", "fp"), names)
        hint = f"; did you mean {near!r}?" if near else ""
        forms = ", with an index N or a list such as gpu,cpu" if argument == "device" else ""
        raise InvalidArgument(f"Invalid {argument} {value!r}{hint} (known: {', '.join(names)}{forms})")
    why = backend.capabilities.refused.get(value, "") if argument == "precision" else ""
    raise BackendUnavailable(
        backend.name,
        f"it does not support {argument} {value!r} (supported: {', '.join(supported)}){why and f': {why}'}",
        "Choose a supported one, or another backend.",
    )


def _check_shapes(backend: Backend, info: ModelInfo) -> None:
    """Reject symbolic dimensions for a backend whose executables may keep the sizes of their first run."""
    for spec in () if backend.capabilities.dynamic_shapes else info.inputs:
        if spec.fixed_shape is None:
            raise BackendUnavailable(
                backend.name,
                f"it does not declare `dynamic_shapes` or `static_shapes`, and the shape of input {spec.name!r} is "
                f"{'unknown' if spec.shape is None else f'symbolic, {[*spec.shape]}'}",
                "Export the model with fixed shapes, or choose another backend.",
            )


def _is_device(device: Any, supported: Collection[str]) -> bool:
    return devices.canonical(device, supported) is not None


def _check_owners(options: Mapping[str, Any], declared: Collection[str], requested: Collection[str]) -> None:
    """Reject options of a backend whose name is misspelt."""
    for key, value in options.items():
        near = nearest(key, requested)
        if near and key not in declared and isinstance(value, Mapping):
            raise InvalidArgument(f"options[{key!r}]: no requested backend has this name; did you mean {near!r}?")


def _check_in_8_bits(backend: Backend, model: CompiledModel) -> None:
    """Reject a quantized model that runs in floating point, as OpenVINO runs every form but Q and DQ."""
    try:
        reported = model.report().precision
    except BaseException:
        model.close()
        raise
    if "int8" not in reported.split("+"):
        model.close()
        raise BackendUnavailable(
            backend.name,
            f"the model is quantized in a form that this backend runs in {reported} instead of int8",
            "Use precision='fp32', which runs a model as given, or another backend.",
        )
