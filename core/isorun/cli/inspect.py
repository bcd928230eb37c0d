"""Show what a model is made of."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from isorun.cli import console, models, options
from isorun.models import source as model_module
from isorun.system.cache import Cache

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def inspect(model: models.Model, as_json: options.AsJson = False) -> None:
    """Show what a model is made of: inputs, outputs, layers, precision, sparsity, operations, dialects.

    An encoder is shown in its fused form, which is what sessions run.
    """
    cache = Cache()
    described = describe(models.model_path(model, cache), cache)
    if as_json:
        console.json_out(described)
    else:
        show(described)
        _show_layers(described["layers"])


def describe(path: Path, cache: Cache) -> dict[str, Any]:
    """Everything that ``isorun inspect --json`` prints."""
    from isorun.graph.inspect import inspect as look_into
    from isorun.graph.io import files

    source = model_module.open_model(path, cache)
    inspection = look_into(source.path)
    proto, info = files.read_proto(source.path), inspection.info
    beside = files.external_files(proto)
    return {
        "path": str(source.path),
        "fingerprint": source.fingerprint,
        "bytes": sum(file.stat().st_size for file in (source.path, *(source.path.parent / name for name in beside))),
        "external_data": beside,
        "parameters": sum(inspection.parameters.values()),
        "parameters_by_precision": dict(inspection.parameters),
        "opset": info.opset,
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "graph": info.metadata.graph_name,
        "inputs": [asdict(spec) for spec in info.inputs],
        "outputs": [asdict(spec) for spec in info.outputs],
        "limits": dict(info.limits),
        "mask": info.mask,
        "token_outputs": None if info.token_outputs is None else list(info.token_outputs),
        "keeps_padding": info.keeps_padding or None,
        "mixes_rows": info.mixes_rows or None,
        "random": info.random or None,
        "is_encoder": inspection.is_encoder,
        "fused": dict(info.fused),
        "operators": dict(inspection.operators),
        "layers": [asdict(layer) for layer in inspection.layers],
        "operations_per_token": inspection.operations_per_token,
        "operations_per_token_and_key": inspection.operations_per_token_and_key,
        "dialects": {
            name: {"possible": not reason, "reason": reason or None} for name, reason in inspection.dialects.items()
        },
        "metadata": info.metadata.custom_metadata_map,
    }


def show(described: dict[str, Any]) -> None:
    """What a model is and takes, for people."""
    size = console.size(described["bytes"])
    beside = described["external_data"]
    listed = ", ".join(f"{count} {name}" for name, count in described["operators"].items() if "isorun" not in name)
    counts = ", ".join(f"{count:,} {name}" for name, count in described["parameters_by_precision"].items())
    console.facts(
        {
            "file": described["path"],
            "size": f"{size}, weights in {', '.join(beside)}" if beside else size,
            "parameters": counts or "none",
            "fingerprint": described["fingerprint"],
            "opset": described["opset"],
            "producer": described["producer"] or "unknown",
            "fused": ", ".join(f"{count} {name}" for name, count in described["fused"].items()) or "none",
            "other nodes": listed or "none",
            "mask": described["mask"] or "none known",
            "per token": _listed(described["token_outputs"]),
            **({"random numbers": f"by {drawing}"} if (drawing := described["random"]) else {}),
            **({"rows": f"depend on one another: {mixing}"} if (mixing := described["mixes_rows"]) else {}),
            **_operations(described),
            "dialects": _dialects(described["dialects"]),
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


def _listed(token_outputs: list[str] | None) -> str:
    """The outputs with a value for each token, for people."""
    return "not known" if token_outputs is None else ", ".join(token_outputs) or "none"


def _operations(described: dict[str, Any]) -> dict[str, str]:
    """Multiplications and additions, for people; nothing of a model that is no encoder."""
    if described["operations_per_token"] is None:
        return {}
    dense, attention = described["operations_per_token"], described["operations_per_token_and_key"]
    attended = "" if attention is None else f", and {attention:,} for each key that it attends to"
    return {"operations": f"{dense:,} for one token in dense layers{attended}"}


def _dialects(dialects: dict[str, Any]) -> str:
    reasons = {entry["reason"] for entry in dialects.values()}
    if len(reasons) == 1 and None not in reasons:
        return f"none: {reasons.pop()}"
    listed = (name if entry["possible"] else f"not {name} ({entry['reason']})" for name, entry in dialects.items())
    return ", ".join(listed)


def _show_layers(layers: list[dict[str, Any]]) -> None:
    if not layers:
        return
    print()
    rows = []
    for layer in layers:
        blocks, stored, activations = layer["zero_blocks"], layer["precision"], layer["activations"]
        rows.append(
            (
                layer["name"],
                layer["operator"].removeprefix("isorun.fused."),
                "x".join(map(str, layer["shape"])),
                stored if activations in (None, stored) else f"{stored} (by {activations})",
                f"{layer['sparsity']:.1%}",
                "-" if blocks is None else f"{blocks:.1%}",
                layer["pattern"],
                f"{layer['operations']:,}" if layer["operations"] else "-",
            )
        )
    right = ("zeros", "zero blocks", "operations")
    console.table(("layer", "operator", "weights", "precision", *right[:2], "pattern", right[2]), rows, right)
