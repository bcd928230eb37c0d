"""Numbers and lists as reports show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isorun.quality import Interval

NONE = "-"
_SHOWN = 3


def number(value: float | None) -> str:
    """Three significant digits: 0.123, 4.56, 78.9, 12,300, 1.61M."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 999_500:
        return f"{number(value / 1e6)}M"
    rounded = f"{value:.2e}"
    magnitude = int(rounded.partition("e")[2])
    return f"{float(rounded):,.{max(0, 2 - magnitude)}f}"


def count(value: float) -> str:
    """A whole number."""
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    """A ratio: 1.25 x."""
    return f"{number(value)} x"


def share(value: float) -> str:
    """A share to three places: 0.951."""
    return f"{value:.3f}"


def interval(value: Interval) -> str:
    """A share with its interval: 0.951 (0.940-0.962)."""
    return f"{share(value.value)} ({share(value.low)}-{share(value.high)})"


def cosine(value: float) -> str:
    """A cosine to six places, or its distance from 1 where that is smaller: 0.999742, 1 - 8e-13."""
    return f"1 - {1 - value:.0e}" if 0 < 1 - value < 5e-7 else f"{value:.6f}"


def shortened(names: Sequence[str], separator: str = ", ", last: str = " and ") -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _SHOWN
    return separator.join(names[:_SHOWN]) + (f"{last}{more} more" if more > 0 else "")


def counts(items: Mapping[str, int]) -> str:
    """Counted things: 10 ok, 2 unavailable."""
    return ", ".join(f"{count} {name}" for name, count in items.items())


def versions(packages: Mapping[str, str]) -> str:
    """Packages with their versions."""
    return ", ".join(f"{name} {version}" for name, version in packages.items())
