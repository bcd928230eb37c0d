"""Compare backends from a YAML file.

One file per group of commands. Heavy modules are imported where a command needs them.
"""

from __future__ import annotations

import typer

from isorun_matrix.cli import ab, bisect, changes, report, run, spec

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)
for command in (
    *(run.run, ab.ab, bisect.bisect, spec.validate, report.report, report.merge, changes.compare, report.check),
    *(changes.history, spec.init, spec.schema),
):
    app.command()(command)


@app.callback()
def _matrix() -> None:
    """Compare backends from a YAML file: parity, latency, provenance."""
