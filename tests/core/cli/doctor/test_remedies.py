"""The doctor's commands, run in an environment with broken plugins: afterwards the findings are gone."""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

import sites

PLUGIN = """
from isorun.plugin import *

class Mine(Backend):
    contract = 2
    capabilities = Capabilities(dialects=("onnx",))
    def compile(self, model, config): ...
"""
BROKEN = {
    "raises": "raise RuntimeError('not today')",
    "aborts": "import os\nos.abort()",
    "future": "Mine.contract = 99",
    "odd-dialect": "Mine.capabilities = Capabilities(dialects=('latin',))",
    "undiagnosed": "Mine.diagnose = lambda self: 1 / 0",
    "ort-cpu": "",
    "true": "",
}


def findings(python: Path) -> list[dict[str, Any]]:
    script = "from isorun.cli import main; main(['doctor', '--json'])"
    ran = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=300)
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.long
def test_after_its_command_each_finding_is_gone(tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), *(path for path in sys.path if path and Path(path).is_dir())}
    (site / "here.pth").write_text("\n".join(sorted(paths)))
    before = {finding["subject"] for finding in findings(python)}
    for number, (name, source) in enumerate(BROKEN.items()):
        module = f"broken_{number}"
        files = {f"{module}.py": f"{PLUGIN}\n{source}\n"}
        sites.install(site, f"{name}-dist", "1.0", files, {name: f"{module}:Mine"})
    sites.install(site, "one-dist", "1.0", {"one.py": PLUGIN}, {"twin": "one:Mine"})
    sites.install(site, "two-dist", "1.0", {"two.py": PLUGIN}, {"twin": "two:Mine"})

    added = [finding for finding in findings(python) if finding["subject"] not in before]
    assert {finding["subject"] for finding in added} == {f"the backend {name}" for name in (*BROKEN, "twin")}
    for finding in added:
        assert str(site) not in finding["command"]
        ran = subprocess.run(finding["command"], shell=True, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, (finding["command"], ran.stderr)
    assert {finding["subject"] for finding in findings(python)} == before
