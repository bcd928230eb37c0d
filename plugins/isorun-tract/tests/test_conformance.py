"""isorun's conformance checks on tract."""

import tomllib
from pathlib import Path

from isorun_conformance.suite import Conformance

KNOWN_FAILURES = tomllib.loads(Path(__file__).with_name("known-failures.toml").read_text())


class TestTract(Conformance, backend="tract", known_failures=KNOWN_FAILURES): ...
