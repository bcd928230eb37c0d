"""isorun for code that is written for ONNX Runtime.

Replace the import::

    import isorun.compat as ort  # instead of: import onnxruntime as ort

or replace the classes in ``onnxruntime`` for the whole process, libraries included::

    import isorun.compat

    isorun.compat.install()

:class:`InferenceSession` has the arguments, methods and results of ``onnxruntime.InferenceSession``. Every name that is
not defined here is ONNX Runtime's own.
"""

from __future__ import annotations

from typing import Any

from isorun.errors import IsorunError
from isorun.system.packages import how_to_install
from isorun.system.telemetry import import_runtime

try:
    onnxruntime = import_runtime("onnxruntime")
    from isorun.compat.binding import IOBinding
    from isorun.compat.installation import Installation, install
    from isorun.compat.options import RunOptions, SessionOptions
    from isorun.compat.session import InferenceSession, NodeArg
except ModuleNotFoundError as error:
    if error.name != "onnxruntime":
        raise
    raise IsorunError(f"isorun.compat needs the package 'onnxruntime'. {how_to_install('onnxruntime')}") from error

__all__ = ["InferenceSession", "IOBinding", "Installation", "NodeArg", "RunOptions", "SessionOptions", "install"]


def __getattr__(name: str) -> Any:
    """Any other name of ``onnxruntime``."""
    return getattr(onnxruntime, name)
