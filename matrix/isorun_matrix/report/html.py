"""One HTML file that contains everything of one or several runs: figures, plots and plotly's code. It needs no
network."""

from __future__ import annotations

import jinja2

from isorun_matrix.report import details, plots, remarks, summary, under_load
from isorun_matrix.report.columns import columns, text
from isorun_matrix.report.formatting import number
from isorun_matrix.report.machines.overview import Overview
from isorun_matrix.results.records import STATUSES, Run


def render(*runs: Run, overview: Overview | None = None) -> str:
    """The report of one or more runs, below an overview of the machines that they are of, in the same order. Cells of
    different runs are never ranked against each other."""
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("isorun_matrix.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    names: list[int | str] = [*range(1, len(runs) + 1)] if overview is None else [*overview.machines]
    named = list(zip(names, runs, strict=True))
    groups = [
        (name, group, f"{'' if len(runs) == 1 else f'{name}/'}{group.model}/{group.shape}")
        for name, run in named
        for group in summary.groups(run.cells)
    ]
    return environment.get_template("report.html.j2").render(
        runs=named,
        kind="run" if overview is None else "machine",
        overview=overview,
        models=list(dict.fromkeys(model for run in runs for model in run.spec.models)),
        groups=groups,
        rows=[(*place, cell) for place in groups for cell in place[1].cells],
        references=" or ".join(
            dict.fromkeys(f"{run.spec.reference.backend} in {run.spec.reference.precision}" for run in runs)
        ),
        plotly=get_plotlyjs(),
        remarks=remarks,
        summary=summary,
        under_load=under_load,
        details=details,
        plots=plots,
        columns=columns,
        text=text,
        number=number,
        statuses=STATUSES,
    )
