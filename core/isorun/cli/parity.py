"""Compare backends with a reference, on five kinds of mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isorun import Session
from isorun.cli import BACKEND_TROUBLE, TROUBLES, console, feeds_file, models, options, parity_layers, parity_reduce
from isorun.errors import BackendUnavailable, ParityError
from isorun.models.lowering import info_of
from isorun.parity import DEFAULT_TOLERANCES, Parity, compare
from isorun.parity.samples import batch_size, fixed_size, masked_cases
from isorun.plugin import registry
from isorun.reduction import Request
from isorun.system.arguments import check_choice
from isorun.system.cache import Cache
from isorun.system.threads import MOST
from isorun.types import ModelInfo

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_BATCH, _SEQUENCE = 4, 32
_GIVEN = "given"  # the kind of mask of feeds from a file


@app.command()
def parity(
    model: models.Model,
    backends: Annotated[
        str, typer.Option(metavar="A,B", help="The backends to compare.", autocompletion=options.complete_backends)
    ],
    against: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The reference backend, in fp64 if it supports that.",
            autocompletion=options.complete_backends,
        ),
    ] = "reference",
    precision: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Precision of the compared backends.", autocompletion=options.complete_fixed_precisions
        ),
    ] = "fp32",
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Batch size. Default: 4, or the model's fixed size.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Sequence length. Default: 32, or the model's fixed length.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the random feeds.")] = 0,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST,
            help="Threads of a run, and of the reference if it supports that. Default: all usable cores.",
        ),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Compare the value of every fused operator; name the first that differs.")
    ] = False,
    reduce: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.onnx",
            help="Write the smallest part of the model that differs or crashes, without isorun's workarounds.",
        ),
    ] = None,
    feeds: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Feeds to compare on, instead of random ones.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare backends with a reference, on five kinds of mask: none, right, left, holes, a fully masked row.

    Outputs are compared at real tokens; a NaN fails anywhere. The exit code is 1 if any differs by more than the
    tolerance of the precision, and else 3 if one of several backends cannot run the model.
    """
    requested = options.backend_names(backends)
    names = [requested] if isinstance(requested, str) else requested
    check_choice(precision, "precision", DEFAULT_TOLERANCES)
    for name in names:
        with suppress(BackendUnavailable):  # which is reported with the others' results
            registry.get(name)  # a misspelt one is known before the reference has been computed
    offers = registry.get(against).capabilities
    widest = "fp64" if "fp64" in offers.precisions else "fp32"
    path = models.model_path(model, Cache())
    if feeds is not None:
        models.check_input(feeds, "--feeds", (".npz",))
        if batch or sequence or seed:
            raise typer.BadParameter("--batch, --sequence and --seed have no effect with --feeds")

    loaded = None if feeds is None else feeds_file.load(feeds)
    comparison = _Comparison(names, against, widest, precision, batch, sequence, seed, threads, loaded)
    if reduce is not None:
        if layers or len(names) != 1:
            raise typer.BadParameter("--reduce is for a single backend, and not for --layers")
        if precision == "int8":
            raise typer.BadParameter("--reduce does not support int8, which depends on calibration")
        info = info_of(path, Cache())
        request = Request(str(path), names[0], against, precision, threads)
        reads = [path, *([feeds] if feeds is not None else [])]
        parity_reduce.run(request, info, comparison.cases(info), reduce, reads, as_json=as_json)
        return
    if layers:
        with parity_layers.exposed(path) as (path, operators):
            parities, troubles, info = comparison.run(path, **parity_layers.SETTINGS)
        departures = {name: parity_layers.first_departure(by_mask, operators) for name, by_mask in parities.items()}
    else:
        parities, troubles, info = comparison.run(path)

    if as_json:
        listed = {
            name: {mask: parity.as_dict() for mask, parity in by_mask.items()} for name, by_mask in parities.items()
        }
        reference = {"backend": against, "precision": widest}
        result = {
            "model": model,
            "reference": reference,
            "precision": precision,
            "backends": listed,
            "errors": troubles,
        }
        if layers:
            result["departures"] = {name: departure and departure.as_dict() for name, departure in departures.items()}
        console.json_out(result)
    else:
        batch, sequence = comparison.shape(info)
        sizes = f"batch {batch}, sequence {sequence}, seed {seed}" if feeds is None else f"feeds from {feeds}"
        print(f"Against {against} in {widest}; {sizes}\n")
        if layers:
            parity_layers.show(departures, operators)
        else:
            _show(parities)
    failed = [(name, mask) for name, by_mask in parities.items() for mask, parity in by_mask.items() if parity.reasons]
    if failed:
        total = sum(map(len, parities.values()))
        message = f"{len(failed)} of {total} comparisons failed: {', '.join(map(' on '.join, failed))}"
        if info.random:
            message += (
                f". The model draws random numbers, by the node {info.random}: its results differ from run to run"
            )
        if info.quantized and precision != "int8":
            message += (
                ". The model rounds values to 8 bits itself, so that a difference in the last digit may become a whole "
                "step; the limits for that are those of --precision int8"
            )
        raise ParityError(message)
    if troubles:
        raise typer.Exit(BACKEND_TROUBLE)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What is compared: the options of the command."""

    backends: Sequence[str]
    against: str
    widest: str
    precision: str
    batch: int | None
    sequence: int | None
    seed: int
    threads: int | None
    feeds: Mapping[str, np.ndarray] | None

    def shape(self, info: ModelInfo) -> tuple[int | None, int]:
        """The batch size and the sequence length of random feeds."""
        return (
            self.batch or batch_size(info.required, _BATCH),
            self.sequence or fixed_size(info.inputs, 1) or _SEQUENCE,
        )

    def cases(self, info: ModelInfo) -> Mapping[str, Mapping[str, np.ndarray]]:
        """The feeds by kind of mask."""
        return {_GIVEN: self.feeds} if self.feeds is not None else masked_cases(info, *self.shape(info), self.seed)

    def run(self, path: Path, **settings: Any) -> tuple[dict[str, dict[str, Parity]], dict[str, str], ModelInfo]:
        """The result for each backend and kind of mask, why the other backends have none, and what the model is like.
        Raises the error of the last backend if none has a result."""
        sets_threads = registry.get(self.against).capabilities.sets_threads
        threads = self.threads if sets_threads else None
        with (
            console.working(f"Running {self.against}"),
            Session(path, self.against, precision=self.widest, threads=threads, **settings) as session,
        ):
            names, info = [spec.name for spec in session.get_outputs()], session.model_info
            cases = self.cases(info)
            expected = {mask: dict(zip(names, session.run(None, feeds), strict=True)) for mask, feeds in cases.items()}
        parities: dict[str, dict[str, Parity]] = {}
        troubles: dict[str, str] = {}
        for name in self.backends:
            try:
                with (
                    console.working(f"Running {name}"),
                    Session(path, name, precision=self.precision, threads=self.threads, **settings) as session,
                ):
                    limits = registry.get(session.provenance.backend).capabilities.tolerance(self.precision)
                    parities[name] = {
                        mask: compare(
                            dict(zip(names, session.run(None, feeds), strict=True)),
                            expected[mask],
                            info.attended(feeds),
                            DEFAULT_TOLERANCES[limits],
                            token_level=info.token_outputs,
                        )
                        for mask, feeds in cases.items()
                    }
            except TROUBLES as trouble:
                if not parities and name == self.backends[-1]:
                    raise
                troubles[name] = str(trouble)
                console.note(f"{name} is not compared: {trouble}")
        return parities, troubles, info


def _show(parities: Mapping[str, Mapping[str, Parity]]) -> None:
    from rich.text import Text

    measures = ("max abs", "max rel", "rms", "cosine")
    rows = []
    for name, by_mask in parities.items():
        for mask, parity in by_mask.items():
            worst = parity.as_dict()
            verdict = Text(parity.verdict, "green" if parity.verdict == "pass" else "bold red")
            figures = [_figure(measure, worst[measure.replace(" ", "_")]) for measure in measures]
            rows.append((name, mask, verdict, *figures))
    console.table(("backend", "mask", "verdict", *measures), rows, right=measures)
    for name, by_mask in parities.items():
        for mask, parity in by_mask.items():
            for reason in parity.reasons:
                print(f"{name}, {mask}: {reason}")


def _figure(measure: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.9f}" if measure == "cosine" else f"{value:.1e}"
