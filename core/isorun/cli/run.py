"""Run a model on arrays or text: results, latency, provenance."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isorun import Session
from isorun.cli import console, feeds_file, models, options
from isorun.compilation.options import AUTO, PADDINGS
from isorun.errors import IsorunError
from isorun.models.pooling import cosine_matrix, pool
from isorun.models.sentence_settings import METADATA, POOLINGS, SentenceSettings
from isorun.models.text_reader import TextReader
from isorun.models.tokenizer import TruncationWarning, feeds_of
from isorun.system import npz
from isorun.system.arguments import check_choice
from isorun.system.cache import Cache, write_atomically
from isorun.text.inputs import texts_of
from isorun.types import threads_in_words

_MOST_TEXTS = 8  # the columns of a matrix that fit into a terminal
_FIRST = 3


@dataclass
class _Result:
    """The results of a run."""

    outputs: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    pooling: str | None = None
    pooled: str | None = None
    cosine: np.ndarray | None = None
    latency: dict[str, float] | None = None


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def run(
    model: models.Model,
    backend: options.BackendNames = "auto",
    feeds: Annotated[Path | None, typer.Option(metavar="F.npz", help="A file with one array for each input.")] = None,
    text: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A text; repeat for a batch.")] = None,
    outputs: Annotated[str | None, typer.Option(metavar="A,B", help="The outputs to compute. Default: all.")] = None,
    precision: options.Precision = "fp32",
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="A device of the backend. Default: its first.")
    ] = None,
    padding: Annotated[
        str, typer.Option(metavar="auto|keep|remove", help="Whether to skip the computation of padding.")
    ] = "auto",
    threads: options.Threads = None,
    environment: options.Environment = None,
    option: options.Settings = None,
    pooling: Annotated[
        str | None,
        typer.Option(metavar="mean|cls|...", help="How to pool a text's tokens. Default: from the model's metadata."),
    ] = None,
    repeat: Annotated[int | None, typer.Option(metavar="N", min=1, help="Run N more times and report latency.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="F.npz", help="Save the outputs.")] = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Show the full provenance.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a model on arrays or text: results, latency, provenance."""
    if (feeds is None) == (not text):
        raise typer.BadParameter("pass either --feeds or --text")
    if pooling is not None:
        check_choice(pooling, "pooling", POOLINGS)
        if len(text or ()) < 2:
            raise typer.BadParameter("--pooling is for comparing texts. Pass --text twice or more")
    check_choice(padding, "padding", PADDINGS)
    if feeds is not None:
        models.check_input(feeds, "--feeds", (".npz",))
    cache = Cache()
    requested = options.backend_names(backend, local=environment is None)
    path = models.model_path(model, cache)
    if output is not None:
        output = models.check_output(output, filter(None, (path, feeds)))
    with Session(
        path,
        backend=requested,
        device=device,
        precision=precision,
        padding=padding,
        threads=threads,
        environment=environment,
        options=options.settings_of(option),
        outputs=None if outputs is None else models.names(outputs),
    ) as session:
        skipped = 0
        if feeds is not None:
            arrays = feeds_file.load(feeds)
        else:
            reader = TextReader(path, session.model_info)
            arrays, skipped = _encode(reader, text or [], session), reader.skipped
        names = [spec.name for spec in session.get_outputs()]
        result = _Result(dict(zip(names, session.run(None, arrays), strict=True)), texts=list(text or []))
        declared = session.get_modelmeta().custom_metadata_map.get(METADATA)
        modes = (pooling,) if pooling else SentenceSettings.from_json(declared).pooling if declared else ()
        result.pooling = "+".join(modes) or None
        if len(result.texts) > 1 and modes:
            _pool(result, modes, session.model_info.attended(arrays), skipped)
            if pooling is not None and result.pooled is None:
                raise IsorunError(f"--pooling: none of the outputs has a vector for each token ({', '.join(names)})")
        if repeat:
            result.latency = _time(session, arrays, repeat)
        if output is not None:
            write_atomically(output, npz.content(result.outputs))
        if as_json:
            console.json_out(_as_dict(model, arrays, result, session))
        else:
            _show(arrays, result)
            print(f"\n{session.provenance if provenance else _short(session, requested)}")


def _encode(reader: TextReader, texts: Sequence[str], session: Session) -> dict[str, np.ndarray]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TruncationWarning)
        encoded = reader.encode(texts_of(texts, "--text"))
    for warning in caught:
        console.note(f"isorun: {warning.message}")
    return feeds_of(encoded, session.model_info)


def _pool(result: _Result, modes: Sequence[str], mask: np.ndarray | None, skipped: int) -> None:
    name = next((name for name, value in result.outputs.items() if getattr(value, "ndim", 0) == 3), None)
    if name is None:
        return
    hidden = result.outputs[name]
    real = np.ones(hidden.shape[:2], np.int64) if mask is None else mask.copy()
    real[:, :skipped] = 0
    result.pooled, result.cosine = name, cosine_matrix(pool(hidden, real, modes))


def _time(session: Session, feeds: Mapping[str, np.ndarray], repeat: int) -> dict[str, float]:
    milliseconds = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        session.run(None, feeds)
        milliseconds.append((time.perf_counter_ns() - start) / 1e6)
    samples = np.array(milliseconds)
    percentiles = {f"p{percent}": float(np.percentile(samples, percent)) for percent in (50, 90, 95, 99)}
    return {"runs": repeat, "min": float(samples.min()), **percentiles, "max": float(samples.max())} | {
        "mean": float(samples.mean()),
        "std": float(samples.std()),
    }


def _as_dict(model: str, feeds: Mapping[str, np.ndarray], result: _Result, session: Session) -> dict[str, Any]:
    return {
        "model": model,
        "inputs": {name: {"dtype": str(array.dtype), "shape": array.shape} for name, array in feeds.items()},
        "outputs": {
            name: {"dtype": str(value.dtype), "shape": value.shape, "first": value.reshape(-1)[:_FIRST]}
            if isinstance(value, np.ndarray)
            else {"type": type(value).__name__}
            for name, value in result.outputs.items()
        },
        "texts": result.texts,
        "pooling": result.pooling if result.cosine is not None else None,
        "cosine": result.cosine,
        "latency_ms": result.latency,
        "provenance": session.provenance.as_dict(),
    }


def _show(feeds: Mapping[str, np.ndarray], result: _Result) -> None:
    rows = [("in", name, str(array.dtype), console.shape(array.shape), _first(array)) for name, array in feeds.items()]
    for name, value in result.outputs.items():
        if isinstance(value, np.ndarray):
            rows.append(("out", name, str(value.dtype), console.shape(value.shape), _first(value)))
        else:
            rows.append(("out", name, type(value).__name__, "", ""))
    console.table(("", "name", "dtype", "shape", "first values"), rows)
    if result.cosine is not None:
        print()
        _show_cosine(result)
    if result.latency:
        print()
        names = [name for name in result.latency if name != "runs"]
        figures = [
            f"{result.latency[name]:.3f}" if result.latency[name] < 100 else f"{result.latency[name]:.1f}"
            for name in names
        ]
        print(f"Latency in milliseconds over {result.latency['runs']:.0f} runs, after one warm-up run")
        console.table(names, [figures], right=names)


def _show_cosine(result: _Result) -> None:
    assert result.cosine is not None
    how = f"{result.pooling} pooling of {result.pooled}"
    count = len(result.texts)
    numbers = [str(index + 1) for index in range(count)]
    if count <= _MOST_TEXTS:
        print(f"Cosine between texts ({how})")
        rows = [
            (number, _short_text(text), *(f"{value:.3f}" for value in row))
            for number, text, row in zip(numbers, result.texts, result.cosine, strict=True)
        ]
        console.table(("", "text", *numbers), rows, right=numbers)
        return
    print(f"Nearest text to each ({how}); --json prints the whole matrix")
    others = result.cosine - 4 * np.eye(count)  # exclude each text itself
    nearest = others.argmax(axis=1)
    rows = [
        (numbers[index], _short_text(result.texts[index]), numbers[near], f"{result.cosine[index, near]:.3f}")
        for index, near in enumerate(nearest)
    ]
    console.table(("", "text", "nearest", "cosine"), rows, right=("nearest", "cosine"))


def _short_text(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 32 else f"{line[:31]}…"


def _first(array: np.ndarray) -> str:
    values = array.reshape(-1)[:_FIRST]
    shown = [f"{float(value):.4g}" if array.dtype.kind == "f" else str(value) for value in values]
    return " ".join(shown) + (" ..." if array.size > _FIRST else "")


def _short(session: Session, requested: str | list[str]) -> str:
    ran = session.provenance
    nodes = ", ".join(f"{sum(counts.values())} nodes on {place}" for place, counts in ran.operators.items())
    where = f", in the environment {ran.environment['name']}" if ran.environment else ""
    first = f"{ran.backend}, {ran.precision}, {threads_in_words(ran.threads)}, {ran.device}{where}"
    passed = "".join(f"skipped {name}: {reason}\n" for name, reason in ran.skipped if requested != AUTO)
    return f"{passed}{first}\n{nodes}; graph lowered to {ran.dialect} (--provenance for details)"
