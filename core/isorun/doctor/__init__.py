"""What is wrong here, and what mends it: packages, backends, limits, the cache, environments. Nothing is changed.

Whatever may load a vendor's library runs in a process of its own (:mod:`isorun.doctor.installation`), so that one that
crashes is a finding. What only a backend can know is asked of it: :meth:`isorun.plugin.backend.Backend.diagnose`.
"""

from __future__ import annotations

from isorun.doctor import entries, installation, isolated, limits
from isorun.system.cache import Cache
from isorun.types import Finding


def examine() -> list[Finding]:
    """Everything that is found: of this installation, this process, the cache, every environment."""
    cache = Cache()
    return [*installation.findings(), *limits.findings(cache), *entries.findings(cache), *isolated.findings()]
