"""``isorun doctor --operators``: the tables of known faults, tested on the installed versions of the runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from isorun.cli.doctor import packages
from isorun.errors import BackendUnavailable
from isorun.plugin import faults, listing, registry
from isorun.plugin.backend import Backend
from isorun.types import Finding


def declaring() -> Iterator[str]:
    """The backends that have a table and can be used here. Other people's plugins are not imported."""
    for name in dict.fromkeys(entry.name for entry in registry.entries() if not entry.refusal):
        try:
            backend = listing.load(name)
        except BackendUnavailable:  # reported without this option too
            continue
        if backend.capabilities.faults and registry.availability(backend).ok:
            yield name


def findings(name: str, at: Callable[[str], object]) -> Iterator[Finding]:
    """What has changed since a backend's table was written: rows, and the node tests of the ONNX project. Calls ``at``
    with each step before it begins."""
    from isorun.cli.doctor import operator_tests

    backend = registry.get(name)
    table, command = faults.of(backend), packages.pip("install", "--upgrade", registry.entry(name).distribution)

    def finding(subject: str, severity: Literal["error", "warning"], what: str, why: str) -> Finding:
        return Finding(subject, severity, what, why, command)

    for row in table.rows:
        subject = f"the known fault of {name}: {row.operator}, {row.condition}"
        at(f"testing {row.operator}, {row.condition}")
        tested = operator_tests.try_row(name, row)
        if tested.raw == "right":
            why = "models with it are changed or refused without need"
            yield finding(subject, "warning", f"it is no longer needed with {_version(backend)}", why)
        right = {"rewritten": "right", "checked": "error", "refused": "refused"}.get(row.action, tested.session)
        if tested.session != right:
            what = f"the model is not {row.action} as declared, but {tested.session}"
            yield finding(subject, "error", what, f"the table does not fit {_version(backend)}")
    wrong = set(operator_tests.wrong_node_tests(name, at=lambda test: at(f"running ONNX's {test}")))
    for test in sorted(wrong - table.node_tests.keys()):
        what = f"{_version(backend)} computes ONNX's {test} wrongly"
        yield finding(f"the backend {name}", "error", what, "its table of known faults lacks the operator")
    for test in sorted(table.node_tests.keys() - wrong):
        what = f"{_version(backend)} no longer computes ONNX's {test} wrongly"
        yield finding(f"the backend {name}", "warning", what, "its table of known faults lists the test")


def _version(backend: Backend) -> str:
    return f"{backend.capabilities.package} {registry.version(backend)}"
