"""``InferenceSession``: ONNX Runtime's arguments, isorun's session."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from onnxruntime.capi.onnxruntime_inference_collection import OrtValue

from isorun.compat import options, values
from isorun.compat import providers as backends
from isorun.compat.binding import IOBinding
from isorun.compat.providers import CPU, Candidate
from isorun.errors import BackendFailed, BackendUnavailable, InvalidArgument, UnsupportedModel
from isorun.session.io_binding import IOBinding as AnyBinding
from isorun.session.session import Session
from isorun.types import Feeds, TensorSpec

_logger = logging.getLogger("isorun")

_UNFIT = (BackendUnavailable, BackendFailed, UnsupportedModel)
_RUNTIME_ARGUMENTS = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
_RUNTIME_BACKENDS = "ort-"  # the names of those that have ONNX Runtime's options begin so


class NodeArg(NamedTuple):
    """``onnxruntime.NodeArg``: ``shape`` is a list, empty for a scalar, an unknown rank, or another value."""

    name: str
    type: str
    shape: list[int | str | None]

    def __hash__(self) -> int:  # a list has none
        return hash((self.name, self.type))

    @classmethod
    def of(cls, spec: TensorSpec) -> NodeArg:
        """An input or output of a session."""
        return cls(spec.name, spec.type, list(spec.shape or ()))


class InferenceSession(Session):
    """``onnxruntime.InferenceSession`` on isorun.

    Results equal those of ONNX Runtime: padding is kept, and no precision is reduced, unless a keyword argument says
    so. A provider that cannot be used is skipped, with a warning, only if a later one in ``providers`` can.

    Args:
        path_or_bytes: an ONNX file or its bytes; anything that :class:`isorun.Session` accepts.
        sess_options: ``onnxruntime.SessionOptions``.
        providers, provider_options: as for ``onnxruntime.InferenceSession``.
        keywords: any other argument of :class:`isorun.Session`, such as ``backend``, ``padding`` or ``precision``.
            ``backend`` replaces ``providers``. ONNX Runtime's own (``enable_fallback`` and others) have no effect.

    Raises:
        InvalidArgument: an option that changes results cannot be honoured.
        TypeError: a keyword that neither class has.
        IsorunError: as :class:`isorun.Session`; none of ONNX Runtime's exceptions.
    """

    settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"padding": "keep"})
    """Arguments of :class:`isorun.Session` that a call does not give."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **keywords: Any,
    ) -> None:
        self._model_path = os.fspath(path_or_bytes) if isinstance(path_or_bytes, str | os.PathLike) else None
        self._model_given = path_or_bytes
        self._sess_options = options.SessionOptions() if sess_options is None else sess_options
        self._translated = options.translate(sess_options)
        ignored = [*self._translated.ignored, *(name for name in _RUNTIME_ARGUMENTS if keywords.pop(name, None))]
        if ignored:
            _logger.info("isorun.compat: ignored the options %s, which have no effect on isorun", ", ".join(ignored))
        self._keywords = {**self.settings, **keywords}
        self._open(providers, provider_options)

    def _open(self, requested: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None) -> None:
        """Open the session on the first candidate that can run the model."""
        keywords = dict(self._keywords)
        backend = keywords.pop("backend", None)
        if backend is None and self._translated.devices and not requested:
            candidates = backends.by_policy(self._translated)
        elif backend is None:
            candidates = backends.candidates(requested, provider_options, self._translated)
        else:
            settings: dict[str, Any] = {"threads": self._translated.threads}
            ignored = ["providers"] if requested else []
            if isinstance(backend, str) and backend.startswith(_RUNTIME_BACKENDS):
                settings["options"] = self._translated.options
            else:
                ignored += self._translated.options
            if ignored:
                _logger.info("isorun.compat: ignored %s: backend=%r was given", ", ".join(ignored), backend)
            candidates = [Candidate(backend, settings, "", {})]
        *preferred, last = candidates
        for candidate in preferred:
            try:
                self._open_on(candidate, keywords)
            except _UNFIT as error:
                _logger.warning("isorun.compat: skipped %s: %s", candidate.title, error)
            except InvalidArgument as error:
                if candidate.backend != backends.AUTO:  # no backend has this kind of device
                    raise
                _logger.warning("isorun.compat: skipped %s: %s", candidate.title, error)
            else:
                return
        self._open_on(last, keywords)

    def _open_on(self, candidate: Candidate, keywords: Mapping[str, Any]) -> None:
        settings = {**candidate.settings, **keywords}
        settings["options"] = {**candidate.settings.get("options", {}), **(keywords.get("options") or {})}
        super().__init__(self._model_given, candidate.backend, **settings)
        provider = candidate.provider or backends.provider_of(self._backend.name)
        self._providers = [provider] if provider == CPU else [provider, CPU]
        self._provider_options: dict[str, dict[str, str]] = {name: {} for name in self._providers} | {
            provider: dict(candidate.provider_options)
        }

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        run_options: Any = None,
        *,
        device_outputs: bool = False,
    ) -> list[Any]:
        """:meth:`isorun.Session.run` with ``OrtValue`` feeds and ``RunOptions`` that do not change results."""
        options.check_run_options(run_options)
        names = _names(output_names)
        return super().run(names, values.to_arrays(input_feed), device_outputs=device_outputs)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """:meth:`isorun.Session.run_async` with the feeds and options of :meth:`run`."""
        options.check_run_options(run_options)
        super().run_async(_names(output_names), values.to_arrays(input_feed, copy=True), callback, user_data)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> list[OrtValue]:
        """Run on values and return values in host memory.

        Raises:
            InvalidFeeds: a result cannot be an ``OrtValue`` (strings, sequences, maps); or as :meth:`run`.
        """
        names = _names(output_names) or [output.name for output in self._model.info.outputs]
        results = self.run(names, input_dict_ort_values, run_options)
        return [values.to_ort_value(name, result) for name, result in zip(names, results, strict=True)]

    def io_binding(self) -> IOBinding:
        """A new binding of arrays and values to inputs and outputs."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: AnyBinding, run_options: Any = None) -> None:
        """:meth:`isorun.Session.run_with_iobinding`, with ``RunOptions`` that do not change results."""
        options.check_run_options(run_options)
        super().run_with_iobinding(iobinding)

    def get_inputs(self) -> list[NodeArg]:  # type: ignore[override]  # shapes are lists, as ONNX Runtime's
        """The inputs that must be fed."""
        return list(map(NodeArg.of, super().get_inputs()))

    def get_outputs(self) -> list[NodeArg]:  # type: ignore[override]
        """The outputs."""
        return list(map(NodeArg.of, super().get_outputs()))

    def get_overridable_initializers(self) -> list[NodeArg]:  # type: ignore[override]
        """The inputs that have a default value."""
        return list(map(NodeArg.of, super().get_overridable_initializers()))

    def get_session_options(self) -> Any:
        """The session options as given."""
        return self._sess_options

    def get_providers(self) -> list[str]:
        """The provider that the backend replaces, and the CPU's. ``provenance`` tells what runs."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider as given."""
        return {name: dict(settings) for name, settings in self._provider_options.items()}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Close the session and open it on other providers; if that fails, it stays closed. Its bindings become
        invalid."""
        self.close()
        self._open(providers, provider_options)

    def disable_fallback(self) -> None:
        """Nothing to disable: no run falls back."""

    def enable_fallback(self) -> None:
        """No effect: a session falls back only when it is opened, along ``providers``."""


def _names(output_names: Any) -> Any:
    """Names of outputs as a list; ONNX Runtime takes sets, arrays and views of mappings as well."""
    if output_names is None or isinstance(output_names, list | tuple | str | Mapping):
        return output_names
    return list(output_names)
