"""Checks of what a backend changes in the process that it runs in, and of what it leaves in the system."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from isorun_conformance import inherited_state
from isorun_conformance.checks.base import Checks, proves


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which tells what a process has changed")
class ProcessState(Checks):
    """State that all of a process shares. One new process, whose state nothing has changed yet, serves all checks."""

    @proves("process state")
    def test_process_state_is_not_changed(self) -> None:
        changes = self._effects()["changed"]
        known = {what for _, what in changes}
        changes += [("an earlier check", what) for what in inherited_state.lasting() if what not in known]
        named = " and ".join(f"{what} (in {step})" for step, what in changes)
        assert not changes, f"it changed {named}, which belong to the application"

    @proves("process state")
    def test_nothing_is_written_to_stdout(self) -> None:
        """By Python or by C, also when the process exits."""
        printed = self._effects()["printed"]
        assert not printed, f"it printed {printed[:60]!r} to stdout, which belongs to the application: use logging"

    @proves("process state")
    def test_runs_log_nothing(self) -> None:
        logged = self._effects()["logged"]
        assert not logged, (
            f"each run writes to stderr: {logged[:60]!r}. Report what is not worth an error once, at most"
        )

    @proves("process state")
    def test_nothing_is_sent(self) -> None:
        """Seen in Python only. To a server of the backend's own, in a child process, it may be."""
        addresses = self._effects()["connected"]
        assert not addresses, f"it connected to {', '.join(addresses)}: an application decides who hears of its models"

    @proves("process state")
    def test_nothing_is_left_behind(self) -> None:
        effects = self._effects()
        left, children = effects["left"], effects["children"]
        assert not left, (
            f"it left {', '.join(left)} in the working directory, the user's folder, that of temporary files, or "
            "shared memory"
        )
        assert not children, f"{children} child processes were left after close()"

    @proves("process state")
    def test_temporary_files_have_names_of_their_own(self) -> None:
        """Another process may write them at the same time. As far as they are opened in Python."""
        if names := self._effects()["written"]:
            names = sorted({*names} & {*self.under_test.use_in_a_process()["written"]})  # else a number in the name
        assert not names, (
            f"each process writes {', '.join(names)} in the folder of temporary files: use tempfile, for a new name"
        )

    def _effects(self) -> dict[str, Any]:
        self.under_test.require_available()
        return self.under_test.effects
