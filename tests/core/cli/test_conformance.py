from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from isorun.testing import fakes


def test_what_was_proved_is_a_table(isorun: Callable[..., Any]) -> None:
    ran = isorun("conformance", "ort-cpu", "--only", "metadata", "--only", "model few-nodes")
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["metadata", "proved", "2", "of", "2"] in rows
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


def test_a_failed_check_is_shown_with_its_reason_and_is_exit_code_1(isorun: Callable[..., Any]) -> None:
    with fakes.installed():
        ran = isorun(
            "conformance", "fake-lying", "--option", "about=device", "--only", "true device", "--only", "metadata"
        )
    assert ran.code == 1
    assert "true device: test_the_device_reported_is_one_of_this_machine[cpu]" in ran.out
    assert "asked for 'cpu', it reports 'NVIDIA H200'; this machine has" in ran.out
    assert ran.out.splitlines()[-1] == "fake-lying: 1 proved, 1 failed"


def test_what_failed_alike_is_said_once_and_where_it_came_from(isorun: Callable[..., Any]) -> None:
    with fakes.installed({"typo": "with_a_typo:Typo"}) as folder:
        (folder / "with_a_typo.py").write_text("""
from isorun.plugin.backend import runtime_errors
from isorun.testing.fakes import Right

class Typo(Right):
    def compile(self, model, config):
        with runtime_errors(f"typo cannot load {model.path}"):
            return Misspelt(model)
""")
        ran = isorun(
            "conformance", "typo", "--only", "model one-node", "--only", "provenance", "--only", "model bert-2x32"
        )
    assert ran.code == 1
    assert ran.out.count("name 'Misspelt' is not defined") == 1
    assert f"\n  Its cause: NameError, from {folder}/with_a_typo.py:8\n" in ran.out
    assert "\n  The same failed 2 more, of: model one-node, model bert-2x32\n" in ran.out


def test_a_wrong_name_and_an_absent_runtime(isorun: Callable[..., Any]) -> None:
    ran = isorun("conformance", "ort-cup")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean 'ort-cpu'" in ran.err
    with fakes.installed({"absent": "absent_runtime:Absent"}) as folder:
        (folder / "absent_runtime.py").write_text("""
from dataclasses import replace
from isorun.testing.fakes import Right

class Absent(Right):
    capabilities = replace(Right.capabilities, package="no_such_runtime")
""")
        ran = isorun("conformance", "absent")
    assert (ran.code, ran.out) == (3, "")
    assert "Install it: pip install" in ran.err


def test_without_pytest_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['pytest'] = None; from isorun.cli import main; sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run([sys.executable, "-c", script, "conformance", "ort-cpu"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == "isorun: The conformance suite needs pytest. Install it: pip install 'isorun[test]'\n"
    ran = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert "conformance" in ran.stdout
