"""Plugins, each broken in another way, installed beside good ones: everything else works."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sites
import tiny

SECONDS = 8  # the time limit of the one that hangs; the others have to finish, on a busy machine too

PLUGIN = """
from isorun.plugin import *

class Plain(Backend):
    contract = 2
    capabilities = Capabilities(dialects=("onnx",), dynamic_shapes=True)
    def compile(self, model, config):
        raise AssertionError("nothing is compiled here")
"""


def _with_option(fields: str) -> str:
    return f"Plain.capabilities = Capabilities(dialects=('onnx',), options={{'knob': Option('what', {fields})}})"


BROKEN: Mapping[str, tuple[str, str]] = {
    "raises": ("raise RuntimeError('not today')", "RuntimeError: not today"),
    "leaves": ("raise SystemExit(0)", "SystemExit: 0"),
    "vanishes": ("import os\nos._exit(0)", "exited with code 0"),
    "aborts": ("import os\nos.abort()", "killed by SIGABRT"),
    "hangs": ("import time\ntime.sleep(600)", f"did not finish within {SECONDS} s"),
    "property-raises": ("Plain.capabilities = property(lambda self: {}['nothing'])", "`capabilities` raises KeyError"),
    "wrong-type": ("Plain.capabilities = {'dialects': ['onnx']}", "must be an isorun.plugin.Capabilities, got dict"),
    "listed-options": ("Plain.capabilities = Capabilities(dialects=('onnx',), options=['knob'])", "a mapping of names"),
    "one-choice": (_with_option("choices='abc'"), "'knob' must have a tuple of choices, got 'abc'"),
    "odd-choice": (_with_option("type='int', choices=(1, '2')"), "invalid choice: it must be an integer, got '2'"),
    "far-choice": (_with_option("type='int', choices=(1, 9), maximum=5"), "it must be an integer of at most 5, got 9"),
    "backwards": (_with_option("type='int', minimum=5, maximum=1"), "a minimum of 5 above its maximum of 1"),
    "limited": (_with_option("type='str', maximum=5"), "which only the type 'int' can have, got 'str'"),
    "worded": (_with_option("type='int', minimum='5'"), "integers as its limits"),
    "odd-dialect": ("Plain.capabilities = Capabilities(dialects=('latin',))", "unknown dialect 'latin'"),
    "abstract": ("Plain.__abstractmethods__ = frozenset({'compile'})", "abstract class"),
    "missing": ("del Plain", "names 'Plain', which the module 'broken_"),
    "needs-another": ("import no_such_engine", "it needs the module 'no_such_engine', which is not installed"),
    "nameless": ("def start(self, name): pass\nPlain.__init__ = start", "must call super().__init__(name)"),
    "odd-version": ("Plain.version = lambda self: (1, 2)", "its version() must return str | None, got tuple"),
    "two-rules": (
        "Plain.capabilities = Capabilities(dialects=('onnx',), sets_threads=True, fixed_threads=1)",
        "contradicts sets_threads",
    ),
    "letters": ("Plain.probe = lambda self: Availability(True, devices='NPU')", "a tuple of names, got 'NPU'"),
    "says-yes": ("Plain.probe = lambda self: True", "its probe() must return Availability, got bool"),
    "no-backend": ("Plain = dict", "subclass"),
    "moody": ("def members(cls): raise ValueError('not today')\nPlain.members = classmethod(members)", "ValueError"),
    "odd-members": ("Plain.members = classmethod(lambda cls: (1, 'two:three'))", "its members() must return None or"),
    "rude": ("def installed(self): raise OSError('upset')\nPlain.installed = installed", "raises OSError: upset"),
    "future": ("Plain.contract = 99", "version 99 of the plugin contract, and isorun"),
    "odd:name": ("", "is not a valid name of a backend"),
    "Odd": ("", "Use lower-case letters, digits and single dashes"),
    "ort-cpu": ("import os\nos.abort()", "its name 'ort-cpu' belongs to a backend of isorun"),
}
# One for each way to fail: what only reads descriptions needs no more.
FEW = ("aborts", "property-raises", "odd-dialect", "rude", "future", "ort-cpu")
FACTS = {"contract": 2, "date": "2026-11-22", "versions": {"good-dist": "3.4"}, "hardware": {"cores": 2}}
CERTIFICATE = {
    **{"certificate": 1, "backend": "good", **FACTS},
    **{
        "proved": ["leaks", "threads"],
        "skipped": {"device arrays": "not declared"},
        "known_failures": {},
        "failed": {},
    },
}
NOISY = "import os, sys\nprint('noise')\nos.write(1, b'more noise')\nos.close(1)\nsys.stdout = None\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _install(tmp_path_factory.mktemp("site"), tuple(BROKEN))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _install(tmp_path_factory.mktemp("few"), FEW)


def _install(folder: Path, names: tuple[str, ...]) -> Path:
    for number, name in enumerate(names):
        source, _ = BROKEN[name]
        module = f"broken_{number}"
        files = {f"{module}.py": f"{PLUGIN}\n{source}\n"}
        sites.install(folder, f"{name.replace(':', '-')}-dist", "1.2", files, {name: f"{module}:Plain"})
    files = {"good/__init__.py": f"{PLUGIN}\n{NOISY}", "good/certificates/good.json": json.dumps(CERTIFICATE)}
    points = {"good": "good:Plain", "uncertain": "uncertain:Plain"}
    files |= {"uncertain/__init__.py": PLUGIN, "uncertain/certificates/uncertain.json": json.dumps(CERTIFICATE)}
    sites.install(folder, "good-dist", "3.4", files, points)
    return folder


def command(site: Path, *arguments: str) -> tuple[int, Any]:
    """Run a command of isorun with shorter time limits; its exit code and its output as JSON."""
    ran = in_python(
        site,
        f"from isorun.cli.doctor import installation; installation.SECONDS = {SECONDS}\n"
        f"import sys; sys.argv[1:] = {[*arguments, '--json']!r}\nfrom isorun.cli import main\nmain()",
    )
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout)


@pytest.mark.long
def test_backends_shows_each_in_its_own_row(site):
    code, rows = command(site, "backends")
    assert code == 0
    broken = {row["name"]: row for row in rows if row["status"] == "broken"}
    assert broken.keys() == BROKEN.keys()
    for name, (_, reason) in BROKEN.items():
        assert reason in broken[name]["reason"], name
        assert f"{name.replace(':', '-')}-dist" in broken[name]["distribution"] + broken[name]["remedy"], name
    good = {row["name"]: row for row in rows if row["status"] != "broken"}
    assert {"ort-cpu", "openvino", "reference", "good"} <= good.keys()
    assert (good["good"]["status"], good["ort-cpu"]["status"]) == ("available", "available")
    assert good["good"]["certificate"] == {**FACTS, "proved": 2, "skipped": 1, "known_failures": 0, "failed": 0}
    assert "is the certificate of 'good'" in good["uncertain"]["certificate"]["problem"]
    assert good["ort-cpu"]["certificate"]["proved"] > 20
    assert "isorun 0.1.0 supports 2" in broken["future"]["reason"]
    assert "future-dist 1.2" in broken["future"]["reason"]
    assert "pip install --upgrade isorun" in broken["future"]["remedy"]


@pytest.mark.parametrize(("name", "how"), [("aborts", "was killed by SIGABRT"), ("hangs", "did not finish within 3 s")])
def test_named_backend_that_ends_its_process_is_one_message(site, bert, tmp_path, name, how):
    np.savez(tmp_path / "feeds.npz", **tiny.feeds())
    arguments = ["run", str(bert), "--feeds", str(tmp_path / "feeds.npz"), "--backend", name]
    ran = in_python(site, f"from isorun.cli import main\nraise SystemExit(main({arguments!r}))", seconds=3)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (3, "", 1)
    assert f"isorun: Backend '{name}' cannot be used: the process that loads it {how}" in ran.stderr
    assert f"Uninstall {name}-dist 1.2" in ran.stderr


def test_import_that_prints_leaves_json_alone(few, bert, tmp_path):
    source = f"{NOISY}from isorun_conformance.fakes import Right as Loud\n".replace("os.close(1)", "print('noise')")
    sites.install(tmp_path, "loud-dist", "1.0", {"loud.py": source}, {"loud": "loud:Loud"})
    np.savez(tmp_path / "feeds.npz", **tiny.feeds())
    code, ran = command(tmp_path, "run", str(bert), "--feeds", str(tmp_path / "feeds.npz"), "--backend", "loud")
    assert (code, ran["provenance"]["backend"]) == (0, "loud")


def test_auto_waits_briefly_for_one_that_hangs_and_remembers(tmp_path):
    sites.install(tmp_path, "slow-dist", "1.0", {"slow.py": "import time\ntime.sleep(600)"}, {"slow": "slow:Plain"})
    ran = in_python(
        tmp_path,
        "from isorun.system.cache import Cache\nlisting.AUTO_SECONDS = 1\n"
        "for _ in range(2):\n"
        "    print([entry.reason for entry in listing.candidates(Cache()) if entry.name == 'slow'])\n",
    )
    assert ran.returncode == 0, ran.stderr
    reason = "the process that loads it did not finish within 1 s and was killed"
    assert ran.stdout.splitlines() == [f"['{reason}']"] * 2
    assert ran.stderr.count(f"backend='auto' skips slow until tomorrow: {reason}") == 1  # the second time, remembered


def test_auto_says_what_is_broken_and_looks_again_once_that_may_have_changed(tmp_path):
    """The module of an engine is installed, or a device is there again."""
    source = f"import engine\n{PLUGIN}"
    sites.install(tmp_path, "late-dist", "1.0", {"late.py": source}, {"late": "late:Plain"})
    script = (
        "from pathlib import Path\nimport os, time\nfrom isorun.system.cache import Cache\n"
        "listing.site.getusersitepackages = lambda: {0!r}\n"
        "def shown(): return [entry.reason for entry in listing.candidates(Cache()) if entry.name == 'late']\n"
        "print(shown())\n"
        "Path({0!r}, 'engine.py').touch()\nos.utime({0!r}, (1, 1))\nprint(shown())\n"
        "Path({0!r}, 'engine.py').write_text('raise OSError()')\nprint(shown())\n"
        "now = time.time()\ntime.time = lambda: now + 601\nprint(shown() == [''])\n"
    ).format(str(tmp_path))
    ran = in_python(tmp_path, script)
    assert ran.returncode == 0, ran.stderr
    missing = "[\"it needs the module 'engine', which is not installed\"]"
    assert ran.stdout.splitlines() == [missing, "['']", "['']", "True"]
    assert ran.stderr.count("backend='auto' skips late: it needs the module 'engine'") == 1


@pytest.mark.long
def test_doctor_finds_each_and_nothing_else(few):
    _, findings = command(few, "doctor")
    subjects = {finding["subject"].removeprefix("the backend ") for finding in findings}
    assert {*FEW} - {"rude"} <= subjects  # its installation has no problem
    assert "good" not in subjects
    assert {finding["command"].split()[-1] for finding in findings if finding["subject"] == "the backend ort-cpu"} == {
        "ort-cpu-dist"
    }


def test_auto_runs_on_another_and_names_broken_ones_in_provenance(few, bert, tmp_path):
    np.savez(tmp_path / "feeds.npz", **tiny.feeds())
    code, ran = command(few, "run", str(bert), "--feeds", str(tmp_path / "feeds.npz"))
    assert (code, ran["provenance"]["backend"]) == (0, "ort-cpu")
    assert dict(ran["provenance"]["skipped"]).keys() >= set(FEW) - {"ort-cpu", "rude"}  # loaded; of a low priority


def spec_of(broken: Iterable[str], bert: Path, tmp_path: Path) -> Path:
    """Two good backends, and those of the broken ones that a spec can name."""
    names = ["ort-cpu", "openvino", "good", *(name for name in broken if name not in ("odd:name", "Odd", "ort-cpu"))]
    path = tmp_path / "spec.yaml"
    limits = "time_limit: 30\nrounds: 1\nrepeats: 0\nseconds: 0.1"
    path.write_text(f"models: {{m: {{path: {bert}}}}}\nshapes: [2x8]\n{limits}\nbackends: [{', '.join(names)}]\n")
    return path


def in_python(site: Path, script: str, seconds: int = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run code with a shorter time limit of the one that hangs."""
    limit = f"from isorun.plugin import listing; listing.SECONDS = {seconds}\n"
    variables = {**os.environ, "PYTHONPATH": str(site), "ISORUN_CACHE_DIR": str(site / "cache")}
    command = [sys.executable, "-c", limit + script]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


def test_matrix_plans_the_cells_of_the_others(few, bert, tmp_path):
    """Validating, planning and asking a node survive the broken ones that a spec names, and import none of them."""
    spec = spec_of(FEW, bert, tmp_path)
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from isorun_matrix.execution.cluster import node\n"
        "from isorun_matrix.execution.plan import plan\n"
        "from isorun_matrix.spec import reader\n"
        f"spec = reader.load(Path({str(spec)!r}))\n"
        "names = [entry.name for entry in spec.backends]\n"
        "found = node.Node().preflight([*names, 'absent'])\n"
        "foreign = [name for name in sys.modules if name == 'good' or name.startswith('broken_')]\n"
        "print(json.dumps([len(names), len(plan(spec, 0).cells), foreign, found['problems']]))"
    )
    ran = in_python(few, script)
    assert ran.returncode == 0, ran.stderr
    names, cells, imported, problems = json.loads(ran.stdout)
    assert (cells, imported) == (names + 1, [])  # with the control
    assert [problem.partition(";")[0] for problem in problems] == ["No backend 'absent' is installed"]


@pytest.mark.long
def test_matrix_runs_the_others(site, bert, tmp_path):
    """Each cell runs in a process of its own; those of the broken ones report why."""
    arguments = ["matrix", "run", str(spec_of(BROKEN, bert, tmp_path)), "--out", str(tmp_path / "out")]
    ran = in_python(site, f"from isorun.cli import main\nraise SystemExit(main({arguments!r}))")
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 1, ran.stderr  # cells have failed
    document = in_python(
        site, f"from isorun.cli import main\nmain({['matrix', 'report', str(tmp_path / 'out'), '--format', 'json']!r})"
    )
    cells = {cell["label"]: cell for cell in json.loads(document.stdout)["cells"] if not cell["control"]}
    assert {name for name, cell in cells.items() if cell["status"] == "ok"} == {"ort-cpu", "openvino"}
    assert "killed by SIGABRT" in cells["aborts"]["reason"]
    assert "time limit" in cells["hangs"]["reason"]
    assert "not today" in cells["raises"]["reason"]
