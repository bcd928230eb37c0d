"""The machines that a spec compares: how a cluster finds them, and what they cost."""

from __future__ import annotations

from pydantic import Field

from isorun_matrix.spec.field_types import Strict


class Machine(Strict):
    """A machine. Without ``labels`` and ``resources``, any node of a cluster will do."""

    labels: dict[str, str] = Field(default_factory=dict, description="labels that its Ray node must have")
    resources: dict[str, float] = Field(default_factory=dict, description="resources that its Ray node must have")
    cost: float | None = Field(default=None, gt=0, description="the price of an hour, in any currency")
    watts: float | None = Field(default=None, gt=0, description="the power that it draws under load")
