"""Import packages with several owners, without files, with files of others, installed as installers do."""

import importlib
import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import sites
from isorun.cli.doctor import packages
from isorun.plugin.backend import Backend
from isorun.types import Capabilities

ONE = {"rival/__init__.py": "one = 1\n", "rival/native.so": b"one" * 100, "rival/LICENSE": "free", "rival/own.py": ""}
TWO = {"rival/__init__.py": "two = 2\n", "rival/native.so": b"two!" * 90, "rival/LICENSE": "free", "rival/gpu.so": b"g"}


class Rival(Backend):
    contract = 2
    capabilities = Capabilities(dialects=("onnx",), package="rival", requirement="rival-one")

    def compile(self, model, config):
        raise AssertionError("nothing is compiled here")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def findings():
    importlib.invalidate_caches()
    return list(packages.findings("rival"))


@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("two", "one")])
def test_names_both_owners_and_the_active_one(site, first, second):
    distributions = {"one": ("rival", "1.0", ONE), "two": ("rival-gpu", "2.0", TWO)}
    for label in (first, second):
        sites.install(site, *distributions[label])
    (finding,) = findings()
    name, version, _ = distributions[second]
    assert (finding.subject, finding.severity) == ("the package rival", "error")
    assert finding.what == f"rival and rival-gpu both own it, and {name} {version} is active"
    mine, theirs = ("0", "2") if second == "two" else ("2", "0")
    assert f"2 differ: {mine} from rival 1.0, {theirs} from rival-gpu 2.0" in finding.why
    assert "complete" not in finding.why
    uninstall = packages.pip("uninstall", "-y", "rival", "rival-gpu")
    assert finding.command == f"{uninstall} && {packages.pip('install', f'{name}=={version}')}"


def test_mixture_of_two_distributions(site):
    sites.install(site, "rival", "1.0", ONE)
    sites.install(site, "rival-gpu", "2.0", {**TWO, "rival/more.py": "2"})
    (site / "rival" / "native.so").write_bytes(ONE["rival/native.so"])
    (finding,) = findings()
    assert "1 from rival 1.0, 1 from rival-gpu 2.0); none of them is complete" in finding.why


def test_two_owners_of_identical_files(site):
    sites.install(site, "rival", "1.0", ONE)
    sites.install(site, "rival-nightly", "1.0", ONE)
    (finding,) = findings()
    assert "neither is intact" in finding.what


def test_uninstalling_one_owner_breaks_the_other(site):
    sites.install(site, "rival", "1.0", ONE)
    sites.install(site, "rival-gpu", "2.0", TWO)
    sites.uninstall(site, "rival-gpu", "2.0")
    assert (site / "rival" / "own.py").exists()
    (finding,) = findings()
    assert "no modules (rival/LICENSE, ...)" in finding.what
    assert finding.command == packages.pip("install", "--force-reinstall", "--no-deps", "rival==1.0")
    availability = Rival("rival").availability()
    assert "rival" in availability.reason
    assert "pip install 'rival-one'" in availability.remedy
    sites.install(site / "again", "rival", "1.0", ONE)  # as the command does
    shutil.copytree(site / "again" / "rival", site / "rival", dirs_exist_ok=True)
    assert findings() == []
    assert Rival("rival").availability().ok


def test_folder_without_a_distribution_is_no_finding(site):
    (site / "rival").mkdir()
    (site / "rival" / "notes.txt").write_text("a checkout")
    assert findings() == []
    assert not Rival("rival").availability().ok


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"one")], ids=["missing", "truncated"])
def test_file_that_is_missing_or_truncated(site, damage):
    sites.install(site, "rival", "1.0", ONE)
    damage(site / "rival" / "native.so")
    (finding,) = findings()
    assert finding.what.startswith("1 of its 4 files")
    assert "rival/native.so" in finding.what
    assert Rival("rival").availability().ok  # it can be imported


def test_distributions_may_share_a_folder(site):
    sites.install(site, "rival", "1.0", ONE)
    sites.install(site, "rival-tools", "1.0", {"rival/tools/__init__.py": ""})
    assert findings() == []


def test_requirement_of_an_installed_distribution(site):
    sites.install(site, "rival", "1.0", ONE)
    assert packages.requirement(distribution("rival")) == "rival==1.0"
    url = site / "rival-1.0.dist-info" / "direct_url.json"
    url.write_text('{"url": "file:///src/rival", "dir_info": {"editable": true}}')
    assert packages.requirement(distribution("rival")) == "--editable=/src/rival"
    url.write_text('{"url": "https://example.org/rival.whl"}')
    assert packages.requirement(distribution("rival")) == "rival @ https://example.org/rival.whl"


def test_command_uses_the_installer_of_this_interpreter(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert packages.pip("install", "a b").split()[0] in ("pip", "uv", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))  # no pip on it
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: object())
    assert packages.pip("uninstall", "-y", "a>=1") == f"{sys.executable} -m pip uninstall -y 'a>=1'"
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    assert packages.pip("uninstall", "-y", "a") == f"uv pip uninstall --python {sys.executable} a"
    again = packages.pip("install", "--force-reinstall", "--no-deps", "a")
    assert again == f"uv pip install --python {sys.executable} --reinstall --no-deps a"
