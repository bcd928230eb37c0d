"""Check that TensorRT's official bindings have every name and argument that isorun uses, without a GPU or TensorRT.

    pip download --no-deps -d wheels 'tensorrt-cu13-bindings<11' && unzip -d bindings wheels/*.whl
    python tests/helpers/check_tensorrt_api.py bindings

The bindings import once there are libraries that export the few functions they need. This script makes such libraries
with the C compiler, in a temporary folder, and inspects the bindings in a separate process; nothing is called.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from isorun_backends.tensorrt import api

ENUMERATIONS = {
    "NetworkDefinitionCreationFlag": ("STRONGLY_TYPED",),
    "BuilderFlag": ("TF32",),
    "MemoryPoolType": ("WORKSPACE",),
    "ProfilingVerbosity": ("DETAILED",),
    "LayerInformationFormat": ("JSON",),
}

CLASSES = {
    "INetworkDefinition": api.Network,
    "IOptimizationProfile": api.OptimizationProfile,
    "IHostMemory": api.HostMemory,
    "ITimingCache": api.TimingCache,
    "IBuilderConfig": api.BuilderConfig,
    "Builder": api.Builder,
    "ParserError": api.ParserError,
    "OnnxParser": api.Parser,
    "IExecutionContext": api.Context,
    "EngineInspector": api.Inspector,
    "ICudaEngine": api.Engine,
    "Runtime": api.Runtime,
}
_FUNCTIONS = (
    *("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL"),
    *("createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getBuilderPluginRegistry"),
    *("getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins"),
)
_NEEDED = re.compile(rb"lib(?:nvinfer|nvinfer_plugin|nvonnxparser)\.so\.\d+")
_CONSTRUCTORS = {
    "Builder": ("logger",),
    "OnnxParser": ("network", "logger"),
    "Runtime": ("logger",),
}


def main(folder: Path) -> int:
    """Check the bindings in a folder and print the differences."""
    (library,) = folder.rglob("tensorrt.so")
    with tempfile.TemporaryDirectory() as work:
        for name in set(_NEEDED.findall(library.read_bytes())):
            _fake_library(Path(work), name.decode())
        environment = {**os.environ, "LD_LIBRARY_PATH": work}
        command = [sys.executable, __file__, str(folder), library.parent.name]
        return subprocess.run(command, env=environment, check=False).returncode


def compare(package: str) -> int:
    """Compare a package of bindings with what is used; 1 if there are differences."""
    trt = importlib.import_module(package)
    found = differences(trt)
    for difference in found:
        print(difference)
    print(f"{package} {trt.__version__}: {len(found)} differences in {_count()} names")
    return bool(found)


def differences(trt: Any) -> list[str]:
    """What is missing or has other arguments."""
    found = []
    for name, members in ENUMERATIONS.items():
        there = getattr(getattr(trt, name, None), "__members__", {})
        found += [f"{name}.{member} is missing" for member in members if member not in there]
    for name, protocol in CLASSES.items():
        found += _class(name, getattr(trt, name, None), protocol)
    for name, arguments in _CONSTRUCTORS.items():
        said = _arguments(getattr(trt, name).__init__)
        found += [] if said is None or said[1:] == list(arguments) else [f"{name} takes {said}, not {arguments}"]
    severities = getattr(getattr(trt, "ILogger", None), "Severity", None)
    for member in ("INTERNAL_ERROR", "ERROR", "WARNING"):
        found += [] if hasattr(severities, member) else [f"ILogger.Severity.{member} is missing"]
    return found


def _class(name: str, cls: Any, protocol: Any) -> list[str]:
    if cls is None:
        return [f"{name} is missing"]
    found = []
    for member in _members(protocol):
        there, ours = getattr(cls, member, None), getattr(protocol, member, None)
        if there is None:
            found.append(f"{name}.{member} is missing")
            continue
        said = _arguments(there) if inspect.isfunction(ours) else None
        if inspect.isfunction(ours) and said is not None:
            wanted = list(inspect.signature(ours).parameters)[1:]
            if said[1 : 1 + len(wanted)] != wanted:
                found.append(f"{name}.{member} takes {said[1:]}, not {wanted}")
    return found


def _members(protocol: Any) -> list[str]:
    names = {key for key, value in vars(protocol).items() if not key.startswith("_") and value is not None}
    names |= set(getattr(protocol, "__annotations__", {}))
    return sorted(name for name in names if not name.startswith("_"))


def _arguments(member: Any) -> list[str] | None:
    """Names of arguments from the first line of pybind11's docstring; ``None`` if it does not list them."""
    line = (getattr(member, "__doc__", "") or "").partition("\n")[0]
    inside = re.fullmatch(r"\w+\((.*)\)(?: -> .*)?", line)
    if inside is None or "*args" in line:
        return _overloaded(getattr(member, "__doc__", "") or "")
    return re.findall(r"(?:^|, )(\w+):", re.sub(r"\[[^\]]*\]", "", inside[1]))


def _overloaded(text: str) -> list[str] | None:
    first = re.search(r"^1\. \w+\((.*)\)(?: -> .*)?$", text, re.MULTILINE)
    return None if first is None else re.findall(r"(?:^|, )(\w+):", re.sub(r"\[[^\]]*\]", "", first[1]))


def _fake_library(folder: Path, name: str) -> None:
    source = folder / "fake.c"
    source.write_text("".join(f"void *{each}(void) {{ return 0; }}\n" for each in _FUNCTIONS))
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, source], check=True)


def _count() -> int:
    members = sum(len(_members(protocol)) for protocol in CLASSES.values())
    return members + sum(map(len, ENUMERATIONS.values())) + len(_CONSTRUCTORS) + 3


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(main(Path(sys.argv[1]).absolute()))
    elif len(sys.argv) == 3:
        sys.path.insert(0, sys.argv[1])
        sys.exit(compare(sys.argv[2]))
    sys.exit(f"usage: python {__file__} FOLDER_OF_THE_BINDINGS")
