"""ONNX Runtime's own providers for NVIDIA GPUs over fakes of CUDA's libraries: that they load isorun's graphs, which
nodes they take, which kernels they choose, what they copy and where they wait. Nothing is computed.

On demand, since the wheel is large:

    pip install --target FOLDER --no-deps onnxruntime-gpu
    ISORUN_ORT_GPU=FOLDER pytest tests/backends/onnxruntime/cuda/test_provider.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fake_cuda
from isorun_backends.nvidia.cuda_driver import driver

HELPERS = Path(__file__).parents[3] / "helpers"
WHERE = os.environ.get("ISORUN_ORT_GPU", "")

pytestmark = [
    pytest.mark.skipif(not WHERE, reason="ISORUN_ORT_GPU names no folder with onnxruntime-gpu"),
    pytest.mark.skipif(shutil.which("cc") is None or shutil.which("nm") is None, reason="no C compiler"),
    pytest.mark.skipif(bool(driver().gpus), reason="there is a GPU: the fakes would hide it"),
]

RIGHT = np.tile(np.arange(16) < 9, (4, 1)).astype(int).tolist()
LEFT = np.fliplr(RIGHT).tolist()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    fake_cuda.build(folder, Path(WHERE) / "onnxruntime/capi/libonnxruntime_providers_cuda.so")
    return folder


@pytest.fixture
def run(libraries, bert, tmp_path):
    def ran(precision="fp16", padding="keep", compute=90, libraries=libraries, outputs=None, **options):
        job = {"model": str(bert), "precision": precision, "padding": padding, "outputs": outputs, "options": options}
        job.update(masks={"right": RIGHT, "left": LEFT}, cache=str(tmp_path / "cache"))
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            "PYTHONPATH": os.pathsep.join([WHERE, os.environ.get("PYTHONPATH", "")]),
            "FAKE_CUDA_LOG": str(tmp_path / "log"),
            "FAKE_CUDA_COMPUTE": str(compute),
        }
        (tmp_path / "log").touch()
        command = [sys.executable, str(HELPERS / "fake_cuda_run.py"), json.dumps(job)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ran


def named(done, *words):
    """How often kernels ran whose names have these words."""
    return sum(count for name, count in done["kernel"].items() if all(word in name for word in words))


@pytest.mark.parametrize("form", ["lengths", "bias"])
def test_masks_as_lengths_and_as_a_bias_reach_cudnn(run, form):
    """cuDNN is chosen; its fake cannot build a plan, as the error shows."""
    assert "cudnn_flash_attention" in run(attention=form)["right"]["error"]
    efficient = run(attention="bias", provider_options={"sdpa_kernel": 2})["right"]["again"]
    assert named(efficient, "attention_kernel_batched") == 2


def test_the_plain_form_runs_every_mask(run):
    found = run(attention="plain")
    for mask in ("right", "left"):
        assert named(found[mask]["again"], "SoftmaxWithRawMask") == 2
        assert found[mask]["again"]["copy"] == {"HtoD": 3}
    assert found["provenance"]["details"]["cpu_nodes"] == {"plain": {"shapes": [], "others": []}}


def test_the_packed_form_uses_flash_attention_without_waiting(run):
    found = run(padding="remove")
    packed, groups = found["right"]["again"], found["left"]["again"]
    assert named(packed, "flash_fwd") == 2
    assert packed["copy"] == {"HtoD": 9, "DtoD": 2}
    assert groups["copy"]["DtoH"] == 5, "the host waits for them"
    assert sum(packed["kernel"].values()) < sum(groups["kernel"].values()) / 3
    assert found["provenance"]["details"]["attention"]["forms"] == ["packed", "plain"]
    assert not any(each["others"] for each in found["provenance"]["details"]["cpu_nodes"].values())


@pytest.mark.parametrize("padding", ["keep", "remove"])
def test_a_last_layer_of_one_position_runs_on_the_provider(run, padding):
    found = run(padding=padding, outputs=["pooler_output"], **({"attention": "plain"} if padding == "keep" else {}))
    assert "error" not in found["right"]
    assert found["provenance"]["fused"]["SingleQueryAttention"] == 1
    assert not any(each["others"] for each in found["provenance"]["details"]["cpu_nodes"].values())
    once = found["right"]["again"]
    assert named(once, "SoftmaxWithRawMask") == (2 if padding == "keep" else 1)
    assert named(once, "flash_fwd") == (0 if padding == "keep" else 1)
    assert "DtoH" not in once["copy"], "the host does not wait"


def test_only_the_packed_form_runs_without_cudnn(run, libraries, tmp_path):
    """ONNX Runtime would fail at the first run."""
    folder = tmp_path / "libraries"
    shutil.copytree(libraries, folder, ignore=shutil.ignore_patterns("libcudnn*"))
    error = run(libraries=folder, attention="plain")
    assert "libcudnn.so.9" in error
    assert "pip install 'onnxruntime-gpu[cudnn]'" in error
    assert "error" not in run(libraries=folder, padding="remove", attention="packed")["right"]


@pytest.mark.parametrize(("compute", "kernel"), [(75, "attention_kernel_batched"), (80, "flash_fwd")])
def test_kernels_depend_on_the_compute_capability(run, compute, kernel):
    found = run(padding="remove", compute=compute, attention="packed", provider_options={"sdpa_kernel": 3})
    assert named(found["right"]["again"], kernel) == 2


def test_fp32_pads_again_for_plain_products(run):
    packed = run("fp32", padding="remove")["right"]["again"]
    assert named(packed, "SoftmaxKernelSmallWithCumSeqLen") == 2
    assert packed["copy"]["DtoH"] == 2, "it reads token positions, once per layer"
    assert named(packed, "SkipLayerNorm") == 4, "additions are fused with the normalization behind them"


def test_only_the_packed_form_becomes_a_cuda_graph(run):
    found = run(padding="remove", cuda_graphs=2)
    assert found["right"]["first"]["graph"] == {"recorded": 1, "started": 1}
    assert named({"kernel": found["right"]["first"]["kernel captured"]}, "flash_fwd") == 2
    again = found["right"]["again"]
    assert again["graph"] == {"started": 1}
    assert "kernel" not in again
    assert again["wait"] == {"stream": 1}, "for the graph; the driver copies the feeds unlogged"
    assert "copy" not in again
    assert "graph" not in found["left"]["again"]
    assert found["provenance"]["details"]["cuda_graphs"]["shapes"] == ["packed 4x16 4x16 4x16, 48 tokens"]


@pytest.mark.parametrize("options", [{"attention": "plain"}, {"attention": "plain", "cuda_graphs": 2}])
def test_timed_runs_do_not_wait(run, options):
    once, often = run(**options)["right"]["times"]
    assert often["wait"] == once["wait"]
    key = "graph" if "cuda_graphs" in options else "kernel"
    assert sum(often[key].values()) > sum(once[key].values())


def test_the_tensorrt_provider_accepts_the_options_values(tmp_path):
    """Without CUDA's other libraries the provider only reads its options."""
    fake_cuda.build(tmp_path / "libraries", Path(WHERE) / "onnxruntime/capi/libonnxruntime_providers_tensorrt.so")
    code = """
import sys
import onnxruntime
from onnx import parser
model = parser.parse_model('<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
given = dict(pair.split("=", 1) for pair in sys.argv[1:])
wishes = [("TensorrtExecutionProvider", given)]
onnxruntime.InferenceSession(model.SerializeToString(), providers=wishes, enable_fallback=0)
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "libraries"), "PYTHONPATH": WHERE}
    environment.update(FAKE_CUDA_LOG=str(tmp_path / "log"), FAKE_CUDA_COMPUTE="90")

    def errors(*given):
        command = [sys.executable, "-c", code, *given]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr

    folder, shapes = tmp_path, "x:1x1"
    accepted = errors(
        *("device_id=0", "trt_engine_cache_enable=True", f"trt_engine_cache_path={folder}", "trt_fp16_enable=False"),
        *("trt_timing_cache_enable=True", f"trt_timing_cache_path={folder}", "user_compute_stream=4096"),
        *(f"trt_profile_{end}_shapes={shapes}" for end in ("min", "opt", "max")),
    )
    assert "CUDA Provider not available" in accepted, accepted
    assert "'trt_fp16_enable' should be 'True' or 'False'" in errors("trt_fp16_enable=1")
    assert "Invalid TensorRT EP option: has_user_compute_stream" in errors("has_user_compute_stream=1")
