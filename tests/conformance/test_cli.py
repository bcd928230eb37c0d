import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from isorun.plugin import registry
from isorun_conformance import fakes, runner


def test_table_of_capabilities(isorun: Callable[..., Any]) -> None:
    ran = isorun("conformance", "ort-cpu", "--only", "metadata", "--only", "model few-nodes")
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["metadata", "proved", "4", "of", "4"] in rows
    assert ["model", "few-nodes", "proved", "1", "of", "1"] in rows
    assert ran.out.splitlines()[-1] == "ort-cpu: 2 proved"


def test_json(isorun: Callable[..., Any]) -> None:
    only = ("--only", "binding", "--only", "model bert-base")
    ran = isorun("conformance", "ort-cpu", *only, "--option", "graph_optimization_level=basic", "--json")
    assert ran.code == 0
    assert ran.json["backend"] == "ort-cpu"
    assert ran.json["options"] == {"graph_optimization_level": "basic"}
    assert ran.json["passed"] is True
    status = {each["name"]: each["status"] for each in ran.json["capabilities"]}
    assert status == {"binding": "proved", "model bert-base": "skipped"}
    assert all(check["seconds"] >= 0 for check in ran.json["checks"])
    assert "--big" in ran.json["capabilities"][0]["reasons"][0]


def test_checks_that_fail_with_one_message_are_grouped_with_its_cause(isorun: Callable[..., Any]) -> None:
    with fakes.installed({"typo": "with_a_typo:Typo"}) as folder:
        (folder / "with_a_typo.py").write_text("""
from isorun.plugin.backend import runtime_errors
from isorun_conformance.fakes import Right

class Typo(Right):
    def compile(self, model, config):
        with runtime_errors(f"typo cannot load {model.path}"):
            return Misspelt(model)
""")
        only = ("metadata", "model one-node", "provenance", "model bert-2x32")
        ran = isorun("conformance", "typo", *(word for name in only for word in ("--only", name)))
    assert ran.code == 1
    assert "provenance: test_" in ran.out
    assert ran.out.count("name 'Misspelt' is not defined") == 1
    assert f"NameError, from {folder}/with_a_typo.py:8\n" in ran.out
    assert "2 more failed for this cause: model one-node, model bert-2x32\n" in ran.out
    assert ran.out.splitlines()[-1] == "typo: 1 proved, 3 failed"


@pytest.mark.long
def test_certificate_is_written_and_compared(
    isorun: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a certificate says of a whole run is tested on the document; here, on a backend that crashes at once."""
    run = cache(runner.run)
    monkeypatch.setattr(runner, "run", lambda name, **_: run(name))
    path = tmp_path / "certificate.json"
    with fakes.installed():
        ran = isorun("conformance", "fake-crashing", "--certificate", path)
        assert ran.code == 1
        document = json.loads(path.read_text(encoding="utf-8"))
        assert document["backend"] == "fake-crashing"
        assert {"isorun-fakes", "python", "numpy"} <= document["versions"].keys()
        assert document["proved"] == ["discovery", "metadata"]
        assert any("SIGSEGV" in message for message in document["failed"].values())
        path.write_text(json.dumps({**document, "proved": ["discovery", "leaks"], "hardware": {}}))
        ran = isorun("conformance", "fake-crashing", "--compare", path)
        assert ran.code == 1
        assert "\nleaks was proved and is not any more\n" in ran.err
        assert "processor: None -> " in ran.err
    refused = isorun("conformance", "ort-cpu", "--only", "metadata", "--certificate", path)
    assert (refused.code, refused.out) == (2, "")


def test_does_not_compare_with_the_certificate_of_another_backend(isorun: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    facts = {"contract": 2, "date": "2026-11-22", "versions": {}, "hardware": {}}
    counted = {"proved": [], "skipped": {}, "known_failures": {}, "failed": {}}
    path.write_text(json.dumps({"certificate": 1, "backend": "openvino", **facts, **counted}))
    ran = isorun("conformance", "ort-cpu", "--compare", path)
    assert (ran.code, ran.out) == (2, "")
    assert "is the certificate of 'openvino'" in ran.err


def test_a_backend_that_needs_an_option_starts_no_check(
    isorun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(registry.get("ort-ep")), "members", classmethod(lambda cls: ()))
    ran = isorun("conformance", "ort-ep")
    assert (ran.code, ran.out) == (3, "")
    assert "set options={'library': PATH}" in ran.err


def test_does_not_wait_for_a_pipe(isorun: Callable[..., Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for option in ("--known-failures", "--compare"):
        ran = isorun("conformance", "ort-cpu", option, tmp_path / "pipe.json")
        assert (ran.code, f"{option} must be a file" in ran.err) == (2, True)


def test_known_failures_are_read_from_a_file(isorun: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    known = {"reason": "it is odd", "kind": "never", "exception": "AssertionError", "reference": "none: a test"}
    path.write_text(json.dumps({"test_capabilities_are_valid": known}))
    ran = isorun("conformance", "ort-cpu", "--only", "metadata", "--known-failures", path)
    assert ran.code == 1
    assert "declared as a known failure (it is odd)" in ran.out
    path.write_text("[]")
    assert "must be a table" in isorun("conformance", "ort-cpu", "--known-failures", path).err


def test_unavailable_backend(isorun: Callable[..., Any]) -> None:
    with fakes.installed({"absent": "absent_runtime:Absent"}) as folder:
        (folder / "absent_runtime.py").write_text("""
from dataclasses import replace
from isorun_conformance.fakes import Right

class Absent(Right):
    capabilities = replace(Right.capabilities, package="no_such_runtime")
""")
        ran = isorun("conformance", "absent")
    assert (ran.code, ran.out) == (3, "")
    assert "pip install" in ran.err


def test_without_pytest_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['pytest'] = None; from isorun.cli import main; sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run([sys.executable, "-c", script, "conformance", "ort-cpu"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "pip install 'isorun[test]'" in ran.stderr
    assert ran.stderr.count("\n") == 1
    ran = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert "conformance" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "messages"),
    [
        ("openvino --device npu --only binding", 3, ["'npu' cannot be tested", "available: cpu"]),
        ("ort-cpu --device gpu.7", 3, ["does not support device 'gpu.7'"]),
        ("ort-cpu --device gpuu", 2, ["Invalid device 'gpuu'; did you mean 'gpu'?"]),
        ("ort-cpu --option nothing=1", 2, ["'nothing'"]),
        ("ort-cup", 2, ["'ort-cpu'"]),
    ],
)
def test_what_the_backend_lacks_starts_no_check(
    isorun: Callable[..., Any], arguments: str, code: int, messages: list[str]
) -> None:
    ran = isorun("conformance", *arguments.split())
    assert (ran.code, ran.out) == (code, "")
    assert [message for message in messages if message not in ran.err] == []


def test_says_that_nothing_is_proved(isorun: Callable[..., Any]) -> None:
    ran = isorun("conformance", "reference", "--only", "static shapes")
    assert (ran.code, "No check passed" in ran.err) == (1, True)
