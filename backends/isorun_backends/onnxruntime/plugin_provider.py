"""The backends ``ort-ep:NAME``, any execution provider of ONNX Runtime, and ``ort-ep``, a library.

A provider is in a plugin package, in a library, or compiled into the installed build of ONNX Runtime.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.plugin import (
    Availability,
    Backend,
    BackendFailed,
    BackendUnavailable,
    Cache,
    Capabilities,
    CompileConfig,
    Finding,
    InvalidOption,
    LoweredModel,
    Option,
    StaticShapes,
    UnsupportedModel,
    did_you_mean,
    package_owners,
)
from isorun_backends.common_types import WideFeeds
from isorun_backends.onnxruntime import (
    compiled_providers,
    context_cache,
    declaration,
    error_probe,
    placement,
    plugin_packages,
    precision_probe,
)
from isorun_backends.onnxruntime.executable import PluginExecutable
from isorun_backends.onnxruntime.provider_target import ANY, Target, of_plugin
from isorun_backends.onnxruntime.session import OPTIONS, as_text, checked, open_session, session_options, versions

if TYPE_CHECKING:
    import onnxruntime

_TEXT, _HALF = "tensor(string)", "tensor(float16)"
_LIBRARY = Option("path of the library of a provider that is in no package", "path")
_INSTALL = "Install a package such as onnxruntime-ep-openvino, or set options={'library': PATH}."
_CONTEXTS = "compiled_contexts"
_exclusive = threading.RLock()  # of all sessions of providers that are exclusive
_measured: dict[tuple[Any, ...], str] = {}  # precision by provider, device and options


class OrtEp(Backend):
    """Any other execution provider of ONNX Runtime, in a plugin package or compiled in.

    Nothing is known of it but its library and what its package declares. Its measured precision must be
    the requested one.
    """

    contract = 2
    capabilities = Capabilities(
        dialects=("primitive", "onnx"),
        precisions=("fp32", "tf32", "fp16", "bf16"),
        devices=(ANY, "cpu", "gpu", "npu"),
        options={
            **OPTIONS,
            "provider": Option("the provider's own options, which ONNX Runtime does not list", "mapping", default={}),
            "ep_name": Option("which provider of the library; the first by default", "str"),
            "allow_cpu_nodes": placement.ALLOW_CPU_NODES,
            _CONTEXTS: context_cache.COMPILED_CONTEXTS,
        },
        package="onnxruntime",
        requirement="onnxruntime",
        reports=("placement", "precision"),
        static_shapes=StaticShapes(),
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._member = name.partition(":")[2]
        self._found: str | None = None  # the module of a member
        self._compiled: compiled_providers.Provider | None = None
        offers = type(self).capabilities
        self._declared = declaration.Declaration(offers)
        if self._member:
            self._found = plugin_packages.installed().get(self._member)
            module = self._found
            if module is None and (compiled := compiled_providers.PROVIDERS.get(self._member)):
                self._compiled, module = compiled, plugin_packages.guided_module(self._member)
                options = {key: option for key, option in offers.options.items() if key != "ep_name"}
                offers = replace(offers, options=options, devices=(compiled.device,))
            if module is not None:
                self._declared = declaration.read(self.name, module, offers)
            offers = self._declared.capabilities
            contexts = replace(context_cache.COMPILED_CONTEXTS, default=self._declared.compiled_contexts)
            offers = replace(offers, options={**offers.options, _CONTEXTS: contexts})
        else:  # never selected automatically, since it needs a library
            offers = replace(offers, options={**offers.options, "library": _LIBRARY}, priority=None)
        self.capabilities = offers  # type: ignore[misc]  # a class attribute elsewhere

    @classmethod
    def members(cls) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*plugin_packages.installed(), *compiled_providers.installed()]))

    @classmethod
    def absent_members(cls) -> tuple[str, ...]:
        return tuple(compiled_providers.PROVIDERS)

    def installed(self) -> Availability:
        availability = super().installed()
        if not availability.ok:
            return availability
        if not self._member:  # usable with the library of a provider
            return Availability(ok=True, reason="no execution provider is installed", remedy=_INSTALL)
        return checked(self._require)

    def _require(self) -> None:
        if self._compiled is None:
            self._module()
        elif refused := compiled_providers.refusal(self.name, self._compiled):
            raise refused

    def probe(self) -> Availability:
        """Computes a matrix product on the provider: nothing else can tell whether it has a device on this machine.

        onnxruntime-ep-webgpu 0.4.0 offers a software device whether or not there is a driver for it.
        """
        if not self._member:
            return self.installed()  # the library is not known before compile()
        return checked(self._compute)

    def _compute(self) -> None:
        offers = self.capabilities
        config = CompileConfig(precision=offers.precisions[0], device=offers.devices[0])
        options = self.read_options({})
        with self._exclusively():
            self._measure(config, self._chosen(config, options), self._requested(config.precision, options))

    def diagnose(self) -> list[Finding]:
        if not self._member:
            return []
        package = "onnxruntime" if self._compiled is not None else self._module().partition(".")[0]
        owners = " ".join(package_owners(package))
        try:
            if self._compiled is not None:
                self._compute()
            else:
                plugin_packages.devices(self.name, self._module())
        except BackendUnavailable as error:
            subject, why = f"the backend {self.name}", "found by loading its library and listing its devices"
            if error.__cause__ is not None and self._compiled is None:
                command = f"pip install --upgrade onnxruntime {owners}"
                return [Finding(subject, "error", error.reason, why, command)]
            command = f"pip uninstall -y {owners}   # or run it on a machine with its hardware"
            return [Finding(subject, "warning", error.reason, why, command)]
        return []

    def compile(self, model: LoweredModel, config: CompileConfig) -> PluginExecutable:
        options = self.read_options(config.options)
        if text := [spec.name for spec in (*model.info.inputs, *model.info.outputs) if spec.type == _TEXT]:
            raise UnsupportedModel(
                f"{self.name}: {model.path} has string tensors ({', '.join(text)}), on which providers abort the "
                "process (onnxruntime-ep-openvino 1.8.1). Use ort-cpu"
            )
        with self._exclusively():
            return self._open(model, config, options)

    def _open(self, model: LoweredModel, config: CompileConfig, options: Mapping[str, Any]) -> PluginExecutable:
        target, requested = self._chosen(config, options), self._requested(config.precision, options)
        computed = self._measure(config, target, requested)
        precision_probe.require(self.name, config.precision, computed)
        halves = [spec.name for spec in (*model.info.inputs, *model.info.outputs) if spec.type == _HALF]
        if halves and "fp16" in self.capabilities.typed:
            try:
                self._measure(replace(config, precision="fp16"), target, requested)
            except BackendUnavailable as error:
                raise UnsupportedModel(
                    f"{self.name}: {model.path} has fp16 tensors ({', '.join(halves)}): {error}"
                ) from error

        def open_(of: LoweredModel, entries: Mapping[str, str]) -> onnxruntime.InferenceSession:
            merged = {**options, "session_config": {**options["session_config"], **entries}}
            ort_options = session_options(self.name, merged, config.threads)
            return open_session(self.name, of, ort_options, target.add(ort_options, requested))

        details = {"provider": target.provider, "devices": target.hardware, "provider_options": requested}
        if options[_CONTEXTS]:
            identity = context_cache.key(
                model,
                target=target.identity,
                versions={**versions(), **target.versions},
                computed=computed,
                provider_options=requested,
                options={key: value for key, value in options.items() if key != "provider"},
                library=options.get("library") and _stamp(Path(options["library"])),
            )

            def place(opened: onnxruntime.InferenceSession) -> dict[str, dict[str, int]]:
                return self._place(model, opened, target.provider, options)

            cached = context_cache.open_cached(self.name, model, Cache(config.cache_dir), identity, open_, place)
            session, operators = cached.session, cached.operators
            details["compiled_context"] = "found" if cached.found else "made"
        else:
            session = open_(model, {})
            operators = self._place(model, session, target.provider, options)
        return PluginExecutable(
            self.name,
            session,
            target.device,
            computed,
            target.versions,
            details,
            operators,
            lock=_exclusive if self._declared.exclusive else None,
            wide=WideFeeds(self.name, model.info) if self._declared.cuts_integers else None,
        )

    def _place(
        self, model: LoweredModel, session: onnxruntime.InferenceSession, provider: str, options: Mapping[str, Any]
    ) -> dict[str, dict[str, int]]:
        """What runs where in a session of a model; raises ``UnsupportedModel`` for a node that may not run on the
        CPU."""
        nodes = placement.assigned(self.name, session)
        anywhere = None
        if any(node.provider != provider for node in nodes) and not options["allow_cpu_nodes"]:
            anywhere = placement.may_run_on_cpu(model.path, self._declared.cpu_nodes, nodes)
        placement.require(
            self.name, provider, nodes, model.path, allow_cpu_nodes=options["allow_cpu_nodes"], shapes=anywhere
        )
        return placement.count(nodes)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Keep other sessions from being opened, run or closed, if the provider is exclusive."""
        if not self._declared.exclusive:
            yield
            return
        with _exclusive:
            try:
                yield
            except BaseException as error:
                _clear_frames(error)
                raise

    def _chosen(self, config: CompileConfig, options: Mapping[str, Any]) -> Target:
        """The provider on the devices that a session gets; raises ``BackendUnavailable`` if it has none of the kind."""
        if self._compiled is not None:
            return compiled_providers.target(self.name, self._compiled)
        package = plugin_packages.versions(self._module()) if self._member else {}
        offered = self._devices(options)
        return of_plugin(self.name, offered, config.device, package, first=self._declared.first_device)

    def _requested(self, precision: str, options: Mapping[str, Any]) -> dict[str, str]:
        """The options of the provider: declared ones, those of the precision, the caller's."""
        of_precision = self._declared.precision_options.get(precision, {})
        requested = {**self._declared.provider_options, **of_precision, **options["provider"]}
        return as_text(self.name, "provider", requested)

    def _measure(self, config: CompileConfig, target: Target, requested: Mapping[str, str]) -> str:
        """The precision that the provider computes in, measured once; raises ``BackendUnavailable`` if it cannot
        compute."""
        typed = config.precision in self.capabilities.typed
        model = precision_probe.TYPED.get(config.precision) if typed else None
        key = (target.provider, config.device, model, *sorted(requested.items()))
        if key not in _measured:
            if self._declared.loses_errors:
                error_probe.require(self.name, target.provider, lambda options: target.add(options, requested))
            try:
                computed = precision_probe.measure(
                    target.provider,
                    lambda ort_options: target.add(ort_options, requested),
                    model or precision_probe.MODEL,
                )
            except precision_probe.NoPlacement as error:
                remedy = "Use another build of ONNX Runtime, or the provider's plugin package if there is one."
                raise BackendUnavailable(self.name, str(error), remedy) from error
            except BackendFailed as error:
                if typed:
                    reason = f"the device does not support precision={config.precision!r} ({error})"
                    raise BackendUnavailable(self.name, reason, "Choose another precision or device.") from error
                remedy = self._declared.no_device
                if self._compiled is not None:
                    raise compiled_providers.unusable(self.name, self._compiled, error, remedy) from error
                remedy = remedy or "Run it on a machine with its hardware, or choose another backend."
                raise BackendUnavailable(self.name, str(error), remedy) from error
            _measured[key] = computed
        return _measured[key]

    def _devices(self, options: Mapping[str, Any]) -> Sequence[onnxruntime.OrtEpDevice]:
        """The devices of the requested provider.

        Raises:
            BackendUnavailable: it has none here; or a library is required.
            InvalidOption: there is no file of that name.
        """
        if self._member:
            return plugin_packages.devices(self.name, self._module(), options["ep_name"])
        if options["library"] is None:
            raise BackendUnavailable(
                self.name,
                f"it needs the name of a plugin execution provider, {self.name}:NAME{self._known()}",
                _INSTALL,
            )
        library = Path(options["library"])
        if not library.is_file():
            raise InvalidOption(self.name, "library", f"option 'library': there is no file {library}")
        return plugin_packages.library_devices(self.name, library, options["ep_name"])

    def _module(self) -> str:
        """The module of this member; raises ``BackendUnavailable`` if its package is not installed."""
        if self._found is None:
            raise BackendUnavailable(
                self.name, f"its package is not installed{self._known()}", "Install it, or choose another backend."
            )
        return self._found

    def _known(self) -> str:
        installed = plugin_packages.installed()
        return did_you_mean(self._member, installed) if installed else "; none is installed"


def _clear_frames(error: BaseException | None) -> None:
    """Free the sessions that the frames of an error hold, which would otherwise be freed at any later time."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _unlock_after_fork() -> None:
    """Replace the lock: the thread that held it may not exist in this process."""
    global _exclusive
    _exclusive = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_after_fork)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
