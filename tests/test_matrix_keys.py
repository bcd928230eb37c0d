"""The page of a spec's keys is that of the schema, and the schema describes every key."""

import json

import pytest

import matrix_keys as tool
from isorun.cli import main


def test_the_page_is_up_to_date() -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run python tools/matrix_keys.py"


def test_every_key_has_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    forms = [schema, *(part for form in schema["$defs"].values() for part in form.get("anyOf", [form]))]
    keys = [(key, field) for form in forms for key, field in form.get("properties", {}).items()]
    assert [key for key, field in keys if not field.get("description")] == []
    assert "^x-" in schema["patternProperties"]
    entry = next(part for part in schema["$defs"]["Entry"]["anyOf"] if "properties" in part)
    assert "ort-cpu" in entry["properties"]["name"]["examples"]
