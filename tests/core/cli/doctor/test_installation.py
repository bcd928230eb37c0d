"""Broken backends and packages on the path of the interpreter that runs the tests.

All are installed together, since examining an installation takes seconds.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

import sites
from isorun.cli.doctor import installation, packages
from isorun.types import Finding

PLUGIN = """
from isorun.plugin.backend import Backend
from isorun.types import Capabilities, Finding

class Mine(Backend):
    contract = 2
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
    for module in ("first", "second"):
        sites.install(site, f"{module}-dist", "1.0", {f"{module}.py": ""}, {"twin": f"{module}:Twin"})
    sites.install(site, "unmet-engine", "3.1", {"unmet/__init__.py": "raise ImportError('libunmet.so.3: not there')"})
    plugin(site, "unmet", "unmet", "def diagnose(self):\n    raise AssertionError('its package does not even import')")
    sites.install(site, "crash-dist", "3.1", {"crash/__init__.py": ABORTS})
    plugin(site, "crashes", "crash")
    plugin(site, "crasher", "crash")
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


def reinstall(*arguments: str) -> str:
    return packages.pip("install", "--force-reinstall", *arguments)


def uninstall(name: str) -> str:
    return f"{packages.pip('uninstall', '-y', name)}   # or install another version of it, or of isorun"


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Finding]:
    site = tmp_path_factory.mktemp("site")
    break_everything(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        findings = installation.findings()
    assert len({finding.subject for finding in findings}) == len(findings)
    return {finding.subject: finding for finding in findings}


def test_no_finding_about_working_and_missing_backends(findings):
    assert sorted(findings) == [
        *("family:a", "family:b", "tells", "the backend boom", "the backend dies", "the backend raises"),
        *("the backend twin", "the package crash", "the package engine", "the package unmet"),
    ]


@pytest.mark.parametrize(
    ("subject", "what", "why", "command"),
    [
        ("the backend boom", "cannot be loaded", "nowhere_to_be_found", uninstall("boom-dist")),
        (
            "the backend twin",
            "first-dist (first:Twin) and second-dist (second:Twin)",
            "cannot tell which",
            packages.pip("uninstall", "-y", "second-dist"),
        ),
        ("the package unmet", "cannot be imported", "libunmet.so.3", reinstall("unmet-engine==3.1")),
        (
            "the package crash",
            "killed by SIGABRT while importing crash",
            "Fatal Python error: Aborted",
            reinstall("crash-dist==3.1"),
        ),
        ("the package engine", "engine-gpu 1.0 is active", "overwrite", "engine-gpu==1.0"),
        ("the backend raises", "cannot be diagnosed", "KeyError: 'its mistake'", uninstall("raises-dist")),
        ("the backend dies", "exited with code 3 while diagnosing it", "", uninstall("dies-dist")),
    ],
)
def test_finding(findings, subject, what, why, command):
    finding = findings[subject]
    assert finding.severity == "error"
    assert what in finding.what
    assert why in finding.why
    assert finding.command.endswith(command)


def test_finding_of_a_plugin(findings):
    assert findings["tells"] == Finding("tells", "warning", "a", "b", "c")


@pytest.mark.long
def test_plugin_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plugin(tmp_path, "hangs", None, "def diagnose(self):\n    import time\n    time.sleep(600)")
    what = {finding.subject: finding.what for finding in installation.findings(seconds=8)}  # the others have to finish
    assert "did not finish within 8 s" in what["the backend hangs"]
