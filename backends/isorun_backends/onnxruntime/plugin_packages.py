"""Plugin execution providers of ONNX Runtime: finding their packages, loading their libraries, listing their devices.

A package is found by its name, as ONNX Runtime's documentation suggests it (``onnxruntime-ep-NAME``), or by an entry
point of the group :data:`GROUP`. It has the functions that the same documentation asks for: ``get_library_path()`` and
``get_ep_names()``. A file :data:`DECLARATION` in the package says what the provider can do. Finding imports nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.plugin import BackendUnavailable, package_owners, package_version, packages_distributions

if TYPE_CHECKING:
    import onnxruntime

GROUP = "isorun.execution_providers"
"""Entry points: the name of a provider, and the module with the two functions."""
DECLARATION = "isorun.toml"
"""What a provider declares, beside the ``__init__.py`` of its package: fields of ``Capabilities``, and more."""
_DECLARATIONS = Path(__file__).with_name("declarations")  # of packages that have no such file

_MODULE, _DISTRIBUTION = "onnxruntime_ep_", "onnxruntime-ep-"
_loading = threading.Lock()


def installed() -> dict[str, str]:
    """The name of every installed provider and its module. Nothing is imported.

    ``onnxruntime_ep_openvino`` is named ``openvino``. An entry point names a provider itself; packages whose names
    collide keep their import names.
    """
    named = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    unnamed = [
        (_name(package, owners), package)
        for package, owners in sorted(packages_distributions().items())
        if package not in named.values() and _is_provider(package, owners)
    ]
    names = [*named, *(name for name, _ in unnamed)]
    return named | {package if names.count(name) > 1 else name: package for name, package in unnamed}


def _is_provider(package: str, owners: Sequence[str]) -> bool:
    ours = package.startswith(_MODULE) or any(owner.lower().startswith(_DISTRIBUTION) for owner in owners)
    spec = importlib.util.find_spec(package) if ours and package.isidentifier() else None
    return spec is not None and spec.origin is not None  # a folder without modules is what remains of a package


def _name(package: str, owners: Sequence[str]) -> str:
    if package.startswith(_MODULE):
        return package.removeprefix(_MODULE).replace("_", "-")
    return min(owner.lower().removeprefix(_DISTRIBUTION) for owner in owners if owner.lower().startswith(_DISTRIBUTION))


def title(module: str) -> str:
    """A module's package and its version, for messages."""
    package = module.partition(".")[0]
    return f"{package} {package_version(package) or 'of an unknown version'}"


@cache  # to find it takes longer than to open a session, and a loaded library stays what it is
def versions(module: str) -> Mapping[str, str]:
    """The distribution that a module is from, and its version."""
    package = module.partition(".")[0]
    return {owner: metadata.version(owner) for owner in package_owners(package)[:1]}


def declared(name: str, module: str) -> Mapping[str, Any]:
    """What a provider's package declares in :data:`DECLARATION`, or isorun for it. Nothing is imported.

    Args:
        name: the backend's name, for errors.
        module: the provider's module.

    Raises:
        BackendUnavailable: the file is not TOML.
    """
    package = module.partition(".")[0]
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or ()
    candidates = [*(Path(folder) / DECLARATION for folder in folders), _DECLARATIONS / f"{package}.toml"]
    path = next((path for path in candidates if path.is_file()), None)
    try:
        return {} if path is None else tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise invalid(name, module, f"it is not TOML ({error})") from error


def invalid(name: str, module: str, problem: str) -> BackendUnavailable:
    """The error for a wrong declaration."""
    reason = f"{DECLARATION} of {title(module)} is invalid: {problem}"
    return BackendUnavailable(name, reason, f"Report it to the authors of {module.partition('.')[0]}.")


def devices(name: str, module: str, provider: str | None = None) -> Sequence[onnxruntime.OrtEpDevice]:
    """The devices that a package's provider offers on this machine. Loads its library for the life of the process.

    Args:
        name: the backend's name, for errors.
        module: the provider's module.
        provider: which of its providers; ``None`` for the first.

    Raises:
        BackendUnavailable: the package or its library does not load, it has no such provider, or it offers no device.
    """

    def load() -> tuple[Path, Sequence[str]]:
        functions = importlib.import_module(module)
        names = functions.get_ep_names() if hasattr(functions, "get_ep_names") else [functions.get_ep_name()]
        return Path(functions.get_library_path()), [str(provider_name) for provider_name in names]

    return _devices(name, lambda: title(module), load, provider, declared(name, module).get("no_device", ""))


def library_devices(name: str, library: Path, provider: str | None = None) -> Sequence[onnxruntime.OrtEpDevice]:
    """The same for a library that is in no package: its providers are those that appear with it."""
    return _devices(name, lambda: str(library), lambda: (library, ()), provider)


def _devices(
    name: str,
    what: Callable[[], str],
    load: Callable[[], tuple[Path, Sequence[str]]],
    provider: str | None,
    remedy: str = "",
) -> Sequence[onnxruntime.OrtEpDevice]:
    import onnxruntime

    try:
        with _loading:  # a library must not be registered twice
            library, names = load()
            appeared = _register(library.absolute())
    except Exception as error:
        raise BackendUnavailable(
            name,
            f"{what()} does not load into ONNX Runtime {onnxruntime.__version__} ({type(error).__name__}: {error})",
            "Install compatible versions of the two.",
        ) from error
    names = names or appeared
    if provider is not None and provider not in (*names, *appeared):
        known = ", ".join(dict.fromkeys([*names, *appeared])) or "none"
        raise BackendUnavailable(name, f"{what()} has no provider {provider!r} (known: {known})", "Choose one of them.")
    present = onnxruntime.get_ep_devices()
    offered = [device for device in present if device.ep_name == (provider or next(iter(names), None))]
    if not offered:
        hardware = sorted({f"{device.device.vendor} {device.device.type.name}" for device in present})
        raise BackendUnavailable(
            name,
            f"{what()} offers no device on this machine ({', '.join(hardware)})",
            remedy or "Run it on a machine with its hardware, or choose another backend.",
        )
    return offered


@cache
def _register(library: Path) -> tuple[str, ...]:
    """Load a library into ONNX Runtime; returns the names of its providers that offer a device."""
    import onnxruntime

    before = {device.ep_name for device in onnxruntime.get_ep_devices()}
    onnxruntime.register_execution_provider_library(str(library), str(library))
    names = dict.fromkeys(device.ep_name for device in onnxruntime.get_ep_devices())
    return tuple(name for name in names if name not in before)
