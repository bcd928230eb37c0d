"""A plugin execution provider that the C compiler builds passes the conformance checks; its flawed builds fail."""

import shutil
import subprocess
from pathlib import Path

import pytest

import isolation
import isorun
import sites
import tiny
from isorun.errors import UnsupportedModel
from isorun.isolation import environments
from isorun_conformance import runner

SOURCE = Path(__file__).parents[2] / "helpers" / "plugin_provider.c"
PROVIDER, CPU = "TestExecutionProvider", "CPUExecutionProvider"
OPERATORS = {"Add", "Sub", "Mul", "Div", "Erf", "Sqrt", "Tanh", "MatMul"}
OPTIONS = {"allow_cpu_nodes": True}
MODULE = f"""
from pathlib import Path

def get_library_path():
    return str(Path(__file__).with_name("libprovider.so"))

def get_ep_names():
    return ["{PROVIDER}"]
"""
DECLARATION = """
precisions = ["fp32"]
devices = ["cpu"]
dynamic_shapes = true
thread_safe = true
"""
DECLARED = ["true device", "true placement", "dynamic shapes", "concurrent runs", "wrapped errors", "forks"]
"""Capabilities whose checks depend on what the package declares."""
FLAWS = {1: ["results", "precision fp32"], 2: ["leaks"], 3: ["model few-nodes"]}
"""The number of a flaw in the source, and the capabilities that it breaks."""

pytestmark = [pytest.mark.long, pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")]


def build(folder: Path, flaw: int = 0) -> Path:
    library = folder / "libprovider.so"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-DWRONG={flaw}"]
    subprocess.run(["cc", *flags, "-o", library, SOURCE, "-lm"], check=True)
    return library


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One with the provider as a package, which declares what it can do."""
    site = tmp_path_factory.mktemp("site")
    package = "onnxruntime_ep_plain"
    files = {
        f"{package}/__init__.py": MODULE,
        f"{package}/isorun.toml": DECLARATION,
        f"{package}/libprovider.so": build(tmp_path_factory.mktemp("build")).read_bytes(),
    }
    sites.install(site, "onnxruntime-ep-plain", "1.2", files)
    return isolation.own_environment(environments.root(), "plain-provider", site)


def test_library_passes_every_check(tmp_path):
    report = runner.run("ort-ep", options={**OPTIONS, "library": str(build(tmp_path))})
    assert report.passed, report.causes
    proved = {capability.name for capability in report.capabilities if capability.status == "proved"}
    assert {"true precision", "true device", "true placement", "every mask", "fixed shapes", "leaks"} <= proved


def test_package_passes_the_checks_of_what_it_declares(environment):
    report = runner.run("ort-ep:plain", environment=environment, options=OPTIONS, only=DECLARED)
    assert report.passed, report.causes
    assert {capability.name for capability in report.capabilities if capability.status == "proved"} == set(DECLARED)


@pytest.mark.parametrize("flaw", FLAWS)
def test_checks_find_a_flaw(tmp_path, flaw):
    options = {**OPTIONS, "library": str(build(tmp_path, flaw))}
    report = runner.run("ort-ep", options=options, only=FLAWS[flaw])
    failed = {check.capability for check in report.checks if check.outcome == "failed"}
    assert failed == set(FLAWS[flaw]), report.causes


def test_provenance_reports_which_provider_ran_which_nodes(bert, environment):
    with isorun.Session(bert, "ort-ep:plain", environment=environment, options=OPTIONS) as session:
        session.run(None, tiny.feeds())
        operators, versions = session.provenance.operators, session.provenance.versions
    assert set(operators) == {PROVIDER, CPU}
    assert set(operators[PROVIDER]) <= OPERATORS
    assert operators[PROVIDER]["MatMul"] > 10
    assert not OPERATORS & {"MatMul", "Tanh", "Erf"} & set(operators[CPU])
    assert versions["onnxruntime-ep-plain"] == "1.2"
    assert versions[PROVIDER] == "1.2.3"


def test_rejects_a_model_that_runs_partly_on_the_cpu(bert, environment):
    with pytest.raises(UnsupportedModel, match=rf"{PROVIDER} does not support these nodes.*Softmax"):
        isorun.Session(bert, "ort-ep:plain", environment=environment)
