"""Declarations of checks that fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isorun.errors import IsorunError
from isorun.types.faults import KnownFailure
from isorun_conformance import known_failures
from isorun_conformance.suite import Conformance

FIELDS = {"reason": "in 32 bits", "kind": "never", "exception": "WrongOutputs", "reference": "https://example.org/1"}


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_file_of_tables_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"known.{suffix}"
    lines = ["['test_x[int64]']", *(f"{key} = '{value}'" for key, value in FIELDS.items())]
    as_json = ", ".join(f'"{key}": "{value}"' for key, value in FIELDS.items())
    path.write_text("\n".join(lines) if suffix == "toml" else f'{{"test_x[int64]": {{{as_json}}}}}')
    assert known_failures.read(path) == {"test_x[int64]": KnownFailure(**FIELDS)}


@pytest.mark.parametrize(("suffix", "text"), [("toml", "[a]\n[a]"), ("json", '{"a": {}, "a": {}}')])
def test_a_check_twice_is_rejected(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"known.{suffix}"
    path.write_text(text)
    with pytest.raises(IsorunError, match=r"duplicate key 'a'|Cannot declare \('a',\) twice"):
        known_failures.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "later"}, "`kind` must be one of not_implemented, not_yet, never, got 'later'"),
        ({"reference": "none"}, "'none: ' and why"),
        ({"reference": "none: "}, "'none: ' and why"),
        ({"exception": "isorun.UnsupportedModel"}, "without its module"),
        ({"exception": "Exception"}, "narrower"),
        ({"reason": " "}, "`reason` must be a non-empty string"),
        ({"reason": 3}, "`reason` must be a non-empty string"),
        ({"knd": "never"}, "did you mean 'kind'"),
        ({"reason": None}, "reason"),
    ],
)
def test_invalid_declaration_is_rejected(change: dict[str, object], message: str) -> None:
    with pytest.raises(IsorunError, match="file: the known failure 'test_x'") as raised:
        known_failures.parse({"test_x": {**FIELDS, **change}}, "file: ")
    assert message in str(raised.value)


def test_missing_field_and_plain_reason_are_rejected() -> None:
    with pytest.raises(IsorunError, match="lacks 'kind'"):
        known_failures.parse({"test_x": {key: value for key, value in FIELDS.items() if key != "kind"}})
    with pytest.raises(IsorunError, match="must be a table of reason, kind, exception, reference, got 'in 32 bits'"):
        known_failures.parse({"test_x": "in 32 bits"})


def test_unknown_check_is_rejected_where_the_suite_is_subclassed() -> None:
    with pytest.raises(IsorunError, match="did you mean 'test_nan_stays_in_its_row'"):

        class Typo(Conformance, known_failures={"test_nan_stays_in_row": FIELDS}):
            pass


TESTS = """
import pytest
from isorun_conformance.checks.base import Checks
FIELDS = {"reason": "no", "kind": "not_yet", "exception": "LookupError", "reference": "https://example.org"}
class Group(Checks):
    def test_narrower(self): {}["x"]
    def test_another(self): raise ValueError("no")
    def test_passes(self): pass
    def test_crashes(self):
        import os
        os.abort()
    @pytest.mark.parametrize("x", [1, 2])
    def test_of_one_parameter(self, x): assert x == 1
NAMES = ("test_narrower", "test_another", "test_passes")
class TestIt(Group, backend="reference", known_failures={
    **dict.fromkeys(NAMES, FIELDS),
    "test_crashes": {**FIELDS, "exception": "crash"},
    "test_of_one_parameter[2]": {**FIELDS, "exception": "AssertionError"},
}):
    pass
"""


def test_suite_in_pytest_expects_the_declared_exception(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-rA", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    summary = [line.split("::")[-1].split()[0] for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    assert summary == ["test_another", "test_passes"], ran.stdout
    assert "2 failed, 1 passed, 3 xfailed" in ran.stdout


def test_class_names_omit_what_every_error_has() -> None:
    assert known_failures.class_names(KeyError("x")) == ("KeyError", "LookupError")
