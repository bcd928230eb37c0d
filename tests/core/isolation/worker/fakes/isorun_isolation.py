"""A backend that gives back its first input, and misbehaves as its option says where that begins below zero."""

import ctypes
import os
import sys
import time

import numpy as np

from isorun.errors import BackendUnavailable, InvalidFeeds, UnsupportedModel
from isorun.plugin.backend import Backend, Executable, runtime_errors
from isorun.types import Capabilities, RuntimeReport


class Odd(Backend):
    contract = 2
    capabilities = Capabilities(
        dialects=("onnx",),
        precisions=("fp32", "fp64"),
        options={"do": "what to do", "in": "run or compile", "also": "anything"},
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        usable_after_failure=True,
    )

    def version(self):
        return os.environ.get("ODD_VERSION")

    def compile(self, model, config):
        if config.options.get("in") == "compile":
            misbehave(config.options["do"])
        return OddExecutable(config)


class Absent(Odd):
    capabilities = Capabilities(dialects=("onnx",), package="no_such_runtime", requirement="no-such-runtime>=3")


class OddExecutable(Executable):
    def __init__(self, config):
        self._config = config
        self._runs = 0

    def run(self, output_names, feeds):
        self._runs += 1
        array = next(iter(feeds.values()))
        if self._config.options.get("do") == "tuple":
            return (array,)
        if array.size and array.dtype.kind == "f" and array.reshape(-1)[0] < 0:
            given = misbehave(self._config.options.get("do"))
            return [array if given is None else given]
        if self._config.options.get("do") == "alias":
            return [array]
        if self._config.options.get("do") == "pop":
            output_names.pop()
            feeds.clear()
        return [array.copy()]

    def report(self):
        details = {
            "threads": self._config.threads,
            "also": self._config.options.get("also"),
            "pid": np.int64(os.getpid()),
        }
        return RuntimeReport("odd", self._config.precision, {"odd": {"Echo": 1}}, {"odd": "0"}, details)

    def close(self):
        if self._config.options.get("do") == "hang-at-end":
            time.sleep(600)


def misbehave(how):
    if how == "crash":
        ctypes.string_at(0)
    elif how == "exit":
        print("the runtime gives up", flush=True)
        os._exit(7)
    elif how == "sys-exit":
        sys.exit(3)
    elif how == "sleep":
        time.sleep(600)
    elif how == "nap":
        time.sleep(0.3)
    elif how == "print":
        print("x" * 100_000, flush=True)
        os.write(2, b"\0\1\2 to the other stream\n")
    elif how == "bug":
        raise ValueError("a bug in a plugin")
    elif how == "odd-bug":
        raise KeyError("missing")
    elif how == "vendor":
        with runtime_errors("odd failed while running"):
            raise ConnectionError("the vendor's own words")
    elif how == "unsupported":
        raise UnsupportedModel("odd lacks Foo", ["Foo", "ai.bar.Baz"])
    elif how == "unavailable":
        raise BackendUnavailable("odd", "the device is on fire", "Put it out.")
    elif how == "feeds":
        raise InvalidFeeds("Input 'x' is not to its taste")
    elif how == "strings":
        return np.array([["a", "ü\ud800"], ["", "\0"]], dtype=object)
    elif how == "sequence":
        return [np.arange(3), np.zeros((0, 2), np.float16), [None, {1: 2.5, 7: float("nan")}]]
    elif how == "object":
        return object()
    elif how == "sequence-as-tuple":
        return (np.arange(3),)
    elif how == "scalar":
        return np.float64(2.5)
    elif how == "transposed":
        return np.arange(6, dtype=np.int16).reshape(2, 3).T
    return None
