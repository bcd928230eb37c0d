"""Plain data that sessions, backends and tools exchange."""

from isorun.types.capabilities import DIALECTS, PRECISIONS, REPORTS, Capabilities, CompileConfig, Dialect, StaticShapes
from isorun.types.devices import DEVICES
from isorun.types.model_info import (
    INDEX_ERRORS,
    INDEX_NOTE,
    Feeds,
    LoweredModel,
    ModelInfo,
    ModelMetadata,
    TensorSpec,
    attended,
)
from isorun.types.options import Option
from isorun.types.provenance import Availability, Finding, Provenance, RuntimeReport, threads_in_words

__all__ = [
    "Availability",
    "Capabilities",
    "CompileConfig",
    "DEVICES",
    "DIALECTS",
    "Dialect",
    "Feeds",
    "Finding",
    "INDEX_ERRORS",
    "INDEX_NOTE",
    "LoweredModel",
    "ModelInfo",
    "ModelMetadata",
    "Option",
    "PRECISIONS",
    "Provenance",
    "REPORTS",
    "RuntimeReport",
    "StaticShapes",
    "TensorSpec",
    "attended",
    "threads_in_words",
]
