"""The contract between isorun and a backend: the one module that a plugin imports of isorun.

A backend is a subclass of :class:`Backend`, registered under the entry point group ``isorun.backends``. It compiles a
:class:`LoweredModel` into an :class:`Executable`. :mod:`isorun.plugin.fused` has tools for backends that read the fused
form themselves, and ``isorun_conformance`` the checks. docs/contract.md says what is public and how it changes.
"""

from isorun.errors import (
    BackendFailed,
    BackendUnavailable,
    InvalidFeeds,
    InvalidModel,
    InvalidOption,
    IsorunError,
    UnsupportedModel,
    did_you_mean,
)
from isorun.plugin.backend import (
    Backend,
    Binding,
    Executable,
    SupportsBinding,
    SupportsDeviceArrays,
    SupportsDeviceTimes,
    SupportsSize,
    check_fits,
    runtime_errors,
)
from isorun.plugin.contract import CONTRACT, SUPPORTED
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray
from isorun.system.cache import Cache, Entry, sha256, write_atomically
from isorun.system.hardware import cpu_flags, cpu_name, has_vnni
from isorun.system.packages import package_owners, package_version, packages_distributions
from isorun.system.telemetry import import_runtime
from isorun.system.threads import usable_cores
from isorun.types import (
    Availability,
    Capabilities,
    CompileConfig,
    Dialect,
    Feeds,
    Finding,
    LoweredModel,
    ModelInfo,
    RuntimeReport,
    StaticShapes,
    TensorSpec,
)
from isorun.types.faults import CONSTANTS, EMPTY, Fault, KnownFailure, KnownFaults
from isorun.types.options import Option

__all__ = [
    # the contract's version
    "CONTRACT",
    "SUPPORTED",
    # what a backend implements
    "Backend",
    "Binding",
    "Executable",
    "SupportsBinding",
    "SupportsDeviceArrays",
    "SupportsDeviceTimes",
    "SupportsSize",
    # what it declares and returns
    "Availability",
    "Capabilities",
    "Dialect",
    "Finding",
    "Option",
    "RuntimeReport",
    "StaticShapes",
    # the known faults of its runtime
    "CONSTANTS",
    "EMPTY",
    "Fault",
    "KnownFailure",
    "KnownFaults",
    # what it gets
    "CompileConfig",
    "DeviceArray",
    "Feeds",
    "LoweredModel",
    "ModelInfo",
    "ON_DEVICE",
    "TensorSpec",
    # the errors that it raises
    "BackendFailed",
    "BackendUnavailable",
    "InvalidFeeds",
    "InvalidModel",
    "InvalidOption",
    "IsorunError",
    "UnsupportedModel",
    "did_you_mean",
    "runtime_errors",
    # tools
    "Cache",
    "Entry",
    "check_fits",
    "cpu_flags",
    "cpu_name",
    "import_runtime",
    "has_vnni",
    "package_owners",
    "package_version",
    "packages_distributions",
    "sha256",
    "usable_cores",
    "write_atomically",
]
