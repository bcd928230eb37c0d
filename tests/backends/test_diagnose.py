"""What the backends report to ``isorun doctor``: libraries that do not load, versions that do not match.

A fake onnxruntime-gpu, with provider libraries made by the C compiler, replaces onnxruntime.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import sites
from isorun.cli.doctor import installation
from isorun.types import Finding
from isorun_backends.nvidia import cuda_driver

COMPILER = shutil.which(os.environ.get("CC", "cc"))
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler to make libraries with")

RUNTIME = {
    "onnxruntime/__init__.py": """
__version__ = "9.9"
def preload_dlls(): print("Failed to load the library that is not there")
def register_execution_provider_library(name, path): raise RuntimeError(f"cannot load {path}")
def get_ep_devices(): return []
""",
    "onnxruntime/capi/__init__.py": "",
    "onnxruntime/capi/build_and_package_info.py": "package_name = 'onnxruntime-gpu'\ncuda_version = '13.0'\n",
}
PROVIDER = """
def get_library_path(): return "/nowhere/libprovider.so"
def get_ep_name(): return "Odd"
"""


def library(folder: Path, name: str, needs: str | None = None, text: str = "") -> bytes:
    """A library that needs another one, which is missing when it is loaded."""
    folder.mkdir(exist_ok=True)
    source = folder / "source.c"
    source.write_text(f'const char *isorun_text_{len(text)} = "{text}";\n')
    needed = []
    if needs is not None:
        subprocess.run([COMPILER, "-shared", f"-Wl,-soname,{needs}", "-o", folder / needs, source], check=True)
        needed = ["-Wl,--no-as-needed", folder / needs]
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / name, source, *needed], check=True)
    return (folder / name).read_bytes()


@pytest.fixture
def findings_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Finding]]:
    site = tmp_path / "site"
    monkeypatch.setenv("PYTHONPATH", str(site))

    def look(cuda_needs: str | None, tensorrt: str | None = None, provider: str | None = None) -> dict[str, Finding]:
        binary = {
            "shared": library(tmp_path / "made", "shared.so"),
            "cuda": library(tmp_path / "made", "cuda.so", cuda_needs),
            "tensorrt": library(tmp_path / "made", "tensorrt.so", text="libnvinfer.so.10"),
        }
        libraries = {
            f"onnxruntime/capi/libonnxruntime_providers_{name}.so": content for name, content in binary.items()
        }
        # Named onnxruntime, so that it precedes the one that the tests are installed with.
        sites.install(site, "onnxruntime", "9.9", {**RUNTIME, **libraries})
        if tensorrt is not None:
            sites.install(site, "tensorrt", tensorrt, {})
        if provider is not None:
            sites.install(site, "onnxruntime-ep-odd", "1.0", {"onnxruntime_ep_odd/__init__.py": provider})
        return {finding.subject: finding for finding in installation.findings()}

    return look


def test_reports_a_missing_library_and_versions_that_do_not_fit(findings_of, monkeypatch):
    sites.examine_only(monkeypatch, "ort-cpu", "ort-cuda", "ort-tensorrt", "ort-ep", "tensorrt")
    subjects = findings_of("libcublasLt.so.13", tensorrt="11.4.0", provider=PROVIDER)
    finding = subjects.pop("the backend ort-cuda")
    assert "libonnxruntime_providers_cuda.so needs libcublasLt.so.13" in finding.what
    assert finding.command == "pip install 'onnxruntime-gpu[cuda,cudnn]'"
    problem = cuda_driver.driver().problem  # without a GPU the library would not help
    assert finding.severity == ("warning" if problem else "error")
    assert problem in finding.why
    finding = subjects.pop("the backend ort-tensorrt")
    assert "TensorRT 11.4.0" in finding.what
    assert finding.command == "pip install 'tensorrt==10.*'"
    finding = subjects.pop("the backend ort-ep:odd")
    assert "onnxruntime_ep_odd 1.0" in finding.what
    assert finding.command == "pip install --upgrade onnxruntime onnxruntime-ep-odd"
    subjects.pop("the backend ort-ep:openvino", None)  # installed here
    assert subjects == {}


def test_reports_a_plugin_without_a_device(findings_of, monkeypatch):
    sites.examine_only(monkeypatch, "ort-ep")
    loads = "import onnxruntime\nonnxruntime.register_execution_provider_library = lambda *_: None\n" + PROVIDER
    finding = findings_of(None, tensorrt="10.16.0", provider=loads).pop("the backend ort-ep:odd")
    assert (finding.severity, "offers no device on this machine" in finding.what) == ("warning", True)
    assert finding.command.startswith("pip uninstall -y onnxruntime-ep-odd")
