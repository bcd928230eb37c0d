"""Bindings of arrays in host memory."""

from typing import Any

import isorun
from isorun.types import Feeds


def bound(session: isorun.Session, feeds: Feeds, *outputs: str) -> Any:
    """A binding of these inputs, and of outputs in memory of their own."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name in outputs:
        binding.bind_output(name)
    return binding
