"""What is bisected: a model on a backend, in environments that differ in one package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isorun import Session
from isorun.errors import EnvironmentBroken, InvalidFeeds
from isorun.parity.samples import fixed_size, masked_cases
from isorun.plugin import registry
from isorun.types import ModelInfo
from isorun_matrix.execution import environments, rerun
from isorun_matrix.execution.progress import Lines
from isorun_matrix.spec.spec import Spec

_SEED = 0


@dataclass(frozen=True)
class Subject:
    """A model on a backend.

    Attributes:
        model: the ONNX file, or the folder of a checkpoint.
        backend: its name.
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
        """The name of the isolated environment with a release."""
        return f"{self.package}-{release}"

    def spec(self, releases: Sequence[str], rounds: int) -> Spec:
        """A matrix of releases, whose labels they are.

        Raises:
            SpecError: the shape, the precision or another member is invalid.
        """
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
            release: of the package.
            progress: receives the events.
            model: in place of the subject's.
            more: arguments of the session; ``options`` are added to the subject's.

        Raises:
            EnvironmentBroken: the environment cannot be created or used.
        """
        (available,) = environments.make(self.spec([release], 1), progress, any_version=True).values()
        if available.record.failure is not None:
            raise EnvironmentBroken(available.record.failure)
        more |= {"environment": self.environment(release), "precision": self.precision, "threads": self.threads}
        return Session(
            model or self.model, self.backend, **{**more, "options": {**self.options, **more.get("options", {})}}
        )

    def require_feeds(self, info: ModelInfo) -> None:
        """Check that the model accepts feeds of the shape.

        Raises:
            InvalidFeeds: it does not.
        """
        try:
            self.cases(info)
        except InvalidFeeds as error:
            raise InvalidFeeds(f"{self.model} does not accept the shape {self.shape}: {error}. Set --shape") from None

    def cases(self, info: ModelInfo) -> dict[str, dict[str, np.ndarray]]:
        """Feeds of the shape by kind of mask, the same ones in each release."""
        batch, _, sequence = self.shape.partition("x")
        return masked_cases(info, int(batch), int(sequence) if sequence else fixed_size(info.inputs, 1) or 1, _SEED)
