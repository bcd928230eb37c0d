"""The checks that every backend has to pass, as a pytest suite. A plugin adopts it in one line of a test file::

    from isorun_conformance.suite import Conformance

    class TestMine(Conformance, backend="mine"): ...

``isorun conformance mine`` runs the same checks and reports which capabilities were proved. Both need pytest
(``pip install 'isorun[test]'``).

A check depends on the capabilities that the backend declares, never on its name. Checks of what is not declared are
skipped, with the reason. The expected outputs are those of ONNX's reference evaluator in fp64.
"""

from __future__ import annotations

from isorun_conformance.checks.accuracy import Accuracy
from isorun_conformance.checks.bindings import Bindings
from isorun_conformance.checks.circumstances import Circumstances
from isorun_conformance.checks.concurrency import Concurrency
from isorun_conformance.checks.determinism import Determinism
from isorun_conformance.checks.device_arrays import DeviceArrays
from isorun_conformance.checks.discovery import Discovery
from isorun_conformance.checks.errors import Errors
from isorun_conformance.checks.inputs import Inputs
from isorun_conformance.checks.lifetime import Lifetime
from isorun_conformance.checks.options import Options
from isorun_conformance.checks.outputs import Outputs
from isorun_conformance.checks.process_state import ProcessState
from isorun_conformance.checks.recovery import Recovery
from isorun_conformance.checks.reports import Reports
from isorun_conformance.checks.scripts import Scripts
from isorun_conformance.checks.shapes import Shapes
from isorun_conformance.checks.static_shapes import StaticShapes
from isorun_conformance.checks.threads import Threads
from isorun_conformance.checks.values import Values


class Conformance(  # pytest runs the last base first: from simple checks to those of many circumstances
    ProcessState,
    Lifetime,
    Scripts,
    Circumstances,
    Recovery,
    Concurrency,
    Errors,
    DeviceArrays,
    Bindings,
    Threads,
    Determinism,
    Options,
    Values,
    Inputs,
    Outputs,
    StaticShapes,
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
        device: as for ``Session``, in every check; ``None`` for the backend's first.
        known_failures: checks that fail, by name, with parameters or for any: a mapping to ``KnownFailure`` or to its
            fields, or the path of a TOML or JSON file; besides those that the backend's table declares
            (``Capabilities.faults``). One that passes, or raises another exception, fails the suite.
    """
