"""ONNX Runtime's TensorRT provider as far as a machine without it goes: versions, options, shapes."""

from __future__ import annotations

from ctypes.util import find_library

import numpy as np
import pytest

import tiny
from isorun.errors import BackendUnavailable, InvalidFeeds
from isorun.models import lowering
from isorun.models import source as models
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun.types import Availability, CompileConfig
from isorun_backends.cuda_driver import Driver, Gpu
from isorun_backends.onnxruntime import cuda, tensorrt
from isorun_backends.onnxruntime.cuda import libraries
from isorun_backends.onnxruntime.cuda.session import Device, Masks
from isorun_backends.tensorrt.profiles import Profile


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    there = Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), "")
    for module in (cuda, libraries, tensorrt):
        monkeypatch.setattr(module, "driver", lambda: there)


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


def test_the_version_that_a_build_wants_is_read_from_its_library(build):
    assert tensorrt.wanted_major() == "10"


def test_another_version_of_tensorrt_is_named(build, monkeypatch):
    monkeypatch.setattr(tensorrt, "installed", lambda: "11.4.0")
    monkeypatch.setattr(tensorrt.Backend, "availability", lambda self: Availability(True))
    here = registry.get("ort-tensorrt").availability()
    assert here.reason == "TensorRT 11.4.0 is installed, and this build of ONNX Runtime was made for TensorRT 10"
    assert "'tensorrt==10.*'" in here.remedy
    monkeypatch.setattr(tensorrt, "installed", lambda: "10.16.1")
    assert registry.get("ort-tensorrt").availability().ok


@pytest.mark.skipif(find_library("nvinfer") is not None, reason="TensorRT's library is here")
def test_tensorrts_library_is_named_where_it_is_missing(build, lowered, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorrt.Backend, "availability", lambda self: Availability(True))
    here = registry.get("ort-tensorrt").availability()
    assert not here.ok
    assert here.reason.startswith("its provider needs libnvinfer.so.10: ")
    config = CompileConfig(precision="fp16", cache_dir=str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"needs libnvinfer\.so\.10: .*tensorrt==10"):
        registry.get("ort-tensorrt").compile(lowered, config)


def test_fp32_that_would_be_tf32_is_refused(lowered, monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    with pytest.raises(BackendUnavailable, match=r"fp32 are TF32's.*NVIDIA_TF32_OVERRIDE=0"):
        registry.get("ort-tensorrt").compile(lowered, CompileConfig())


def test_one_range_of_shapes_and_no_more(lowered, tmp_path):
    config = CompileConfig("fp16", options={"shapes": ["1x8", "2x8"]}, cache_dir=str(tmp_path))
    with pytest.raises(BackendUnavailable, match="takes one range of shapes, and 2 came"):
        registry.get("ort-tensorrt").compile(lowered, config)


def test_engines_have_a_folder_for_one_model_and_one_range(lowered, tmp_path, build):
    backend = registry.get("ort-tensorrt")
    config = CompileConfig("fp16", cache_dir=str(tmp_path))
    wide, narrow = (Profile({"batch": (1, 1, 4), "sequence": (1, 8, most)}) for most in (16, 8))
    given = [backend._provider(lowered, config, profile, Device("cuda", 0)) for profile in (wide, narrow, wide)]
    assert given[0] == given[2]
    assert given[0]["trt_engine_cache_path"] != given[1]["trt_engine_cache_path"]
    assert given[0]["trt_engine_cache_path"].startswith(str(tmp_path / "ort-engines"))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert sorted(given[0]["trt_profile_max_shapes"].split(",")) == sorted(f"{name}:4x16" for name in names)
    assert sorted(given[0]["trt_profile_min_shapes"].split(",")) == sorted(f"{name}:1x1" for name in names)
    # ONNX Runtime 1.31.1's binding refuses any other word (tried with stand-ins for the libraries that it needs).
    assert [given[0][f"trt_{what}_enable"] for what in ("fp16", "engine_cache", "timing_cache")] == ["True"] * 3


def test_a_folder_of_engines_that_others_may_write_to_is_refused(lowered, tmp_path, build):
    (tmp_path / "ort-engines").mkdir()
    (tmp_path / "ort-engines").chmod(0o777)
    profile = Profile({"batch": (1, 1, 4), "sequence": (1, 8, 16)})
    with pytest.raises(BackendUnavailable, match="may be written to by others"):
        registry.get("ort-tensorrt")._provider(
            lowered, CompileConfig(cache_dir=str(tmp_path)), profile, Device("cuda", 0)
        )


def test_a_run_outside_the_range_is_refused(lowered):
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
    with pytest.raises(InvalidFeeds, match=r"No engine was built for batch=2 sequence=9"):
        executable.run(["pooler_output"], tiny.feeds(2, 9))
