"""The tests of the tensorrt backend and the conformance suite through NVIDIA's own Python bindings of both major
versions, and through pycuda if it is installed. Behind them are fakes: fake_nvinfer.py of TensorRT's libraries,
fake_libcuda.c of the driver.

On demand, because the bindings are downloaded:

    pytest -m long tests/backends/test_tensorrt_bindings.py

or, with bindings that are already installed, one version at a time:

    pip install --target FOLDER --no-deps 'tensorrt-cu13-bindings<11'
    ISORUN_TENSORRT=FOLDER pytest tests/backends/tensorrt
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fake_cuda
import fake_nvinfer
from isorun_backends.nvidia.cuda_driver import driver

TESTS = Path(__file__).with_name("tensorrt")
LIBCUDA = Path(__file__).parents[1] / "helpers" / "fake_libcuda.c"
SUITE = """
import json
from isorun_conformance import runner
checks = runner.run("tensorrt").checks
for each in checks:
    if each.outcome == "failed":
        print(each.name, each.message)
print(json.dumps({
    "passed": sum(each.outcome == "passed" for each in checks),
    "failed": [each.name for each in checks if each.outcome not in ("passed", "skipped")],
}))
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="structures are returned by hand, as on x86-64"),
    pytest.mark.skipif(bool(driver().gpus), reason="there is a GPU: the fakes would hide it"),
]


def ran(tmp_path, **environment):
    """Run the tests in a separate process, which loads the fakes."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", f"--basetemp={tmp_path / 'tests'}", str(TESTS)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["tensorrt-cu13-bindings>=10.14,<11", "tensorrt-cu13-bindings>=11,<12"])
def bindings(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bindings")
    pip = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "-q", "--no-deps", "--target", str(folder), request.param]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    return folder


def test_the_backend_through_nvidias_own_bindings(tmp_path, bindings):
    assert " passed" in ran(tmp_path, ISORUN_TENSORRT=str(bindings))


def test_the_conformance_suite_through_nvidias_own_bindings(tmp_path, bindings):
    """All checks pass except the one that looks for an open device."""
    fake_nvinfer.site(tmp_path / "site", bindings)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, LIBCUDA], check=True)
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": str(tmp_path)}
    environment["ISORUN_CACHE_DIR"] = str(tmp_path / "cache")
    command = [sys.executable, "-c", SUITE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == ["test_what_claims_a_device_holds_it_open[cuda]"], done.stdout
    assert found["passed"] > 70


def test_the_backend_through_pycuda(tmp_path):
    spec = importlib.util.find_spec("pycuda")
    if spec is None or spec.origin is None:
        pytest.skip("pycuda is not installed")
    (library,) = Path(spec.origin).parent.glob("_driver*.so")
    fake_cuda.build(tmp_path / "libraries", library)
    assert " passed" in ran(tmp_path, ISORUN_TENSORRT_MEMORY="pycuda", LD_LIBRARY_PATH=str(tmp_path / "libraries"))
