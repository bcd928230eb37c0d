"""Import packages and their distributions."""

from importlib.metadata import distribution
from pathlib import Path

import pytest

import sites
from isorun.system import packages


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_owner_of_a_package(site: Path) -> None:
    sites.install(site, "rival-gpu", "2.0", {"rival/__init__.py": "", "single.py": "", "native.so": b""})
    for package in ("rival", "single", "native"):
        assert packages.package_owners(package) == ["rival-gpu"]
        assert packages.package_version(package) == "2.0"
    assert packages.package_owners("rival_gpu") == []
    assert packages.package_version("rival_gpu") is None


def test_all_owners_of_a_package(site: Path) -> None:
    sites.install(site, "rival", "1.0", {"rival/__init__.py": ""})
    sites.install(site, "rival-gpu", "2.0", {"rival/__init__.py": ""})
    assert packages.package_owners("rival") == ["rival", "rival-gpu"]
    assert packages.package_version("rival") == "1.0 or 2.0"


def test_what_is_installed_later_is_known(site: Path) -> None:
    assert packages.package_owners("rival") == []
    sites.install(site, "rival", "1.0", {"rival/__init__.py": ""})
    assert packages.package_version("rival") == "1.0"
    record = site / "rival-1.0.dist-info" / "RECORD"
    record.rename(record.with_suffix(".old"))
    record.write_text("contender/__init__.py,,\n")
    assert (packages.package_owners("rival"), packages.package_owners("contender")) == ([], ["rival"])


def test_a_namespace_package_is_importable_if_it_has_modules(site: Path) -> None:
    sites.install(site, "space", "1.0", {"space/engine.py": ""})
    assert packages.is_importable("space")
    (site / "space" / "engine.py").unlink()
    assert not packages.is_importable("space")


def test_package_without_files_keeps_its_owner(site: Path) -> None:
    sites.install(site, "rival", "1.0", {"rival/__init__.py": "one = 1\n", "rival/data.txt": ""})
    assert packages.is_importable("rival")
    (site / "rival" / "__init__.py").unlink()
    assert packages.package_owners("rival") == ["rival"]
    assert not packages.is_importable("rival")
    assert not packages.is_importable("no_such_package")
    (site / "rival" / "left.py").touch()
    assert not packages.is_importable("rival")
    recorded = {path for path, *_ in packages.recorded(distribution("rival"))}
    assert {"rival/__init__.py", "rival/data.txt", "rival-1.0.dist-info/METADATA"} <= recorded


def test_recorded_files_with_hash_and_size(site: Path) -> None:
    sites.install(site, "rival", "1.0", {"rival/a, b.py": "one = 1\n"})
    record = site / "rival-1.0.dist-info" / "RECORD"
    record.write_text('"rival/a, b.py",sha256=abc,8\nrival/unhashed.py,,\n')
    assert list(packages.recorded(distribution("rival"))) == [
        ("rival/a, b.py", "sha256=abc", 8),
        ("rival/unhashed.py", "", None),
    ]


def test_distribution_without_metadata_owns_nothing(site: Path) -> None:
    sites.install(site, "rival", "1.0", {"rival/__init__.py": ""})
    (site / "nameless-1.0.dist-info").mkdir()
    (site / "nameless-1.0.dist-info" / "RECORD").write_text("rival/__init__.py,,\n")
    assert packages.package_version("rival") == "1.0"
