"""Known faults of ONNX Runtime's CUDA provider."""

from __future__ import annotations

from isorun.plugin import KnownFailure, KnownFaults

FAULTS = KnownFaults(
    checks={
        "test_unusual_runs_leak_nothing[failing runs]": KnownFailure(
            reason=(
                "after each failed run the model is compiled again, and 1,243 times that left 132 MiB of host memory; "
                "failed runs alone, through InferenceSession, leave none"
            ),
            kind="not_yet",
            exception="AssertionError",
            reference="none: seen on one H200 and not reported yet",
        )
    },
)
