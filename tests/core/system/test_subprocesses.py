"""Child processes: how they end, what is captured of them, and that nothing outlives its parent."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from isolation import is_alive, wait_until
from isorun.system.subprocesses import Child, guarded, python_module, run

SLEEP = ["sleep", "600"]
START_A_SLEEP = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def assert_gone(pid: int) -> None:
    assert wait_until(lambda: not is_alive(pid)), f"process {pid} is alive"


def test_log_has_both_streams_in_order() -> None:
    exit_ = run(python("import os; os.write(1, b'one\\n'); os.write(2, b'two\\n'); os.write(1, b'three\\n')"))
    assert exit_.ok
    assert exit_.log == "one\ntwo\nthree"
    assert exit_.output == ""


def test_captures_stdout_separately() -> None:
    exit_ = run(python("import sys; print('result'); print('noise\\n', file=sys.stderr)"), capture_output=True)
    assert (exit_.output, exit_.last_line) == ("result\n", "noise")


def test_log_file_replaces_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("an older, longer log\n")
    run(["echo", "hello"], log=tmp_path / "log")
    assert (tmp_path / "log").read_text(encoding="utf-8") == "hello\n"


def test_keeps_the_last_lines_of_a_long_log() -> None:
    exit_ = run(python("for n in range(10_000): print(n)"))
    assert exit_.log.splitlines() == [str(n) for n in range(9_975, 10_000)]


def test_the_log_of_a_crash_ends_with_the_python_traceback() -> None:
    """Python 3.14 adds a longer C stack trace."""
    lines = ["in misbehave", "Current thread's C stack trace", *['  Binary file "/lib/libc.so.6", at abort+0x24'] * 40]
    assert run(["printf", "%s\\n", *lines]).log == "in misbehave"


def test_output_that_is_not_text() -> None:
    assert run(["printf", r"\377"]).log == "\N{REPLACEMENT CHARACTER}"


def test_passes_the_environment_and_nothing_to_read() -> None:
    exit_ = run(["sh", "-c", "cat; echo $NAME"], env={"NAME": "value"}, capture_output=True)
    assert exit_.output == "value\n"


@pytest.mark.parametrize(
    ("script", "code", "name", "words"),
    [
        ("exit 3", 3, None, "exited with code 3"),
        ("kill -SEGV $$", -signal.SIGSEGV, "SIGSEGV", "killed by SIGSEGV"),
        ("kill -KILL $$", -signal.SIGKILL, "SIGKILL", "out of memory"),
        ("kill -40 $$", -40, "signal 40", "killed by signal 40"),
    ],
)
def test_exit_status_in_words(script: str, code: int, name: str | None, words: str) -> None:
    exit_ = run(["sh", "-c", script])
    assert (exit_.code, exit_.signal, exit_.ok, exit_.timeout) == (code, name, False, None)
    assert words in exit_.how


def test_timeout_kills_the_whole_group() -> None:
    exit_ = run(python(f"{START_A_SLEEP}; import time; time.sleep(600)"), timeout=1)
    assert not exit_.ok
    assert (exit_.timeout, exit_.signal) == (1, "SIGKILL")
    assert "within 1 s" in exit_.how
    assert 1 <= exit_.seconds < 10
    assert_gone(int(exit_.log))


def test_what_a_child_left_running_is_killed_when_it_exits() -> None:
    exit_ = run(python(START_A_SLEEP), timeout=60)
    assert exit_.ok
    assert_gone(int(exit_.log))


def test_a_missing_program_is_an_oserror() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run(["no-such-program"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_leaving_the_context_kills(error: type[BaseException]) -> None:
    with pytest.raises(error), Child(SLEEP) as child:
        raise error
    assert_gone(child.pid)
    child.kill()
    assert child.wait().signal == "SIGKILL"


def test_garbage_collection_kills() -> None:
    pid = Child(SLEEP).pid
    gc.collect()
    assert_gone(pid)


def test_waits_with_a_time_limit() -> None:
    with Child(["sh", "-c", "echo started; sleep 600"]) as child:
        while child.log() != "started":
            assert child.wait(0.02) is None
    assert child.wait().log == "started"


def test_talks_over_an_inherited_socket() -> None:
    ours, theirs = socket.socketpair()
    code = "import socket, sys; end = socket.socket(fileno=int(sys.argv[1])); end.sendall(end.recv(9).upper())"
    with ours, theirs, Child([*python(code), str(theirs.fileno())], pass_fds=[theirs.fileno()]) as child:
        ours.sendall(b"hello")
        assert ours.recv(9) == b"HELLO"
        assert child.wait().ok


def test_a_child_outlives_the_thread_that_requested_it() -> None:
    children: list[Child] = []
    thread = threading.Thread(target=lambda: children.append(Child(guarded(SLEEP))))
    thread.start()
    thread.join()
    with children[0] as child:
        assert child.wait(0.5) is None


def test_a_forked_process_kills_nothing_and_can_start_children() -> None:
    code = """
import os, warnings
from isorun.system.subprocesses import Child, run
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
child = Child(["sleep", "600"])
if os.fork() == 0:
    child.kill()
    del child
    raise SystemExit(run(["sh", "-c", "exit 7"]).code)
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 7
assert child.wait(0.2) is None
"""
    exit_ = run(python(code), timeout=60)
    assert exit_.ok, exit_.log


def test_children_leave_no_descriptors_and_no_threads() -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - which opens one itself

    run(["true"])
    before = held()
    for _ in range(5):
        run(["true"], capture_output=True)
        with pytest.raises(FileNotFoundError):
            run(["no-such-program"])
    assert wait_until(lambda: held() == before)  # a thread ends a moment after what it announces


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that a child can run, by the name ``a_module``."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "a_module.py"


def test_runs_a_module_as_python_does(module: Path) -> None:
    module.write_text("import sys; print(__name__, sys.argv[0], *sys.argv[1:])", encoding="utf-8")
    assert run(python_module("a_module", "x", "--", "y")).log == f"__main__ {module} x -- y"


def test_a_modules_crash_is_in_the_log(module: Path) -> None:
    module.write_text("import os; os.abort()", encoding="utf-8")
    exit_ = run(python_module("a_module"))
    assert exit_.signal == "SIGABRT"
    assert "Fatal Python error: Aborted" in exit_.log


def test_the_working_directory_adds_no_modules(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.write_text("import json", encoding="utf-8")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise ImportError('the wrong json')")
    monkeypatch.chdir(tmp_path / "here")
    exit_ = run(python_module("a_module"))
    assert exit_.ok, exit_.log


@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("command", ["guarded(['sh', '-c', 'sleep 600 & echo $!; wait'])", "python_module('a_module')"])
def test_no_child_outlives_its_parent(module: Path, command: str, ends_by: signal.Signals) -> None:
    module.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(600)", encoding="utf-8")
    code = f"""
import time
from isorun.system.subprocesses import Child, guarded, python_module
with Child({command}) as child:
    while not child.log():
        time.sleep(0.01)
    print(child.pid, child.log(), flush=True)
    child.wait()
"""
    parent = subprocess.Popen(python(code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert parent.stdout is not None
    with parent.stdout as output:
        pids = [int(pid) for pid in output.readline().split()]
    parent.send_signal(ends_by)
    parent.wait(30)
    assert len(pids) == 2
    for pid in pids:
        assert_gone(pid)
