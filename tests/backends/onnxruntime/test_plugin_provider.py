"""Plugin execution providers by name: found, rejected, told from one another."""

from __future__ import annotations

from pathlib import Path

import pytest

import isolation
import isorun
from isorun.errors import BackendNotFound, BackendUnavailable
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.plugin import listing, registry

LIBRARY = """
def get_library_path():
    return "/nowhere/libprovider.so"
"""
BROKEN = LIBRARY + "def get_ep_name():\n    return 'BrokenExecutionProvider'\n"
PACKAGES = {
    "onnxruntime_ep_broken": BROKEN,
    "onnxruntime_several": LIBRARY + "def get_ep_names():\n    return ['One', 'Two']\n",
    "my_provider": BROKEN,
    "onnxruntime_ep_twin": BROKEN,
    "onnxruntime_twin": BROKEN,
    "onnxruntime_ep_unrelated": LIBRARY,  # it names no provider
    "onnxruntime_mentions": '"""def get_library_path and def get_ep_name"""',
    "onnxruntime_ep_raises": BROKEN + "raise OSError('the driver is missing')\n",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    site = tmp_path_factory.mktemp("site")
    for package, source in PACKAGES.items():
        install(site, package, source)
    return isolation.own_environment(environments.root(), "providers", site)


def install(site: Path, package: str, source: str) -> None:
    """A distribution of one package, as far as importlib.metadata can tell."""
    (site / package).mkdir()
    (site / package / "__init__.py").write_text(source)
    information = site / f"{package}-1.2.dist-info"
    information.mkdir()
    name = package.replace("_", "-")
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (information / "top_level.txt").write_text(f"{package}\n")


@pytest.fixture(scope="module")
def worker(environment):
    opened = Worker(environments.get(environment))
    yield opened
    opened.close()


def test_each_package_with_a_provider_is_a_backend(worker):
    found = {name for name in worker.names() if name.startswith("ort-ep")}
    members = ("broken", "several", "my-provider", "onnxruntime_ep_twin", "onnxruntime_twin", "raises")
    assert found - {"ort-ep:openvino"} == {f"ort-ep:{member}" for member in members}


def test_an_unknown_name_lists_the_known_ones(worker):
    with pytest.raises(BackendNotFound, match=r"did you mean 'ort-ep:broken'") as caught:
        worker.get("ort-ep:brocken")
    assert "ort-ep:several" in str(caught.value)


@pytest.mark.parametrize(
    ("member", "package", "cause"),
    [
        ("broken", "onnxruntime_ep_broken", "libprovider.so"),
        ("several", "onnxruntime_several", "libprovider.so"),
        ("raises", "onnxruntime_ep_raises", "the driver is missing"),
    ],
)
def test_a_provider_that_does_not_load_reports_why(worker, environment, bert, member, package, cause):
    here = worker.get(f"ort-ep:{member}").availability()
    assert not here.ok
    assert f"{package} 1.2" in here.reason
    assert cause in here.reason
    with pytest.raises(BackendUnavailable, match=f"{package} 1.2"):
        isorun.Session(bert, f"ort-ep:{member}", environment=environment)


def test_the_name_alone_lists_the_members(worker):
    here = worker.get("ort-ep").availability()
    assert not here.ok
    assert "ort-ep:NAME" in here.reason
    assert "broken" in here.reason


def test_reports_that_no_provider_is_installed():
    if any(name.startswith("ort-ep:") for name in listing.names()):
        pytest.skip("a plugin execution provider is installed here")
    assert registry.get("ort-ep").availability().reason.endswith("none is installed")
    assert "ort-ep" in listing.names()
    with pytest.raises(BackendNotFound, match="'ort-ep:openvino'"):
        registry.get("ort-ep:openvino")
