"""Plugin execution providers by name: found, rejected, told from one another."""

from __future__ import annotations

import pytest

import isolation
import isorun
import sites
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
        sites.install(site, package.replace("_", "-"), "1.2", {f"{package}/__init__.py": source})
    return isolation.own_environment(environments.root(), "providers", site)


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
