"""The page of a spec's keys is that of the schema, and the schema describes every key."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from isorun.cli import main

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix_keys_tool", ROOT / "tools" / "matrix_keys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(tool: ModuleType) -> None:
    assert tool.PAGE.read_text() == tool.page(), "run python tools/matrix_keys.py"


def test_every_key_has_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    forms = [schema, *(part for form in schema["$defs"].values() for part in form.get("anyOf", [form]))]
    keys = [(key, field) for form in forms for key, field in form.get("properties", {}).items()]
    assert [key for key, field in keys if not field.get("description")] == []
    assert "^x-" in schema["patternProperties"]
    entry = next(part for part in schema["$defs"]["Entry"]["anyOf"] if "properties" in part)
    assert "ort-cpu" in entry["properties"]["name"]["examples"]
