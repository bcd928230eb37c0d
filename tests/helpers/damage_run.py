"""Opens damaged folders, one in each child process, and prints what happened as JSON lines.

python damage_run.py FOLDER... SCRATCH FIRST_SEED COUNT
"""

import json
import os
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import damage
import isorun

TEXTS = ["ab ba", "", "Ab  cab, bac! " * 9]


def use(model: Path, cache: Path) -> isorun.IsorunError | None:
    """Open a model and use it once. Returns isorun's own error, if any; there may be no other."""
    kind: Any = isorun.CrossEncoder if "reranker" in str(model) else isorun.Embedder
    path = model / "model.onnx" if (model / "modules.json").exists() < (model / "model.onnx").exists() else model
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with kind(path, backend="ort-cpu", cache_dir=cache, threads=1) as opened:
                (opened.predict if kind is isorun.CrossEncoder else opened.embed)(TEXTS)
    except isorun.IsorunError as error:
        return error
    return None


def main(*arguments: str) -> None:
    *folders, scratch, first, count = arguments
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # no threads before a fork
    for folder in map(Path, folders):  # imports and builds what all need
        assert use(folder, Path(scratch) / "cache") is None, folder
    for seed in range(int(first), int(first) + int(count)):
        original = Path(folders[seed % len(folders)])
        folder = Path(shutil.copytree(original, Path(scratch) / str(seed) / original.name))
        done = damage.damage(folder, seed)
        log, start = Path(scratch) / f"{seed}.log", time.monotonic()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 2)
            try:
                error = use(folder, Path(scratch) / "cache")
                os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
            except BaseException:  # noqa: BLE001 (panics, too)
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status, usage = os.wait4(child, 0)
        spent = usage.ru_utime + usage.ru_stime
        about = {"seed": seed, "done": f"{original.name}, {done}", "status": status, "mib": usage.ru_maxrss >> 10}
        about |= {"cpu": round(spent, 2), "seconds": round(time.monotonic() - start, 2)}
        print(json.dumps({**about, "log": log.read_text(errors="replace")[-1500:]}), flush=True)
        shutil.rmtree(folder.parent, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
