"""What is known of a plugin execution provider before it is loaded: the keys of its declaration.

The file is :data:`isorun_backends.onnxruntime.plugin_packages.DECLARATION`, in TOML: fields of ``Capabilities``, and
the fields of :class:`Declaration` but the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from isorun.plugin import Capabilities, did_you_mean
from isorun_backends.onnxruntime import plugin_packages
from isorun_backends.onnxruntime.placement import CpuNodes

_CAPABILITIES = (
    *("dialects", "precisions", "typed", "refused", "devices", "dynamic_shapes", "data_dependent_shapes"),
    *("thread_safe", "usable_after_failure", "checks_indices", "runs_on_caller", "tolerances", "priority", "faults"),
    "deterministic",
    "repeatable",
)
_TYPES: Mapping[str, tuple[type, str]] = {
    "provider_options": (dict, "a table"),
    "precision_options": (dict, "a table of tables"),
    "exclusive": (bool, "true or false"),
    "first_device": (bool, "true or false"),
    "no_device": (str, "a text"),
    "compiled_contexts": (bool, "true or false"),
    "loses_errors": (bool, "true or false"),
    "cuts_integers": (bool, "true or false"),
}


@dataclass(frozen=True)
class Declaration:
    """What a provider's package declares, or isorun for it. The defaults are the minimum.

    Attributes:
        capabilities: of the backend.
        provider_options: options of the provider that every session gets, unless the caller sets them.
        precision_options: more of them by precision.
        cpu_nodes: which nodes may run on the CPU provider (:data:`isorun_backends.onnxruntime.placement.CpuNodes`).
        exclusive: whether one session at a time, of all in the process, may be opened, run or closed.
        first_device: whether a session gets the first device alone, rather than all of its kind.
        no_device: what to do on a machine where the provider offers no device, or cannot use it.
        compiled_contexts: whether what it compiles is kept, unless the caller says otherwise.
        cuts_integers: whether it computes integers in 32 bits, so that greater feeds are rejected.
        loses_errors: whether it may return results where a kernel fails, so that this is tried before it is used.
    """

    capabilities: Capabilities
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    precision_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cpu_nodes: CpuNodes = "none"
    exclusive: bool = False
    first_device: bool = False
    no_device: str = ""
    compiled_contexts: bool = False
    cuts_integers: bool = False
    loses_errors: bool = False


def read(name: str, module: str, minimum: Capabilities) -> Declaration:
    """The declaration of an installed provider.

    Args:
        minimum: the capabilities of a provider that declares none.

    Raises:
        BackendUnavailable: the declaration is invalid.
    """
    declared = plugin_packages.declared(name, module)
    own = [item.name for item in fields(Declaration) if item.name != "capabilities"]
    for key, value in declared.items():
        if key not in (*_CAPABILITIES, *own):
            hint = did_you_mean(key, [*_CAPABILITIES, *own])
            raise plugin_packages.invalid(name, module, f"unknown key {key!r}{hint}")
        if key in _TYPES and not isinstance(value, _TYPES[key][0]):
            raise plugin_packages.invalid(name, module, f"{key} must be {_TYPES[key][1]}, got {value!r}")
    if declared.get("dynamic_shapes"):
        minimum = replace(minimum, static_shapes=None, data_dependent_shapes=True)
    values: dict[str, Any] = {}
    for key, value in declared.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    offers = replace(minimum, **{key: value for key, value in values.items() if key in _CAPABILITIES})
    declaration = Declaration(offers, **{key: value for key, value in values.items() if key in own})
    if declaration.cpu_nodes not in get_args(CpuNodes):
        known = ", ".join(map(repr, get_args(CpuNodes)))
        problem = f"cpu_nodes must be one of {known}, got {declaration.cpu_nodes!r}"
        raise plugin_packages.invalid(name, module, problem)
    tables = declaration.precision_options
    if not all(isinstance(table, dict) for table in tables.values()):
        raise plugin_packages.invalid(name, module, "precision_options must be a table of tables")
    if unknown := [precision for precision in tables if precision not in offers.precisions]:
        problem = f"precision_options: {unknown[0]!r} is not one of its precisions"
        raise plugin_packages.invalid(name, module, problem)
    return declaration
