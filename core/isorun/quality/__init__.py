"""What an application loses when vectors change: neighbours and rankings, each with a confidence interval."""

from isorun.quality.interval import Interval
from isorun.quality.neighbours import FEWEST, Agreement, K, agreement

__all__ = ["FEWEST", "K", "Agreement", "Interval", "agreement"]
