"""Plugin execution providers by name: found, rejected, told from one another."""

import re
from pathlib import Path

import numpy as np
import pytest

import isolation
import isorun
import sites
from isorun.errors import BackendNotFound, BackendUnavailable, InvalidOption, UnsupportedModel
from isorun.isolation import environments
from isorun.isolation.worker.backend import Worker
from isorun.plugin import listing, registry
from isorun_conformance.formulas import of_type

LIBRARY = """
def get_library_path():
    return "/nowhere/libprovider.so"
"""
BROKEN = LIBRARY + "def get_ep_names():\n    return ['BrokenExecutionProvider']\n"
PROVIDER = "CreateEpFactories"  # what the library of a provider exports
DECLARED = """
precisions = ["fp16"]
devices = ["npu"]
dynamic_shapes = true
compiled_contexts = true
tolerances = { fp16 = "bf16" }
precision_options = { fp16 = { half = 1 } }
"""
PAGE = (Path(__file__).parents[3] / "docs" / "execution-providers.md").read_text(encoding="utf-8")
_, SHOWN, _, DECLARATION = re.findall(r"^```(?:toml|python)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PACKAGES: dict[str, dict[str, str]] = {
    "onnxruntime-ep-broken": {"onnxruntime_ep_broken/__init__.py": BROKEN},
    "onnxruntime-ep-single": {"onnxruntime_ep_single/__init__.py": LIBRARY + "def get_ep_name(): return 'One'\n"},
    "onnxruntime-ep-elsewhere": {
        "contoso_elsewhere/__init__.py": "from contoso_elsewhere._impl import get_library_path, get_ep_names",
        "contoso_elsewhere/_impl.py": BROKEN,
    },
    "onnxruntime-ep-twin": {"onnxruntime_ep_twin/__init__.py": BROKEN},
    "onnxruntime-ep-nameless": {"onnxruntime_ep_nameless/__init__.py": LIBRARY},  # it names no provider
    "onnxruntime-ep-bare": {"onnxruntime_ep_bare/__init__.py": ""},
    # Names that ONNX Runtime's documentation does not suggest.
    "onnxruntime-guided": {"onnxruntime_guided/__init__.py": BROKEN},
    "onnxruntime-files": {
        "onnxruntime_files/__init__.py": "",
        "onnxruntime_files/lib/libonnxruntime_files.so": PROVIDER,
    },
    "fabrikam": {"fabrikam_sdk/__init__.py": "", "fabrikam_sdk/providers/libfabrikam.so": PROVIDER},
    "onnxruntime-ep-raises": {"onnxruntime_ep_raises/__init__.py": "raise OSError('the driver is missing')\n"},
    "onnxruntime-ep-declares": {
        "onnxruntime_ep_declares/__init__.py": BROKEN,
        "onnxruntime_ep_declares/isorun.toml": DECLARED,
    },
    "onnxruntime-ep-contoso": {  # as the page for authors has it
        "onnxruntime_ep_contoso/__init__.py": SHOWN,
        "onnxruntime_ep_contoso/isorun.toml": DECLARATION,
    },
    **{
        f"onnxruntime-ep-{name}": {
            f"onnxruntime_ep_{name}/__init__.py": BROKEN,
            f"onnxruntime_ep_{name}/isorun.toml": text,
        }
        for name, text in (
            ("misspells", "precision = ['fp16']"),
            ("invents", "precisions = ['fp12']"),
            ("damaged", "precisions = ["),
            ("confuses", "precisions = ['fp32']\nprecision_options = { fp16 = {} }"),
            ("overflows", "cpu_nodes = 'all'"),
            ("hesitates", "exclusive = 'maybe'"),
        )
    },
    # No providers.
    "onnxruntime-tools": {"onnxruntime_tools/__init__.py": "raise OSError('it is no provider')"},
    "onnxruntime-kernels": {  # of an extension that registers operators
        "onnxruntime_kernels/__init__.py": "",
        "onnxruntime_kernels/libonnxruntime_kernels.so": "RegisterCustomOps",
    },
    "bundling-app": {
        "bundling_app/__init__.py": "",
        "bundling_app/libonnxruntime.so.1.31.1": "",
        "bundling_app/libonnxruntime_providers_cuda.so": PROVIDER,
    },
    "stranger": {"stranger/__init__.py": LIBRARY + BROKEN, "stranger/providers/libstranger.so": PROVIDER},
    "my-provider": {"my_provider/__init__.py": "", "my_provider/ort.py": BROKEN},
}
WRONG = ("misspells", "invents", "damaged", "confuses", "overflows", "hesitates")
REQUIRES = {"fabrikam": ["onnxruntime>=1.24"], "bundling-app": ["onnxruntime"]}
NAMED = {"my-provider": {"mine": "my_provider.ort", "twin": "my_provider.ort"}}
MEMBERS = {
    *("broken", "single", "elsewhere", "onnxruntime_ep_twin", "nameless", "bare", "raises", "declares", "mine"),
    *("twin", "guided", "files", "fabrikam-sdk"),
    *("contoso", *WRONG),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    site = tmp_path_factory.mktemp("site")
    for name, files in PACKAGES.items():
        group, requires = "isorun.execution_providers", REQUIRES.get(name, ())
        sites.install(site, name, "1.2", files, NAMED.get(name), group=group, requires=requires)
    return isolation.own_environment(environments.root(), "providers", site)


@pytest.fixture(scope="module")
def worker(environment):
    opened = Worker(environments.get(environment))
    yield opened
    opened.close()


@pytest.mark.long
def test_each_package_with_a_provider_is_a_backend(worker):
    names = {name for name in worker.names() if name.startswith("ort-ep")}
    assert names - {"ort-ep:openvino"} <= {"ort-ep", *(f"ort-ep:{member}" for member in MEMBERS)}
    for member in MEMBERS - set(WRONG):
        assert worker.get(f"ort-ep:{member}").name == f"ort-ep:{member}"


def test_an_unknown_name_lists_the_known_ones(worker):
    with pytest.raises(BackendNotFound, match=r"did you mean 'ort-ep:broken'") as caught:
        worker.get("ort-ep:brocken")
    assert "ort-ep:single" in str(caught.value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("member", "package", "cause"),
    [
        ("broken", "onnxruntime_ep_broken", "libprovider.so"),
        ("single", "onnxruntime_ep_single", "libprovider.so"),
        ("elsewhere", "contoso_elsewhere", "libprovider.so"),
        ("mine", "my_provider", "libprovider.so"),
        ("contoso", "onnxruntime_ep_contoso", "libcontoso_ep.so"),
        ("nameless", "onnxruntime_ep_nameless", "libprovider.so"),
        ("bare", "onnxruntime_ep_bare", "neither get_library_path"),
        ("guided", "onnxruntime_guided", "libprovider.so"),
        ("files", "onnxruntime_files", "libonnxruntime_files.so"),
        ("fabrikam-sdk", "fabrikam_sdk", "libfabrikam.so"),
        ("raises", "onnxruntime_ep_raises", "the driver is missing"),
    ],
)
def test_a_provider_that_does_not_load_reports_why(worker, environment, bert, member, package, cause):
    availability = worker.get(f"ort-ep:{member}").availability()
    assert not availability.ok
    assert f"{package} 1.2" in availability.reason
    assert cause in availability.reason
    with pytest.raises(BackendUnavailable, match=f"{package} 1.2"):
        isorun.Session(bert, f"ort-ep:{member}", environment=environment)


def test_a_package_declares_capabilities(worker):
    declared = worker.get("ort-ep:declares").capabilities
    assert (declared.precisions, declared.devices, declared.dynamic_shapes) == (("fp16",), ("npu",), True)
    assert declared.static_shapes is None
    assert declared.data_dependent_shapes
    assert declared.tolerance("fp16") == "bf16"
    assert declared.options["compiled_contexts"].default is True
    minimum = worker.get("ort-ep:mine").capabilities
    assert minimum.static_shapes is not None
    assert minimum.options["compiled_contexts"].default is False
    assert worker.get("ort-ep:contoso").capabilities.precisions == ("fp32", "fp16")


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ("misspells", "unknown key 'precision'; did you mean 'precisions'"),
        ("invents", "unknown value 'fp12'"),
        ("damaged", "not TOML"),
        ("confuses", "'fp16' is not one of its precisions"),
        ("overflows", "cpu_nodes must be one of 'none', 'shapes', 'integers', got 'all'"),
        ("hesitates", "exclusive must be true or false, got 'maybe'"),
    ],
)
def test_a_wrong_declaration_costs_its_own_provider(worker, member, problem):
    with pytest.raises(BackendUnavailable, match=problem):
        worker.get(f"ort-ep:{member}")


def test_the_name_alone_requires_a_library(bert, tmp_path):
    with pytest.raises(BackendUnavailable, match="ort-ep:NAME"):
        isorun.Session(bert, "ort-ep")
    with pytest.raises(InvalidOption, match=r"libnone\.so"):
        isorun.Session(bert, "ort-ep", options={"library": tmp_path / "libnone.so"})
    damaged = tmp_path / "libdamaged.so"
    damaged.write_text("")
    with pytest.raises(BackendUnavailable, match=r"libdamaged\.so"):
        isorun.Session(bert, "ort-ep", options={"library": damaged})
    assert registry.get("ort-ep").capabilities.priority is None


def test_the_name_alone_is_listed_as_unavailable(monkeypatch):
    monkeypatch.setattr(type(registry.get("ort-ep")), "members", classmethod(lambda cls: ()))
    (described,) = listing.describe("ort-ep")
    assert (described.status, described.reason) == ("unavailable", "no execution provider is installed")
    assert "options={'library': PATH}" in described.remedy


def test_text_is_rejected_rather_than_aborting(bert):
    pytest.importorskip("onnxruntime_ep_openvino")
    model = of_type("string", np.dtype(object), dynamic=False)
    with pytest.raises(UnsupportedModel, match="text"):
        isorun.Session(model.path(Path(bert).parent), "ort-ep:openvino")
