"""The installed build of ONNX Runtime, read from its files: which distribution, and the libraries of its providers."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

_MISSING = re.compile(r"(lib[\w.+-]+?\.so[\w.]*): cannot open shared object file")


class Build(NamedTuple):
    """The installed build of ONNX Runtime: its distribution, its CUDA version, and the folder of its libraries."""

    package: str
    cuda: str
    folder: Path

    def library(self, provider: str) -> Path:
        """Where the library of a provider is, if the build has one; such as of ``cuda``."""
        return self.folder / f"libonnxruntime_providers_{provider}.so"

    def missing(self, provider: str) -> str | None:
        """The library that a provider's library lacks, or the linker's message; ``None`` if it loads.

        Only to be called where the provider has failed, or in a process of its own: ONNX Runtime's provider libraries
        must not be loaded before it loads them itself.
        """
        try:
            ctypes.CDLL(str(self.library("shared")), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(self.library(provider)))
        except OSError as error:
            match = _MISSING.search(str(error))
            return match[1] if match else str(error)
        return None


def build() -> Build | None:
    """The active one of the distributions that share the import package; nothing is imported.

    ``None`` if none is installed, or only an empty folder is left of one.
    """
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "capi"
    try:
        text = (folder / "build_and_package_info.py").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = dict(re.findall(r"^(package_name|cuda_version) *= *['\"](.*?)['\"]", text, re.MULTILINE))
    return Build(fields.get("package_name", "").strip(), fields.get("cuda_version", ""), folder)
