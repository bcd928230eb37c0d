"""The driver's calls against a fake ``libcuda`` in a separate process: widths of arguments, and error codes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import programs

FAKE = Path(__file__).parents[2] / "helpers" / "fake_libcuda.c"
CODE = """
import os
from isorun_backends.nvidia import cuda_driver, gpu

driver = cuda_driver.driver()
assert (driver.cuda, driver.problem) == ("13.0", ""), driver
assert driver.gpus == (cuda_driver.Gpu("A fake", "9.0", 1 << 35),), driver
assert gpu.availability().devices == ("A fake",)
for call, doing in {
    "cuInit": "start",
    "cuDriverGetVersion": "report its version",
    "cuDeviceGetCount": "count its GPUs",
    "cuDeviceGet": "describe GPU 0",
    "cuDeviceTotalMem_v2": "describe GPU 0",
    "cuDeviceGetAttribute": "describe GPU 0",
}.items():
    os.environ["FAKE_CUDA_FAILS"] = call
    cuda_driver.driver.cache_clear()
    driver = cuda_driver.driver()
    assert driver.problem == f"the NVIDIA driver cannot {doing}: refused (CUDA error 999)", driver
    assert not driver.gpus
    assert not gpu.availability().ok
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="libcuda.so.1 is Linux's name for it")
def test_describes_gpus_and_reports_errors(tmp_path):
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, FAKE], check=True)
    programs.printed(CODE, LD_LIBRARY_PATH=str(tmp_path))
