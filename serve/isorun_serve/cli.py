"""Serve models over HTTP."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from isorun.cli import console, models, options
from isorun.errors import InvalidArgument, IsorunError
from isorun.system import text_files
from isorun.system.cache import Cache

KEYS_VARIABLE = "ISORUN_API_KEYS"
_MAX = 1e6  # seconds
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+")
_LOCAL = ("127.0.0.1", "localhost", "::1")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def serve(
    context: typer.Context,
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="ONNX files, checkpoints' folders or names to fetch; NAME=MODEL to choose what clients call it.",
            show_default=False,
        ),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TASK", help="embed, sparse, rerank, classify or tensors. Default: by its files."),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65_535, help="0 for any that is free.")] = 8080,
    backend: options.BackendNames = "auto",
    precision: options.Precision = "fp32",
    threads: options.Threads = None,
    option: options.Settings = None,
    pooling: Annotated[
        str | None, typer.Option(metavar="NAME", help="How to pool a text's tokens. Default: the model's.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum tokens of a text. Default: the model's.")
    ] = None,
    auto_truncate: Annotated[
        bool, typer.Option("--auto-truncate", help="Cut longer texts instead of rejecting them.")
    ] = False,
    max_queue: Annotated[int, typer.Option(metavar="N", min=1, help="Texts that may wait for a model.")] = 4096,
    max_requests: Annotated[int, typer.Option(metavar="N", min=1, help="Requests at once.")] = 1024,
    max_texts: Annotated[int, typer.Option(metavar="N", min=1, help="Texts of a request.")] = 2048,
    max_characters: Annotated[
        int, typer.Option(metavar="N", min=1, help="Characters of a text, before it is cut.")
    ] = 1_000_000,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of a request.")] = 300_000,
    max_body: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of a request.")] = 8 * 2**20,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, max=_MAX, help="Time of a request.")] = 60.0,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, max=_MAX, help="Time for answering accepted requests after SIGTERM."),
    ] = 30.0,
    drain: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, max=_MAX, help="Time in which requests are accepted after SIGTERM."),
    ] = 1.0,
    idle: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, max=_MAX, help="Time after which unused connections are closed."),
    ] = 60.0,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"A key on each line, one of which clients must send. Also: {KEYS_VARIABLE}."
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="A web page that may call the server; repeatable.")
    ] = None,
    warmup: Annotated[bool, typer.Option("--warmup/--no-warmup", help="Compile what requests need first.")] = True,
    measure: Annotated[
        bool,
        typer.Option("--measure/--no-measure", help="Measure how requests best share this machine; kept in the cache."),
    ] = True,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Open and warm up the models, which fills the cache, and exit.")
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Deploy on Ray Serve.")] = False,
    replicas: Annotated[
        str, typer.Option(metavar="N|MIN:MAX", help="With --ray: replicas; MIN:MAX by the number of open requests.")
    ] = "1",
    cpus: Annotated[float, typer.Option(metavar="N", min=0, help="With --ray: CPUs of a replica.")] = 1,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request.")] = False,
) -> None:
    """Serve models over HTTP, for clients of OpenAI, text-embeddings-inference, Cohere and Open Inference Protocol.

    A request names a model, or gets the first one that does what it asks for.
    """
    try:
        from isorun_serve import deployment, opening, server
        from isorun_serve.app import create_app
        from isorun_serve.settings import Settings
    except ModuleNotFoundError as error:
        raise IsorunError(
            f"`isorun serve` needs the package {error.name!r}. Install it with `pip install 'isorun[serve]'`"
        ) from error
    keys = _keys(api_key_file)
    origins = _origins(cors_origin or [])
    named = opening.named(model, task or [])
    _check(context, ray=ray, prepare=prepare, warmup=warmup)
    cache = Cache()
    paths = {served.name: models.model_path(served.model, cache) for served in named}
    session_options: dict[str, Any] = {"precision": precision, "threads": threads, "max_queue": max_queue}
    session_options |= {"backend": options.backend_names(backend), "options": options.settings_of(option) or None}
    settings = Settings(
        max_body=max_body,
        max_texts=max_texts,
        max_characters=max_characters,
        max_tokens=max_tokens,
        max_requests=max_requests,
        timeout=timeout,
        auto_truncate=auto_truncate,
        api_keys=keys,
        cors_origins=origins,
        warmup=warmup,
        measure=measure,
    )
    if host not in _LOCAL and not keys:
        console.note(f"isorun: anyone who reaches {host} can use the models. Set --api-key-file, or --host 127.0.0.1")
    text_options: dict[str, Any] = {"pooling": pooling, "max_length": max_length}
    if ray:
        application = deployment.deployment(
            named, session_options, settings, replicas=replicas, cpus=cpus, **text_options
        )
        deployment.run(application, host, port)
        return
    if not prepare:
        server.check_address(host, port)
    opened = opening.open_models(named, paths, session_options, **text_options)
    if prepare:
        try:
            opened.warm_up(measure=measure)
        finally:
            opened.close()
        return
    server.serve(
        create_app(opened, settings), host=host, port=port, grace=grace, drain=drain, idle=idle, access_log=access_log
    )


def _check(context: typer.Context, *, ray: bool, prepare: bool, warmup: bool) -> None:
    """Reject options that have no effect beside others."""
    for names, unused, why in (
        (("replicas", "cpus"), not ray, "without --ray"),
        (("grace", "drain", "idle", "access_log", "prepare"), ray, "with --ray: Ray Serve has settings for that"),
        (("measure",), not warmup, "with --no-warmup"),
        (("warmup",), prepare, "with --prepare, which warms up"),
    ):
        passed = [name for name in names if _is_passed(context, name)]
        if unused and passed:
            options = " and ".join(_flag(name, context.params[name]) for name in passed)
            raise InvalidArgument(f"{options}: no effect {why}")


def _flag(name: str, value: object) -> str:
    return f"--{'no-' if value is False else ''}{name.replace('_', '-')}"


def _is_passed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _origins(texts: Sequence[str]) -> tuple[str, ...]:
    """The origins of web pages as browsers send them: one in another form would never match."""
    for text in texts:
        if text != "*" and not _ORIGIN.fullmatch(text):
            raise InvalidArgument(
                f"Invalid --cors-origin {text!r}: expected https://HOST or http://HOST:PORT, in lower case and without "
                "a path, or * for all"
            )
    return tuple(texts)


def _keys(path: Path | None) -> tuple[str, ...]:
    """The keys of a file and of the environment, one on each line; lines that start with ``#`` are comments."""
    sources = {f"${KEYS_VARIABLE}": text.splitlines()} if (text := os.environ.get(KEYS_VARIABLE)) is not None else {}
    if path is not None:
        models.check_input(path, "--api-key-file")
        sources[str(path)] = list(text_files.lines(path))
    keys: list[str] = []
    for source, lines in sources.items():
        stripped = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not stripped:
            raise IsorunError(f"{source} is set and has no key. Write one on each line, or leave it out")
        keys += stripped
    return tuple(keys)
