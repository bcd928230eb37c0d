"""Bring any exporter's encoder to the fused graph, and say what was fused."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isorun.cli import CHECK_FAILED, console, models
from isorun.cli.build import whole
from isorun.errors import BackendUnavailable, InvalidModel, UnsupportedModel

if TYPE_CHECKING:
    import onnx_ir as ir

    from isorun.graph.matching.report import Refusal

FUSED = "fused"
AS_IT_IS = "fp32"  # types stay as they are
INT8 = "int8"
PADDINGS = ("keep", "remove")  # a file is one graph: `auto` is a session's, which may hold both


@dataclass(frozen=True, slots=True)
class _Found:
    """What became of a graph.

    Attributes:
        kinds: for each kind of fused operator, how many places look like it, and how many are one.
        refusals: the places that look like it and are left.
        no_encoder: why the graph stays as it came; empty where it does not.
        already: whether the graph came in the fused form.
    """

    kinds: dict[str, dict[str, int]]
    refusals: Sequence[Refusal]
    no_encoder: str
    already: bool

    @property
    def complete(self) -> bool:
        return not self.no_encoder and not self.refusals


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def fuse(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file, by any exporter.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx", help="The file to write.")],
    dialect: Annotated[
        str,
        typer.Option(help="fused, for isorun and every backend; or onnx, primitive, com.microsoft, for a runtime."),
    ] = FUSED,
    padding: Annotated[
        str, typer.Option(metavar="keep|remove", help="remove: dense layers run over real tokens alone.")
    ] = "keep",
    precision: Annotated[
        str,
        typer.Option(metavar="fp32|fp16|int8", help="fp16: weights and activations; int8: dense layers, calibrated."),
    ] = "fp32",
    outputs: Annotated[
        str | None, typer.Option(metavar="A,B", help="The outputs that are wanted, instead of all.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="TEXTS", help="What int8 is calibrated on: a file with one text on each line."),
    ] = None,
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Write nothing and exit with 1 unless everything was fused.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bring any exporter's encoder to the fused graph, and say what was fused. A file that is there is replaced.

    Inputs stay as they are, and the outputs that are wanted. A model that is no encoder is written as it came.
    """
    from isorun.graph.io import files
    from isorun.graph.ops import functions, lower
    from isorun.graph.transforms import padding_removal as removal
    from isorun.graph.transforms import precision as precisions

    models.check_choice("dialect", dialect, (FUSED, *functions.dialects()))
    models.check_choice("padding", padding, PADDINGS)
    models.check_choice("precision", precision, (AS_IT_IS, *precisions.PRECISIONS, INT8))
    if calibrate is not None:
        models.check_input(calibrate, "--calibrate")
        if precision != INT8:
            raise typer.BadParameter(f"nothing is calibrated in {precision}: ask for --precision int8, or leave it out")
    _check_model(model)
    models.check_output(output)
    wanted = None if outputs is None else models.names(outputs)
    weights = files.external_files(files.read_proto(model))
    models.check_apart(model, weights, output)

    with console.working(f"Fusing {model}"), files.reading(str(model)):
        graph, found = _fused(model, wanted)
    described = {
        "model": model,
        "is_encoder": not found.no_encoder,
        "complete": found.complete,
        "already_fused": found.already,
        "reason": found.no_encoder or None,
        "kinds": found.kinds,
        "refusals": [asdict(each) for each in found.refusals],
        "written": None,
    }
    if require_complete and not found.complete:
        _print(described, as_json)
        why = found.no_encoder or f"{len(found.refusals)} of what was found could not be fused"
        console.note(f"isorun: {model} is not fused whole: {why}. Nothing was written")
        raise typer.Exit(CHECK_FAILED)
    if found.no_encoder and padding == "remove":
        raise UnsupportedModel(f"Padding cannot be removed from {model}: {found.no_encoder}. Leave --padding out")

    with console.working(f"Writing {output}"), whole(output) as made:
        notes: dict[str, Any] = {}
        if found.no_encoder and not weights and precision == AS_IT_IS and wanted is None:
            shutil.copyfile(model, made)
        else:
            with files.reading(str(model), except_for=OSError):  # `--calibrate` names a file of its own
                if padding == "remove":
                    removal.remove(graph)
                if precision == INT8:
                    notes = {INT8: _quantize(graph, model, wanted, calibrate)}
                elif precision != AS_IT_IS:
                    notes = precisions.write(graph, precision)
                if dialect != FUSED and not found.no_encoder:
                    graph = lower.lower(graph, dialect)
            # Weights that came beside the graph are beside it again: into the file, they would have to be in memory.
            files.write(graph, made, beside_above=0 if weights else files.SINGLE_FILE_LIMIT)
        beside = files.external_files(files.read_proto(made))  # refuses a graph whose weights are not there
        tokenizer = models.copy_tokenizer(model, made)
    described["written"] = {
        "path": output,
        "dialect": None if found.no_encoder else dialect,
        "padding": padding,
        "precision": precision,
        "notes": notes,
        "bytes": sum((output.parent / name).stat().st_size for name in (output.name, *beside)),
        "external_data": beside,
        "tokenizer": output.with_name(tokenizer.name) if tokenizer else None,
    }
    _print(described, as_json)


def _check_model(model: Path) -> None:
    if (model / "config.json").is_file():
        raise InvalidModel(f"{model} is a checkpoint's folder, and no ONNX file: `isorun build` makes its fused graph")
    models.check_input(model, "MODEL.onnx")


def _quantize(graph: ir.Model, path: Path, wanted: list[str] | None, texts: Path | None) -> dict[str, Any]:
    """Quantize a graph, in place, by a run of the model on the first backend that is here. Says what it suits."""
    from isorun.compilation import calibration
    from isorun.graph.transforms.precision import int8
    from isorun.models.source import open_model
    from isorun.plugin import registry
    from isorun.system.cache import Cache
    from isorun.system.threads import usable_cores
    from isorun.types import CompileConfig

    here = [backend for backend in map(registry.get, registry.AUTO_ORDER) if registry.availability(backend).ok]
    if not here:
        raise BackendUnavailable(
            " or ".join(registry.AUTO_ORDER),
            "none of them is here to calibrate on",
            "Install one: pip install 'isorun[cpu]'",
        )
    capabilities, cache = here[0].capabilities, Cache()
    threads = usable_cores() if capabilities.sets_threads else None
    samples = None if texts is None else [line for line in texts.read_text().splitlines() if line.strip()]
    config = CompileConfig(INT8, capabilities.devices[0], threads)
    table = calibration.calibrate(here[0], open_model(path, cache, wanted), config, samples, cache)
    int8.quantize(graph, int8.load(table.folder))
    return dict(table.note)


def _fused(path: Path, wanted: list[str] | None) -> tuple[ir.Model, _Found]:
    """A model in the fused form, or as it came where it is no encoder, and what was found in it."""
    from isorun.graph import pipeline as fusion
    from isorun.graph.matching.report import KINDS
    from isorun.graph.ops import functions
    from isorun.graph.transforms import last_layer

    model = fusion.as_it_came(path, wanted)
    if here := [node.op_type for node in model.graph if functions.is_fused(node)]:
        # It is taken as it is. What is in it and was refused is found by looking again, in a copy.
        report = fusion.fuse(fusion.as_it_came(path, wanted))
        kinds = {name: {"found": here.count(name), "fused": here.count(name)} for name in dict.fromkeys(here)}
        for refusal in report.refusals:
            kinds.setdefault(refusal.kind, {"found": 0, "fused": 0})["found"] += 1
        last_layer.narrow(model)
        return model, _Found(kinds, report.refusals, "", already=True)
    report = fusion.fuse(model)
    kinds = {
        kind: {"found": report.found[kind], "fused": report.fused[kind] if report.is_encoder else 0}
        for kind in KINDS
        if report.found[kind]
    }
    if report.is_encoder:
        return model, _Found(kinds, report.refusals, "", already=False)
    if report.unread:
        reason = report.unread
    elif report.found["SelfAttention"]:
        reason = "none of its attentions could be fused"
    else:
        reason = "no self-attention was found in it"
    return fusion.as_it_came(path, wanted), _Found(kinds, report.refusals, reason, already=False)


def _print(described: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.json_out(described)
        return
    if described["kinds"]:
        rows = [(kind, count["fused"], count["found"]) for kind, count in described["kinds"].items()]
        console.table(("operator", "fused", "found"), rows, right=("fused", "found"))
        print()
    if described["refusals"]:
        print("Left as it was")
        rows = [(each["kind"], each["node"] or "without a name", each["reason"]) for each in described["refusals"]]
        console.table(("looks like", "node", "why not"), rows)
        print()
    if described["already_fused"]:
        print("The model was in the fused form already.\n")
    if described["reason"]:
        print(f"The model is taken for no encoder: {described['reason']}.\n")
    if written := described["written"]:
        kept = [each for notes in written["notes"].values() for each in notes.get("kept", ())]
        if kept:
            print(f"Not in {written['precision']}")
            rows = [(each["operator"], each["node"] or "without a name", each["reason"]) for each in kept]
            console.table(("operator", "node", "why not"), rows)
            print()
        _print_written(written)


def _print_written(written: dict[str, Any]) -> None:
    form = {None: "as it came", FUSED: "the fused form"}.get(written["dialect"], f"lowered to {written['dialect']}")
    size = console.size(written["bytes"])
    beside = written["external_data"]
    console.facts(
        {
            "written": written["path"],
            "form": ", ".join(
                [
                    form,
                    *(["padding removed"] if written["padding"] == "remove" else []),
                    *([written["precision"]] if written["precision"] != AS_IT_IS else []),
                ]
            ),
            "size": f"{size}, weights in {', '.join(beside)}" if beside else size,
            "tokenizer": written["tokenizer"] or "none beside the model",
        }
    )
