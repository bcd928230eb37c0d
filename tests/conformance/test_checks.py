"""Every check of the conformance suite fails a backend with one flaw that the check exists for.

That the checks pass a backend without a flaw is tested in test_conformance_runner.py and tests/backends.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flaws
from flaws import lifetime
from flaws.cases import CASES, ON_DEVICE, Case
from isorun import IsorunError
from isorun_conformance import fakes, runner
from isorun_conformance.suite import Conformance


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The fakes and the flawed are found by name, here and in processes that the checks start."""
    monkeypatch.chdir(tmp_path)  # where some of them leave files
    helpers = str(Path(flaws.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [helpers, os.environ.get("PYTHONPATH")])))
    with fakes.installed({**fakes.NAMES, **flaws.names()}):
        yield
    lifetime.release()


FAILURES = (AssertionError, IsorunError, TypeError, AttributeError, pytest.fail.Exception)


def failure(backend: str, case: Case) -> BaseException | None:
    """What a check raises for a backend; ``None`` if it passes."""
    suite: Any = type("Trial", (Conformance,), {}, backend=flaws.named(backend), options=case.options)
    try:
        getattr(suite(), f"test_{case.check}")(**case.arguments)
    except FAILURES as error:
        return error
    finally:
        suite.teardown_class()
    return None


def first_of_each_check() -> Iterator[Any]:
    """The cases; but for the first of each check, they are long."""
    checks = set()
    for case in CASES:
        marks = [pytest.mark.long] if case.check in checks else []
        checks.add(case.check)
        yield pytest.param(case, marks=marks, id=f"{case.backend}-{case.check}")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", [*first_of_each_check()])
def test_check_fails_a_backend_with_the_flaw(case: Case) -> None:
    found = failure(case.backend, case)
    assert found is not None
    assert re.search(case.message, str(found))


def test_leak_is_found_beside_free_memory() -> None:
    """What earlier work freed below a block that is still used stays with the process, and new blocks fill it."""
    blocks = [np.ones(2**13) for _ in range(4000)]
    del blocks[:-1]
    (case,) = [case for case in CASES if case.backend == "LeaksShapes"]
    assert failure(case.backend, case) is not None


@pytest.mark.parametrize(
    ("backend", "check"),
    [
        pytest.param("HonestWithAPool", "no_more_threads_compute_than_declared", marks=pytest.mark.long),
        pytest.param("HonestWithAPool", "two_threads_compute_on_two_cores", marks=pytest.mark.long),
        ("HonestWithoutPadding", "accuracy_with_every_option"),
        ("HonestOptionOfEncoders", "every_option_is_read"),
        ("HonestWithACopyOfItsOptions", "every_option_is_read"),
        ("HonestWithAServer", "nothing_is_sent"),
        ("HonestWithAnImport", "process_state_is_not_changed"),
    ],
)
def test_check_passes_an_honest_backend(backend: str, check: str) -> None:
    assert failure(backend, Case(backend, check, "")) is None


def test_check_passes_where_no_library_starts_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thread of a process, whose handler of signals is the C library's, is then the check's own."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    case = Case("HonestWithAServer", "process_state_is_not_changed", "")
    assert failure(case.backend, case) is None


@pytest.mark.parametrize("check", ["availability_imports_no_runtime", "unavailable_without_its_package"])
def test_check_skips_a_package_that_isorun_imports(check: str) -> None:
    with pytest.raises(pytest.skip.Exception, match="isorun itself imports numpy"):
        failure("HonestInNumpy", Case("HonestInNumpy", check, ""))


@pytest.mark.parametrize("case", ON_DEVICE[1:], ids=lambda case: case.check)
def test_check_passes_device_arrays_without_a_flaw(case: Case) -> None:
    assert failure("HonestOnDevice", case) is None


def test_every_check_has_a_flaw_that_it_catches() -> None:
    checks = {name.removeprefix("test_") for name in dir(Conformance) if name.startswith("test_")}
    assert checks == {case.check for case in CASES}


@pytest.mark.long
@pytest.mark.parametrize("backend", sorted({flaws.named(case.backend) for case in CASES} & flaws.names().keys()))
def test_whole_suite_fails_a_backend_with_a_flaw(backend: str) -> None:
    report = runner.run(backend)
    assert not report.passed
    assert len(report.causes) < len(report.checks) / 4, [checks[0].message for checks in report.causes]
