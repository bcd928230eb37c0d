"""Runs that are killed, interrupted, or out of disk space: what was measured is kept."""

import json
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from matrix_runs import Isorun, cells_of, processes_of, slow_spec, wait_for


def assert_whole(out: Path) -> None:
    """Every file under a final name is whole."""
    for path in out.rglob("*"):
        if path.name.startswith("."):
            continue
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".npz":
            assert zipfile.ZipFile(path).testzip() is None


@pytest.mark.long
def test_a_killed_run_leaves_complete_files_and_can_be_resumed(
    isorun: Isorun, command: list[str], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    out, spec = tmp_path / "out", slow_spec(tmp_path, 2)
    arguments = [*command, "run", str(spec), "--out", str(out), "--resume"]
    for attempt, moment in enumerate((0.1, 0.4)):
        # each attempt gets as far as the next cell's process before its moment comes
        before = len(list(out.glob("cells/*/*/*/*/*/*/result.json")))
        with subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE) as process:
            wait_for(lambda: bool(processes_of(out)) or process.poll() is not None)
            time.sleep(moment)
            process.send_signal(signal.SIGKILL)
        wait_for(lambda: not processes_of(out))
        assert_whole(out)
        assert len(list(out.glob("cells/*/*/*/*/*/*/result.json"))) >= before, attempt
    kept = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/*/*/*/*/result.json")}
    done = isorun("run", spec, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert [cell["status"] for cell in cells_of(isorun, out).values()] == ["ok"] * 2
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_ctrl_c_prints_the_command_to_resume(
    isorun: Isorun, command: list[str], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    out, spec = tmp_path / "out", slow_spec(tmp_path, 3)
    arguments = [*command, "run", str(spec), "--out", str(out)]
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: bool([*out.glob("cells/*/*/*/*/*/round-1")]))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
    assert process.returncode == 130
    assert f"isorun matrix run {spec} --out {out} --resume" in stderr
    assert processes_of(out) == []
    cells = cells_of(isorun, out).values()
    assert {cell["status"] for cell in cells} == {"ok", "pending"}
    assert len({tuple(cell) for cell in cells}) == 1
    for form in ("terminal", "md", "html"):
        shown = isorun("report", out, "--format", form)
        assert (shown.returncode, shown.stderr) == (0, "")

    again = isorun("run", spec, "--out", out, refused=True)
    assert again.returncode == 2
    assert "--resume" in again.stderr


@pytest.mark.long
def test_a_full_disk_stops_the_run(
    isorun: Isorun, command: list[str], environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    out, spec = tmp_path / "the results", slow_spec(tmp_path, 2)
    # a file may not grow beyond what the job's files take: run.json is the first that does
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500)); {command[2]}"
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); {limited}"
    # the database of `make coverage` would be the first
    unmeasured = {name: value for name, value in environment.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [command[0], "-c", code, "matrix", "run", str(spec), "--out", str(out)],
        **{"env": unmeasured, "capture_output": True, "text": True, "timeout": 120, "check": False},
    )
    assert done.returncode == 2
    assert f"isorun matrix run {spec} --out '{out}' --resume\n" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("isorun: [Errno 27] File too large")
    assert isorun("run", spec, "--out", out, "--resume").returncode == 0
