"""Plugin execution providers of ONNX Runtime: finding their packages, loading their libraries, listing their devices.

A package is found by an entry point of the group :data:`GROUP`; by its name, as ONNX Runtime's documentation suggests
it (``onnxruntime-ep-NAME``); or, if it is a package for ONNX Runtime, by what it contains: the functions that the same
documentation asks for (``get_library_path()``, ``get_ep_names()``), a library named after ONNX Runtime, or one in a
folder ``providers``. A file :data:`DECLARATION` in the package says what the provider can do. Finding imports nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.plugin import BackendUnavailable, import_runtime, package_owners, package_version, packages_distributions

if TYPE_CHECKING:
    import onnxruntime

GROUP = "isorun.execution_providers"
"""Entry points: the name of a provider, and the module with the two functions."""
DECLARATION = "isorun.toml"
"""What a provider declares, beside the ``__init__.py`` of its package: fields of ``Capabilities``, and more."""
_DECLARATIONS = Path(__file__).with_name("declarations")  # of packages that have no such file

_MODULE, _DISTRIBUTION = "onnxruntime_ep_", "onnxruntime-ep-"
_RUNTIME = "onnxruntime"
_FUNCTIONS = ("get_library_path", "get_ep_name")
_SUFFIXES = (".so", ".dll", ".dylib")
_LIBRARY = re.compile(r"(lib)?onnxruntime_(?!providers_shared)\w+\.(so|dll|dylib)")
_BUNDLED = re.compile(r"(lib)?onnxruntime\.(so|dll|dylib)\b.*")
_ENTRY_POINT = b"CreateEpFactories"  # what every library of a provider exports
_REQUIREMENT = re.compile(r"onnxruntime(?![\w.])(?!-(?:extensions|genai)\b)", re.IGNORECASE)
_loading = threading.Lock()


def installed() -> dict[str, str]:
    """The name of every installed provider and its module. Nothing is imported.

    ``onnxruntime_ep_openvino`` is named ``openvino``, and so is ``onnxruntime_openvino``. An entry point names a
    provider itself; packages whose names collide keep their import names.
    """
    named = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    owners_by_package = packages_distributions()
    guided = [package for package, owners in owners_by_package.items() if _is_guided(package, owners)]
    unnamed = [
        (_name(package, owners_by_package.get(package, ())), package)
        for package in sorted({*guided, *_unguided()} - set(named.values()))
    ]
    names = [*named, *(name for name, _ in unnamed)]
    return named | {package if names.count(name) > 1 else name: package for name, package in unnamed}


def _is_guided(package: str, owners: Sequence[str]) -> bool:
    """Whether a package has the name that ONNX Runtime's documentation suggests."""
    guided = package.startswith(_MODULE) or any(owner.lower().startswith(_DISTRIBUTION) for owner in owners)
    return guided and _has_modules(package)


def _has_modules(package: str) -> bool:
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    return spec is not None and spec.origin is not None  # a folder without modules is what remains of a package


def _unguided() -> Iterator[str]:
    """Packages of other names that contain a provider, of distributions that are made for ONNX Runtime."""
    for distribution in metadata.distributions():
        if _RUNTIME not in (distribution.read_text("METADATA") or "").lower():  # parsing all would take much longer
            continue
        name = (distribution.metadata["Name"] or "").lower()
        if not name.startswith(f"{_RUNTIME}-") and not any(map(_REQUIREMENT.match, distribution.requires or ())):
            continue
        paths = [Path(str(path)) for path in distribution.files or ()]
        if any(_BUNDLED.fullmatch(path.name) for path in paths):
            continue  # a build of ONNX Runtime, or an application with a copy of it
        packages = {path.parts[0] for path in paths if path.name == "__init__.py" and len(path.parts) == 2}
        libraries = {path.parts[0] for path in paths if path.suffix in _SUFFIXES}
        for package in sorted(packages - {_RUNTIME}):
            if _has_modules(package) and (_has_functions(package) or (package in libraries and library_files(package))):
                yield package


def _has_functions(package: str) -> bool:
    """Whether the source of a package has the functions that ONNX Runtime's documentation asks for."""
    sources = [folder / "__init__.py" for folder in _folders(package)]
    texts = [source.read_text(encoding="utf-8", errors="replace") for source in sources if source.is_file()]
    return any(all(function in text for function in _FUNCTIONS) for text in texts)


def library_files(package: str) -> list[Path]:
    """The files of a package that are libraries of providers, by their names or their folder, and what they export."""
    return [
        path
        for folder in _folders(package)
        for path in sorted(folder.rglob("*"))
        if path.suffix in _SUFFIXES
        and (_LIBRARY.fullmatch(path.name) or path.parent.name == "providers")
        and _exports_providers(path)
    ]


def _exports_providers(path: Path) -> bool:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_ENTRY_POINT) >= 0


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]


def _name(package: str, owners: Sequence[str]) -> str:
    if package.startswith(_MODULE):
        return package.removeprefix(_MODULE).replace("_", "-")
    for prefix in (_DISTRIBUTION, f"{_RUNTIME}-"):
        if names := [owner.lower().removeprefix(prefix) for owner in owners if owner.lower().startswith(prefix)]:
            return min(names)
    return package.replace("_", "-")


def guided_module(name: str) -> str:
    """The module that ONNX Runtime's documentation suggests for a provider, under which isorun's declarations are."""
    return _MODULE + name.replace("-", "_")


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
    """What a provider's package declares in :data:`DECLARATION`, or isorun for it. Nothing is imported. Raises
    ``BackendUnavailable`` if the file is not TOML."""
    package = module.partition(".")[0]
    candidates = [*(folder / DECLARATION for folder in _folders(package)), _DECLARATIONS / f"{package}.toml"]
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
        provider: which of its providers; ``None`` for the first.

    Raises:
        BackendUnavailable: the package or its library does not load, it has no such provider, or it offers no device.
    """

    def load() -> tuple[Sequence[Path], Sequence[str]]:
        functions = importlib.import_module(module)
        if hasattr(functions, "get_library_path"):
            libraries = [Path(functions.get_library_path())]
        elif not (libraries := library_files(module.partition(".")[0])):
            raise ImportError(f"{module} has neither get_library_path() nor a library of a provider")
        if hasattr(functions, "get_ep_names"):
            return libraries, [str(provider_name) for provider_name in functions.get_ep_names()]
        named = functions.get_ep_name() if hasattr(functions, "get_ep_name") else getattr(functions, "EP_NAME", None)
        return libraries, [] if named is None else [str(named)]

    return _devices(name, lambda: title(module), load, provider, declared(name, module).get("no_device", ""))


def library_devices(name: str, library: Path, provider: str | None = None) -> Sequence[onnxruntime.OrtEpDevice]:
    """The same for a library that is in no package: its providers are those that appear with it."""
    return _devices(name, lambda: str(library), lambda: ([library], ()), provider)


def _devices(
    name: str,
    what: Callable[[], str],
    load: Callable[[], tuple[Sequence[Path], Sequence[str]]],
    provider: str | None,
    remedy: str = "",
) -> Sequence[onnxruntime.OrtEpDevice]:
    onnxruntime = import_runtime("onnxruntime")
    try:
        with _loading:  # a library must not be registered twice
            libraries, names = load()
            appeared = [appeared for path in libraries for appeared in _register(path.absolute(), provider, names)]
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


_registered: dict[Path, tuple[str, ...]] = {}


def _register(library: Path, provider: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """Load a library into ONNX Runtime, once; returns the names of its providers that offer a device.

    Some take the name under which they are registered, which must then be the one that their package declares.
    """
    onnxruntime = import_runtime("onnxruntime")
    if library not in _registered:
        before = {device.ep_name for device in onnxruntime.get_ep_devices()}
        named = provider or next(iter(names), library.name.partition(".")[0])
        onnxruntime.register_execution_provider_library(named, str(library))
        appeared = dict.fromkeys(device.ep_name for device in onnxruntime.get_ep_devices())
        _registered[library] = tuple(name for name in appeared if name not in before)
    return _registered[library]
