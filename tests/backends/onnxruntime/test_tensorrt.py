"""ONNX Runtime's TensorRT provider without a GPU: versions, options, shapes."""

import time
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from dataclasses import replace

import numpy as np
import onnx
import pytest

import tiny
from fake_device_memory import HostMemory
from isorun.errors import BackendUnavailable, CacheError, InvalidFeeds, InvalidOption, UnsupportedModel
from isorun.models import lowering
from isorun.models import source as models
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun.types import Availability, CompileConfig
from isorun_backends.nvidia.cuda_driver import Driver, Gpu
from isorun_backends.nvidia.inner_shapes import rename_inner_tensors
from isorun_backends.nvidia.shape_profiles import Profile
from isorun_backends.onnxruntime import builds, tensorrt
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
    monkeypatch.setattr(builds, "build", lambda: builds.Build("onnxruntime-gpu", "13.0", folder))


@pytest.fixture
def lowered(bert, tmp_path):
    cache = Cache(tmp_path)
    return lowering.ModelGraphs(models.open_model(bert, cache), cache).lower(("primitive",))


def test_names_a_tensorrt_version_that_does_not_fit(build, monkeypatch):
    monkeypatch.setattr(tensorrt, "installed", lambda: "11.4.0")
    monkeypatch.setattr(tensorrt.Backend, "installed", lambda self: Availability(True))
    availability = registry.get("ort-tensorrt").availability()
    assert "TensorRT 11.4.0" in availability.reason
    assert "needs TensorRT 10" in availability.reason
    assert "'tensorrt==10.*'" in availability.remedy
    monkeypatch.setattr(tensorrt, "installed", lambda: "10.16.1")
    assert registry.get("ort-tensorrt").availability().ok


@pytest.mark.skipif(find_library("nvinfer") is not None, reason="TensorRT's library is here")
def test_names_tensorrts_library_if_it_is_missing(build, lowered, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorrt.Backend, "installed", lambda self: Availability(True))
    availability = registry.get("ort-tensorrt").availability()
    assert not availability.ok
    assert "libnvinfer.so.10" in availability.reason
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


def test_options_have_a_range_for_every_tensor_that_may_enter_a_part(lowered):
    """ONNX Runtime cuts the graph at nodes that TensorRT does not support."""
    profile = Profile({"batch": (1, 1, 4), "sequence": (1, 8, 16)})
    model = onnx.load(lowered.path, load_external_data=False)
    rename_inner_tensors(model)
    options = tensorrt.provider_options(model, lowered.info, "fp16", profile)
    minimum, maximum = (
        dict(item.split(":") for item in options[f"trt_profile_{end}_shapes"].split(",")) for end in ("min", "max")
    )
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert (minimum[name], maximum[name]) == ("1x1", "4x16")
    assert list(minimum) == list(maximum)
    assert len(minimum) > len(model.graph.node) * 0.9
    # ONNX Runtime 1.31.1's binding rejects any other value (tested over fakes of CUDA's libraries).
    assert [options[f"trt_{what}_enable"] for what in ("fp16", "engine_cache")] == ["True"] * 2


def test_rejects_an_input_that_the_options_cannot_name(lowered):
    info = replace(lowered.info, inputs=(replace(lowered.info.inputs[0], name="ids:0"),))
    profile = Profile({"batch": (1, 1, 4), "sequence": (1, 8, 16)})
    with pytest.raises(UnsupportedModel, match="'ids:0' has a ':'"):
        tensorrt.provider_options(onnx.ModelProto(), info, "fp16", profile)


def test_the_key_of_engines(lowered, tmp_path, build):
    """Each model, range and option has engines of its own: ONNX Runtime's names for them may be the same."""
    backend = registry.get("ort-tensorrt")
    wide, narrow = (Profile({"batch": (1, 1, 4), "sequence": (1, 8, most)}) for most in (16, 8))
    options = backend.read_options({})
    config = CompileConfig("fp16", cache_dir=str(tmp_path))
    keys = [
        backend._key(lowered, config, options, wide, GPU),
        backend._key(lowered, config, options, narrow, GPU),
        backend._key(replace(lowered, fingerprint="0"), config, options, wide, GPU),
        backend._key(lowered, replace(config, precision="fp32"), options, wide, GPU),
        backend._key(lowered, config, options, wide, replace(GPU, name="another GPU")),
        backend._key(lowered, config, {**options, "provider_options": {"trt_bf16_enable": "True"}}, wide, GPU),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == backend._key(lowered, config, {**options, "device_id": 1}, wide, GPU)


def test_engines_are_built_once_by_whoever_holds_the_lock(tmp_path):
    """And are loaded from where they were built, which no other user can write."""
    built = []

    def open_in(folder):
        if not (folder / "an.engine").exists():
            time.sleep(0.2)
            built.append(folder)
            (folder / "an.engine").write_text("engine")
        return (folder / "an.engine").read_text(encoding="utf-8")

    def open_again(_):
        return tensorrt.with_engines(Cache(tmp_path), "a" * 40, "fingerprint", open_in)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(open_again, range(3))) == ["engine"] * 3
    assert len(built) == 1
    (tmp_path / "ort-engines").chmod(0o777)
    with pytest.raises(CacheError, match="writable by other users"):
        open_again(None)


def test_rejects_a_run_outside_the_range(lowered):
    import onnxruntime

    def open_form(_, stream):
        return onnxruntime.InferenceSession(str(lowered.path), providers=["CPUExecutionProvider"])

    profile = Profile({"batch": (1, 2, 2), "sequence": (1, 8, 8)})
    executable = tensorrt.OrtTensorRTExecutable(
        profile, "ort-tensorrt", open_form, lowered.info, Device("cpu", 0), Masks(None, "plain"), None, HostMemory
    )
    (pooled,) = executable.run(["pooler_output"], tiny.feeds(2, 8))
    assert pooled.shape == (2, tiny.WIDTH)
    assert np.isfinite(pooled).all()
    with pytest.raises(InvalidFeeds, match="batch=2 sequence=9"):
        executable.run(["pooler_output"], tiny.feeds(2, 9))
