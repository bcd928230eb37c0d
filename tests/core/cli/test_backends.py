import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isorun.cli.probe import probe, probe_in_process
from isorun.plugin import listing
from isorun_conformance import fakes

_PLUGIN = """
import os, signal, time
import numpy as np
from isorun.plugin.backend import Backend, Executable
from isorun.types import Availability, Capabilities, RuntimeReport

class _Zeros(Executable):
    def run(self, output_names, feeds):
        return [np.zeros((8, 32), np.float32)]
    def report(self):
        return RuntimeReport("none", "fp32", {}, {})

class Wrong(Backend):
    contract = 2
    capabilities = Capabilities(dialects=("onnx",), options={"knob": "what it turns"})
    def compile(self, model, config):
        return _Zeros()

class Crashes(Wrong):
    def compile(self, model, config):
        os.kill(os.getpid(), signal.SIGSEGV)

class Hangs(Wrong):
    def compile(self, model, config):
        time.sleep(600)

class Absent(Wrong):
    capabilities = Capabilities(dialects=("onnx",), package="no_such_runtime", requirement="no-such-runtime>=3")

class Rude(Wrong):
    def availability(self):
        raise OSError("the driver is upset")
"""
_NAMES = {
    "wrong": "strange_plugin:Wrong",
    "crashes": "strange_plugin:Crashes",
    "hangs": "strange_plugin:Hangs",
    "absent": "strange_plugin:Absent",
    "rude": "strange_plugin:Rude",
    "unimportable": "no_such_plugin:Backend",
}


@pytest.fixture
def plugin() -> Iterator[None]:
    """A distribution of broken backends, for this process and its children."""
    with fakes.installed(_NAMES) as folder:
        (folder / "strange_plugin.py").write_text(_PLUGIN)
        yield
    sys.modules.pop("strange_plugin", None)


def test_lists_installed_backends(isorun: Callable[..., Any]) -> None:
    listed = {row["name"]: row for row in isorun("backends", "--json").json}
    assert set(listed) >= {"ort-cpu", "openvino", "reference"}
    for name in ("ort-cpu", "openvino", "reference"):
        assert listed[name]["status"] == "available"
        assert listed[name]["version"]
        assert "fp32" in listed[name]["precisions"]
    table = isorun("backends").out
    assert all(name in table for name in listed)


def test_listing_imports_no_runtime() -> None:
    code = (
        "import sys; from isorun.cli import main; main(['backends']);"
        "print({'onnxruntime', 'openvino', 'onnx', 'onnx_ir'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


@pytest.mark.long
def test_lists_broken_backends_with_remedies(isorun: Callable[..., Any], plugin: None) -> None:
    ran = isorun("backends")
    assert ran.code == 0
    rows = {tuple(line.split()[:2]) for line in ran.out.splitlines()}
    assert {("absent", "unavailable"), ("unimportable", "broken"), ("rude", "broken"), ("wrong", "available")} <= rows
    assert "the package 'no_such_runtime' is not installed\n  Install it: pip install 'no-such-runtime>=3'" in ran.out
    assert "its module 'no_such_plugin' does not exist" in ran.out
    assert "its availability() raises OSError: the driver is upset" in ran.out
    listed = {row["name"]: row for row in isorun("backends", "--json").json}
    assert listed["absent"]["remedy"] == "Install it: pip install 'no-such-runtime>=3'"


def test_describes_options(isorun: Callable[..., Any], plugin: None) -> None:
    assert "what it turns" in isorun("backends", "--options").out


@pytest.mark.long
def test_probe_runs_every_precision(isorun: Callable[..., Any]) -> None:
    ran = isorun("backends", "--probe", "--json")
    for backend in ran.json:
        if backend["status"] != "available":  # the runtime is not the required one
            assert "probe" not in backend
            continue
        assert [result["precision"] for result in backend["probe"]] == backend["precisions"]
        for result in backend["probe"]:
            # A processor may lack bf16, and ort-ep needs the name of a provider.
            assert result["ok"] or (result["ok"] is None and result["message"]), backend
            assert not result["ok"] or result["error"] <= (0.2 if result["precision"] == "int8" else 2e-2)
    assert ran.code == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [("wrong", "maximum error"), ("absent", "is not installed"), ("unimportable", "does not exist")],
)
def test_failed_probe_has_a_message(plugin: None, name: str, message: str) -> None:
    result = probe(name, "fp32")
    assert not result.ok
    assert message in result.message


@pytest.mark.parametrize(("name", "seconds", "message"), [("crashes", 60, "SIGSEGV"), ("hangs", 2, "within 2 s")])
def test_probe_survives_crashes_and_hangs(plugin: None, name: str, seconds: float, message: str) -> None:
    (result,) = probe_in_process(name, ["fp32"], seconds=seconds)
    assert not result.ok
    assert message in result.message


def test_failed_probe_is_shown_with_exit_code_1(
    isorun: Callable[..., Any], plugin: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "descriptions", lambda: listing.describe("wrong"))
    ran = isorun("backends", "--probe")
    assert ran.code == 1
    assert "fp32 FAILED" in ran.out
    assert "wrong, fp32: " in ran.out
