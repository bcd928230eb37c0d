"""Replacing ONNX Runtime's classes for a process."""

from __future__ import annotations

import inspect
import logging
import sys
from types import ModuleType
from typing import Any, Self

from onnxruntime.capi import _pybind_state, onnxruntime_inference_collection

from isorun.compat.binding import IOBinding
from isorun.compat.options import RunOptions, SessionOptions
from isorun.compat.session import InferenceSession
from isorun.errors import IsorunError
from isorun.session.session import Session

_logger = logging.getLogger("isorun")

# These need the original classes.
_KEEP = frozenset(
    ("isorun", "isorun_backends", "isorun_conformance", "isorun_deepsparse", "isorun_matrix", "onnxruntime.capi")
)


class Installation:
    """The replaced classes, until :meth:`uninstall` or the end of the ``with`` block."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._replacements = {
            onnxruntime_inference_collection.InferenceSession: _own(
                InferenceSession, settings={**InferenceSession.settings, **settings}
            ),
            onnxruntime_inference_collection.IOBinding: _own(IOBinding),
            _pybind_state.SessionOptions: _own(SessionOptions),
            _pybind_state.RunOptions: _own(RunOptions),
        }

    def install(self) -> list[str]:
        """Replace the classes; returns the names of the changed modules."""
        return _replace(self._replacements)

    def uninstall(self) -> None:
        """Put ONNX Runtime's classes back. Open sessions stay what they are; a second call does nothing."""
        global _active
        if _active is self:
            _active = None
            _replace({ours: original for original, ours in self._replacements.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()


_active: Installation | None = None


def install(**settings: Any) -> Installation:
    """Make code that uses ONNX Runtime use isorun, in this process.

    ``onnxruntime.InferenceSession``, ``IOBinding``, ``SessionOptions`` and ``RunOptions`` are replaced, also where a
    loaded module has imported them by name; isorun's backends keep the originals. Sessions that are open already, and
    classes that a module keeps elsewhere than in its globals, are not replaced. Spawned child processes have to call it
    too.

    Args:
        settings: arguments of :class:`isorun.Session` for all sessions, such as ``padding="auto"`` or
            ``precision="auto"``. By default results equal those of ONNX Runtime (``padding="keep"``).

    Returns:
        What undoes it: ``uninstall()``, or a ``with`` block.

    Raises:
        IsorunError: it is installed already.
        TypeError: :class:`isorun.Session` has no such argument.
    """
    global _active
    if _active is not None:
        raise IsorunError("isorun.compat is already installed. Call uninstall() on the object that install() returned")
    if "model" in settings:
        raise TypeError("each session has a model of its own: install() accepts the other arguments of isorun.Session")
    inspect.signature(Session).bind_partial(**settings)
    _active = Installation(settings)
    _logger.info("isorun.compat: installed in %s", ", ".join(_active.install()))
    return _active


def _own(cls: type, **attributes: Any) -> type:
    """A class of the installation, so that undoing it leaves other uses of :mod:`isorun.compat` alone."""
    own = {"__module__": cls.__module__, "__doc__": cls.__doc__, "__slots__": ()}
    return type(cls.__name__, (cls,), {**own, **attributes})


def _replace(replacements: dict[Any, Any]) -> list[str]:
    """Replace classes in the globals of every loaded module; returns the modules' names."""
    by_id = {id(original): ours for original, ours in replacements.items()}
    changed = []
    for name, module in list(sys.modules.items()):
        parts = name.split(".")
        if not isinstance(module, ModuleType) or not _KEEP.isdisjoint((parts[0], ".".join(parts[:2]))):
            continue
        for key, value in list(vars(module).items()):
            if ours := by_id.get(id(value)):
                setattr(module, key, ours)
                changed.append(name)
    return sorted(set(changed))
