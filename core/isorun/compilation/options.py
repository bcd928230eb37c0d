"""What a session is asked for, before a backend is known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isorun.errors import InvalidArgument, InvalidType
from isorun.system import threads as thread_counts
from isorun.system.arguments import check_choice, check_flag, check_items, check_text, is_number, number_error
from isorun.types.options import plain

AUTO = "auto"
PADDINGS = (AUTO, "keep", "remove")
TOLERANCE = 0.99
"""The minimum cosine of any request's outputs to fp32's, unless a caller sets another."""
QUALITY = 0.9
"""The minimum share of a text's ten nearest neighbours that vectors keep, unless a caller sets another."""

_CALIBRATED = ("int8", AUTO)
_MAX_TIMEOUT = 1e6  # seconds


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of a session that decide how its model is compiled and run, validated.

    Attributes:
        device, precision, padding, deterministic, threads, tolerance, quality, environment, timeout: as for
            :class:`isorun.session.session.Session`.
        backend_options: the session's ``options``: see :meth:`of_backend`.
        calibration: the samples, as a list.

    Raises:
        InvalidArgument: an argument is invalid, or has no effect. What only a backend can tell (its
            devices, precisions and options) is checked by :meth:`isorun.compilation.compiler.Compiler.config`.
    """

    device: str | None = None
    precision: str = "fp32"
    padding: str = AUTO
    deterministic: bool = False
    threads: int | None = None
    tolerance: float | None = None
    quality: float | None = None
    environment: str | None = None
    timeout: float | None = None
    backend_options: Mapping[str, Any] | None = field(default_factory=dict)
    calibration: Iterable[Any] | None = None

    def __post_init__(self) -> None:
        backend_options: Any = self.backend_options
        if backend_options is not None and not isinstance(backend_options, Mapping):
            kind = type(backend_options).__name__
            raise InvalidType(f"options must be a mapping of names to values, got {kind}")
        if self.calibration is not None:
            check_items(self.calibration, "calibration", "texts or of feeds")
        object.__setattr__(self, "threads", thread_counts.check(self.threads))
        check_text(self.precision, "precision")
        check_choice(self.padding, "padding", PADDINGS)
        check_text(self.environment, "environment", optional=True)
        check_text(self.device, "device", optional=True)
        object.__setattr__(self, "deterministic", check_flag(self.deterministic, "deterministic"))
        if self.calibration is not None and self.precision not in _CALIBRATED:
            raise InvalidArgument(
                f"calibration has no effect with precision={self.precision!r}. Use precision='int8' or 'auto'"
            )
        self._check_auto("tolerance", "a cosine")
        self._check_auto("quality", "a share of neighbours")
        self._check_timeout()
        for name in ("tolerance", "quality", "timeout"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        object.__setattr__(self, "backend_options", plain(dict(backend_options or {})))
        object.__setattr__(self, "calibration", None if self.calibration is None else list(self.calibration))

    def of_backend(self, name: str, requested: Collection[str]) -> dict[str, Any]:
        """The options of one of the requested backends: those for all of them, then its own, under its name."""
        options = self.backend_options or {}
        own = {key: value for key, value in options.items() if key in requested and isinstance(value, Mapping)}
        return {key: value for key, value in options.items() if key not in own} | dict(own.get(name, {}))

    @property
    def samples(self) -> Sequence[Any] | None:
        """The calibration samples."""
        return self.calibration  # type: ignore[return-value]  # __post_init__ made it a list

    def _check_auto(self, argument: str, what: str) -> None:
        """Check an argument of ``precision="auto"``."""
        value = getattr(self, argument)
        if value is None:
            return
        if self.precision != AUTO:
            raise InvalidArgument(f"{argument} has no effect with precision={self.precision!r}. Use precision='auto'")
        if not (is_number(value) and 0 < value < 1):
            raise number_error(value)(f"{argument} must be {what} above 0 and below 1, got {value!r}")

    def _check_timeout(self) -> None:
        timeout = self.timeout
        if timeout is None:
            return
        if self.environment is None:
            raise InvalidArgument(
                "`timeout` has no effect without `environment`: a run in this process cannot be interrupted. Omit it, "
                "or run in an environment"
            )
        if not is_number(timeout) or not 0 < timeout <= _MAX_TIMEOUT:
            raise number_error(timeout)(
                f"timeout must be a number of seconds above 0 and at most {_MAX_TIMEOUT:g}, got {timeout!r}"
            )
