"""The driver's calls against a fake ``libcuda`` in a separate process: widths of arguments, contexts, cleanup."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAKE = Path(__file__).parents[2] / "helpers" / "fake_libcuda.c"
CODE = """
import numpy as np
from isorun.errors import BackendFailed
from isorun_backends.nvidia import cuda_driver, gpu
from isorun_backends.nvidia.pinned import Pinned

found = cuda_driver.driver()
assert (found.cuda, found.problem) == ("13.0", ""), found
assert found.gpus == (cuda_driver.Gpu("A stand-in", "9.0", 1 << 35),), found
assert gpu.availability().devices == ("A stand-in",)
stream = cuda_driver.Stream(0)
runs = []
assert cuda_driver.times(stream.handle, 0, lambda: runs.append(1), 3).tolist() == [1.5] * 3
assert len(runs) == 3
cuda_driver.synchronize(stream.handle, 0)
cuda_driver.synchronize(1, 0)
source = np.arange(6, dtype=np.float32).reshape(2, 3)
assert (Pinned(0).fetch(source.ctypes.data, source.shape, source.dtype) == source).all()
target = np.zeros_like(source)
cuda_driver.copy_to_device([(target.ctypes.data, source)], stream.handle, 0)
assert (target == source).all()
for refused, arguments, doing in (
    (cuda_driver.copy_to_device, ([(target.ctypes.data, source)], 5, 0), "copy 24 bytes to the device"),
    (cuda_driver.synchronize, (5, 0), "wait for stream 5"),
    (cuda_driver.Stream, (1,), "find GPU 1"),
):
    try:
        refused(*arguments)
    except BackendFailed as error:
        assert f"cannot {doing}: refused (CUDA error " in str(error), error
    else:
        raise AssertionError(doing)
del stream
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="libcuda.so.1 is Linux's name for it")
def test_every_call_passes_the_arguments_and_context_that_it_needs(tmp_path):
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, FAKE], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "destroyed\n"
