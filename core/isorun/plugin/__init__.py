"""The contract between isorun and a backend: everything that a plugin author needs.

A backend is a subclass of :class:`Backend`, registered under the entry point group ``isorun.backends``. It compiles a
:class:`LoweredModel` into an :class:`Executable`.
"""

from isorun.plugin.backend import Backend, Binding, Executable, check_fits, runtime_errors
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray
from isorun.types import (
    Availability,
    Capabilities,
    CompileConfig,
    Feeds,
    Finding,
    LoweredModel,
    ModelInfo,
    RuntimeReport,
    TensorSpec,
)
from isorun.types.options import Option

__all__ = [
    "Availability",
    "Backend",
    "Binding",
    "Capabilities",
    "CompileConfig",
    "DeviceArray",
    "Executable",
    "Feeds",
    "Finding",
    "LoweredModel",
    "ModelInfo",
    "ON_DEVICE",
    "Option",
    "RuntimeReport",
    "TensorSpec",
    "check_fits",
    "runtime_errors",
]
