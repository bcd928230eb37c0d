"""Embed the lines of a text file as vectors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isorun import Embedder
from isorun.cli import console, models, options
from isorun.cli.vectors_file import VectorsFile
from isorun.errors import IsorunError
from isorun.models.hub import KNOWN
from isorun.system import text_files
from isorun.system.cache import Cache, sha256, write_atomically

_STEP = 4096  # lines between two saves

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def embed(
    texts: Annotated[Path, typer.Argument(metavar="TEXTFILE", help="A UTF-8 file with a text on each line.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="VECTORS.npy", help="The file to write.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="A checkpoint's folder or name, or an ONNX file.")] = next(
        iter(KNOWN)
    ),
    backend: options.BackendNames = "auto",
    precision: options.Precision = "fp32",
    threads: options.Threads = None,
    pooling: Annotated[
        str | None, typer.Option(metavar="NAME", help="How to pool a text's tokens. Default: the model's.")
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Scale to length 1. Default: as the model does.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the prompt to put before each text. Default: the model's."),
    ] = None,
    truncate_dim: Annotated[int | None, typer.Option(metavar="N", min=1, help="Keep the first N dimensions.")] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Maximum tokens of a batch. Default: 4096, or no batches if they change vectors."
        ),
    ] = None,
) -> None:
    """Embed the lines of a text file as vectors: float32, a row for each line.

    What they depend on is written beside them, as NAME.identity.json (see `isorun vectors`). Progress is saved there
    too. After an interruption, the same command continues.
    """
    models.check_input(texts, "TEXTFILE")
    cache = Cache()
    path = models.model_path(model, cache)
    output = models.check_output(output, [texts, path])
    if output.suffix != ".npy":
        raise IsorunError(f"VECTORS.npy must end with .npy, got {output}")
    record = models.check_output(output.with_name(f"{output.stem}.identity.json"), [texts, path])
    lines = sum(1 for _ in text_files.lines(texts))
    settings: dict[str, Any] = {"precision": precision, "pooling": pooling, "normalize": normalize}
    settings |= {"default_prompt": prompt, "truncate_dim": truncate_dim, "batch_tokens": batch_tokens}
    with Embedder(path, backend=options.backend_names(backend), threads=threads, **settings) as embedder:
        stat = texts.stat()
        about = [str(embedder.identity), str(texts.absolute()), stat.st_size, stat.st_mtime_ns, batch_tokens]
        key = sha256(json.dumps(about).encode())
        with VectorsFile(output, (lines, embedder.dimension), key) as part:
            if part.done:
                console.note(f"Continuing after {part.done} of {lines} lines")
            _embed(embedder, itertools.islice(text_files.lines(texts), part.done, None), part)
            content = json.dumps(embedder.vector_record(), indent=1).encode()
            record.unlink(missing_ok=True)  # that of earlier vectors, should this end before there is a new one
        write_atomically(record, content)
    print(f"{output}: {lines} x {embedder.dimension}, float32")


def _embed(embedder: Embedder, lines: Iterator[str], part: VectorsFile) -> None:
    from tqdm import tqdm

    total = part.lines
    with tqdm(total=total, initial=part.done, unit=" lines", disable=None, leave=False) as bar:
        vectors = embedder.embed_iter(lines)
        while rows := list(itertools.islice(vectors, _STEP)):
            part.add(np.stack(rows))
            bar.update(len(rows))
    if part.done != total:
        raise IsorunError(f"The text file changed while being read: expected {total} lines, got {part.done}. Try again")
