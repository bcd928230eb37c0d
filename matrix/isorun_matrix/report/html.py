"""One HTML file that contains everything of one or several runs: figures, plots and plotly's code. It needs no
network."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from isorun_matrix.report import facts, plots, summary
from isorun_matrix.report.columns import columns, text
from isorun_matrix.results.records import STATUSES, Run


def render(*runs: Run) -> str:
    """The report of one or more runs. Cells of different runs are never ranked against each other."""
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("isorun_matrix.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(summary=summary, facts=facts, plots=plots, columns=columns, text=text, statuses=STATUSES)
    groups = [
        (number, group, f"{_prefix(runs, number)}{group.model}/{group.shape}")
        for number, run in enumerate(runs, start=1)
        for group in summary.groups(run.cells)
    ]
    models = list(dict.fromkeys(model for run in runs for model in run.spec.models))
    template = environment.get_template("report.html.j2")
    return template.render(runs=list(enumerate(runs, start=1)), models=models, groups=groups, plotly=get_plotlyjs())


def _prefix(runs: Sequence[Run], number: int) -> str:
    return "" if len(runs) == 1 else f"{number}/"
