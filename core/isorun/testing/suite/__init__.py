"""The checks that every backend has to pass, as a pytest suite. A plugin adopts it in one line of a test file::

    from isorun.testing.suite import Conformance

    class TestMine(Conformance, backend="mine"): ...

``isorun conformance mine`` runs the same checks and says which capability was proved. Both need pytest
(``pip install 'isorun[test]'``).

A check looks at what the backend's capabilities declare, never at its name: what is not declared is skipped, with
the reason. Answers are compared with those of ONNX's reference evaluator in fp64.

- ``subject.py``: the backend under test, and how the checks open models on it
- ``samples.py``: the models, from one node to bert-base
- ``proofs.py``: what ties a check to the capability that it proves
- ``discovery.py``, ``numerics.py``, ``calls.py``, ``devices.py``, ``failures.py``, ``lifetime.py``, ``claims.py``,
  ``program.py``: the checks
- ``child.py``, ``runner.py``: the suite in a process of its own, and what became of it
"""

from __future__ import annotations

from isorun.errors import IsorunError

try:
    import pytest
except ModuleNotFoundError as error:
    if error.name != "pytest":
        raise
    raise IsorunError("The conformance suite needs pytest. Install it: pip install 'isorun[test]'") from error

_HERE = __name__
pytest.register_assert_rewrite(
    *(f"{_HERE}.{each}" for each in ("discovery", "numerics", "calls", "devices", "failures", "lifetime", "claims")),
    f"{_HERE}.program",
)

from isorun.testing.suite.calls import Calls  # noqa: E402 - after pytest knows whose assertions to explain
from isorun.testing.suite.claims import Claims  # noqa: E402
from isorun.testing.suite.devices import Devices  # noqa: E402
from isorun.testing.suite.discovery import Discovery  # noqa: E402
from isorun.testing.suite.failures import Failures  # noqa: E402
from isorun.testing.suite.lifetime import Lifetime  # noqa: E402
from isorun.testing.suite.numerics import Numerics  # noqa: E402
from isorun.testing.suite.program import Program  # noqa: E402

__all__ = ["Conformance"]


class Conformance(
    Program, Lifetime, Failures, Devices, Calls, Numerics, Claims, Discovery
):  # pytest takes the last base's checks first
    """All checks. Subclass it in a test file, under a name that pytest collects.

    Keyword arguments of the class:
        backend: the backend's name.
        environment: the isolated environment that it runs in (``isorun env create``); ``None`` for this process.
        options: for ``Session(options=...)``, in every check.
        big: whether to run bert-3l to bert-base too, which takes minutes; ``None`` for what
            ``$ISORUN_CONFORMANCE_BIG`` says (``1`` runs them).
    """
