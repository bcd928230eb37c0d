"""Find the best backend and precision for a model."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from isorun.cli import BACKEND_TROUBLE, console, models, options
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import AUTO, Options
from isorun.models.source import open_model
from isorun.quality.labels import read as read_labels
from isorun.system import text_files
from isorun.system.cache import Cache
from isorun.tuning import backend as best_backend
from isorun.tuning.accuracy import Candidate
from isorun.tuning.backend import LATENCY, THROUGHPUT, Choice

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_WIDTH = 80


@app.command()
def choose(
    model: models.Model,
    texts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts that resemble yours, one per line. Default: isorun's.")
    ] = None,
    latency: Annotated[bool, typer.Option("--latency", help="Optimize for single requests (default).")] = False,
    throughput: Annotated[bool, typer.Option("--throughput", help="Optimize for batches of 32 texts.")] = False,
    tolerance: Annotated[
        float | None, typer.Option(metavar="COSINE", help="Minimum cosine to fp32 of any request. Default: 0.99.")
    ] = None,
    quality: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Minimum share of a text's ten nearest neighbours that vectors keep, at the low end of its "
            "interval. Default: 0.9.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Labelled texts (pairs, queries or classes; JSON on each line): --quality is the share of their score "
            "that is kept, instead of neighbours.",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Measure these backends only. Default: all available ones.",
            autocompletion=options.complete_backends,
        ),
    ] = None,
    threads: options.Threads = None,
    outputs: Annotated[str | None, typer.Option(metavar="A,B", help="The outputs to compute. Default: all.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure every backend and precision on a model, and remember the best one.

    Every candidate runs in a process of its own, and is compared with the model's own file in fp32. Sessions with
    backend="auto" (the default) and precision="auto" then run what was chosen. Takes a minute or more; Ctrl-C stops it
    and leaves everything as it was. The exit code is 3 if nothing can be recommended.
    """
    if latency and throughput:
        raise typer.BadParameter("--latency and --throughput are mutually exclusive")
    samples = None
    if texts is not None:
        models.check_input(texts, "--texts")
        samples = text_files.texts(texts)
    labelled = None
    if labels is not None:
        models.check_input(labels, "--labels")
        labelled = read_labels(labels)
    cache = Cache()
    path = models.model_path(model, cache)
    options = Options(precision=AUTO, tolerance=tolerance, quality=quality, threads=threads, calibration=samples)
    source = open_model(path, cache, None if outputs is None else models.names(outputs))
    names = None if backend is None else models.names(backend)
    with console.working("Reading the model") as show:
        goal = THROUGHPUT if throughput else LATENCY
        choice = best_backend.choose(Compiler(source, options, cache), goal, names, show, labelled)
    if as_json:
        console.json_out({"model": model, **asdict(choice)})
    else:
        _show(choice)
    if not choice.backend:
        raise typer.Exit(BACKEND_TROUBLE)


def _show(choice: Choice) -> None:
    default = choice.default
    base = default.milliseconds if default else None
    rows = [_row(choice, candidate, base) for candidate in choice.candidates]
    speed = "texts/s" if choice.goal == THROUGHPUT else "ms"
    kept = next((candidate.task["name"] for candidate in choice.candidates if candidate.task), "neighbours")
    columns = ("backend", "precision", speed, "speed-up", "cosine", kept, "")
    console.table(columns, rows, (speed, "speed-up", "cosine", kept))
    print()
    for candidate in choice.candidates:
        if candidate.reason:
            _print(f"{candidate.backend} in {candidate.precision}: {candidate.reason}")
    if choice.skipped:
        names = ", ".join(name for name, _ in choice.skipped)
        _print(f"Not available here: {names}. `isorun backends` says why.")
    _print(
        f"{choice.goal}: {choice.timed_on}. cosine: minimum over {choice.requests} requests ({choice.judged_on}), "
        f"against the unmodified model in fp32 on {choice.base}. Required: {choice.required:g}, so that unseen "
        f"requests stay at {choice.tolerance:g} or above."
    )
    if choice.labels:
        _print(
            f"{kept}: on the given labels ({choice.labels}), and in brackets the 95 % interval of its ratio to fp32. "
            f"Required: {choice.quality:g} at the low end."
        )
    elif choice.quality is not None:
        _print(
            "neighbours: share of each text's ten nearest that a search keeps, with its 95 % interval. Required: "
            f"{choice.quality:g} at the low end."
        )
    print()
    _print(_recommendation(choice, default))


def _row(choice: Choice, candidate: Candidate, base: float | None) -> tuple[Any, ...]:
    taken = candidate.milliseconds
    speed = "-" if taken is None else f"{1e3 / taken:.1f}" if choice.goal == THROUGHPUT else f"{taken:.2f}"
    ratio = "-" if taken is None or base is None else f"{base / taken:.2f} x"
    cosine = "-" if candidate.cosine is None else f"{candidate.cosine:.6f}"
    note = "recommended" if _is_chosen(candidate, choice) else ""
    if candidate.reason:
        decides = candidate.task.get("kept", {}) if choice.labels else candidate.neighbours
        lacking = candidate.cosine is not None and candidate.cosine < choice.required
        lacking = lacking or decides.get("low", 1.0) < (choice.quality or 0.0)
        note = "inaccurate" if lacking else "failed"
    kept = "{value:.3f} ({low:.3f}-{high:.3f})".format(**candidate.neighbours) if candidate.neighbours else "-"
    if choice.labels:
        task = candidate.task
        kept = "{:.3f} ({low:.3f}-{high:.3f})".format(task["value"], **task["kept"]) if task else "-"
    return candidate.backend, candidate.precision, speed, ratio, cosine, kept, note


def _recommendation(choice: Choice, default: Candidate | None) -> str:
    chosen = next((candidate for candidate in choice.candidates if _is_chosen(candidate, choice)), None)
    if chosen is None:
        return "Nothing can be recommended: no candidate ran and was accurate enough."
    why = "it is the fastest that is accurate enough"
    others = [candidate for candidate in choice.candidates if not candidate.reason]
    if chosen is not others[0]:
        why = f"it is as fast as {others[0].backend} in {others[0].precision} within 5 %, and more accurate"
    if chosen.task:
        task = chosen.task
        why += f". Its {task['name']} is {task['value']:.3f}, in fp32 {task['base']:.3f}"
    elif chosen.neighbours:
        kept = chosen.neighbours
        why += f". It keeps {kept['value']:.3f} of the ten nearest neighbours ({kept['low']:.3f} to {kept['high']:.3f})"
    if default is chosen:
        why += ", and what a session runs anyway"
    elif default is not None and default.milliseconds and chosen.milliseconds:
        ratio = default.milliseconds / chosen.milliseconds
        why += f", {ratio:.1f} x as fast as the default, {default.backend} in {default.precision}"
    return (
        f"Use {chosen.backend} in {chosen.precision}: {why}. This is remembered: sessions with precision='auto' run it "
        "until the model, the machine or a version changes."
    )


def _is_chosen(candidate: Candidate, choice: Choice) -> bool:
    return (candidate.backend, candidate.precision) == (choice.backend, choice.precision)


def _print(text: str) -> None:
    for line in text.splitlines():
        print(textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
