"""Certificates as somebody edited them."""

import json
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import IsorunError
from isorun.plugin import certificate

FACTS = {"contract": 2, "date": "2026-11-22", "versions": {}, "hardware": {}}
CERTIFICATE = {
    **{"certificate": 1, "backend": "mine", **FACTS},
    **{"proved": ["leaks"], "skipped": {}, "known_failures": {}, "failed": {}},
}


@pytest.mark.parametrize(
    "change",
    [{"proved": 5}, {"proved": {}}, {"versions": "1.2"}, {"hardware": None}, {"skipped": []}, {"known_failures": 0}],
    ids=str,
)
def test_values_of_another_type_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    path = tmp_path / "my_package" / "certificates" / "mine.json"
    path.parent.mkdir(parents=True)
    (path.parent.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    path.write_text(json.dumps(CERTIFICATE))
    assert certificate.summary("mine", "my_package.backend") == {
        **FACTS,
        **{"proved": 1, "skipped": 0, "known_failures": 0, "failed": 0},
    }
    path.write_text(json.dumps({**CERTIFICATE, **change}))
    with pytest.raises(IsorunError, match="is not a certificate"):
        certificate.read(path)
    assert "is not a certificate" in (certificate.summary("mine", "my_package.backend") or {})["problem"]
