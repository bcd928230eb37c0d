"""Load scenarios: how many requests a second a cell answers, and how fast, when requests do not wait for each other."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from isorun_matrix.spec.field_types import Count, Name, OrString, Seconds

_NEEDS = {"closed": "clients", "server": "p99_ms"}


class Load(OrString):
    """A load scenario. A name alone is one without settings: ``single-stream`` or ``offline``."""

    scenario: Literal["single-stream", "closed", "server", "offline"] = Field(
        description="how requests arrive: one after another, from waiting clients, as a Poisson process, or all at once"
    )
    name: Name = Field(default="", description="its name in reports; by default from its settings")
    clients: Count | None = Field(default=None, description="closed: how many wait for an answer before they go on")
    p99_ms: float | None = Field(default=None, gt=0, description="server: the bound of the 99th percentile")
    through: Literal["session", "scheduler"] = Field(
        default="session", description="session: run() on worker threads; scheduler: arun(), after warmup()"
    )
    workers: Count = Field(default=1, description="session: the threads that call run()")
    seconds: Seconds = Field(
        default=10.0, description="the minimum duration of one of the 24 measurements of a search, or of all others"
    )
    time_limit: Seconds = Field(default=1800.0, description="seconds after which the process is stopped")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for scenario, key in _NEEDS.items():
            is_set = getattr(self, key) is not None
            if is_set != (self.scenario == scenario):
                raise ValueError(f"scenario {self.scenario} {'does not support' if is_set else 'requires'} {key}")
        if not self.name:
            detail = "" if self.clients is None else f"-{self.clients}"
            detail += "" if self.p99_ms is None else f"-{self.p99_ms:g}ms"
            detail += "" if self.through == "session" else "-scheduler"
            object.__setattr__(self, "name", f"{self.scenario}{detail}")
        return self
