"""Build the fused graph of an encoder's checkpoint, or of a preset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from isorun.cli import console, models, options
from isorun.cli.inspect import describe, show
from isorun.system.arguments import check_choice
from isorun.system.cache import Cache, is_private, scratch_folder
from isorun.system.cache.files import PRIVATE

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def build(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="MODEL.onnx", help="The file to write.")],
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help="all-MiniLM-L6-v2, a Hugging Face hub id, or a folder.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Random weights in the sizes of a model: bert-3l, bert-6l, bert-base, bert-large, modernbert-base, "
            "deberta-v3-small or embeddinggemma-300m.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Seed of a preset's random weights. Default: 0.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Build the fused graph of an encoder's checkpoint, or of a preset. An existing file is replaced."""
    if (checkpoint is None) == (preset is None):
        raise typer.BadParameter("pass either CHECKPOINT or --preset")
    if checkpoint is not None and seed is not None:
        raise typer.BadParameter("--seed requires --preset: a checkpoint has trained weights")
    output = models.check_output(output)
    cache = Cache()
    left_out: list[str] = []
    if preset is not None:
        from isorun.models import presets

        check_choice(preset, "preset", presets.NAMES)
        with console.working(f"Building {preset}"), whole(output) as temporary:
            presets.write(preset, seed or 0, temporary)
    elif checkpoint is not None:
        from isorun.models import checkpoint as checkpoints

        folder = models.fetched(checkpoint, cache)
        models.check_output(output, [folder])
        with console.working(f"Building {checkpoint}"), whole(output, checkpoints.files_of(folder)) as temporary:
            left_out = checkpoints.build(folder, temporary)
    described = describe(output, cache) | {"left_out": left_out}
    if as_json:
        console.json_out(described)
    else:
        show(described)
        if left_out:
            print(f"\nTensors of the checkpoint that the graph does not use: {', '.join(left_out)}")


@contextmanager
def whole(output: Path, sources: Iterable[Path] = ()) -> Iterator[Path]:
    """A path to write to instead, so that ``output`` is always the old model or the complete new one.

    Args:
        output: the model to write, for its owner only if one of its sources is.
        sources: the files that it is made from.
    """
    private = is_private(sources)
    with scratch_folder(output) as work:
        yield (temporary := work / output.name)
        for path in sorted(work.iterdir(), key=lambda path: path == temporary):  # the model after its weights
            if private:
                path.chmod(PRIVATE & 0o666)
            path.replace(output.parent / path.name)
