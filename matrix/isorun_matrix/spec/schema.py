"""The JSON Schema of a spec, for editors."""

from __future__ import annotations

from typing import Any

from isorun.parity import DEFAULT_TOLERANCES
from isorun.plugin import registry
from isorun_matrix.spec.spec import Spec


def schema() -> dict[str, Any]:
    """The schema, with the backends that are installed here as examples, which editors offer."""
    content = Spec.model_json_schema()
    properties = next(form for form in content["$defs"]["Entry"]["anyOf"] if "properties" in form)["properties"]
    properties["name"]["examples"] = [*registry.names()]
    content["properties"]["precisions"]["items"]["examples"] = [*DEFAULT_TOLERANCES]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **content}
