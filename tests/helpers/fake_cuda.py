"""Fakes of the libraries that ONNX Runtime's NVIDIA providers need: the real providers load without a GPU, take nodes,
choose kernels, copy and wait, and compute nothing. pycuda loads too.

They are compiled from the list of symbols that a provider imports. Symbols without an implementation return 0.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

_HERE = Path(__file__).parent
_OF_TENSORRT = re.compile(r"create\w+_INTERNAL|getInferLibVersion|getPluginRegistry")
_HEADER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int nothing(void) { return 0; }
static int noted(const char *name) {
  FILE *log = fopen(getenv("FAKE_CUDA_LOG"), "a");
  fprintf(log, "product\\t%s\\t(nil)\\t\\n", name);
  return fclose(log);
}
"""
_IMPLEMENTED = {
    "cublasLtMatmulAlgoGetHeuristic": "int NAME(void *a, void *b, void *c, void *d, void *e, void *f, void *g, int n, "
    "char *to, int *found) { memset(to, 0, 96); *found = 1; return 0; }",
    "cublasGetMathMode": "int NAME(void *a, int *mode) { *mode = 0; return 0; }",
    "cudnnGetVersion": "size_t NAME(void) { return 91500; }",
    "cudnnGetErrorString": 'const char *NAME(int code) { return "a fake\'s"; }',
    "cudnnGetLastErrorString": "void NAME(char *to, size_t room) { if (room) *to = 0; }",
    "cudnnBackendCreateDescriptor": "int NAME(int kind, void **to) { *to = calloc(1, 256); return 0; }",
    "cudnnBackendGetAttribute": "int NAME(void *a, int b, int c, long long room, long long *found, void *to) "
    "{ if (found) *found = 1; return 0; }",
    # An object whose methods all return 0
    "getPluginRegistry": "void *NAME(void) { static void *methods[64], *object[1] = {methods}; "
    "for (int i = 0; i < 64; i++) methods[i] = (void *)nothing; return object; }",
}


def build(folder: Path, provider: Path) -> None:
    """Make every library that a provider's library needs, in a folder for ``LD_LIBRARY_PATH``."""
    folder.mkdir(exist_ok=True)
    needed = re.findall(r"\[(lib(?:cu|nv)\S+?)\]", _output("readelf", "-d", provider))
    wanted: dict[str, list[str]] = defaultdict(list)
    for line in _output("nm", "-D", "--undefined-only", provider).splitlines():
        name, _, library = line.split()[-1].partition("@")
        if library in needed:
            wanted[library].append(name)
        elif _OF_TENSORRT.fullmatch(name):
            wanted[next(each for each in needed if ("onnxparser" in each) == ("OnnxParser" in name))].append(name)
        elif re.match("cu[A-Z]", name):
            wanted["libcuda.so.1"].append(name)
    for library in needed:
        versioned = library.startswith(("libcudart", "libcublas", "libcudnn"))
        _library(folder / library, wanted[library], versioned=versioned)
    names = re.findall(rb"\0(cudnn[A-Z]\w+)(?=\0)", provider.read_bytes())
    if names and "libcudnn.so.9" not in needed:  # opened by name
        _library(folder / "libcudnn.so.9", sorted({name.decode() for name in names}), versioned=False)
        (folder / "libcudnn.so").symlink_to("libcudnn.so.9")


def _library(path: Path, names: list[str], *, versioned: bool) -> None:
    own = {"libcudart": "fake_cudart.c", "libcuda": "fake_libcuda.c"}.get(path.name.partition(".")[0])
    written = (_HERE / own).read_text() if own else ""
    source = path.with_suffix(".c")
    rest = [each for each in names if not re.search(rf"\b{each}\(", written)]
    source.write_text(_HEADER + written + "".join(map(_function, rest)))
    command = ["cc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path), str(source)]
    if versioned:
        script = path.with_suffix(".map")
        script.write_text(f"{path.name} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)


def _function(name: str) -> str:
    if name in _IMPLEMENTED:
        return _IMPLEMENTED[name].replace("NAME", name) + "\n"
    if re.search(r"^(cublas|cudnn)\w*Create(_v2)?$", name):
        return f"int {name}(void **to) {{ *to = calloc(1, 64); return 0; }}\n"
    if "Status" in name:
        return f'const char *{name}(int code) {{ return "a fake\'s"; }}\n'
    if re.search(r"gemm|Gemm|LtMatmul$", name):
        return f'int {name}(void) {{ return noted("{name}"); }}\n'
    return f"long {name}(void) {{ return 0; }}\n"


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
