"""The two contracts of a backend: what it is (:class:`Backend`) and a model made ready on it (:class:`Executable`).

A backend's module must import without its runtime: the runtime is imported in :meth:`Backend.compile`, so
that ``isorun backends`` can describe what is not installed. Everything the runtime raises is wrapped where
it is entered, in :func:`runtime_errors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from isorun import options
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, IsorunError
from isorun.plugin.device_arrays import DeviceArray
from isorun.system.packages import how_to_install, is_importable, package_owners, package_version
from isorun.types import Availability, Capabilities, CompileConfig, Feeds, Finding, LoweredModel, RuntimeReport


class Executable(ABC):
    """A model that one runtime has made ready to run. Feeds reach it checked."""

    @abstractmethod
    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        """Run once.

        Args:
            output_names: which outputs, in which order; ``None`` for all, in the model's order.
            feeds: input name to array, of the model's dtypes and shapes.

        Returns:
            Arrays that belong to the caller: no later run changes them.

        Raises:
            BackendFailed: the runtime failed, with its error as the cause.
        """

    def run_on_device(
        self,
        output_names: Sequence[str] | None,  # noqa: ARG002
        feeds: Feeds,  # noqa: ARG002
    ) -> list[DeviceArray]:
        """Run once and leave the outputs in the device's memory.

        Only for backends whose capabilities have ``device_arrays``; the others' sessions refuse it beforehand.
        """
        raise BackendFailed(f"{type(self).__name__} has no outputs in a device's memory")

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        """Tie arrays to the inputs and outputs, to run many times without naming them again.

        Args:
            feeds: read anew at every run, in place.
            outputs: for each output wanted, the array to write it to, or ``None`` for a new one. Backends with
                ``device_arrays`` also get a ``DeviceArray`` to write to, or ``ON_DEVICE`` for a new one there.
        """
        return Binding(self, feeds, outputs)

    @abstractmethod
    def report(self) -> RuntimeReport:
        """What the runtime says it did with the model. May take a while; it is asked once."""

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:  # noqa: ARG002
        """How long the device takes over feeds that are in its memory already, run after run.

        Returns:
            (runs,), float64, milliseconds by the device's own events; ``None`` where the runtime offers nothing to put
            them on.
        """
        return None

    def close(self) -> None:
        """Let go of everything. Called once.

        Of a backend that is ``thread_safe``, another thread may have a run in flight, or enter one that it was about
        to: such a run gives the right answer or raises ``BackendFailed``. No other backend is closed amid a run.
        """


class Binding:
    """Arrays tied to a model's inputs and outputs. This one copies results; a runtime that writes to given
    memory itself overrides :meth:`Executable.bind` to return its own."""

    def __init__(self, executable: Executable, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> None:
        self._executable = executable
        self._feeds = feeds
        self._outputs = outputs

    def run(self) -> list[Any]:
        """Run once; the outputs in the order in which they were bound."""
        results = self._executable.run(list(self._outputs), self._feeds)
        for index, given in enumerate(self._outputs.values()):
            if given is not None:
                check_fits(list(self._outputs)[index], given, results[index].shape, results[index].dtype)
                given[...] = results[index]
                results[index] = given
        return results


def check_fits(name: str, given: np.ndarray, shape: Sequence[int], dtype: np.dtype[Any] | None = None) -> None:
    """Refuse memory that an output was bound to and that is not of the output's own shape and type.

    Raises:
        InvalidFeeds: with the output's name, what it is and what was bound.
    """
    if given.shape != tuple(shape) or (dtype is not None and given.dtype != dtype):
        raise InvalidFeeds(
            f"Output {name!r} is {tuple(shape)}{f' of {dtype}' if dtype else ''}; "
            f"it was bound to memory of {given.shape} of {given.dtype}"
        )


class Backend(ABC):
    """One way to run models, found by the name of its entry point in the group ``isorun.backends``."""

    capabilities: ClassVar[Capabilities]

    def __init__(self, name: str) -> None:
        self.name = name

    def availability(self) -> Availability:
        """Whether the runtime is there and usable. Never raises, and imports nothing heavy.

        This looks for the package that the capabilities name; a backend that needs a device or a driver
        overrides it and looks for those too.
        """
        package, requirement = self.capabilities.package, self.capabilities.requirement
        if package is None:
            return Availability(ok=True)
        if is_importable(package):
            return Availability(ok=True)
        if owners := package_owners(package):
            return Availability(
                ok=False,
                reason=f"the package {package!r} is hollow: {' and '.join(owners)} should bring it, and its modules "
                "are gone, as when one of several distributions that own it is uninstalled",
                remedy=f"Install it anew: pip uninstall -y {' '.join(owners)} "
                f"&& pip install '{requirement or package}'",
            )
        return Availability(
            ok=False,
            reason=f"the package {package!r} is not installed",
            remedy=how_to_install(requirement or package),
        )

    def refuse_device_arrays(self, wish: str) -> None:
        """Refuse arrays on a device where the backend has none.

        Raises:
            BackendUnavailable: its capabilities do not have ``device_arrays``; the reason names the wish.
        """
        if not self.capabilities.device_arrays:
            raise BackendUnavailable(
                self.name,
                f"its feeds and outputs are in host memory, and {wish} asks for a GPU's",
                "Leave that out, or take a backend for GPUs: ort-cuda, tensorrt, ort-tensorrt.",
            )

    def diagnose(self) -> Sequence[Finding]:
        """What is wrong with what is installed for this backend, for ``isorun doctor``.

        Called where the package of the capabilities is there and imports, in a process of its own: a library may be
        loaded here, and may crash. What is not installed is no finding. By default there is none: that the package
        imports, and is whole and nobody else's, is looked at for every backend.
        """
        return ()

    def version(self) -> str | None:
        """The version of the runtime's package; ``None`` where it is not installed or the backend has none."""
        package = self.capabilities.package
        return None if package is None else package_version(package)

    @classmethod
    def members(cls) -> tuple[str, ...] | None:
        """For a class that stands for several backends, their names here: each is asked for as ``NAME:MEMBER``, and
        that is its :attr:`name`. ``None`` for a class that stands for itself."""
        return None

    def read_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every option that the capabilities declare, with defaults for those that are omitted.

        Raises:
            InvalidOption: a key is not declared, or its value is invalid.
        """
        return options.read(self.name, self.capabilities.options, given)

    @abstractmethod
    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        """Make a model ready to run, exactly as the config asks.

        Raises:
            BackendUnavailable: this machine cannot do what the config asks.
            UnsupportedModel: the runtime has no implementation of some operator.
            BackendFailed: the runtime failed, with its error as the cause.
        """


@contextmanager
def runtime_errors(doing: str, recognise: Callable[[Exception], IsorunError | None] | None = None) -> Iterator[None]:
    """The seam at which a runtime's exceptions become isorun's, with the runtime's own as the cause.

    Args:
        doing: what is being done: ``<name> cannot load <path>``.
        recognise: says what an exception of this runtime is known to mean, such as ``UnsupportedModel``; ``None``
            where it may mean anything. That becomes ``BackendFailed: <doing>: <what the runtime said>``.
    """
    try:
        yield
    except IsorunError:
        raise
    except Exception as error:
        known = None if recognise is None else recognise(error)
        raise known or BackendFailed(f"{doing}: {error}") from error
