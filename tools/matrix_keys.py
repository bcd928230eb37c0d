"""Write ``docs/matrix-keys.md``, the reference of a spec's keys, from its JSON Schema.

``python tools/matrix_keys.py`` writes it; with ``--check`` it exits with 1 if it is out of date. A test does the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isorun_matrix.spec.spec import Spec

PAGE = Path(__file__).parents[1] / "docs" / "matrix-keys.md"
_HEAD = """# Keys of a spec

<!-- written by tools/matrix_keys.py -->

Every key of a [matrix](matrix.md)'s spec. [matrix-spec.md](matrix-spec.md) explains them with
examples. For completion in an editor, save the schema and name it in the first line of the spec:

```sh
isorun matrix schema > isorun-matrix.schema.json
```

```yaml
# yaml-language-server: $schema=isorun-matrix.schema.json
```
"""


def page() -> str:
    """The page in Markdown."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for name, (description, fields) in _mappings().items():
        yield f"## {name}\n\n{' '.join(description.replace('``', '`').split())}\n"
        yield "| key | type | default | meaning |\n|---|---|---|---|"
        for key, field in fields.items():
            yield f"| `{key}` | {_kind(field)} | {_default(field)} | {field.get('description', '')} |"
        yield ""


def _default(field: dict[str, Any]) -> str:
    if field["required"]:
        return "required"
    value = field.get("default")
    return "" if value in (None, "", [], {}) or isinstance(value, dict) else f"`{json.dumps(value)}`"


def _mappings() -> dict[str, tuple[str, dict[str, dict[str, Any]]]]:
    """For each kind of mapping in a spec, the spec itself first: its description, and its keys."""
    content = Spec.model_json_schema()
    mappings = {}
    for name, form in {"Spec": content, **content["$defs"]}.items():
        whole = next((part for part in form.get("anyOf", [form]) if "properties" in part), form)
        required = whole.get("required", [])
        fields = {key: {**field, "required": key in required} for key, field in whole["properties"].items()}
        mappings[name] = (whole["description"], fields)
    return mappings


def _kind(field: dict[str, Any]) -> str:
    """The type of a key, in words."""
    if "$ref" in field:
        return f"[{(name := field['$ref'].rpartition('/')[2])}](#{name.lower()})"
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if options := field.get("anyOf", field.get("oneOf")):
        return " or ".join(dict.fromkeys(_kind(option) for option in options if option.get("type") != "null"))
    if field["type"] == "array":
        return f"list of {_kind(field['items'])}"
    if field["type"] == "object":
        values = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")]
        inner = next((value for value in values if isinstance(value, dict)), None)
        return "mapping" if inner is None else f"mapping to {_kind(inner)}"
    return {"string": "text", "integer": "integer", "number": "number", "boolean": "`true` or `false`"}[field["type"]]


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page())
