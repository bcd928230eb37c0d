"""Whether TensorRT's official bindings have every name and argument that isorun uses: no GPU, no TensorRT needed.

    pip download --no-deps -d wheels 'tensorrt-cu13-bindings<11' && unzip -d bindings wheels/*.whl
    python -m isorun_backends.tensorrt.check bindings

The bindings import once libraries are there that export the few functions that they ask for. This makes such libraries
with the C compiler, in a temporary folder, and looks at the bindings in a process of its own: nothing of it is called.
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

_FUNCTIONS = (
    *("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL"),
    *("createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getBuilderPluginRegistry"),
    *("getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins"),
)
_NEEDED = re.compile(rb"lib(?:nvinfer|nvinfer_plugin|nvonnxparser)\.so\.\d+")
_BY_HAND = {  # classes that are called by their names
    "Builder": ("logger",),
    "OnnxParser": ("network", "logger"),
    "Runtime": ("logger",),
}


def main(folder: Path) -> int:
    """Check the bindings in a folder; what differs is printed."""
    (library,) = folder.rglob("tensorrt.so")
    with tempfile.TemporaryDirectory() as work:
        for name in set(_NEEDED.findall(library.read_bytes())):
            _stand_in(Path(work), name.decode())
        environment = {**os.environ, "LD_LIBRARY_PATH": work}
        command = [sys.executable, "-m", __spec__.name, str(folder), library.parent.name]
        return subprocess.run(command, env=environment, check=False).returncode


def look(package: str) -> int:
    """Compare a package of bindings with what is used; how much differs."""
    trt = importlib.import_module(package)
    wrong = differences(trt)
    for each in wrong:
        print(each)
    print(f"{package} {trt.__version__}: {len(wrong)} differences in {_count()} names")
    return bool(wrong)


def differences(trt: Any) -> list[str]:
    """What is used and is not there, or takes other arguments."""
    found = []
    for name, members in api.ENUMERATIONS.items():
        there = getattr(getattr(trt, name, None), "__members__", {})
        found += [f"{name}.{member} is not there" for member in members if member not in there]
    for name, protocol in api.CLASSES.items():
        found += _class(name, getattr(trt, name, None), protocol)
    for name, arguments in _BY_HAND.items():
        said = _arguments(getattr(trt, name).__init__)
        found += [] if said is None or said[1:] == list(arguments) else [f"{name} takes {said}, not {arguments}"]
    severities = getattr(getattr(trt, "ILogger", None), "Severity", None)
    for member in ("INTERNAL_ERROR", "ERROR", "WARNING"):
        found += [] if hasattr(severities, member) else [f"ILogger.Severity.{member} is not there"]
    return found


def _class(name: str, cls: Any, protocol: Any) -> list[str]:
    if cls is None:
        return [f"{name} is not there"]
    found = []
    for member in _members(protocol):
        there, ours = getattr(cls, member, None), getattr(protocol, member, None)
        if there is None:
            found.append(f"{name}.{member} is not there")
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
    """The names of arguments by the first line of pybind11's description; ``None`` where it does not say."""
    line = (getattr(member, "__doc__", "") or "").partition("\n")[0]
    inside = re.fullmatch(r"\w+\((.*)\)(?: -> .*)?", line)
    if inside is None or "*args" in line:
        return _overloaded(getattr(member, "__doc__", "") or "")
    return re.findall(r"(?:^|, )(\w+):", re.sub(r"\[[^\]]*\]", "", inside[1]))


def _overloaded(text: str) -> list[str] | None:
    first = re.search(r"^1\. \w+\((.*)\)(?: -> .*)?$", text, re.MULTILINE)
    return None if first is None else re.findall(r"(?:^|, )(\w+):", re.sub(r"\[[^\]]*\]", "", first[1]))


def _stand_in(folder: Path, name: str) -> None:
    source = folder / "stand_in.c"
    source.write_text("".join(f"void *{each}(void) {{ return 0; }}\n" for each in _FUNCTIONS))
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, source], check=True)


def _count() -> int:
    members = sum(len(_members(protocol)) for protocol in api.CLASSES.values())
    return members + sum(map(len, api.ENUMERATIONS.values())) + len(_BY_HAND) + 3


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(main(Path(sys.argv[1]).absolute()))
    elif len(sys.argv) == 3:
        sys.path.insert(0, sys.argv[1])
        sys.exit(look(sys.argv[2]))
    sys.exit(f"usage: python -m {__spec__.name} FOLDER_OF_THE_BINDINGS")
