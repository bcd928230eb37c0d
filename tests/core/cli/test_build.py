import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isorun as library
from isorun.system.cache import scratch_folder


def test_a_checkpoint_becomes_a_model(isorun: Callable[..., Any], checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.onnx"
    ran = isorun("build", checkpoint, "-o", output, "--json")
    assert ran.code == 0
    assert ran.json["fused"]["SelfAttention"] == 2
    assert ran.json["bytes"] == output.stat().st_size
    assert ran.json["left_out"] == []
    assert "2 SelfAttention" in isorun("build", checkpoint, "-o", output).out


def test_a_preset_is_the_same_for_the_same_seed(
    isorun: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isorun.models import presets

    small = {**presets._SIZES["bert-3l"], "vocab_size": 50, "hidden_size": 24, "intermediate_size": 32}
    monkeypatch.setitem(presets._SIZES, "bert-3l", small)
    prints = [
        isorun("build", "--preset", "bert-3l", "--seed", seed, "-o", tmp_path / f"{number}.onnx", "--json").json
        for number, seed in enumerate((0, 0, 1))
    ]
    first, second, reseeded = (printed["fingerprint"] for printed in prints)
    assert first == second != reseeded
    assert prints[0]["fused"]["SelfAttention"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "bert-3l", "checkpoint"], "either CHECKPOINT or --preset"),
        ([], "either CHECKPOINT or --preset"),
        (["--preset", "bert-3"], "did you mean 'bert-3l'?"),
        (["--preset", "bert-3l", "--seed", "-1"], "--seed"),
        (["all-MiniLM-L6-v2", "--seed", "1"], "--seed requires --preset"),
        (["./nowhere"], "There is no folder"),
    ],
)
def test_wrong_usage(isorun: Callable[..., Any], tmp_path: Path, arguments: list[str], message: str) -> None:
    ran = isorun("build", *arguments, "-o", tmp_path / "m.onnx")
    assert ran.code == 2
    assert message in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_output_is_checked_before_the_work(
    isorun: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object) -> None:
        raise AssertionError("it began to build")

    monkeypatch.setattr("isorun.models.presets.write", work)
    (tmp_path / "file").write_text("")
    reader, writer = os.pipe()
    (tmp_path / "device").symlink_to(f"/dev/fd/{writer}")
    for output, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "no folder" / "m.onnx", f"does not exist. Create it with `mkdir -p '{tmp_path}/no folder'`"),
        (tmp_path / "device", "is a device or a pipe"),
        (tmp_path / "file" / "m.onnx", "is not a folder"),
        (Path("/proc/m.onnx"), "Cannot write"),
    ):
        ran = isorun("build", "--preset", "bert-3l", "-o", output)
        assert (ran.code, message in ran.err) == (2, True), ran.err
    os.close(reader)
    os.close(writer)


def test_an_interrupted_build_leaves_what_was_there(
    isorun: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str, seed: int, output: Path) -> None:
        output.write_text("half of a model", encoding="utf-8")
        raise KeyboardInterrupt

    monkeypatch.setattr("isorun.models.presets.write", interrupted)
    (tmp_path / "m.onnx").write_text("the old model")
    ran = isorun("build", "--preset", "bert-3l", "-o", tmp_path / "m.onnx")
    assert (ran.code, ran.err) == (130, "isorun: interrupted\n")
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["the old model"]


KILLED = """
import os, signal, sys
from pathlib import Path
from isorun.cli.build import whole
with whole(Path(sys.argv[1])) as made:
    made.write_text("half of a model")
    print("made", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_removes_what_a_killed_build_left(isorun: Callable[..., Any], checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.onnx"
    command = [sys.executable, "-c", KILLED, str(output)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    (left,) = tmp_path.glob(".m.onnx.*")
    with scratch_folder(output):
        assert left.exists(), "its process lives"
    process.communicate("\n")
    assert process.returncode == -signal.SIGKILL
    assert left.exists()
    (tmp_path / ".m.onnx.other").mkdir()
    assert isorun("build", checkpoint, "-o", output).code == 0
    assert not left.exists()
    assert (tmp_path / ".m.onnx.other").exists()


@pytest.mark.parametrize("private", ["config.json", "model.safetensors"])
def test_what_is_built_from_a_private_file_is_private(
    isorun: Callable[..., Any], checkpoint: Path, tmp_path: Path, private: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    for path in copy.iterdir():
        path.chmod(0o644)
    cache = tmp_path / "cache"
    library.Session(copy, "ort-cpu", cache_dir=cache).close()
    (built,) = cache.glob("built/*/model.onnx")
    assert built.stat().st_mode & 0o777 == 0o644
    (copy / private).chmod(0o600)
    library.Session(copy, "ort-cpu", cache_dir=cache).close()
    derived = [path for kind in ("built", "lowered") for path in cache.glob(f"{kind}/*/*") if path.is_file()]
    assert len(derived) > 2
    assert {path.stat().st_mode & 0o777 for path in derived} == {0o600}
    assert isorun("build", copy, "-o", tmp_path / "m.onnx").code == 0
    assert (tmp_path / "m.onnx").stat().st_mode & 0o777 == 0o600
