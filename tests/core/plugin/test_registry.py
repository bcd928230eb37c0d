"""Discovery of plugins, which are folders as pip installs them, on the path of a child process."""

import json
import os
from pathlib import Path

import pytest

import backends
import isorun
import programs
import sites
from isorun.errors import BackendNotFound, BackendUnavailable, InvalidArgument, InvalidType
from isorun.plugin import listing, registry
from isorun_conformance.fakes import Right


def distribution(folder: Path, name: str, entry_points: dict[str, str], modules: dict[str, str] | None = None) -> Path:
    """Install a distribution, and return its folder."""
    files = {f"{module}.py": source for module, source in (modules or {}).items()}
    sites.install(folder, name, "1.0", files, entry_points)
    return folder


def answers(script: str, *folders: Path, cache: Path) -> object:
    """The last line that a script prints, as JSON, with folders on its path and an empty cache of stevedore."""
    path = os.pathsep.join(str(folder) for folder in folders)
    return json.loads(programs.printed(script, PYTHONPATH=path, XDG_CACHE_HOME=str(cache)).splitlines()[-1])


MESSAGE = """
import json
from isorun import IsorunError
from isorun.plugin import registry
try:
    print(json.dumps(type(registry.get({name!r})).__name__))
except IsorunError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def test_listing_imports_no_backend_and_writes_nothing(tmp_path):
    boom = distribution(tmp_path / "site", "boom", {"boom": "boom:Boom"}, {"boom": "raise RuntimeError('imported')"})
    script = """
import json, sys
from isorun.plugin import registry
names = registry.names()
heavy = sorted({"onnx", "onnx_ir", "onnxruntime", "openvino", "boom", "isorun_backends"} & set(sys.modules))
print(json.dumps([names, heavy]))
"""
    names, heavy = answers(script, boom, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    assert {"boom", "ort-cpu"} <= set(names)
    assert heavy == []


LISTED = "import json; from isorun.plugin import registry; print(json.dumps(registry.names()))"


def test_installed_and_removed_distributions_are_noticed_at_once(tmp_path):
    """Whatever the times of files and folders, and whatever stevedore has cached."""
    site = distribution(tmp_path / "site", "first-dist", {"first": "first:First"})
    times = {path: path.stat().st_mtime_ns for path in (site, *site.rglob("*"))}

    def listed() -> set[str]:
        for path, time in times.items():
            if path.exists():
                os.utime(path, ns=(time, time))
        return {"first", "second"} & set(answers(LISTED, site, cache=tmp_path))

    assert listed() == {"first"}
    distribution(site, "second-dist", {"second": "second:Second"})
    assert listed() == {"first", "second"}
    sites.uninstall(site, "first-dist", "1.0")
    assert listed() == {"second"}


def test_first_of_two_versions_on_the_path(tmp_path):
    new = distribution(tmp_path / "new", "one-dist", {"mine": "new:Mine"}, {"new": "raise RuntimeError('new')"})
    old = distribution(tmp_path / "old", "one-dist", {"mine": "old:Mine"}, {"old": "raise RuntimeError('old')"})
    assert "RuntimeError: new" in answers(MESSAGE.format(name="mine"), new, old, cache=tmp_path)[1]


def test_name_of_two_distributions_is_an_error(tmp_path):
    first_site = distribution(tmp_path / "one", "first-dist", {"twin": "first:Twin"})
    second_site = distribution(tmp_path / "two", "second-dist", {"twin": "second:Twin"})
    kind, message = answers(MESSAGE.format(name="twin"), first_site, second_site, cache=tmp_path)
    assert kind == "BackendUnavailable"
    assert "first-dist (first:Twin) and second-dist (second:Twin)" in message
    assert "pip uninstall second-dist" in message
    assert answers(MESSAGE.format(name="reference"), first_site, second_site, cache=tmp_path) == "Reference"
    assert "twin" in answers(LISTED, first_site, second_site, cache=tmp_path)


def test_two_distributions_may_register_the_same_class(tmp_path):
    modules = {"same": "from isorun_backends.reference import Reference as Twin"}
    first_site = distribution(tmp_path / "one", "first-dist", {"twin": "same:Twin"}, modules)
    second_site = distribution(tmp_path / "two", "second-dist", {"twin": "same:Twin"})
    assert answers(MESSAGE.format(name="twin"), first_site, second_site, cache=tmp_path) == "Reference"


FAMILY = """
from isorun.plugin.backend import Backend
from isorun.types import Capabilities

class Several(Backend):
    contract = 2
    capabilities = Capabilities(dialects=("onnx",))
    @classmethod
    def members(cls):
        return ("one", "two") if cls is Several else None
    def compile(self, model, config):
        raise AssertionError("the registry compiles nothing")

class Single(Several):
    pass
"""
MEMBERS = """
import json
from isorun import IsorunError
from isorun.plugin import listing, registry
def get(name):
    try:
        return {lookup}(name).name
    except IsorunError as error:
        return str(error)
names = [description.name for description in listing.descriptions()]
print(json.dumps([names, *map(get, ["several:two", "several", "several:tow", "single:one", "other:one"])]))
"""


@pytest.mark.parametrize("lookup", ["registry.get", "listing.load"])
def test_members_of_a_family(tmp_path, lookup):
    entry_points = {"several": "family:Several", "single": "family:Single"}
    site = distribution(tmp_path / "site", "family-dist", entry_points, {"family": FAMILY})
    members, two, several, wrong, single, absent = answers(MEMBERS.format(lookup=lookup), site, cache=tmp_path)
    assert {"several:one", "several:two", "single", "ort-cpu"} <= set(members)
    assert "several" not in members
    assert (two, several) == ("several:two", "several")
    assert "did you mean 'several:two'?" in wrong
    assert "'single:one'" in single
    assert "did you mean 'single'?" in single
    assert "'other:one'" in absent


def test_a_family_without_members_is_not_available(tmp_path):
    family = FAMILY.replace('("one", "two")', "()")
    site = distribution(tmp_path / "site", "family-dist", {"several": "family:Several"}, {"family": family})
    script = """
import json
from isorun.plugin import listing
(described,) = [description for description in listing.descriptions() if description.name == "several"]
print(json.dumps([described.status, described.problem]))
"""
    status, problem = answers(script, site, cache=tmp_path)
    assert status == "unavailable"
    assert problem == ("none of its members is installed. Install what provides one, and request it as several:MEMBER.")


def test_only_what_was_registered_is_unregistered():
    with pytest.raises(InvalidArgument, match=r"'ort-cpu' was not registered by this program: isorun .* provides it"):
        registry.unregister("ort-cpu")
    with pytest.raises(InvalidArgument, match=r"'ort-cpu' already exists\. Choose another name: isorun"):
        registry.register("ort-cpu", Right)
    taken = r"'mine' already exists\. Choose another name, or unregister\(\)"
    with backends.registered(mine=Right), pytest.raises(InvalidArgument, match=taken):
        registry.register("mine", Right)
    with pytest.raises(BackendNotFound, match="'mine'") as caught:
        registry.unregister("mine")
    assert caught.value.installed == tuple(registry.names())


@pytest.mark.parametrize("call", [registry.get, registry.unregister, lambda name: registry.register(name, Right)])
@pytest.mark.parametrize("name", [5, None, b"ort-cpu"])
def test_a_name_is_a_text(call, name):
    with pytest.raises(InvalidType, match="must be a str"):
        call(name)


@pytest.mark.parametrize("version", [(1, 2), 1.5, b"1.0"])
def test_a_version_is_a_text_wherever_it_is_read(version, bert):
    class Versioned(type(registry.get("ort-cpu"))):
        def version(self):
            return version

    expected = f"'odd' cannot be used: its version() must return str | None, got {type(version).__name__}. Report"
    with backends.registered(odd=Versioned):
        (described,) = listing.describe("odd")
        assert described.status == "broken"
        assert described.problem.startswith(expected.partition(": ")[2])
        assert __name__ in described.remedy
        with isorun.Session(bert, "odd") as session, pytest.raises(BackendUnavailable) as raised:
            session.warmup([(1, 4)])
        assert expected in str(raised.value)


def test_an_error_of_a_plugin_names_its_entry_point(monkeypatch):
    monkeypatch.setattr(type(registry.get("ort-cpu")), "version", lambda self: 1)
    with pytest.raises(
        BackendUnavailable, match=r"isorun 0.*\(its entry point is ort-cpu = isorun_backends\..*:OrtCpu"
    ):
        registry.version(registry.get("ort-cpu"))
