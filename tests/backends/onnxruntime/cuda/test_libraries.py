"""What is reported about ONNX Runtime's GPU builds on a machine without a GPU."""

from pathlib import Path

import pytest

from isorun.errors import BackendUnavailable, InvalidModel, InvalidOption
from isorun.models import lowering
from isorun.models.source import open_model
from isorun.plugin import registry
from isorun.system.cache import Cache
from isorun.types import Availability, CompileConfig, LoweredModel, ModelInfo
from isorun_backends.nvidia import cuda_driver
from isorun_backends.nvidia.cuda_driver import Driver, Gpu
from isorun_backends.onnxruntime import builds
from isorun_backends.onnxruntime.cuda import libraries

GPU = Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), "")
OK = Availability(True)


@pytest.fixture
def gpu_build(tmp_path, monkeypatch):
    """A build for CUDA 13 whose provider libraries are text files, which the linker rejects."""
    monkeypatch.setattr(builds, "build", lambda: builds.Build("onnxruntime-gpu", "13.0", tmp_path))
    for name in ("cuda", "tensorrt"):
        (tmp_path / f"libonnxruntime_providers_{name}.so").write_text("no library")
    return tmp_path


def test_identifies_the_active_build_without_an_import():
    build = builds.build()
    assert build is not None
    assert build.package == "onnxruntime"
    assert (build.folder / "build_and_package_info.py").is_file()


def test_names_a_build_without_the_provider():
    availability = libraries.installed("cuda", OK)
    assert not availability.ok
    assert "'onnxruntime', which has no libonnxruntime_providers_cuda" in availability.reason
    assert "pip install onnxruntime-gpu" in availability.remedy


def test_reports_a_missing_driver(gpu_build, monkeypatch):
    monkeypatch.setattr(cuda_driver, "driver", lambda: Driver("", (), "no driver"))
    monkeypatch.setattr("isorun.plugin.Backend.installed", lambda self: OK)
    availability = registry.get("ort-cuda").availability()
    assert (availability.ok, availability.reason) == (False, "no driver")


def test_a_gpu_build_and_a_driver_suffice(gpu_build, monkeypatch):
    monkeypatch.setattr(cuda_driver, "driver", lambda: GPU)
    assert libraries.installed("tensorrt", OK).ok
    assert registry.get("ort-cuda").probe().ok


def test_cudnn_is_required_by_name(gpu_build, monkeypatch):
    asked = []

    def opened(name, mode=0):
        asked.append(name)
        if name != library:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(libraries.ctypes, "CDLL", opened)
    library = "libcudnn.so"
    libraries.require_cudnn("ort-cuda")
    assert asked == ["libcudnn.so.9", "libcudnn.so"]
    library = ""
    with pytest.raises(BackendUnavailable, match=r"libcudnn.so.9.*onnxruntime-gpu\[cudnn\]"):
        libraries.require_cudnn("ort-cuda")


def test_a_broken_package_is_reported_first():
    hollow = Availability(False, "hollow", "reinstall")
    assert libraries.installed("cuda", hollow) is hollow


@pytest.mark.parametrize(
    ("message", "missing", "remedy"),
    [
        ("libcublasLt.so.13: cannot open shared object file: No such file", "libcublasLt.so.13", "gpu[cuda,cudnn]'"),
        ("libcudnn.so.9: cannot open shared object file: No such file", "libcudnn.so.9", "onnxruntime-gpu[cudnn]'"),
        ("libnvinfer.so.10: cannot open shared object file: No such", "libnvinfer.so.10", "'tensorrt-cu13==10.*'"),
    ],
)
def test_names_the_missing_library_and_the_command_that_installs_it(gpu_build, monkeypatch, message, missing, remedy):
    def refuse(path, mode=0):
        raise OSError(message)

    monkeypatch.setattr(cuda_driver, "driver", lambda: GPU)
    monkeypatch.setattr(libraries.ctypes, "CDLL", refuse)
    error = libraries.not_loaded("ort-cuda", "cuda")
    assert f"libonnxruntime_providers_cuda.so needs {missing}" in error.reason
    assert remedy in error.remedy


def test_keeps_the_linkers_message_if_no_library_is_missing(gpu_build, monkeypatch):
    monkeypatch.setattr(cuda_driver, "driver", lambda: GPU)
    (gpu_build / "libonnxruntime_providers_shared.so").write_text("no library either")
    reason = libraries.not_loaded("ort-cuda", "cuda").reason
    assert "invalid ELF header" in reason or "too short" in reason


def test_the_driver_is_queried_once_and_never_raises():
    driver = cuda_driver.driver()
    assert bool(driver.problem) == (not driver.gpus)
    assert cuda_driver.driver() is driver


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(cuda_driver, "driver", lambda: GPU)


def test_rejects_a_gpu_that_does_not_exist(gpu):
    with pytest.raises(BackendUnavailable, match="GPU 1 does not exist"):
        registry.get("ort-cuda").compile(None, CompileConfig(options={"device_id": 1}))  # type: ignore[arg-type]


def test_a_damaged_file_is_rejected_with_the_cause(gpu, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a not a model")
    model = LoweredModel(tmp_path / "model.onnx", "fused", "", ModelInfo((), (), 17), cached=False)
    with pytest.raises(InvalidModel, match="Error parsing") as caught:
        registry.get("ort-cuda").compile(model, CompileConfig())
    assert caught.value.__cause__ is not None


def test_loads_cudas_libraries_from_wheels_in_order(tmp_path, monkeypatch):
    """Those beside ONNX Runtime first, then those elsewhere on the path, each after what it needs."""
    wheels = {
        "beside/nvidia/cu13/lib": ["libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13", "libcudart.so.12"],
        "torch/nvidia/cu13/lib": ["libcublas.so.13", "libnvrtc.so.13", "libcufft.so.12"],
        "torch/nvidia/cudnn/lib": ["libcudnn.so.9", "libcudnn_ops.so.9"],
        "torch/nvidia/other": [],
    }
    for folder, names in wheels.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path / "torch"))
    build = builds.Build("onnxruntime-gpu", "13.0", tmp_path / "beside/onnxruntime/capi")
    monkeypatch.setattr(builds, "build", lambda: build)
    loaded = []
    monkeypatch.setattr(libraries.ctypes, "CDLL", lambda path, mode: loaded.append(path))
    libraries.preload()
    assert [str(Path(path).relative_to(tmp_path)) for path in loaded] == [
        "beside/nvidia/cu13/lib/libcudart.so.13",
        "beside/nvidia/cu13/lib/libcublasLt.so.13",
        "beside/nvidia/cu13/lib/libcublas.so.13",
        "torch/nvidia/cu13/lib/libnvrtc.so.13",
        "torch/nvidia/cu13/lib/libcufft.so.12",
        "torch/nvidia/cudnn/lib/libcudnn.so.9",
    ]


@pytest.mark.parametrize("name", ["ort-cuda", "ort-tensorrt"])
def test_the_gpu_is_selected_by_one_option(gpu, bert, tmp_path, name):
    cache = Cache(tmp_path)
    model = lowering.ModelGraphs(open_model(bert, cache), cache).lower(("primitive",))
    config = CompileConfig("fp16", options={"provider_options": {"device_id": 1}}, cache_dir=str(tmp_path))
    with pytest.raises(InvalidOption, match="Use the option device_id"):
        registry.get(name).compile(model, config)


def test_cuda_graphs_have_a_stream_of_their_own(gpu, bert, tmp_path):
    cache = Cache(tmp_path)
    model = lowering.ModelGraphs(open_model(bert, cache), cache).lower(("fused",))
    options = {"cuda_graphs": 1, "provider_options": {"user_compute_stream": 7}}
    with pytest.raises(InvalidOption, match="got user_compute_stream"):
        registry.get("ort-cuda").compile(model, CompileConfig(options=options, cache_dir=str(tmp_path)))
