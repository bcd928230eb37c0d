"""The interface of a backend: :class:`Backend`, and :class:`Executable` for a compiled model.

A backend's module must import without its runtime, which :meth:`Backend.compile` imports, so that ``isorun backends``
can describe backends that are not installed. Calls into the runtime are wrapped in :func:`runtime_errors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, IsorunError, message_of
from isorun.plugin.device_arrays import DeviceArray
from isorun.system.interruption import interrupts
from isorun.system.packages import how_to_install, is_importable, package_owners, package_version
from isorun.types import Availability, Capabilities, CompileConfig, Feeds, Finding, LoweredModel, RuntimeReport, options


class Executable(ABC):
    """A compiled model. Its feeds have been validated.

    Optional abilities are protocols: :class:`SupportsBinding`, :class:`SupportsDeviceArrays`,
    :class:`SupportsDeviceTimes`, :class:`SupportsSize`.
    """

    @abstractmethod
    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Run once.

        Args:
            output_names: the outputs to return, in order.
            feeds: input name to array, with the model's dtypes and shapes.

        Returns:
            C-contiguous arrays that the caller owns: no later run changes them.

        Raises:
            BackendFailed: the runtime failed, with its error as the cause.
        """

    @abstractmethod
    def report(self) -> RuntimeReport:
        """Report what the runtime did with the model. May be slow; called once."""

    def close(self) -> None:
        """Release all resources. Called exactly once.

        If the backend is ``thread_safe``, other threads may be running or about to run: such a run must return correct
        results or raise ``BackendFailed``. Other backends are not closed during a run.
        """


@runtime_checkable
class SupportsBinding(Protocol):
    """An executable whose runtime reads and writes bound memory. For others, results are copied."""

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        """Bind arrays to inputs and outputs for repeated runs.

        Args:
            feeds: arrays to read at every run.
            outputs: the array to write each requested output to, or ``None`` for a new one. Backends with
                ``device_arrays`` also get a ``DeviceArray`` to write to, or ``ON_DEVICE`` for a new one.
        """


@runtime_checkable
class SupportsDeviceArrays(Protocol):
    """An executable that leaves outputs in device memory; required by the capability ``device_arrays``."""

    def run_on_device(self, output_names: Sequence[str], feeds: Feeds) -> list[DeviceArray]:
        """Run once, as :meth:`Executable.run`, and return the outputs in device memory."""


@runtime_checkable
class SupportsDeviceTimes(Protocol):
    """An executable that can time its runs by events of the device."""

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        """Measure runs on feeds that are in device memory already.

        Returns:
            (runs,), float64, milliseconds; ``None`` if it cannot be measured here.
        """


@runtime_checkable
class SupportsSize(Protocol):
    """An executable that knows how much memory it takes, for the capability ``static_shapes``."""

    def size(self) -> int:
        """The bytes that closing it would release."""


class Binding:
    """Arrays bound to a model's inputs and outputs.

    This class copies results; :class:`SupportsBinding` is for a runtime that writes to bound memory.
    """

    def __init__(self, executable: Executable, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> None:
        self._executable = executable
        self._feeds = feeds
        self._outputs = outputs

    def run(self) -> list[Any]:
        """Run once, and return the outputs in the order of their binding."""
        results = self._executable.run(list(self._outputs), self._feeds)
        for index, (name, target) in enumerate(self._outputs.items()):
            if target is not None:
                if not isinstance(results[index], np.ndarray):
                    raise InvalidFeeds(f"Output {name!r} is no tensor, but is bound to memory of one")
                check_fits(name, target, results[index].shape, results[index].dtype)
                target[...] = results[index]
                results[index] = target
        return results


def check_fits(name: str, bound: np.ndarray, shape: Sequence[int], dtype: np.dtype[Any] | None = None) -> None:
    """Check that bound memory has an output's shape and dtype.

    Raises:
        InvalidFeeds: it does not.
    """
    if bound.shape != tuple(shape) or (dtype is not None and bound.dtype != dtype):
        raise InvalidFeeds(
            f"Output {name!r} has shape {tuple(shape)}{f' and type {dtype}' if dtype else ''}, but is bound to memory "
            f"of shape {bound.shape} and type {bound.dtype}"
        )


class Backend(ABC):
    """A way to run models, named by its entry point in the group ``isorun.backends``."""

    contract: ClassVar[int]
    """The version of the plugin contract that it is written for: :data:`isorun.plugin.CONTRACT` at that time, as a
    number."""

    capabilities: ClassVar[Capabilities]

    def __init__(self, name: str) -> None:
        self.name = name

    def availability(self) -> Availability:
        """Whether it can be used here: :meth:`installed`, then :meth:`probe`. Override those instead."""
        installed = self.installed()
        return self.probe() if installed.ok else installed

    def probe(self) -> Availability:
        """Whether the installed runtime is usable on this machine. May load a library or ask a driver; must not raise.

        Called only if it is :meth:`installed`.
        """
        return Availability(ok=True)

    def installed(self) -> Availability:
        """Whether the runtime is installed. Must be cheap, import nothing heavy, and not raise.

        The default looks for the package in the capabilities.
        """
        package, requirement = self.capabilities.package, self.capabilities.requirement
        if package is None or is_importable(package):
            return Availability(ok=True)
        if owners := package_owners(package):
            return Availability(
                ok=False,
                reason=f"the modules of the package {package!r}, from {' and '.join(owners)}, are missing, as after "
                "uninstalling one of several distributions that provide it",
                remedy=f"Reinstall it: pip uninstall -y {' '.join(owners)} && pip install '{requirement or package}'",
            )
        return Availability(
            ok=False, reason=f"the package {package!r} is not installed", remedy=how_to_install(requirement or package)
        )

    def accelerators(self, device: str) -> Sequence[str]:
        """The names of the GPUs or NPUs that a device may be: what was measured on others does not apply.

        Args:
            device: in canonical form, one of the devices in the capabilities.

        Returns:
            The names; none for a processor. The default: those of :meth:`availability`, or else the device itself.

        Raises:
            BackendUnavailable: the device is not in this machine; with those that are.
        """
        return () if device == "cpu" else tuple(self.availability().devices) or (device,)

    def refuse_device_arrays(self, request: str) -> None:
        """Reject a request for arrays in device memory if the backend does not support them.

        Raises:
            BackendUnavailable: the capabilities lack ``device_arrays``; the reason names the request.
        """
        if not self.capabilities.device_arrays:
            raise BackendUnavailable(
                self.name,
                f"its feeds and outputs are in host memory, but {request} requires GPU memory",
                "Omit it, or choose a GPU backend: ort-cuda, tensorrt, ort-tensorrt.",
            )

    def diagnose(self) -> Sequence[Finding]:
        """Find problems in the installation of this backend, for ``isorun doctor``.

        Called if the package in the capabilities imports, in a separate process, so that loading a library may crash.
        A missing package is not a problem. The doctor itself checks for every backend that the package imports, is
        complete, and has one owner.
        """
        return ()

    def version(self) -> str | None:
        """The version of the runtime's package; ``None`` if it is not installed or there is none."""
        package = self.capabilities.package
        return None if package is None else package_version(package)

    @classmethod
    def members(cls) -> tuple[str, ...] | None:
        """The names of several backends that a class implements, each requested as ``NAME:MEMBER``, which is its
        :attr:`name`. ``None`` for a single backend."""
        return None

    @classmethod
    def absent_members(cls) -> tuple[str, ...]:
        """Names beside :meth:`members` that may be requested: of what is not on this machine, and can say why."""
        return ()

    def read_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every option that the capabilities declare, with defaults for those that are omitted.

        Raises:
            InvalidOption: a key is not declared, or its value is invalid.
        """
        return options.read(self.name, self.capabilities.options, given)

    @abstractmethod
    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        """Compile a model exactly as configured.

        Raises:
            BackendUnavailable: this machine does not support the configuration.
            UnsupportedModel: the runtime has no implementation of some operator.
            BackendFailed: the runtime failed, with its error as the cause.
        """


@contextmanager
def runtime_errors(doing: str, recognise: Callable[[Exception], IsorunError | None] | None = None) -> Iterator[None]:
    """Convert a runtime's exceptions to isorun's, with the original as the cause; not those of a handler of a signal.

    Args:
        doing: the failed operation: ``<name> cannot load <path>``.
        recognise: converts known exceptions of this runtime, to ``UnsupportedModel`` for example, and returns ``None``
            for others, which become ``BackendFailed: <doing>: <message of the runtime>``.
    """
    try:
        yield
    except IsorunError:
        raise
    except Exception as error:
        if interrupts(error):
            raise
        known = None if recognise is None else recognise(error)
        raise known or BackendFailed(f"{doing}: {message_of(error)}") from error
