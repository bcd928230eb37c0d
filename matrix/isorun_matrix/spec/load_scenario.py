"""Load scenarios: how many requests a second a cell answers, and how fast, when requests do not wait for each other."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from isorun_matrix.spec.field_types import Count, Name, OrString, Seconds

_NEEDS = {"closed": "clients", "server": "p99_ms"}


_MOST = 100  # milliseconds of the bound for each second of a measurement
TRIALS = 24
"""How many measurements a search for a rate makes."""


class Load(OrString):
    """A load scenario. A name alone is one without settings: ``single-stream`` or ``offline``."""

    _PATTERN: ClassVar[str] = "^(single-stream|offline)$"

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
        if self.p99_ms is not None and self.p99_ms > _MOST * self.seconds:
            # A queue that grows for so long delays the last requests by less than the bound at any rate.
            raise ValueError(
                f"p99_ms must be at most a tenth of seconds ({_MOST * self.seconds:g}), got {self.p99_ms:g}: in less "
                "time, an overloaded server answers within the bound, too"
            )
        least = self.seconds * (TRIALS if self.scenario == "server" else 1)
        if least >= self.time_limit:
            raise ValueError(f"time_limit must be more than the {least:g} seconds of its measurements")
        if self.workers > 1 and (self.through == "scheduler" or self.scenario == "single-stream"):
            where = "through: scheduler" if self.through == "scheduler" else f"scenario {self.scenario}"
            raise ValueError(f"workers has no effect with {where}. Omit it")
        if self.clients is not None and self.workers > self.clients:
            raise ValueError(f"workers must be at most clients ({self.clients}), got {self.workers}: no more are busy")
        if not self.name:
            detail = "" if self.clients is None else f"-{self.clients}"
            detail += "" if self.p99_ms is None else f"-{self.p99_ms:g}ms"
            detail += "" if self.through == "session" else "-scheduler"
            object.__setattr__(self, "name", f"{self.scenario}{detail}")
        return self
