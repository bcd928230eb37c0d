"""Broken backends and packages on the path of the interpreter that runs the tests.

All are installed together, since examining an installation takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import sites
from isorun.doctor import installation, packages
from isorun.types import Finding

PLUGIN = """
from isorun.plugin.backend import Backend
from isorun.types import Capabilities, Finding

class Mine(Backend):
    capabilities = Capabilities(dialects=("onnx",), package={package!r})
    def compile(self, model, config):
        raise AssertionError("nothing is compiled here")
{more}
"""
ABORTS = "import os, signal\nos.kill(os.getpid(), signal.SIGABRT)\n"


def plugin(site: Path, name: str, package: str | None, more: str = "") -> None:
    source = PLUGIN.format(package=package, more="\n".join(f"    {line}" for line in more.splitlines()))
    sites.install(site, f"{name}-dist", "1.0", {f"{name}_module.py": source}, {name: f"{name}_module:Mine"})


def break_everything(site: Path) -> None:
    sites.install(site, "boom-dist", "1.0", {"boom.py": "import nowhere_to_be_found"}, {"boom": "boom:Boom"})
    for each in ("first", "second"):
        sites.install(site, f"{each}-dist", "1.0", {f"{each}.py": ""}, {"twin": f"{each}:Twin"})
    sites.install(site, "unmet-engine", "3.1", {"unmet/__init__.py": "raise ImportError('libunmet.so.3: not there')"})
    plugin(site, "unmet", "unmet", "def diagnose(self):\n    raise AssertionError('its package does not even import')")
    sites.install(site, "crash-dist", "3.1", {"crash/__init__.py": ABORTS})
    plugin(site, "crashes", "crash")
    plugin(site, "crashes_too", "crash")
    plugin(site, "tells", None, "def diagnose(self):\n    return [Finding(self.name, 'warning', 'a', 'b', 'c')]")
    plugin(site, "raises", None, "def diagnose(self):\n    raise KeyError('its mistake')")
    plugin(site, "dies", None, "def diagnose(self):\n    import os\n    os._exit(3)")
    plugin(site, "absent", "engine_that_nobody_has")
    for name, content in (("engine", "1"), ("engine-gpu", "22")):
        sites.install(site, name, "1.0", {"engine/__init__.py": content})
    plugin(site, "contested", "engine")
    several = "@classmethod\ndef members(cls):\n    return ('a', 'b')\n"
    plugin(site, "family", None, several + "def diagnose(self):\n    return [Finding(self.name, 'error', '', '', '')]")
    plugin(site, "prints", None, "def diagnose(self):\n    print('no end of line', end='')\n    return []")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Finding]:
    site = tmp_path_factory.mktemp("site")
    break_everything(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        findings = installation.findings()
    assert len({each.subject for each in findings}) == len(findings)
    return {each.subject: each for each in findings}


def reinstall(requirement: str) -> str:
    return packages.pip("install", "--force-reinstall", requirement)


def test_no_finding_about_working_and_missing_backends(found):
    assert sorted(found) == [
        *("family:a", "family:b", "tells", "the backend boom", "the backend dies", "the backend raises"),
        *("the backend twin", "the package crash", "the package engine", "the package unmet"),
    ]


def test_entry_point_that_cannot_be_imported(found):
    finding = found["the backend boom"]
    assert (finding.severity, finding.what) == ("error", "it cannot be loaded")
    assert "No module named 'nowhere_to_be_found'" in finding.why
    assert finding.command == reinstall("boom-dist==1.0")


def test_name_with_two_distributions(found):
    finding = found["the backend twin"]
    assert "first-dist (first:Twin) and second-dist (second:Twin)" in finding.what
    assert finding.command == packages.pip("uninstall", "-y", "second-dist")


def test_package_that_cannot_be_imported(found):
    finding = found["the package unmet"]
    assert finding.why == "ImportError: libunmet.so.3: not there"
    assert finding.command == packages.pip("install", "--force-reinstall", "--no-deps", "unmet-engine==3.1")


def test_crash_while_importing_is_one_finding_for_all_backends(found):
    finding = found["the package crash"]
    assert "killed by SIGABRT while importing crash" in finding.what
    assert "Fatal Python error: Aborted" in finding.why
    assert "crash/__init__.py" in finding.why
    assert finding.command == packages.pip("install", "--force-reinstall", "--no-deps", "crash-dist==3.1")


def test_package_with_two_owners(found):
    assert found["the package engine"].what.endswith("both own it, and engine-gpu 1.0 is active")


def test_finding_of_a_plugin(found):
    assert found["tells"] == Finding("tells", "warning", "a", "b", "c")


def test_plugin_that_raises_or_exits(found):
    assert found["the backend raises"].why == "its diagnose() raises KeyError: 'its mistake'"
    assert "exited with code 3 while diagnosing it" in found["the backend dies"].what
    assert found["the backend dies"].command == reinstall("dies-dist==1.0")


def test_plugin_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plugin(tmp_path, "hangs", None, "def diagnose(self):\n    import time\n    time.sleep(600)")
    what = {each.subject: each.what for each in installation.findings(seconds=8)}  # the others have to finish
    assert "did not finish within 8 s" in what["the backend hangs"]
