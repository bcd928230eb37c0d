"""``isorun matrix validate``, ``init`` and ``schema``: specs without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def validate(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="A YAML file: see docs/matrix.md.", show_default=False)],
) -> None:
    """Check a spec without running anything, and print the number of its cells."""
    from isorun_matrix.execution.plan import plan
    from isorun_matrix.spec.reader import load

    typer.echo(f"{spec} is valid: {plan(load(spec), 0)}")


def init(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=True)] = Path(
        "matrix.yaml"
    ),
) -> None:
    """Write a commented spec with the backends that are available on this machine."""
    import shlex

    from isorun.cli import console
    from isorun.errors import SpecError
    from isorun_matrix.spec import starter

    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(starter.text(shlex.quote(str(output))))
    except FileExistsError:
        raise SpecError(f"{output} exists. Choose another FILE.") from None
    except OSError as error:
        raise SpecError(f"Cannot write {output}: {error.strerror}") from error
    console.note(f"Wrote {output}. Run it with: isorun matrix run {shlex.quote(str(output))}")


def schema() -> None:
    """Print the JSON Schema of a spec, with which editors complete and check its keys."""
    import json

    from isorun.parity import DEFAULT_TOLERANCES
    from isorun.plugin import registry
    from isorun_matrix.spec.spec import Spec

    content = Spec.model_json_schema()
    properties = next(form for form in content["$defs"]["Entry"]["anyOf"] if "properties" in form)["properties"]
    properties["name"]["examples"] = [*registry.names()]  # editors offer them
    content["properties"]["precisions"]["items"]["examples"] = [*DEFAULT_TOLERANCES]
    typer.echo(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **content}, indent=2))
