"""Texts a second, tokenization included: ``isorun.Embedder`` and sentence-transformers on PyTorch, ONNX and OpenVINO.

    python benchmarks/embedding.py --peers-python VENV/bin/python [--models minilm bert-base] [--rounds 1]

VENV has torch, numpy and ``sentence-transformers[onnx,openvino]``. ``minilm`` is all-MiniLM-L6-v2; ``bert-base`` has
the sizes of BERT-base, random weights and the same tokenizer. Texts are isorun's own sentences, joined to lengths as in
requests (lognormal, median 30 words, at most 180).

``corpus`` is one call with all texts, which every engine may sort; sentence-transformers gets the best of three batch
sizes. ``batches`` are calls with 32 texts in random order. Every engine runs in a process of its own, after a pass that
warms it up; engines are interleaved over the rounds, and the median over rounds is printed. Takes about six minutes for
both models. The maximum difference of all vectors to PyTorch's is printed as well.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PEERS = ("pytorch fp32", "onnx fp32", "openvino fp32")
OWN = ("isorun ort-cpu fp32", "isorun openvino fp32", "isorun openvino auto")
COUNT = {"minilm": 512, "bert-base": 96}
BATCH, SIZES, GPU_SIZES, SECONDS = 32, (8, 32, 128), (32, 128, 512), 3.0


def corpus(count: int) -> list[str]:
    """Texts of realistic lengths."""
    listed = json.loads((HERE.parent / "core" / "isorun" / "compilation" / "calibration_texts.json").read_text())
    words = " ".join(text for texts in listed.values() for text in texts).split()
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(random.normal(np.log(30), 0.6, count)), 3, 180).astype(int)
    starts = random.integers(0, len(words) - 180, count)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def prepare(model: str, folder: Path, minilm: Path) -> None:
    """Write a checkpoint as sentence-transformers saves it, and its exports. Runs in the peers' environment."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import BertConfig, BertModel

    source = folder / "checkpoint"
    if not source.exists():
        source.mkdir(parents=True)
        loaded = SentenceTransformer(str(minilm), device="cpu")
        if model == "bert-base":
            torch.manual_seed(0)
            inner, pooling = loaded[0], loaded[1]
            inner.model = inner.auto_model = BertModel(BertConfig()).eval()
            pooling.embedding_dimension = 768
        loaded.save_pretrained(str(source))
    for backend in ("onnx", "openvino"):
        if not (folder / backend).exists():
            exported = SentenceTransformer(str(source), device="cpu", backend=backend, model_kwargs={"export": True})
            exported.save_pretrained(str(folder / backend))


def opened(engine: str, folder: Path) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """A function that embeds a list of texts, and the batch sizes to try."""
    if engine.startswith("isorun"):
        import isorun

        _, backend, precision, *padding = engine.split()
        settings = {"padding": padding[0]} if padding else {}
        embedder = isorun.Embedder(folder / "checkpoint", backend=backend, precision=precision, **settings)
        embedder.warmup(corpus(64))
        return lambda texts, _: embedder.embed(texts, progress=False), (0,)
    from sentence_transformers import SentenceTransformer

    if engine.startswith("pytorch cuda"):
        kwargs = {"dtype": {"fp16": "float16", "fp32": "float32"}[engine.split()[2]]}
        model = SentenceTransformer(str(folder / "checkpoint"), device="cuda", model_kwargs=kwargs)
        return lambda texts, size: model.encode(texts, batch_size=size, show_progress_bar=False), GPU_SIZES
    backend = {"pytorch": "torch"}.get(engine.split()[0], engine.split()[0])
    place = folder / ("checkpoint" if backend == "torch" else backend)
    peer_settings: dict[str, dict[str, Any]] = {
        "torch": {},
        "onnx": {"provider": "CPUExecutionProvider"},
        "openvino": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}},  # OpenVINO would choose bf16
    }
    model = SentenceTransformer(str(place), device="cpu", backend=backend, model_kwargs=peer_settings[backend])
    return lambda texts, size: model.encode(texts, batch_size=size, show_progress_bar=False), SIZES


def rate(work: Callable[[], object], texts: int) -> float:
    """Texts a second over at least three seconds."""
    start, passes = time.perf_counter(), 0
    while passes == 0 or time.perf_counter() - start < SECONDS:
        work()
        passes += 1
    return passes * texts / (time.perf_counter() - start)


def measure(engine: str, folder: Path, count: int, vectors: Path) -> dict[str, Any]:
    texts = corpus(count)
    embed, sizes = opened(engine, folder)
    np.save(vectors, embed(texts, BATCH))  # warms up
    seconds_by_size = {}
    for size in sizes:
        start = time.perf_counter()
        embed(texts, size)
        seconds_by_size[size] = time.perf_counter() - start
    best = min(seconds_by_size, key=lambda size: seconds_by_size[size])
    order = np.random.default_rng(1).permutation(count)
    batches = [[texts[row] for row in order[at : at + BATCH]] for at in range(0, count, BATCH)]
    for batch in batches:
        embed(batch, BATCH)
    return {
        "corpus": rate(lambda: embed(texts, best), count),
        "batches": rate(lambda: [embed(batch, BATCH) for batch in batches], count),
        "batch_size": best,
    }


def in_process(python: str, *arguments: object) -> str:
    command = [python, __file__, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", help="a Python that has sentence-transformers")
    parser.add_argument("--models", nargs="+", choices=COUNT, default=list(COUNT))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--engines", nargs="+", choices=[*OWN, *PEERS], metavar="ENGINE")
    parser.add_argument("--json", type=Path, default=HERE / "out" / "embedding.json")
    parser.add_argument("--prepare", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.prepare:
        model, folder, minilm = arguments.prepare
        return prepare(model, Path(folder), Path(minilm))
    if arguments.measure:
        engine, folder, count, vectors = arguments.measure
        return print(json.dumps(measure(engine, Path(folder), int(count), Path(vectors))))
    if not arguments.peers_python:
        parser.error("--peers-python is required: it writes the checkpoints")
    from isorun.models.hub import checkpoint_folder
    from isorun.system.cache import Cache

    minilm = HERE / "out" / "embedding" / "all-MiniLM-L6-v2"
    for path in checkpoint_folder("all-MiniLM-L6-v2", Cache()).iterdir():
        target = minilm / re.sub(r"^(\d+_\w+)\.", r"\1/", path.name)  # the cache has no sub-folders
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    results_by_model: dict[str, Any] = {}
    for model in arguments.models:
        folder = HERE / "out" / "embedding" / model
        in_process(arguments.peers_python, "--prepare", model, folder, minilm)
        engines = arguments.engines or [*OWN, *PEERS]
        results: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
        for _ in range(arguments.rounds):
            for engine in engines:
                python = sys.executable if engine in OWN else arguments.peers_python
                vectors = folder / f"{engine.replace(' ', '-')}.npy"
                output = in_process(python, "--measure", engine, folder, COUNT[model], vectors)
                results[engine].append(json.loads(output.splitlines()[-1]))
        results_by_model[model] = results
        report(model, folder, results)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(results_by_model, indent=2))
    return None


def report(model: str, folder: Path, results: dict[str, list[dict[str, Any]]]) -> None:
    """Print a line for each engine."""
    print(f"\n{model}: texts a second")
    base = folder / f"{PEERS[0].replace(' ', '-')}.npy"
    for engine, rounds in results.items():
        line = f"{engine:<22}"
        for task in ("corpus", "batches"):
            line += f"{task} {statistics.median(figures[task] for figures in rounds):8.1f}  "
            peers = [peer for peer in PEERS if peer in results]
            if engine in OWN and peers:
                ratios = [
                    statistics.median(own[task] / rival[task] for own, rival in zip(rounds, results[peer], strict=True))
                    for peer in peers
                ]
                line += f"({min(ratios):.2f} x the fastest, {ratios[0]:.2f} x {peers[0]})  "
        if base.is_file():
            vectors = np.load(folder / f"{engine.replace(' ', '-')}.npy")
            line += f"difference {abs(vectors - np.load(base)).max():.1e}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
