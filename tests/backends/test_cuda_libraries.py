"""What is said of ONNX Runtime's GPU builds on a machine without a GPU."""

from __future__ import annotations

import pytest

from isorun.errors import BackendUnavailable, InvalidModel
from isorun.plugin import registry
from isorun.types import Availability, CompileConfig, LoweredModel, ModelInfo
from isorun_backends import cuda_driver
from isorun_backends.cuda_driver import Driver, Gpu
from isorun_backends.onnxruntime import cuda
from isorun_backends.onnxruntime.cuda import libraries, placement

GPU = Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), "")
OK = Availability(True)


@pytest.fixture
def gpu_build(tmp_path, monkeypatch):
    """A build for CUDA 13 whose provider needs a library that is nowhere: a library of the compiler's own making
    would need a compiler, so a text file takes its place where the linker has nothing to say."""
    monkeypatch.setattr(libraries, "build", lambda: libraries.Build("onnxruntime-gpu", "13.0", tmp_path))
    for name in ("cuda", "tensorrt"):
        (tmp_path / f"libonnxruntime_providers_{name}.so").write_text("no library")
    return tmp_path


def test_the_active_build_is_known_without_an_import():
    found = libraries.build()
    assert found is not None
    assert found.package == "onnxruntime"
    assert (found.folder / "build_and_package_info.py").is_file()


def test_a_build_without_the_provider_is_named():
    here = libraries.availability("cuda", OK)
    assert not here.ok
    assert (
        "the active ONNX Runtime is the build 'onnxruntime', which has no libonnxruntime_providers_cuda" in here.reason
    )
    assert "pip install onnxruntime-gpu" in here.remedy


def test_a_machine_without_a_driver_says_so(gpu_build, monkeypatch):
    monkeypatch.setattr(libraries, "driver", lambda: Driver("", (), "there is no NVIDIA driver here (libcuda)"))
    here = libraries.availability("cuda", OK)
    assert (here.ok, here.reason) == (False, "there is no NVIDIA driver here (libcuda)")


def test_a_gpu_build_and_a_driver_are_enough(gpu_build, monkeypatch):
    monkeypatch.setattr(libraries, "driver", lambda: GPU)
    assert libraries.availability("tensorrt", OK).ok


def test_cudnn_is_asked_for_by_name(gpu_build, monkeypatch):
    asked = []

    def opened(name, mode=0):
        asked.append(name)
        if name != there:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(libraries.ctypes, "CDLL", opened)
    there = "libcudnn.so"
    libraries.require_cudnn("ort-cuda")
    assert asked == ["libcudnn.so.9", "libcudnn.so"]
    there = ""
    with pytest.raises(BackendUnavailable, match=r"need libcudnn.so.9, .* pip install 'onnxruntime-gpu\[cudnn\]'"):
        libraries.require_cudnn("ort-cuda")


def test_what_is_wrong_with_the_package_comes_first():
    hollow = Availability(False, "hollow", "reinstall")
    assert libraries.availability("cuda", hollow) is hollow


@pytest.mark.parametrize(
    ("said", "missing", "remedy"),
    [
        ("libcublasLt.so.13: cannot open shared object file: No such file", "libcublasLt.so.13", "gpu[cuda,cudnn]'"),
        ("libcudnn.so.9: cannot open shared object file: No such file", "libcudnn.so.9", "onnxruntime-gpu[cudnn]'"),
        ("libnvinfer.so.10: cannot open shared object file: No such", "libnvinfer.so.10", "'tensorrt-cu13==10.*'"),
    ],
)
def test_the_missing_library_is_named_with_the_command_that_brings_it(gpu_build, monkeypatch, said, missing, remedy):
    def refuse(path, mode=0):
        raise OSError(said)

    monkeypatch.setattr(libraries, "driver", lambda: GPU)
    monkeypatch.setattr(libraries.ctypes, "CDLL", refuse)
    error = libraries.not_loaded("ort-cuda", "cuda", "")
    assert error.reason == f"libonnxruntime_providers_cuda.so needs {missing}, which cannot be loaded"
    assert remedy in error.remedy


def test_the_linkers_own_words_are_kept_where_no_library_is_missing(gpu_build, monkeypatch):
    monkeypatch.setattr(libraries, "driver", lambda: GPU)
    (gpu_build / "libonnxruntime_providers_shared.so").write_text("no library either")
    assert "invalid ELF header" in libraries.not_loaded("ort-cuda", "cuda", "").reason or "too short" in (
        libraries.not_loaded("ort-cuda", "cuda", "").reason
    )


def test_this_machines_driver_is_asked_once_and_never_raises():
    found = cuda_driver.driver()
    assert bool(found.trouble) == (not found.gpus)
    assert cuda_driver.driver() is found


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(cuda, "driver", lambda: GPU)
    assert cuda.gpu("ort-cuda", {}) == ("cuda", 0)
    with pytest.raises(BackendUnavailable, match="no GPU 1: the driver sees 1"):
        cuda.gpu("ort-cuda", {"device_id": 1})
    with pytest.raises(BackendUnavailable, match="device_id is -1"):
        cuda.gpu("ort-cuda", {"device_id": -1})


def test_options_are_checked_before_anything_is_loaded():
    backend = registry.get("ort-cuda")
    with pytest.raises(BackendUnavailable, match=r"no attention 'length'; did you mean 'lengths'"):
        backend.compile(None, CompileConfig(options={"attention": "length"}))  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailable, match="cuda_graphs is 'all'"):
        backend.compile(None, CompileConfig(options={"cuda_graphs": "all"}))  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailable, match="provider_options is 3"):
        cuda.text_options("ort-cuda", {"provider_options": 3})
    assert cuda.text_options("ort-cuda", {"provider_options": {"prefer_nhwc": True, "gpu_mem_limit": 7}}) == {
        "prefer_nhwc": "True",
        "gpu_mem_limit": "7",
    }


def test_the_backend_is_described_without_its_runtime():
    capabilities = registry.get("ort-cuda").capabilities
    assert capabilities.devices == ("cuda",)
    assert capabilities.device_arrays


def test_of_a_like_cast_only_the_type_of_its_second_input_counts():
    """As in ONNX's own definition of Attention: the head's size, in the type of the query."""
    import onnx

    graph = onnx.parser.parse_graph(
        """
        g (float[B,S] query) => (float[B,S] out)
        {
          [shape] size = Shape <start = 1> (query)
          [cast] like = CastLike (size, query)
          [root] scale = Sqrt (like)
          [other] data = CastLike (query, size)
          [scaled] out = Div (query, scale)
        }
        """
    )
    assert placement.shape_nodes(graph) == {"shape", "cast", "root"}


def test_a_damaged_file_is_refused_with_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda, "gpu", lambda *_: None)
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a not a model")
    model = LoweredModel(tmp_path / "model.onnx", "fused", "", ModelInfo((), (), 17), cached=False)
    with pytest.raises(InvalidModel, match=r"model\.onnx is cut short or damaged") as caught:
        registry.get("ort-cuda").compile(model, CompileConfig())
    assert caught.value.__cause__ is not None


def test_small_shape_computations_may_be_on_the_cpu_and_nothing_else():
    import onnx

    graph = onnx.parser.parse_graph(
        """
        g (int64[B,S] ids, float[9,8] table) => (float[B,S,8] out) <int64[1] one = {1}>
        {
          [shape] size = Shape (ids)
          [length] length = Slice (size, one, one)
          [words] words = Gather (table, ids)
          [spread] out = Expand (words, length)
        }
        """
    )
    shapes = placement.shape_nodes(graph)
    assert shapes == {"shape", "length"}
    placed = [
        ("CPUExecutionProvider", "shape", "Shape"),
        ("CPUExecutionProvider", "length", "Slice"),
        ("CPUExecutionProvider", "words", "Gather"),
        ("CUDAExecutionProvider", "spread", "Expand"),
    ]
    found = placement.on_cpu(placed, shapes)
    assert found == (("Shape shape", "Slice length"), ("Gather words",))
    with pytest.raises(BackendUnavailable, match=r"left 1 nodes to the CPU: Gather words.*\n?.*allow_cpu_nodes"):
        placement.refuse_others("ort-cuda", "CUDAExecutionProvider", found.others)
    placement.refuse_others("ort-cuda", "CUDAExecutionProvider", ())


def test_wheels_of_cudas_libraries_are_found_wherever_python_finds_them(tmp_path, monkeypatch):
    """ONNX Runtime looks beside itself alone, and may lie in another folder than PyTorch, which brought them."""
    for name in ("one/nvidia/cu13/lib", "two/nvidia/cudnn/lib", "two/nvidia/other"):
        (tmp_path / name).mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / name.partition("/")[0]))
    looked = []
    monkeypatch.setattr("onnxruntime.preload_dlls", lambda directory=None: looked.append(directory))
    libraries.preload()
    assert looked == [str(tmp_path / "one/nvidia/cu13/lib"), str(tmp_path / "two/nvidia/cudnn/lib"), None]
