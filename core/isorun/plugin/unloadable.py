"""Why a plugin's module cannot be imported, and what to do about it."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from importlib import metadata

from isorun.errors import in_words, nearest
from isorun.plugin import contract

_NEW_ARGUMENT = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_NO_NAME = re.compile(r"cannot import name '(\w+)' from 'isorun\.plugin'")


def why(error: BaseException, target: str, distribution: str, owner: str) -> tuple[str, str]:
    """The reason and the remedy.

    Args:
        target: the class, as the entry point has it.
        distribution, owner: what installed it, and with its version.
    """
    report = f"Report it to the authors of {owner}."
    what = in_words(error)
    missing = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "isorun"
    unknown = _NEW_ARGUMENT.search(what) if isinstance(error, TypeError) else None
    if missing or (unknown and unknown[1] in _public()):
        near = _misspelt(error, unknown)
        correct = f"Correct the name to {near!r}, or upgrade" if near else "Upgrade"
        return (
            f"{owner} was not written for isorun {metadata.version('isorun')} and version {contract.CONTRACT} of "
            f"the plugin contract ({what})",
            f"{correct} both: pip install --upgrade isorun {distribution}",
        )
    module, colon, name = target.partition(":")
    if not colon:
        return f"its entry point must be 'module:Class', got {target!r}", report
    if isinstance(error, ModuleNotFoundError) and error.name:
        if module == error.name or module.startswith(f"{error.name}."):
            return f"its module {module!r} does not exist", f"Reinstall {owner}, or report it to its authors."
        reason = f"it needs the module {error.name!r}, which is not installed"
        return reason, f"Install the package that has it, or report to the authors of {owner} that it is missing."
    if isinstance(error, AttributeError) and module in sys.modules and not hasattr(sys.modules[module], name):
        return f"its entry point names {name!r}, which the module {module!r} does not have", report
    return f"its module cannot be imported ({what})", report


def _misspelt(error: BaseException, argument: re.Match[str] | None) -> str | None:
    """What the author of a plugin may have meant by a name that isorun.plugin does not have."""
    if argument and argument[1] in _public():
        known = inspect.signature(getattr(importlib.import_module("isorun.plugin"), argument[1])).parameters
        return nearest(argument[2], known)
    name = _NO_NAME.search(in_words(error)) if isinstance(error, ImportError) else None
    return nearest(name[1], _public()) if name else None


def _public() -> Sequence[str]:
    return importlib.import_module("isorun.plugin").__all__  # type: ignore[no-any-return]
