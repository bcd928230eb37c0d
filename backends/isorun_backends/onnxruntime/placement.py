"""Holding ONNX Runtime to the provider that was asked for: it gives what that does not take to another, silently."""

from __future__ import annotations

from typing import Any

from isorun.errors import BackendUnavailable, UnsupportedModel
from isorun.types import CompileConfig, LoweredModel
from isorun_backends.onnxruntime.session import OrtExecutable

ALLOW = "allow_cpu_nodes"
MEANING = "true lets ONNX Runtime's CPU provider take the nodes that this one does not; else they are an error"


def check(name: str, provider: str, executable: OrtExecutable, model: LoweredModel, config: CompileConfig) -> None:
    """Refuse a session in which another provider took nodes, unless that was asked for.

    Args:
        name: the backend's.
        provider: the one that is to take every node.
        executable: the session, just opened.
        model: what it loaded.
        config: its option ``allow_cpu_nodes`` says whether some may go elsewhere.

    Raises:
        UnsupportedModel: with the operators that went elsewhere.
        BackendUnavailable: the option is neither true nor false.
    """
    allowed = _allowed(name, config.options)
    placed = executable.operators()
    others: dict[str, int] = {}
    for each, counts in placed.items():
        if each != provider:
            others.update(counts)
    if not others:
        return
    listed = ", ".join(f"{operator} ({count})" for operator, count in others.items())
    if provider not in placed:
        raise UnsupportedModel(f"{name} takes no node of {model.path}: {listed}", others)
    if not allowed:
        raise UnsupportedModel(
            f"{name} leaves nodes of {model.path} to other providers: {listed}. "
            f"options={{'{ALLOW}': True}} lets them run there",
            others,
        )


def _allowed(name: str, options: Any) -> bool:
    allowed = options.get(ALLOW, False)
    if not isinstance(allowed, bool):
        raise BackendUnavailable(name, f"its option {ALLOW!r} is {allowed!r}", "Give true or false.")
    return allowed
