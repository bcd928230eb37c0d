"""The backends of isorun keep the contract that they are written against."""

from __future__ import annotations

from isorun.testing.conformance import Conformance


class TestOrtCpu(Conformance, backend="ort-cpu"):
    pass


class TestOpenVINO(Conformance, backend="openvino"):
    pass


class TestReference(Conformance, backend="reference"):
    pass
