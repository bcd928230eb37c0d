"""What is bisected: a model on a backend, in environments that differ in one package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isorun import Session
from isorun.errors import EnvironmentBroken, InvalidArgument, InvalidFeeds
from isorun.models.feeds import FeedChecker
from isorun.parity.samples import fixed_size, masked_cases
from isorun.plugin import listing, registry
from isorun.system.cache import sha256
from isorun.types import ModelInfo
from isorun_matrix.execution import environments, rerun
from isorun_matrix.execution.progress import Lines
from isorun_matrix.spec.backends import Entry
from isorun_matrix.spec.reader import entry_problems
from isorun_matrix.spec.spec import Spec

_SEED = 0


@dataclass(frozen=True)
class Subject:
    """A model on a backend.

    Attributes:
        model: the ONNX file, or the folder of a checkpoint.
        package: the distribution whose releases are compared.
        install: what else is installed in each environment, as for pip.
        shape: of the feeds, such as ``8x128``.
        precision, threads, options: of the sessions.
        reference: the backend here that outputs must agree with, where time or memory is measured.
    """

    model: Path
    backend: str
    package: str
    install: tuple[str, ...] = ()
    shape: str = "8x128"
    precision: str = "fp32"
    threads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    reference: str = "reference"

    def environment(self, release: str) -> str:
        """The name of the isolated environment with a release. ``install`` is a part of it: environments stay."""
        more = sha256("\n".join(sorted(self.install)).encode())[:8] if self.install else ""
        return "-".join(filter(None, (self.package, release, more)))

    def spec(self, releases: Sequence[str], rounds: int) -> Spec:
        """A matrix of releases, whose labels they are. Raises ``SpecError`` if the shape, the precision or another
        member is invalid."""
        source = {"checkpoint" if self.model.is_dir() else "path": str(self.model.absolute())}
        widest = "fp64" if "fp64" in registry.get(self.reference).capabilities.precisions else "fp32"
        return rerun.validated(
            {
                "models": {"model": source},
                "environments": {
                    self.environment(release): {"install": [f"{self.package}=={release}", *self.install]}
                    for release in releases
                },
                "backends": [
                    {
                        "name": self.backend,
                        "label": release,
                        "environment": self.environment(release),
                        "options": dict(self.options),
                    }
                    for release in releases
                ],
                "reference": {"backend": self.reference, "precision": widest},
                "shapes": [self.shape],
                "precisions": [self.precision],
                "threads": self.threads,
                "rounds": rounds,
            },
            "What to bisect is invalid",
            Spec,
        )

    def open(self, release: str, progress: Lines, model: Path | None = None, **more: Any) -> Session:
        """A session in the environment of a release, which is created unless it exists.

        Args:
            model: in place of the subject's.
            more: arguments of the session; ``options`` are added to the subject's.

        Raises:
            EnvironmentBroken: the environment cannot be created or used.
        """
        records, _ = environments.make(self.spec([release], 1), progress, any_version=True)
        for record in records.values():
            if record.failure is not None:
                raise EnvironmentBroken(record.failure)
        more |= {"environment": self.environment(release), "precision": self.precision, "threads": self.threads}
        return Session(
            model or self.model, self.backend, **{**more, "options": {**self.options, **more.get("options", {})}}
        )

    def require_settings(self) -> None:
        """Raise ``InvalidArgument`` for settings that one of isorun's backends, which is the same in each environment,
        does not support. What a plugin supports depends on its release."""
        if not any(entry.own for entry in registry.entries() if entry.name == self.backend.partition(":")[0]):
            return
        entry = Entry(name=self.backend, precisions=[self.precision], threads=self.threads, options=dict(self.options))
        for place, problem in entry_problems(entry, (), listing.load):
            if place != ("name",):  # a member of a family that only the environments have
                raise InvalidArgument(problem)

    def require_feeds(self, info: ModelInfo) -> None:
        """Raise ``InvalidFeeds`` if the model does not accept feeds of the shape."""
        try:
            for feeds in self.cases(info).values():
                FeedChecker(info, any_mask=True).check(feeds)
        except InvalidFeeds as error:
            raise InvalidFeeds(f"{self.model} does not accept the shape {self.shape}: {error}. Set --shape") from None

    def cases(self, info: ModelInfo) -> dict[str, dict[str, np.ndarray]]:
        """Feeds of the shape by kind of mask, the same ones in each release."""
        batch, _, sequence = self.shape.partition("x")
        return masked_cases(info, int(batch), int(sequence) if sequence else fixed_size(info.inputs, 1), _SEED)
