"""Finds problems of packages, backends, the cache and environments, each with a command that fixes it.

Nothing is changed. Whatever may load a vendor's library runs in a child process
(:mod:`isorun.cli.doctor.installation`), so that a crash is a finding. Backends report what only they can know:
:meth:`isorun.plugin.backend.Backend.diagnose`.

The child process also runs in environments that have no command line: only ``command.py`` imports typer.
"""

from __future__ import annotations

from isorun.cli.doctor import entries, installation, isolated
from isorun.system.cache import Cache
from isorun.types import Finding


def examine(*, operators: bool = False) -> list[Finding]:
    """All findings: of this installation, the cache and every environment; if ``operators``, of the known faults
    of the installed runtimes too, which takes minutes."""
    findings = [*installation.findings(), *entries.findings(Cache()), *isolated.findings()]
    return [*findings, *(installation.operator_findings() if operators else ())]
