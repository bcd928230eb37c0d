"""The backends ``ort-ep:NAME``, any installed plugin execution provider of ONNX Runtime, and ``ort-ep``, a library."""

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
    Capabilities,
    CompileConfig,
    Finding,
    LoweredModel,
    Option,
    UnsupportedModel,
    cpu_name,
    did_you_mean,
    package_owners,
)
from isorun_backends.onnxruntime import declaration, placement, plugin_packages, precision_probe
from isorun_backends.onnxruntime.executable import PluginExecutable
from isorun_backends.onnxruntime.session import OPTIONS, as_text, checked, open_session, session_options

if TYPE_CHECKING:
    import onnxruntime

_ANY = "any"
_TEXT = "tensor(string)"
_LIBRARY = Option("path of the library of a provider that is in no package", "path")
_exclusive = threading.RLock()  # of all sessions of providers that are exclusive
_measured: dict[tuple[Any, ...], str] = {}  # precision by provider, device and options


class OrtEp(Backend):
    """A provider of which nothing is known but its library and what its package declares.

    Its measured precision must be the requested one.
    """

    contract = 2
    capabilities = Capabilities(
        dialects=("primitive", "onnx"),
        precisions=("fp32", "tf32", "fp16", "bf16"),
        devices=(_ANY, "cpu", "gpu", "npu"),
        options={
            **OPTIONS,
            "provider": Option("the provider's own options, which ONNX Runtime does not list", "mapping", default={}),
            "ep_name": Option("which provider of the library; the first by default", "str"),
            "allow_cpu_nodes": placement.ALLOW_CPU_NODES,
        },
        package="onnxruntime",
        requirement="onnxruntime",
        reports=("placement", "precision"),
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._member = name.partition(":")[2]
        self._found: str | None = None  # the module of a member
        offers = type(self).capabilities
        self._declared = declaration.Declaration(offers)
        if self._member:
            self._found = plugin_packages.installed().get(self._member)
            if self._found is not None:
                self._declared = declaration.read(self.name, self._found, offers)
            offers = self._declared.capabilities
        else:  # never selected automatically, since it needs a library
            offers = replace(offers, options={**offers.options, "library": _LIBRARY}, priority=None)
        self.capabilities = offers  # type: ignore[misc]  # a class attribute elsewhere

    @classmethod
    def members(cls) -> tuple[str, ...]:
        return tuple(plugin_packages.installed())

    def installed(self) -> Availability:
        availability = super().installed()
        return checked(self._module) if availability.ok and self._member else availability

    def probe(self) -> Availability:
        """Computes a matrix product on the provider: nothing else can tell whether it has a device on this machine.

        onnxruntime-ep-webgpu 0.4.0 offers a software device whether or not there is a driver for it.
        """
        if not self._member:
            return Availability(ok=True)  # the library is not known before compile()
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
        module = self._module()
        owners = package_owners(module.partition(".")[0])
        try:
            plugin_packages.devices(self.name, module)
        except BackendUnavailable as error:
            subject, why = f"the backend {self.name}", "found by loading its library and listing its devices"
            if error.__cause__ is not None:
                command = f"pip install --upgrade {' '.join(['onnxruntime', *owners])}"
                return [Finding(subject, "error", error.reason, why, command)]
            command = f"pip uninstall -y {' '.join(owners)}   # or run it on a machine with its hardware"
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
        devices = self._chosen(config, options)
        provider, requested = devices[0].ep_name, self._requested(config.precision, options)
        computed = self._measure(config, devices, requested)
        precision_probe.require(self.name, config.precision, computed)
        ort_options = session_options(options, config.threads)
        ort_options.add_provider_for_devices(devices, requested)
        session = open_session(self.name, model, ort_options, [])
        nodes = placement.assigned(self.name, session)
        anywhere = None
        if any(node.provider != provider for node in nodes) and not options["allow_cpu_nodes"]:
            anywhere = placement.may_run_on_cpu(model.path, self._declared.cpu_nodes)
        placement.require(
            self.name, provider, nodes, model.path, allow_cpu_nodes=options["allow_cpu_nodes"], shapes=anywhere
        )
        return PluginExecutable(
            self.name,
            session,
            _device_name(devices[0]),
            computed,
            self._versions(devices[0]),
            {"provider": provider, "devices": [*map(_hardware, devices)], "provider_options": requested},
            lock=_exclusive if self._declared.exclusive else None,
        )

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

    def _chosen(self, config: CompileConfig, options: Mapping[str, Any]) -> list[onnxruntime.OrtEpDevice]:
        """The devices of the provider that a session gets.

        Raises:
            BackendUnavailable: it has none of the requested kind.
        """
        devices = self._devices(options)
        chosen = [device for device in devices if config.device in (_ANY, device.device.type.name.lower())]
        if not chosen:
            kinds = sorted({device.device.type.name.lower() for device in devices})
            raise BackendUnavailable(
                self.name, f"it has no device {config.device!r} here", f"Choose one of {', '.join(kinds)}."
            )
        return chosen[:1] if self._declared.first_device else chosen

    def _requested(self, precision: str, options: Mapping[str, Any]) -> dict[str, str]:
        """The options of the provider: declared ones, those of the precision, the caller's."""
        of_precision = self._declared.precision_options.get(precision, {})
        return as_text({**self._declared.provider_options, **of_precision, **options["provider"]})

    def _measure(
        self, config: CompileConfig, devices: Sequence[onnxruntime.OrtEpDevice], requested: Mapping[str, str]
    ) -> str:
        """The precision that the provider computes in, measured once.

        Raises:
            BackendUnavailable: it cannot compute a matrix product here.
        """
        typed = config.precision in self.capabilities.typed
        model = precision_probe.TYPED.get(config.precision) if typed else None

        def add_provider(ort_options: onnxruntime.SessionOptions) -> list[Any]:
            ort_options.add_provider_for_devices(devices, requested)
            return []

        key = (devices[0].ep_name, config.device, model, *sorted(requested.items()))
        if key not in _measured:
            try:
                computed = precision_probe.measure(devices[0].ep_name, add_provider, model or precision_probe.MODEL)
            except BackendFailed as error:
                if typed:
                    reason = f"the device does not support precision={config.precision!r} ({error})"
                    raise BackendUnavailable(self.name, reason, "Choose another precision or device.") from error
                remedy = self._declared.no_device or "Run it on a machine with its hardware, or choose another backend."
                raise BackendUnavailable(self.name, str(error), remedy) from error
            _measured[key] = computed
        return _measured[key]

    def _devices(self, options: Mapping[str, Any]) -> Sequence[onnxruntime.OrtEpDevice]:
        """The devices of the requested provider.

        Raises:
            BackendUnavailable: it has none here; or a library is required.
        """
        if self._member:
            return plugin_packages.devices(self.name, self._module(), options["ep_name"])
        if options["library"] is None:
            raise BackendUnavailable(
                self.name,
                f"it needs the name of a plugin execution provider, {self.name}:NAME{self._known()}",
                "Install a package such as onnxruntime-ep-openvino, or set options={'library': PATH}.",
            )
        return plugin_packages.library_devices(self.name, Path(options["library"]), options["ep_name"])

    def _versions(self, device: onnxruntime.OrtEpDevice) -> dict[str, str]:
        """The version of the provider's package if it has one, and of the provider itself."""
        of_package = plugin_packages.versions(self._module()) if self._member else {}
        return {**of_package, device.ep_name: dict(device.ep_metadata).get("version", "unknown")}

    def _module(self) -> str:
        """The module of this member.

        Raises:
            BackendUnavailable: its package is not installed.
        """
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


os.register_at_fork(after_in_child=_unlock_after_fork)


def _hardware(device: onnxruntime.OrtEpDevice) -> str:
    return f"{device.device.vendor} {device.device.type.name}".strip()


def _device_name(device: onnxruntime.OrtEpDevice) -> str:
    """As the provider names it, otherwise of a processor its own name: ONNX Runtime knows only its vendor."""
    named = dict(device.ep_metadata).get("FULL_DEVICE_NAME")
    return named or (cpu_name() if device.device.type.name == "CPU" else _hardware(device))
