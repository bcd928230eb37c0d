"""The protocols of TensorRT's API against the official bindings (on demand), and the check that compares them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

import check_tensorrt_api as check


def method(line):
    return SimpleNamespace(__doc__=f"{line}\n\n    More.")


def bindings():
    """Fake bindings with every name that is used."""
    made = SimpleNamespace(__version__="0", ILogger=SimpleNamespace(Severity=SimpleNamespace()))
    for member in ("INTERNAL_ERROR", "ERROR", "WARNING"):
        setattr(made.ILogger.Severity, member, 1)
    for name, members in check.ENUMERATIONS.items():
        setattr(made, name, SimpleNamespace(__members__=dict.fromkeys(members)))
    for name, protocol in check.CLASSES.items():
        setattr(made, name, SimpleNamespace(**{member: method("") for member in check._members(protocol)}))
    for name, arguments in check._CONSTRUCTORS.items():
        typed = ", ".join(f"{argument}: object" for argument in ("self", *arguments))
        vars(getattr(made, name))["__init__"] = method(f"__init__({typed}) -> None")
    return made


def test_complete_bindings_have_no_differences():
    assert check.differences(bindings()) == []


def test_reports_a_missing_name():
    made = bindings()
    del made.IExecutionContext.execute_async_v3
    del made.BuilderFlag.__members__["TF32"]
    assert check.differences(made) == [
        "BuilderFlag.TF32 is missing",
        "IExecutionContext.execute_async_v3 is missing",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "set_tensor_address(self: trt.IExecutionContext, name: str, address: typing.SupportsInt) -> bool",
        "set_tensor_address(self: trt.IExecutionContext, memory: typing.SupportsInt, name: str) -> bool",
    ],
)
def test_reports_other_arguments(line):
    made = bindings()
    made.IExecutionContext.set_tensor_address = method(line)
    (found,) = check.differences(made)
    assert "set_tensor_address takes" in found
    assert "not ['name', 'memory']" in found


def test_reads_the_first_overload():
    made = bindings()
    made.IExecutionContext.set_input_shape = SimpleNamespace(
        __doc__="set_input_shape(*args, **kwargs)\nOverloaded function.\n\n"
        "1. set_input_shape(self: trt.IExecutionContext, name: str, sizes: tuple) -> bool\n"
    )
    (found,) = check.differences(made)
    assert found == "IExecutionContext.set_input_shape takes ['name', 'sizes'], not ['name', 'shape']"


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["tensorrt-cu13-bindings>=10.14,<11", "tensorrt-cu13-bindings>=11,<12"])
def test_the_official_bindings_have_every_name_and_argument(tmp_path, wanted):
    pip = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "-q", "--no-deps", "--target", str(tmp_path / "bindings"), wanted]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    command = [sys.executable, check.__file__, str(tmp_path / "bindings")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 differences" in checked.stdout
