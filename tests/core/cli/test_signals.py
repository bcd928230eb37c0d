"""Commands that are stopped by signals."""

import signal
import subprocess
import sys
import time

import pytest

MAIN = """
import ctypes, sys, time
from isorun import cli
from isorun.cli import signals

def command(_):
    try:
        print("ready", flush=True)
        {}
    finally:
        print("cleaned up", flush=True)

cli._run = command
sys.exit(cli.main())
"""
HANG = "signals._SECONDS = 0.1; lock = ctypes.create_string_buffer(64); acquire = ctypes.CDLL(None).pthread_mutex_lock"


def _stopped(body: str, *numbers: signal.Signals, ignored: str = "", delay: float = 0) -> tuple[int, str]:
    code = f"import signal; {ignored}\n{MAIN.format(body)}"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "ready\n"
        time.sleep(delay)
        for number in numbers:
            process.send_signal(number)
        return process.wait(30), output.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_cleans_up_once(number: signal.Signals) -> None:
    assert _stopped("time.sleep(60)", number, number) == (128 + number, "cleaned up\n")


def test_names_the_code_that_ends_the_process() -> None:
    code = MAIN.format("import os; os.abort()")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ran.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in ran.stderr
    assert "in command" in ran.stderr


def test_keeps_ignoring_a_signal() -> None:
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert _stopped("time.sleep(0.3)", signal.SIGHUP, ignored=ignored) == (0, "cleaned up\n")


def test_ends_a_command_that_hangs_in_a_library() -> None:
    assert _stopped(f"{HANG}; acquire(lock); acquire(lock)", signal.SIGTERM, delay=0.5) == (143, "")
