"""Show a model's inputs, outputs, operators, size and fingerprint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from isorun import model as model_module
from isorun.cache import Cache
from isorun.cli import console, models

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help="An ONNX file, a checkpoint's folder, or a name to fetch.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a model's inputs, outputs, operators, size and fingerprint."""
    cache = Cache()
    described = describe(models.model_path(model, cache), cache)
    if as_json:
        console.json_out(described)
    else:
        show(described)


def describe(path: Path, cache: Cache) -> dict[str, Any]:
    """Everything that ``isorun inspect --json`` prints."""
    from collections import Counter

    from isorun.graph import files

    source = model_module.open_model(path, cache)
    info, _ = model_module.inspect(source, cache)
    graph = files.read(source.path).graph
    operators = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in graph)
    weights = [value.const_value for value in graph.initializers.values() if value.const_value is not None]
    beside = files.external_files(files.read_proto(source.path))
    return {
        "path": str(source.path),
        "fingerprint": source.fingerprint,
        "bytes": sum(file.stat().st_size for file in (source.path, *(source.path.parent / name for name in beside))),
        "external_data": beside,
        "parameters": sum(weight.size for weight in weights),
        "opset": info.opset,
        "producer": info.producer,
        "graph": info.graph_name,
        "inputs": [asdict(spec) for spec in info.inputs],
        "outputs": [asdict(spec) for spec in info.outputs],
        "limits": dict(info.limits),
        "fused": dict(info.fused),
        "operators": dict(operators.most_common()),
        "metadata": dict(info.metadata),
    }


def show(described: dict[str, Any]) -> None:
    """The same for people."""
    size = console.size(described["bytes"])
    beside = described["external_data"]
    listed = ", ".join(f"{count} {name}" for name, count in described["operators"].items() if "isorun" not in name)
    console.facts(
        {
            "file": described["path"],
            "size": f"{size}, weights in {', '.join(beside)}" if beside else size,
            "parameters": f"{described['parameters']:,}",
            "fingerprint": described["fingerprint"],
            "opset": described["opset"],
            "producer": described["producer"] or "not said",
            "fused": ", ".join(f"{count} {name}" for name, count in described["fused"].items()) or "none",
            "other nodes": listed or "none",
            **{name: value for name, value in described["metadata"].items() if len(value) <= 60},
        }
    )
    print()
    rows = []
    for kind in ("inputs", "outputs"):
        for spec in described[kind]:
            takes = "" if spec["bounds"] is None else "{} to {}".format(*spec["bounds"])
            rows.append((kind.removesuffix("s"), spec["name"], spec["type"], console.shape(spec["shape"]), takes))
    console.table(("", "name", "type", "shape", "values"), rows)
    for name, most in described["limits"].items():
        if most is not None:
            print(f"{name} is at most {most}")
