"""Flaws that show in scripts: at their end, at Ctrl-C, and in child processes."""

import multiprocessing
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace

from flaws.base import HONEST, Flawed, backend, running
from isorun.errors import BackendFailed


@backend
class NeverExits(Flawed):
    """A thread of its own runs until the model is closed, which a script may forget."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.ended = threading.Event()
        threading.Thread(target=self.ended.wait).start()

    def close(self):
        self.ended.set()
        super().close()


@running
def WrapsInterrupts(self, output_names, feeds):
    """Its ``except`` has too many exceptions."""
    try:
        return self.right(output_names, feeds)
    except BaseException as error:
        raise BackendFailed(f"the engine failed: {error}") from error


@running
def SwallowsInterrupts(self, output_names, feeds):
    """Tries again whatever happened."""
    while True:
        with suppress(BaseException):
            return self.right(output_names, feeds)


class Relayed(Flawed):
    """Waits for the answer of a child process, which Ctrl-C does not reach."""

    apart = True
    capabilities = replace(HONEST, usable_after_failure=True)

    def __init__(self, model, config):
        super().__init__(model, config)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.child = subprocess.Popen(["cat"], **pipes, start_new_session=self.apart)
        self.number, self.requests = 0, {}

    def run(self, output_names, feeds):
        self.number += 1
        self.requests[self.number] = output_names, feeds
        try:
            self.child.stdin.write(b"%d\n" % self.number)
            self.child.stdin.flush()
            request = self.requests.pop(int(self.answer()))
        except (OSError, ValueError) as error:
            return self.failed(error)
        self.kept = self.right(*request)
        return self.kept

    def answer(self):
        return self.child.stdout.readline()

    def failed(self, error):
        raise BackendFailed("the engine has ended") from error

    def close(self):
        with suppress(OSError):
            self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()
        super().close()


@backend
class DiesOfInterrupts(Relayed):
    apart = False


@backend
class AnswersTheInterruptedRun(Relayed):
    """Reads what the child has answered to the run before."""

    def answer(self):
        time.sleep(0.5)
        return super().answer()


@backend
class WaitsForADeadChild(Relayed):
    def failed(self, error):
        threading.Event().wait()


@backend
class RepeatsWithoutItsChild(Relayed):
    def failed(self, error):
        return self.kept


@backend
class LeavesItsChildren(Flawed):
    """Without ``close``."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.child = subprocess.Popen(["sleep", "30"])

    def close(self):
        self.child.kill()
        self.child.wait()
        super().close()


@backend
class Spawns(Flawed):
    """By a method that imports the script again."""

    def __init__(self, model, config):
        super().__init__(model, config)
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
        child.start()
        child.join()
        if child.exitcode:
            raise BackendFailed(f"the engine's process ended with {child.exitcode}")
