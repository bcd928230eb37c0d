"""ONNX Runtime's TensorRT provider without a GPU: versions, options, shapes."""

from __future__ import annotations

from ctypes.util import find_library

import numpy as np
import pytest

import tiny
from isorun.errors import BackendUnavailable, InvalidFeeds, InvalidOption
from isorun.models import lowering
from isorun.models import source as models
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun.types import Availability, CompileConfig
from isorun_backends.nvidia.cuda_driver import Driver, Gpu
from isorun_backends.nvidia.shape_profiles import Profile
from isorun_backends.onnxruntime import tensorrt
from isorun_backends.onnxruntime.cuda import libraries
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.executable import Device

GPU = Gpu("A GPU", "9.0", 1 << 30)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.driver", lambda: Driver("13.0", (GPU,), ""))


@pytest.fixture
def build(tmp_path, monkeypatch):
    folder = tmp_path / "capi"
    folder.mkdir()
    (folder / "libonnxruntime_providers_tensorrt.so").write_bytes(b"\x7fELF...\0libnvinfer.so.10\0libcudart.so.13\0")
    monkeypatch.setattr(libraries, "build", lambda: libraries.Build("onnxruntime-gpu", "13.0", folder))


@pytest.fixture
def lowered(bert, tmp_path):
    cache = Cache(tmp_path)
    return lowering.lower(models.open_model(bert, cache), ("primitive",), cache)


def test_names_a_tensorrt_version_that_does_not_fit(build, monkeypatch):
    monkeypatch.setattr(tensorrt, "installed", lambda: "11.4.0")
    monkeypatch.setattr(tensorrt.Backend, "installed", lambda self: Availability(True))
    here = registry.get("ort-tensorrt").availability()
    assert "TensorRT 11.4.0" in here.reason
    assert "needs TensorRT 10" in here.reason
    assert "'tensorrt==10.*'" in here.remedy
    monkeypatch.setattr(tensorrt, "installed", lambda: "10.16.1")
    assert registry.get("ort-tensorrt").availability().ok


@pytest.mark.skipif(find_library("nvinfer") is not None, reason="TensorRT's library is here")
def test_names_tensorrts_library_if_it_is_missing(build, lowered, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorrt.Backend, "installed", lambda self: Availability(True))
    here = registry.get("ort-tensorrt").availability()
    assert not here.ok
    assert "libnvinfer.so.10" in here.reason
    config = CompileConfig(precision="fp16", cache_dir=str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"libnvinfer\.so\.10.*tensorrt==10"):
        registry.get("ort-tensorrt").compile(lowered, config)


def test_rejects_fp32_that_would_be_tf32(lowered, monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    with pytest.raises(BackendUnavailable, match="NVIDIA_TF32_OVERRIDE=0"):
        registry.get("ort-tensorrt").compile(lowered, CompileConfig())


def test_rejects_several_ranges_of_shapes(lowered, tmp_path):
    config = CompileConfig("fp16", options={"shapes": ["1x8", "2x8"]}, cache_dir=str(tmp_path))
    with pytest.raises(InvalidOption, match="one range, got 2"):
        registry.get("ort-tensorrt").compile(lowered, config)


def test_each_model_and_range_has_its_own_engine_folder(lowered, tmp_path, build):
    backend = registry.get("ort-tensorrt")
    config = CompileConfig("fp16", cache_dir=str(tmp_path))
    wide, narrow = (Profile({"batch": (1, 1, 4), "sequence": (1, 8, most)}) for most in (16, 8))
    given = [backend._provider_options(lowered, config, profile, GPU) for profile in (wide, narrow, wide)]
    assert given[0] == given[2]
    assert given[0]["trt_engine_cache_path"] != given[1]["trt_engine_cache_path"]
    assert given[0]["trt_engine_cache_path"].startswith(str(tmp_path / "ort-engines"))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert sorted(given[0]["trt_profile_max_shapes"].split(",")) == sorted(f"{name}:4x16" for name in names)
    assert sorted(given[0]["trt_profile_min_shapes"].split(",")) == sorted(f"{name}:1x1" for name in names)
    # ONNX Runtime 1.31.1's binding rejects any other value (tested over fakes of CUDA's libraries).
    assert [given[0][f"trt_{what}_enable"] for what in ("fp16", "engine_cache", "timing_cache")] == ["True"] * 3


def test_rejects_an_engine_folder_that_others_can_write_to(lowered, tmp_path, build):
    (tmp_path / "ort-engines").mkdir()
    (tmp_path / "ort-engines").chmod(0o777)
    config = CompileConfig("fp16", cache_dir=str(tmp_path))
    with pytest.raises(BackendUnavailable, match="writable by others"):
        registry.get("ort-tensorrt").compile(lowered, config)


def test_rejects_a_run_outside_the_range(lowered):
    import onnxruntime

    def open_form(_, stream):
        return onnxruntime.InferenceSession(str(lowered.path), providers=["CPUExecutionProvider"])

    profile = Profile({"batch": (1, 2, 2), "sequence": (1, 8, 8)})
    executable = tensorrt.OrtTensorRTExecutable(
        profile, "ort-tensorrt", open_form, lowered.info, Device("cpu", 0), Masks(None, "plain"), None
    )
    (pooled,) = executable.run(["pooler_output"], tiny.feeds(2, 8))
    assert pooled.shape == (2, tiny.WIDTH)
    assert np.isfinite(pooled).all()
    with pytest.raises(InvalidFeeds, match="batch=2 sequence=9"):
        executable.run(["pooler_output"], tiny.feeds(2, 9))
