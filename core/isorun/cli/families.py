"""List the families of checkpoints that isorun builds, and their heads."""

from __future__ import annotations

import typer

from isorun.cli import console, options
from isorun.models import heads

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def models(as_json: options.AsJson = False) -> None:
    """List the families of checkpoints that isorun builds, and their heads.

    A family is the `model_type` in `config.json`. ONNX files of any family run, too: see `isorun inspect`.
    """
    families = heads.families()
    if as_json:
        console.json_out({kind: sorted(tasks) for kind, tasks in families.items()})
        return
    console.table(
        ["model_type", *heads.TITLES.values()],
        [[kind, *("yes" if task in tasks else "-" for task in heads.TITLES)] for kind, tasks in families.items()],
    )
