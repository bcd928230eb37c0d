"""A backend that fails as its option says. It only needs NumPy, so that its processes start quickly."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from isorun.errors import BackendUnavailable, UnsupportedModel
from isorun.plugin.backend import Backend, Executable
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel, RuntimeReport


class Fake(Backend):
    contract = 2
    capabilities = Capabilities(
        dialects=("onnx",),
        precisions=("fp32", "fp64", "bf16"),
        options={"do": "what to do", "after": "so many runs", "seconds": "how long a run takes"},
        dynamic_shapes=True,
        thread_safe=True,
        usable_after_failure=True,
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> FakeExecutable:
        do = config.options.get("do", "right")
        if do == "unavailable":
            raise BackendUnavailable(self.name, "it has no such device", "Buy one.")
        if do == "unsupported":
            raise UnsupportedModel("fake lacks Gather", ["Gather"])
        names = [spec.name for spec in model.info.outputs]
        return FakeExecutable(do, config, names)


class FakeExecutable(Executable):
    def __init__(self, do: str, config: CompileConfig, names: list[str]) -> None:
        self._names = names
        self._do = "right"
        self._later = do
        self._after = config.options.get("after", 0)
        self._seconds = config.options.get("seconds", 0)
        self._config = config
        self._last = b""

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        self._after -= 1
        if self._after < 0:
            self._do = self._later
        if self._do == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._do == "hang":
            print("waiting for a device that never answers", flush=True)
            time.sleep(600)
        if self._do == "exit":
            os._exit(0)
        if self._do == "raise":
            raise RuntimeError("a bug in a plugin")
        if self._do == "chatty":
            print("the runtime says hello", flush=True)
            sys.stderr.write("and complains\n")
        last, self._last = self._last, feeds["input_ids"].tobytes()
        time.sleep(0 if self._do == "cache" and last == self._last else self._seconds)
        ids = feeds["input_ids"].astype(np.float64)[:, :, None]
        hidden = np.sin(ids * np.arange(1.0, 5.0))
        if self._do == "zeros":
            hidden = np.zeros_like(hidden)
        if self._do == "nan":
            hidden[0, 0, 0] = np.nan
        mask = feeds["attention_mask"][:, :, None]
        if self._do == "left" and not mask[:, 0].any() and mask[:, -1].all():
            hidden += 0.5
        pooled = np.sum(hidden * mask, axis=1) / np.maximum(mask.sum(axis=1), 1)
        dtype = np.float64 if self._config.precision == "fp64" else np.float32
        outputs = {"last_hidden_state": hidden.astype(dtype), "pooled": pooled.astype(dtype)}
        return [outputs[name] for name in output_names or self._names]

    def device_times(self, feeds, runs):
        return np.arange(runs) / 1e3 if self._do == "chatty" else None

    def report(self) -> RuntimeReport:
        precision = "bf16" if self._do == "narrow" else self._config.precision
        return RuntimeReport("fake", precision, {"fake": {"Sin": 1}}, {"fake": "0"})

    def close(self) -> None:
        if self._do == "crash-at-end":
            os.kill(os.getpid(), signal.SIGABRT)
