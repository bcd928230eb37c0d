"""Fuse an encoder from any exporter, and report what was fused."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isorun.cli import CHECK_FAILED, console, models, options
from isorun.cli.build import whole
from isorun.errors import BackendUnavailable, InvalidModel, UnsupportedModel
from isorun.system.arguments import check_choice

if TYPE_CHECKING:
    import onnx_ir as ir

    from isorun.models.lowering import Quantized

FUSED = "fused"
AS_GIVEN = "fp32"  # types stay as they are
INT8 = "int8"
PADDINGS = ("keep", "remove")  # `auto` needs both graphs, and a file holds one


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def fuse(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file from any exporter.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx", help="The file to write.")],
    dialect: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=(
                "fused: for isorun, with any backend; onnx, primitive, static, com.microsoft, com.microsoft.cpu: for "
                "direct use in a runtime."
            ),
        ),
    ] = FUSED,
    padding: Annotated[
        str, typer.Option(metavar="keep|remove", help="remove: dense layers run over real tokens only.")
    ] = "keep",
    precision: Annotated[
        str,
        typer.Option(
            metavar="fp32|fp16|bf16|int8", help="fp16, bf16: weights and activations; int8: dense layers, calibrated."
        ),
    ] = AS_GIVEN,
    outputs: Annotated[str | None, typer.Option(metavar="A,B", help="The outputs to keep. Default: all.")] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="TEXTS", help="What int8 is calibrated on: a file with one text per line."),
    ] = None,
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Write nothing and exit with 1 unless everything was fused.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Fuse an encoder from any exporter, and report what was fused. An existing file is replaced.

    Inputs stay as they are, and so do the outputs that are kept. A model that is not an encoder is written as given.
    """
    from isorun.graph import pipeline
    from isorun.graph.io import files
    from isorun.graph.ops import functions
    from isorun.graph.transforms import precision as precisions
    from isorun.graph.transforms.precision import int8
    from isorun.models.source import output_names

    check_choice(dialect, "dialect", (FUSED, *functions.dialects()))
    check_choice(padding, "padding", PADDINGS)
    check_choice(precision, "precision", (AS_GIVEN, *precisions.PRECISIONS, INT8))
    if calibrate is not None:
        models.check_input(calibrate, "--calibrate")
        if precision != INT8:
            raise typer.BadParameter(f"--calibrate has no effect with --precision {precision}. Use --precision int8")
    if (model / "config.json").is_file():
        raise InvalidModel(f"{model} is a checkpoint folder, not an ONNX file. Build the graph with `isorun build`")
    models.check_input(model, "MODEL.onnx", (".onnx",))
    kept = None if outputs is None else [*output_names(models.names(outputs))]
    weights = files.external_files(files.read_proto(model))
    output = models.check_graph_output(output, [model, *filter(None, [calibrate])])

    with console.working(f"Fusing {model}"), files.reading(str(model)):
        graph, fusion = _fuse(model, kept)
    described = {"model": model, **fusion, "written": None}
    not_encoder = fusion["reason"]
    if require_complete and not fusion["complete"]:
        _print(described, as_json)
        why = not_encoder or f"{len(fusion['refusals'])} candidates could not be fused"
        console.note(f"isorun: {model} is not fused completely: {why}. Nothing was written")
        raise typer.Exit(CHECK_FAILED)
    if not_encoder and padding == "remove":
        raise UnsupportedModel(f"Padding cannot be removed from {model}: {not_encoder}. Omit --padding")

    with (
        console.working(f"Writing {output}"),
        whole(output, [model, *(model.parent / name for name in weights)]) as temporary,
    ):
        notes: dict[str, Any] = {}
        if not_encoder and not weights and precision == AS_GIVEN and kept is None:
            shutil.copyfile(model, temporary)
        else:
            with files.reading(str(model), except_for=OSError):  # an OSError may be about the file of `--calibrate`
                quantized = _calibrate(model, kept, calibrate) if precision == INT8 else None
                target = pipeline.Target(
                    packed=padding == "remove",
                    precision=precision if precision in precisions.PRECISIONS else None,
                    table=int8.load(quantized.folder) if quantized else None,
                    dialect=dialect if dialect != FUSED and fusion["is_encoder"] else None,
                )
                notes = pipeline.transform(graph, target).notes
                if quantized:
                    notes[INT8] = dict(quantized.note)
            models.keep_settings(graph, model, temporary)
            # External weights stay external: in one file, they would have to fit in memory.
            files.write(graph, temporary, beside_above=0 if weights else files.SINGLE_FILE_LIMIT)
        beside = files.external_files(files.read_proto(temporary))  # rejects a graph whose weights are missing
        tokenizer = models.copy_text_files(model, temporary)
    described["written"] = {
        "path": output,
        "dialect": dialect if fusion["is_encoder"] else None,
        "padding": padding,
        "precision": precision,
        "notes": notes,
        "bytes": sum((output.parent / name).stat().st_size for name in (output.name, *beside)),
        "external_data": beside,
        "tokenizer": output.with_name(tokenizer.name) if tokenizer else None,
    }
    _print(described, as_json)


def _calibrate(path: Path, outputs: list[str] | None, texts: Path | None) -> Quantized:
    """Calibrate a model on the first available backend of ``auto`` that supports int8."""
    from isorun.compilation.compiler import Compiler
    from isorun.compilation.options import Options
    from isorun.models.source import open_model
    from isorun.plugin import listing, registry
    from isorun.system import text_files
    from isorun.system.cache import Cache

    samples = None if texts is None else text_files.texts(texts)
    cache = Cache()
    available = [registry.get(candidate.name) for candidate in listing.candidates(cache) if not candidate.problem]
    backend = next((candidate for candidate in available if INT8 in candidate.capabilities.precisions), None)
    if backend is None:
        raise BackendUnavailable(
            "auto",
            "calibration needs a backend that supports int8, and none is available",
            "Install one with `pip install 'isorun[cpu]'`.",
        )
    compiler = Compiler(open_model(path, cache, outputs), Options(precision=INT8, calibration=samples), cache)
    return compiler.calibrate(backend, compiler.config(backend), samples)


def _fuse(path: Path, outputs: list[str] | None) -> tuple[ir.Model, dict[str, Any]]:
    """A model in the fused form, or as given if it is not an encoder, and what was fused, for JSON."""
    from isorun.graph import pipeline
    from isorun.graph.matching.report import KINDS
    from isorun.graph.ops import functions

    model, _, report = pipeline.read(path, outputs)
    present = [node.op_type for node in model.graph if functions.is_fused(node)]
    already, reason = bool(present) and not report.is_encoder, ""
    if already:
        report = pipeline.fuse(model.clone())  # finds what was refused when it was fused
        kinds = {name: {"found": present.count(name), "fused": present.count(name)} for name in present}
        for refusal in report.refusals:
            kinds.setdefault(refusal.kind, {"found": 0, "fused": 0})["found"] += 1
    else:
        kinds = {
            kind: {"found": report.found[kind], "fused": report.fused[kind] if report.is_encoder else 0}
            for kind in KINDS
            if report.found[kind]
        }
        if not report.is_encoder:
            no_attention = "none of its attentions could be fused" if report.found["SelfAttention"] else ""
            reason = report.unread or no_attention or "no self-attention was found in it"
    return model, {
        "is_encoder": not reason,
        "complete": not reason and not report.refusals,
        "already_fused": already,
        "reason": reason or None,
        "kinds": kinds,
        "refusals": [asdict(refusal) for refusal in report.refusals],
    }


def _print(described: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.json_out(described)
        return
    if described["kinds"]:
        rows = [(kind, count["fused"], count["found"]) for kind, count in described["kinds"].items()]
        console.table(("operator", "fused", "found"), rows, right=("fused", "found"))
        print()
    if described["refusals"]:
        print("Not fused")
        rows = [(refusal["kind"], refusal["node"] or "unnamed", refusal["reason"]) for refusal in described["refusals"]]
        console.table(("candidate", "node", "reason"), rows)
        print()
    if described["already_fused"]:
        print("The model is already in the fused form.\n")
    if described["reason"]:
        print(f"The model is not an encoder: {described['reason']}.\n")
    if written := described["written"]:
        kept = [node for notes in written["notes"].values() for node in notes.get("kept", ())]
        if kept:
            print(f"Not in {written['precision']}")
            rows = [(node["operator"], node["node"] or "unnamed", node["reason"]) for node in kept]
            console.table(("operator", "node", "reason"), rows)
            print()
        _print_written(written)


def _print_written(written: dict[str, Any]) -> None:
    form = {None: "as given", FUSED: "the fused form"}.get(written["dialect"], f"lowered to {written['dialect']}")
    size = console.size(written["bytes"])
    beside = written["external_data"]
    console.facts(
        {
            "written": written["path"],
            "form": ", ".join(
                [
                    form,
                    *(["padding removed"] if written["padding"] == "remove" else []),
                    *([written["precision"]] if written["precision"] != AS_GIVEN else []),
                ]
            ),
            "size": f"{size}, weights in {', '.join(beside)}" if beside else size,
            "tokenizer": written["tokenizer"] or "none found beside the model",
        }
    )
