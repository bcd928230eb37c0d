"""Import packages with several owners, without files, with files of others: made as installers make them."""

from __future__ import annotations

import importlib
import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import sites
from isorun.doctor import packages
from isorun.plugin.backend import Backend
from isorun.types import Capabilities

ONE = {"rival/__init__.py": "one = 1\n", "rival/native.so": b"one" * 100, "rival/LICENSE": "free", "rival/own.py": ""}
TWO = {"rival/__init__.py": "two = 2\n", "rival/native.so": b"two!" * 90, "rival/LICENSE": "free", "rival/gpu.so": b"g"}


class Rival(Backend):
    capabilities = Capabilities(dialects=("onnx",), package="rival", requirement="rival-one")

    def compile(self, model, config):
        raise AssertionError("nothing is compiled here")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def found():
    importlib.invalidate_caches()
    return list(packages.findings("rival"))


@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("two", "one")])
def test_two_owners_are_named_with_the_one_that_is_active(site, first, second):
    brought = {"one": ("rival", "1.0", ONE), "two": ("rival-gpu", "2.0", TWO)}
    for each in (first, second):
        sites.install(site, *brought[each])
    (finding,) = found()
    name, version, _ = brought[second]
    assert (finding.subject, finding.severity) == ("the package rival", "error")
    assert finding.what == f"rival and rival-gpu both own it, and {name} {version} is active"
    mine, other = ("0", "2") if second == "two" else ("2", "0")
    assert f"2 differ: {mine} are those of rival 1.0, {other} are those of rival-gpu 2.0" in finding.why
    assert "none of them is whole" not in finding.why
    uninstall = packages.pip("uninstall", "-y", "rival", "rival-gpu")
    assert finding.command == f"{uninstall} && {packages.pip('install', f'{name}=={version}')}"


def test_a_mixture_of_two_is_said_to_be_one(site):
    sites.install(site, "rival", "1.0", ONE)
    sites.install(site, "rival-gpu", "2.0", {**TWO, "rival/more.py": "2"})
    (site / "rival" / "native.so").write_bytes(ONE["rival/native.so"])
    (finding,) = found()
    assert "1 are those of rival 1.0, 1 are those of rival-gpu 2.0); none of them is whole" in finding.why


def test_two_that_brought_the_same_leave_open_which_is_active(site):
    sites.install(site, "rival", "1.0", ONE)
    sites.install(site, "rival-nightly", "1.0", ONE)
    (finding,) = found()
    assert "which is active cannot be told from their files" in finding.what


def test_after_one_is_uninstalled_the_other_is_hollow(site):
    sites.install(site, "rival", "1.0", ONE)
    sites.install(site, "rival-gpu", "2.0", TWO)
    sites.uninstall(site, "rival-gpu", "2.0")
    assert (site / "rival" / "own.py").exists()
    (finding,) = found()
    assert finding.what == "it is hollow: there is no module in it (rival/LICENSE, ...)"
    assert finding.why.startswith("rival 1.0 is installed by its metadata")
    assert finding.command == packages.pip("install", "--force-reinstall", "--no-deps", "rival==1.0")
    here = Rival("rival").availability()
    assert "the package 'rival' is hollow: rival should bring it" in here.reason
    assert "pip uninstall -y rival && pip install 'rival-one'" in here.remedy
    sites.install(site / "again", "rival", "1.0", ONE)  # what the command does
    shutil.copytree(site / "again" / "rival", site / "rival", dirs_exist_ok=True)
    assert found() == []
    assert Rival("rival").availability().ok


def test_metadata_without_any_file_is_hollow_too(site):
    sites.install(site, "rival", "1.0", ONE)
    shutil.rmtree(site / "rival")
    (finding,) = found()
    assert finding.what.startswith("it is hollow")
    assert "is hollow" in Rival("rival").availability().reason


def test_a_folder_that_nobody_owns_is_not_installed_and_no_finding(site):
    (site / "rival").mkdir()
    (site / "rival" / "notes.txt").write_text("a checkout, say")
    assert found() == []
    assert Rival("rival").availability().reason == "the package 'rival' is not installed"


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"one")], ids=["gone", "cut short"])
def test_a_file_that_is_gone_or_cut_short(site, damage):
    sites.install(site, "rival", "1.0", ONE)
    damage(site / "rival" / "native.so")
    (finding,) = found()
    assert finding.what == "1 of its 4 files are gone or of another size (rival/native.so)"
    assert Rival("rival").availability().ok  # it imports: nothing but the record tells


def test_distributions_that_share_a_folder_and_no_file_are_well(site):
    sites.install(site, "rival", "1.0", ONE)
    sites.install(site, "rival-tools", "1.0", {"rival/tools/__init__.py": ""})
    assert found() == []


def test_a_distribution_without_metadata_does_no_harm(site):
    sites.install(site, "rival", "1.0", ONE)
    (site / "nameless-1.0.dist-info").mkdir()
    (site / "nameless-1.0.dist-info" / "RECORD").write_text("rival/__init__.py,,\n")
    assert found() == []


@pytest.mark.parametrize("package", ["onnxruntime", "openvino", "onnx", "numpy"])
def test_what_is_installed_here_is_well(package):
    assert list(packages.findings(package)) == []


def test_what_installs_the_same_again(site):
    sites.install(site, "rival", "1.0", ONE)
    assert packages.requirement(distribution("rival")) == "rival==1.0"
    url = site / "rival-1.0.dist-info" / "direct_url.json"
    url.write_text('{"url": "file:///src/rival", "dir_info": {"editable": true}}')
    assert packages.requirement(distribution("rival")) == "--editable=/src/rival"
    url.write_text('{"url": "https://example.org/rival.whl"}')
    assert packages.requirement(distribution("rival")) == "rival @ https://example.org/rival.whl"


def test_the_command_is_for_the_installer_that_serves_this_interpreter(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert packages.pip("install", "a b").split()[0] in ("pip", "uv", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))  # no pip on it
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: object())
    assert packages.pip("uninstall", "-y", "a>=1") == f"{sys.executable} -m pip uninstall -y 'a>=1'"
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    assert packages.pip("uninstall", "-y", "a") == f"uv pip uninstall --python {sys.executable} a"
    again = packages.pip("install", "--force-reinstall", "--no-deps", "a")
    assert again == f"uv pip install --python {sys.executable} --reinstall --no-deps a"
