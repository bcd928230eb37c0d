"""Prune an encoder's dense layers by magnitude."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isorun.cli import console, models, options
from isorun.cli.build import whole
from isorun.cli.inspect import describe
from isorun.models import source as model_module
from isorun.system.arguments import check_choice
from isorun.system.cache import Cache

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def prune(
    model: models.Model,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx", help="The file to write.")],
    sparsity: Annotated[
        float, typer.Option(metavar="SHARE", help="Fraction of each matrix to set to zero, such as 0.8.")
    ],
    pattern: Annotated[
        str,
        typer.Option(metavar="unstructured|block4", help="block4: blocks of 4 weights along the input, for VNNI."),
    ] = "unstructured",
    layers: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Layers to prune, with * and ?; repeatable. Default: the encoder's."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Prune an encoder's dense layers by magnitude, for engines that exploit sparsity.

    One shot, without training. Embeddings, poolers and classifiers are not pruned. An existing output file is replaced;
    the model itself never is.
    """
    from isorun.graph import pipeline
    from isorun.graph.io import files
    from isorun_deepsparse import prune as pruning

    check_choice(pattern, "pattern", pruning.PATTERNS)
    cache = Cache()
    path = model_module.open_model(models.model_path(model, cache), cache).path
    weights = files.external_files(files.read_proto(path))
    read = [path, *(path.parent / name for name in weights)]
    output = models.check_graph_output(output, read)

    with console.working(f"Pruning {model}"), files.reading(str(path)):
        graph = pipeline.read(path).model
        pruned = pruning.prune(graph, sparsity, pattern, layers=layers)
    with (
        console.working(f"Writing {output}"),
        whole(output, read) as written,
    ):
        files.write(graph, written, beside_above=0 if weights else files.SINGLE_FILE_LIMIT)
        tokenizer = models.copy_text_files(path, written)
    described = describe(output, cache)
    measured = {layer["weight"]: layer for layer in described["layers"]}
    matrices = [
        {**asdict(layer), **{key: measured[layer.weight][key] for key in ("sparsity", "zero_blocks", "pattern")}}
        for layer in pruned
    ]
    total = sum(layer["bytes"] for layer in described["layers"])
    result = {
        "model": model,
        "written": {
            "path": output,
            "bytes": described["bytes"],
            "external_data": described["external_data"],
            "tokenizer": output.with_name(tokenizer.name) if tokenizer else None,
        },
        "requested": {"sparsity": sparsity, "pattern": pattern},
        "pruned": matrices,
        "share_of_weights": sum(measured[layer.weight]["bytes"] for layer in pruned) / total,
    }
    if as_json:
        console.json_out(result)
        return
    rows = [
        (
            matrix["layer"],
            f"{matrix['elements']:,}",
            f"{matrix['sparsity']:.2%}",
            "-" if matrix["zero_blocks"] is None else f"{matrix['zero_blocks']:.2%}",
            matrix["pattern"],
        )
        for matrix in matrices
    ]
    right = ("weights", "zeros", "zero blocks")
    console.table(("layer", *right, "pattern"), rows, right)
    print(f"\n{len(matrices)} matrices, {result['share_of_weights']:.0%} of the model's weights, written to {output}")
