"""``isorun matrix bisect``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isorun.cli import CHECK_FAILED
from isorun_matrix.cli.run import Out, Resume, folder_of, running

if TYPE_CHECKING:
    from isorun_matrix.execution.bisection.search import Found, Step

_ROUNDS = 12
_SMALLEST = 2  # a smaller difference is never a verdict (isorun_matrix.measurement.statistics.verdicts)


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not _SMALLEST <= value < 1000:
        raise typer.BadParameter(f"expected a percentage of {_SMALLEST} or more, such as 5%, got {text!r}")
    return value


def bisect(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An ONNX file, a checkpoint's folder, or a name.", show_default=False)
    ],
    backend: Annotated[str, typer.Option(metavar="NAME", help="The backend.", show_default=False)],
    good: Annotated[str, typer.Option(metavar="VERSION", help="A release that was good.", show_default=False)],
    bad: Annotated[str, typer.Option(metavar="VERSION", help="A newer one that is not.", show_default=False)],
    slower: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", parser=_percent, help="Search for more time than that. Default: 5%."),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", parser=_percent, help="Search for more memory of the session than that."),
    ] = None,
    differs: Annotated[bool, typer.Option("--differs", help="Search for other outputs.")] = False,
    max_rel: Annotated[
        float | None,
        typer.Option(
            metavar="LIMIT",
            min=0,
            max=0.99,
            help="With --differs: the relative error that counts as the same. Default: the precision's tolerance.",
        ),
    ] = None,
    package: Annotated[
        str | None, typer.Option(metavar="NAME", help="The package to bisect. Default: that of the backend's runtime.")
    ] = None,
    install: Annotated[
        list[str] | None,
        typer.Option(metavar="REQUIREMENT", help="What else each environment needs, as for pip. Repeatable."),
    ] = None,
    shape: Annotated[str, typer.Option(metavar="BATCHxSEQUENCE", help="The shape of the feeds.")] = "8x128",
    precision: Annotated[str, typer.Option(metavar="NAME", help="The precision of the sessions.")] = "fp32",
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads of a run. Default: all usable cores.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the backend; repeatable.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The backend that outputs must agree with; not for --differs. Default: reference."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(metavar="N", min=3, help="Rounds in which releases are measured; not for --differs. Default: 12."),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the release of a runtime that made a model slower, larger or different, by a binary search.

    Releases come from the package index, each in an isolated environment. First the good and the bad one are compared;
    without a verdict on them, the search does not start, and the exit code is 1.
    """
    import shlex

    from isorun.cli import console, models, options
    from isorun.models.lowering import ModelGraphs
    from isorun.models.source import open_model
    from isorun.parity import DEFAULT_TOLERANCES, Tolerance
    from isorun.system.arguments import check_choice
    from isorun.system.cache import Cache
    from isorun_matrix.execution import progress
    from isorun_matrix.execution.bisection import record, releases, search
    from isorun_matrix.execution.bisection.measured import MEMORY, ByMeasure
    from isorun_matrix.execution.bisection.outputs import ByOutputs
    from isorun_matrix.execution.bisection.subject import Subject
    from isorun_matrix.report.summary import TIME

    folder = folder_of(out, f"{Path(model).stem}-bisect", resume=resume)
    if sum((slower is not None, memory is not None, differs)) > 1:
        raise typer.BadParameter("--slower, --memory and --differs are mutually exclusive")
    if max_rel is not None and not differs:
        raise typer.BadParameter("--max-rel has no effect without --differs")
    if differs and (reference, rounds) != (None, None):
        raise typer.BadParameter("--reference and --rounds have no effect with --differs, which measures no time")
    check_choice(precision, "precision", DEFAULT_TOLERANCES)
    path = models.model_path(model, Cache()).absolute()
    settings = options.settings_of(option)
    named = package or _package(backend)
    against = reference or "reference"
    subject = Subject(path, backend, named, tuple(install or ()), shape, precision, threads, settings, against)
    subject.spec([good], 1)  # raises where an argument is invalid, as the next lines do
    subject.require_settings()
    subject.require_feeds(ModelGraphs(open_model(path, Cache()), Cache()).info)
    criterion = "differs" if differs else "memory" if memory is not None else "slower"
    percent, rounds = memory if memory is not None else 5.0 if slower is None else slower, rounds or _ROUNDS
    limits: dict[str, Any] = {"max_rel": max_rel} if differs else {"percent": percent, "rounds": rounds}
    request = {
        **asdict(subject),
        "model": open_model(path, Cache()).fingerprint,
        "good": good,
        "bad": bad,
        "search": criterion,
        **limits,
    }
    kept = record.Record(folder, request, resume=resume)
    candidates = kept.releases = kept.releases or releases.between(named, good, bad)
    shown = progress.Lines()
    shown.note(f"{named}: {len(candidates)} releases, {candidates[0]} to {candidates[-1]}; results go to {folder}")
    judge: ByOutputs | ByMeasure
    if differs:
        tolerance = DEFAULT_TOLERANCES[precision] if max_rel is None else Tolerance(max_rel, max_rel, 1e-9)
        judge = ByOutputs(subject, candidates[0], tolerance, shown)
    else:
        measures = TIME if memory is None else MEMORY
        judge = ByMeasure(subject, candidates[0], candidates[-1], measures, percent, folder, rounds, shown, resume)
    with running(context, folder.absolute(), shown), kept.writing():

        def step(release: str, left: int) -> search.Step:
            shown.note(f"{named} {release}: {left} release{'' if left == 1 else 's'} may be the first bad one")
            judged = kept.step(release, judge)
            shown.note(f"{named} {release} is {judged.verdict}: {judged.evidence}")
            return judged

        last = step(candidates[-1], len(candidates) - 1)
        outcome = search.search(candidates, step) if last.verdict == "bad" else None
        causes = judge.explain(outcome) if outcome is not None else []
        kept.write(found=outcome and asdict(outcome), causes=causes)
    if as_json:
        steps = [asdict(judged) for judged in kept.steps.values()]
        console.json_out({"request": request, "steps": steps, "found": outcome and asdict(outcome), "causes": causes})
    else:
        judged = [kept.steps[release] for release in candidates if release in kept.steps]
        rows = [(item.release, item.verdict, item.evidence) for item in judged]
        console.table((named, "", f"against {candidates[0]}"), rows)
        print()
        print("\n".join(_conclusion(named, candidates, last, outcome, causes)))
    environment = subject.environment(next(iter(kept.steps)))
    shown.note(f"The environments stay. To remove one: isorun env remove {shlex.quote(environment)}")
    if outcome is None:
        raise typer.Exit(CHECK_FAILED)


def _package(backend: str) -> str:
    """The distribution of a backend's runtime."""
    from packaging.requirements import Requirement

    from isorun.errors import BackendNotFound, InvalidArgument
    from isorun.plugin import listing

    try:
        offers = listing.load(backend).capabilities
    except BackendNotFound as error:
        raise InvalidArgument(f"{error}. If only the environments have it, name its --package") from None
    if offers.requirement is None:
        raise InvalidArgument(f"{backend} does not name the package of its runtime. Add --package")
    return Requirement(offers.requirement).name


def _conclusion(package: str, releases: list[str], last: Step, result: Found | None, causes: list[str]) -> list[str]:
    if result is None:
        shown = "is as good as" if last.verdict == "good" else "cannot be compared with"
        return [f"No verdict: {package} {last.release} {shown} {releases[0]}: {last.evidence}"]
    if result.between:
        between = ", ".join(result.between)
        first = f"The first bad release is {package} {result.first_bad} or one of those that were skipped: {between}."
    else:
        first = f"The first bad release is {package} {result.first_bad}."
    return [first, f"The last good one is {result.last_good}.", *causes]
