"""Load scenarios that cannot say what they are asked."""

from typing import Any

import pydantic
import pytest

from isorun_matrix.spec.load_scenario import Load


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"scenario": "server", "p99_ms": 5000, "seconds": 0.5}, "at most a tenth of seconds"),
        ({"scenario": "server", "p99_ms": 10, "seconds": 100}, "more than the 2400 seconds"),
        ({"scenario": "offline", "seconds": 100, "time_limit": 10}, "more than the 100 seconds"),
        ({"scenario": "offline", "workers": 4, "through": "scheduler"}, "no effect with through: scheduler"),
        ({"scenario": "single-stream", "workers": 4}, "no effect with scenario single-stream"),
        ({"scenario": "closed", "clients": 2, "workers": 3}, r"at most clients \(2\), got 3"),
    ],
)
def test_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=reason):
        Load(**settings)
