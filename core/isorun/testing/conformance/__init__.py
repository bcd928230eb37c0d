"""The checks that every backend has to pass, as a pytest suite. A plugin adopts it in one line of a test file::

    from isorun.testing.conformance import Conformance

    class TestMine(Conformance, backend="mine"): ...

``isorun conformance mine`` runs the same checks and reports which capabilities were proved. Both need pytest
(``pip install 'isorun[test]'``).

A check depends on the capabilities that the backend declares, never on its name. Checks of what is not declared are
skipped, with the reason. The expected outputs are those of ONNX's reference evaluator in fp64.

- ``checks/``: the checks. A new one goes into the file of its subject, or into a new file that is listed below
- ``backend_under_test.py``: the backend, and how the checks open models on it
- ``sample_models.py``, ``formulas.py``: the models, from a single node to bert-base
- ``runner.py``, ``result.py``: runs the suite in a child process, and what that returns
- ``certificate.py``: the result as a document that is kept, and compared with a later one
- ``recorder.py``, ``pytest_target.py``: the pytest plugin and the test file of that child process
"""

from __future__ import annotations

from isorun.errors import IsorunError

try:
    import pytest
except ModuleNotFoundError as error:
    if error.name != "pytest":
        raise
    raise IsorunError("The conformance suite needs pytest. Install it with `pip install 'isorun[test]'`") from error

pytest.register_assert_rewrite(f"{__name__}.checks")

from isorun.testing.conformance.checks.accuracy import Accuracy  # noqa: E402 - after pytest knows what to rewrite
from isorun.testing.conformance.checks.bindings import Bindings  # noqa: E402
from isorun.testing.conformance.checks.circumstances import Circumstances  # noqa: E402
from isorun.testing.conformance.checks.concurrency import Concurrency  # noqa: E402
from isorun.testing.conformance.checks.device_arrays import DeviceArrays  # noqa: E402
from isorun.testing.conformance.checks.discovery import Discovery  # noqa: E402
from isorun.testing.conformance.checks.errors import Errors  # noqa: E402
from isorun.testing.conformance.checks.inputs import Inputs  # noqa: E402
from isorun.testing.conformance.checks.lifetime import Lifetime  # noqa: E402
from isorun.testing.conformance.checks.options import Options  # noqa: E402
from isorun.testing.conformance.checks.outputs import Outputs  # noqa: E402
from isorun.testing.conformance.checks.process_state import ProcessState  # noqa: E402
from isorun.testing.conformance.checks.recovery import Recovery  # noqa: E402
from isorun.testing.conformance.checks.reports import Reports  # noqa: E402
from isorun.testing.conformance.checks.shapes import Shapes  # noqa: E402
from isorun.testing.conformance.checks.threads import Threads  # noqa: E402

__all__ = ["Conformance"]


class Conformance(  # pytest runs the last base first: from simple checks to those of many circumstances
    ProcessState,
    Lifetime,
    Circumstances,
    Recovery,
    Concurrency,
    Errors,
    DeviceArrays,
    Bindings,
    Threads,
    Options,
    Inputs,
    Outputs,
    Shapes,
    Accuracy,
    Reports,
    Discovery,
):
    """All checks. Subclass it in a test file, under a name that pytest collects.

    Keyword arguments of the class:
        backend: the backend's name.
        environment: the isolated environment that it runs in (``isorun env create``); ``None`` for this process.
        options: for ``Session(options=...)``, in every check.
        big: whether to run bert-3l to bert-base too, which takes minutes; ``None`` for
            ``$ISORUN_CONFORMANCE_BIG == "1"``.
        known_failures: name of a check, with its parameters or for any, to the reason why it fails, besides those that
            the backend's table declares (``Capabilities.faults``). One that passes fails the suite.
    """
