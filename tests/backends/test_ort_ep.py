"""Plugin execution providers by name: found, refused, told from one another."""

from __future__ import annotations

from pathlib import Path

import pytest

import isolation
import isorun
from isorun.errors import BackendNotFound, BackendUnavailable
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.plugin import registry

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


def test_each_package_that_brings_a_provider_is_a_backend(worker):
    found = {name for name in worker.names() if name.startswith("ort-ep")}
    members = ("broken", "several", "my-provider", "onnxruntime_ep_twin", "onnxruntime_twin", "raises")
    assert found - {"ort-ep:openvino"} == {f"ort-ep:{member}" for member in members}


def test_a_name_that_is_none_lists_those_that_are(worker):
    with pytest.raises(BackendNotFound, match=r"did you mean 'ort-ep:broken'\? \(known: ort-ep:broken, ") as caught:
        worker.get("ort-ep:brocken")
    assert "ort-ep:several" in str(caught.value)


@pytest.mark.parametrize(
    ("member", "package", "said"),
    [
        ("broken", "onnxruntime_ep_broken", "libprovider.so"),
        ("several", "onnxruntime_several", "libprovider.so"),
        ("raises", "onnxruntime_ep_raises", "the driver is missing"),
    ],
)
def test_one_that_does_not_load_says_so(worker, environment, bert, member, package, said):
    here = worker.get(f"ort-ep:{member}").availability()
    assert not here.ok
    assert here.reason.startswith(f"{package} 1.2 does not load into ONNX Runtime ")
    assert said in here.reason
    with pytest.raises(BackendUnavailable, match=f"{package} 1.2 does not load"):
        isorun.Session(bert, f"ort-ep:{member}", environment=environment)


def test_the_name_alone_says_what_it_stands_for(worker):
    here = worker.get("ort-ep").availability()
    assert not here.ok
    assert (
        "'ort-ep' stands for the plugin execution providers that are installed; name one, as ort-ep:NAME" in here.reason
    )
    assert "broken" in here.reason


def test_none_is_installed_where_there_is_none():
    if any(name.startswith("ort-ep:") for name in registry.members()):
        pytest.skip("a plugin execution provider is installed here")
    assert registry.get("ort-ep").availability().reason.endswith("name one, as ort-ep:NAME; there is none")
    assert "ort-ep" in registry.members()
    with pytest.raises(BackendNotFound, match="'ort-ep:openvino'"):
        registry.get("ort-ep:openvino")
