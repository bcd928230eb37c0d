"""Executables of plugin providers whose sessions disturb each other."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from isorun_backends.onnxruntime.executable import PluginExecutable


class Session:
    """A session that fails if another one runs or is freed at the same time."""

    busy = threading.Lock()

    def run(self, _, feeds):
        assert self.busy.acquire(blocking=False), "another session is running"
        threading.Event().wait(0.001)
        self.busy.release()
        return [feeds["x"]]

    def __del__(self):
        assert not self.busy.locked(), "another session is running"


def test_exclusive_sessions_run_one_after_another():
    lock, feeds = threading.RLock(), {"x": np.ones(3, np.float32)}
    executables = [PluginExecutable("b", Session(), "gpu", "fp32", lock=lock) for _ in range(2)]
    bindings = [executable.bind(feeds, {"x": np.zeros(3, np.float32)}) for executable in executables]

    def use(index):
        for _ in range(10):
            executables[index % 2].run(["x"], feeds)
            (bound,) = bindings[index % 2].run()
            np.testing.assert_array_equal(bound, feeds["x"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
        extra = PluginExecutable("b", Session(), "gpu", "fp32", lock=lock)
        running = pool.submit(use, 0)
        extra.close()
        running.result()
    for executable in executables:
        executable.close()
