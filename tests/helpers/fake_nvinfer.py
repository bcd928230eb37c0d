"""Fakes of TensorRT's libraries under NVIDIA's own Python bindings: each virtual method that the bindings call is
forwarded to :mod:`fake_tensorrt`, which computes on the CPU.

This tests the real bindings: types of arguments, conversions, null pointers, ownership. It does not test TensorRT.
x86-64 only, because a structure is returned by hand.

The position of a method in its class's table was found by calling it through the bindings; it is stable within a major
version. Objects of the public classes are a table (with a destructor) and a pointer to an implementation; the parser's
are tables alone.
"""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
import traceback
from ctypes import c_bool, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path

import fake_tensorrt

_LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
_SOURCE = """
void *(*made[3])(void *, void *);
void *createInferBuilder_INTERNAL(void *logger, int version) { return made[0](logger, 0); }
void *createInferRuntime_INTERNAL(void *logger, int version) { return made[1](logger, 0); }
void *createNvOnnxParser_INTERNAL(void *network, void *logger, int version) { return made[2](logger, network); }
void *createInferRefitter_INTERNAL(void) { return 0; }
void *createNvOnnxParserRefitter_INTERNAL(void) { return 0; }
void *getBuilderPluginRegistry(void) { return 0; }
void *getPluginRegistry(void) { return 0; }
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void) { return 0; }
"""
_SLOTS = 128


class Dims(ctypes.Structure):
    """A shape as TensorRT passes it."""

    _fields_ = [("number", c_int32), ("sizes", c_int64 * 8)]


_BYTES = (c_void_p, c_size_t)
_METHODS = {
    # class: the fake's method: position in 10 and in 11, result, arguments
    "Builder": {
        "create_builder_config": (7, 5, "BuilderConfig"),
        "create_network": (8, 6, "Network", c_uint32),
        "create_optimization_profile": (9, 7, "OptimizationProfile"),
        "build_serialized_network": (14, 11, "Memory", "Network", "BuilderConfig"),
    },
    "BuilderConfig": {
        "clear_flag": (10, 8, None, c_int32),
        "add_optimization_profile": (25, 23, c_int32, "OptimizationProfile"),
        "set_profiling_verbosity": (27, 25, None, c_int32),
        "create_timing_cache": (40, 29, "TimingCache", _BYTES),
        "set_timing_cache": (41, 30, c_bool, "TimingCache", c_bool),
        "get_timing_cache": (42, 31, "TimingCache"),
        "set_memory_pool_limit": (43, 32, None, c_int32, c_size_t),
        "set_builder_optimization_level": (47, 36, None, c_int32),
    },
    "Network": {},
    "OptimizationProfile": {"set_dimensions": (2, 2, c_bool, c_char_p, c_int32, Dims)},
    "TimingCache": {"serialize": (2, 2, "Memory")},
    "Memory": {"data": (2, 2, c_void_p), "size": (3, 3, c_size_t), "type": (4, 4, c_int32)},
    "Parser": {
        "parse_from_file": (1, 1, c_bool, c_char_p, c_int32),
        "count_errors": (5, 3, c_int32),
        "get_error": (6, 4, "ParserError", c_int32),
    },
    "ParserError": {
        "desc": (1, 1, c_char_p),
        "node_name": (6, 6, c_char_p),
        "node_operator": (7, 7, c_char_p),
    },
    "Runtime": {"deserialize_cuda_engine": (3, 3, "Engine", _BYTES)},
    "Engine": {
        "create_execution_context": (5, 5, "Context", c_int32),
        "create_engine_inspector": (18, 14, "Inspector"),
        "get_tensor_dtype": (20, 16, c_int32, c_char_p),
        "count_io_tensors": (30, 26, c_int32),
        "get_tensor_name": (31, 27, c_char_p, c_int32),
    },
    "Inspector": {"get_engine_information": (6, 6, c_char_p, c_int32)},
    "Context": {
        "set_optimization_profile_async": (17, 16, c_bool, c_int32, c_void_p),
        "set_input_shape": (21, 20, c_bool, c_char_p, Dims),
        "get_tensor_shape": (22, 21, Dims, c_char_p),
        "set_tensor_address": (24, 23, c_bool, c_char_p, c_void_p),
        "execute_async_v3": (37, 36, c_bool, c_void_p),
    },
}
_BARE = {"Parser": (9, 7), "ParserError": (None, None)}  # positions of their destructors
_OUTLIVED = {"Network", "BuilderConfig", "Engine", "Context", "Inspector"}

faults: list[str] = []
"""Errors in calls from the bindings, through which no exception can pass. Must be empty after each test."""

_objects: dict[int, Face] = {}
_kept: list[object] = []  # referenced from C++
_version = 0


class Face:
    """One object of the fake, as C++ sees it."""

    def __init__(self, kind: str, played: object, maker: Face | None = None) -> None:
        self.kind, self.played, self.maker, self.gone = kind, played, maker, False
        working, public = _tables(kind)
        inner = (c_void_p * 1)(working)
        outer = inner if public is None else (c_void_p * 2)(public, ctypes.addressof(inner))
        self.address = ctypes.addressof(outer)
        for each in (inner, outer):
            _objects[ctypes.addressof(each)] = self
            _kept.append(each)


class Memory:
    """Bytes that TensorRT owns."""

    def __init__(self, content: bytes) -> None:
        self._content = ctypes.create_string_buffer(content, len(content))

    def data(self):
        return ctypes.addressof(self._content)

    def size(self):
        return len(self._content)

    def type(self):
        return 2  # kINT8


class Logger:
    """The logger of the bindings, called as TensorRT calls it."""

    ready = True

    def __init__(self, address: int) -> None:
        table = ctypes.cast(address, ctypes.POINTER(ctypes.POINTER(c_void_p))).contents
        place = 0 if _version == 10 else 4
        self._log, self._address = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)(table[place]), address

    def log(self, severity: int, text: str) -> None:
        self._log(self._address, severity, text.encode())


def bindings(folder: Path, work: Path):
    """NVIDIA's bindings from a folder, over libraries made in ``work``. One version per process."""
    global _version
    (library,) = folder.rglob("tensorrt.so")
    _version = next(number for number in (10, 11) if b"libnvinfer.so.%d" % number in library.read_bytes())
    makers = [_maker(kind) for kind in ("Builder", "Runtime", "Parser")]
    (work / "fake.c").write_text(_SOURCE)
    for name in _LIBRARIES:
        path = work / f"lib{name}.so.{_version}"
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path), str(work / "fake.c")]
        subprocess.run(command, check=True)
        made = (c_void_p * 3).in_dll(ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL), "made")
        made[:] = [ctypes.cast(maker, c_void_p).value for maker in makers]
    sys.path.insert(0, str(folder))
    return importlib.import_module(library.parent.name)


def site(folder: Path, bindings_folder: Path) -> None:
    """Make a folder for PYTHONPATH whose package ``tensorrt`` is those bindings, with host memory as device memory, for
    child processes of the code under test."""
    (about,) = bindings_folder.glob("tensorrt*.dist-info")
    version = about.stem.partition("-")[2]
    for each in ("tensorrt", "pycuda", "tensorrt.dist-info"):
        (folder / each).mkdir(parents=True)
    (folder / "pycuda" / "__init__.py").touch()  # must exist; is not used
    about = folder / "tensorrt.dist-info"
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt\nVersion: {version}\n")
    (about / "RECORD").write_text("tensorrt/__init__.py,,\n")
    (folder / "tensorrt" / "__init__.py").write_text(
        f"""
import sys, tempfile
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fake_device_memory, fake_nvinfer, fake_tensorrt
from isorun_backends.nvidia import cuda_driver
from isorun_backends.tensorrt import device_memory
fake_tensorrt.contexts = fake_tensorrt.Forgetful()
device_memory.open_memory = lambda name, number: fake_device_memory.HostMemory(cuda_driver.Stream(number))
sys.modules["tensorrt"] = fake_nvinfer.bindings(Path({str(bindings_folder)!r}), Path(tempfile.mkdtemp()))
"""
    )


def _maker(kind: str):
    made = {"Builder": fake_tensorrt.Builder, "Runtime": fake_tensorrt.Runtime, "Parser": fake_tensorrt.OnnxParser}

    def make(logger, network):
        arguments = [_objects[network].played] if network else []
        try:
            return Face(kind, made[kind](*arguments, Logger(logger))).address
        except TypeError:
            return 0
        except Exception:  # noqa: BLE001 (exceptions cannot pass through C++)
            faults.append(f"{kind}: {traceback.format_exc()}")
            return 0

    _kept.append(ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p)(make))
    return _kept[-1]


@cache
def _tables(kind: str) -> tuple[int, int | None]:
    """The tables of a class, and of its public class."""
    methods = {each[_version - 10]: _method(kind, name, each[2], each[3:]) for name, each in _METHODS[kind].items()}
    if kind in _BARE:
        return _table(kind, methods | {_BARE[kind][_version - 10]: _destroy}), None
    return _table(kind, methods), _table(f"{kind}, public", {1: _destroy})


def _method(kind: str, name: str, returns, takes):
    """A method as a C function: converts its arguments to Python and its result to C."""
    types = [part for each in takes for part in (each if isinstance(each, tuple) else [_c_type(each)])]
    by_hand = [c_void_p] if returns is Dims else []  # the caller's memory for the structure

    def call(*raw):
        where = raw[0] if by_hand else None
        this, *came = raw[len(by_hand) :]
        try:
            face = _objects[this]
            assert not face.gone, "the object was deleted"
            result = getattr(face.played, name)(*_arguments(takes, came))
            if returns is Dims:
                ctypes.cast(where, ctypes.POINTER(Dims))[0] = Dims(len(result), (c_int64 * 8)(*result))
                return where
            return _result(returns, result, face)
        except Exception:  # noqa: BLE001 (exceptions cannot pass through C++)
            faults.append(f"{kind}.{name}: {traceback.format_exc()}")
            return None if returns is None else 0

    back = None if returns is None else c_bool if returns is c_bool else c_void_p
    back = returns if returns in (c_int32, c_size_t) else back
    _kept.append(ctypes.CFUNCTYPE(back, *by_hand, c_void_p, *types)(call))
    return _kept[-1]


def _c_type(each):
    return c_void_p if isinstance(each, str) or each is Dims else each


def _arguments(takes, came: list):
    rest = iter(came)
    for each in takes:
        value = next(rest)
        if each is _BYTES:
            yield ctypes.string_at(value, next(rest))
        elif each is Dims:
            shape = ctypes.cast(value, ctypes.POINTER(Dims)).contents
            yield tuple(shape.sizes[: shape.number])
        elif each is c_char_p:
            yield value.decode()
        elif isinstance(each, str):
            assert not _objects[value].gone, f"the {each} was deleted"
            yield _objects[value].played
        else:
            yield value


def _result(returns, result, maker: Face):
    if isinstance(returns, str):
        if result is None:
            return 0
        known = (face for face in list(_objects.values()) if face.played is result and not face.gone)
        return (next(known, None) or Face(returns, _content(returns, result), maker)).address
    if returns is c_char_p:
        _kept.append(ctypes.create_string_buffer(result.encode()))
        return ctypes.addressof(_kept[-1])
    return None if returns is None else result


def _content(returns: str, result: object) -> object:
    return Memory(result) if returns == "Memory" else result


def _destroyed(this: int) -> None:
    face = _objects[this]
    left = {
        each.kind for each in list(_objects.values()) if each.maker is face and each.kind in _OUTLIVED and not each.gone
    }
    if face.gone or left:
        faults.append(f"{face.kind} is deleted " + (f"before {', '.join(sorted(left))}" if left else "twice"))
    face.gone, face.played = True, None


_destroy = ctypes.CFUNCTYPE(None, c_void_p)(_destroyed)


def _table(kind: str, methods: dict[int, object]) -> int:
    """A class's table, preceded by an offset of 0 and an unknown type."""
    unknown = c_void_p.in_dll(ctypes.CDLL("libstdc++.so.6"), "_ZTIi")
    places = [methods.get(place) or _missing(kind, place) for place in range(_SLOTS)]
    table = (c_void_p * (2 + _SLOTS))(0, ctypes.addressof(unknown), *(ctypes.cast(each, c_void_p) for each in places))
    _kept.append(table)
    return ctypes.addressof(table) + 2 * ctypes.sizeof(c_void_p)


def _missing(kind: str, place: int):
    def call(this):
        faults.append(f"{kind}: method {place} has no fake")
        return 0

    _kept.append(ctypes.CFUNCTYPE(c_void_p, c_void_p)(call))
    return _kept[-1]
